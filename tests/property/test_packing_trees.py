"""Does every folder arrive as it was, whatever is in it, and with as little sent as its changes need?"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_trees import File, Folder, Link, Node, expected, found, make, trees

from harch.base.errors import HarchError
from harch.content.exchange import download, read_tree, upload
from harch.content.file_cache import FileCache
from harch.content.model import ChunkRef, EntryKind, TreeEntry, decode_manifest, encode_manifest
from harch.content.packing import (
    MANIFEST_CHUNK_BYTES_MIN,
    FolderScan,
    OutsideLinks,
    PackedFolder,
    build_tree,
    cut_manifest,
    pack,
    scan,
)
from harch.testing.memory_remote import MemoryRemote

MIB = 1024 * 1024


def scanned(folder: Path) -> FolderScan:
    return scan(folder, rules=None, bytes_max=1 << 40, entries_max=10_000, outside_links=OutsideLinks.KEEP)


def packed(folder: Path) -> PackedFolder:
    return pack(scanned(folder))


@contextmanager
def folders(count: int) -> Iterator[list[Path]]:
    with tempfile.TemporaryDirectory() as root:
        made = [Path(root, str(number)) for number in range(count)]
        for folder in made:
            folder.mkdir()
        yield made


@given(tree=trees(), per_answer=st.sampled_from([1, 3, 8192]))
@settings(max_examples=80)
def test_any_folder_arrives_byte_for_byte_with_its_modes_and_links(tree: dict[str, Node], per_answer: int) -> None:
    with folders(2) as (source, target):
        make(source, tree)
        remote, counted = MemoryRemote(chunks_per_answer=per_answer), []
        sent = packed(source)
        upload(sent, remote, progress=counted.append)
        assert sum(counted) == sent.chunk_bytes
        root, entries = read_tree(sent.digest, remote)
        counted.clear()
        download(entries, target, remote, progress=counted.append)
        assert found(target) == expected(tree)
        assert (
            sum(counted) == root.size_bytes == sum(len(one[2]) for one in expected(tree).values() if one[0] == "file")
        )
        assert packed(target).digest == sent.digest


@given(tree=trees())
@settings(max_examples=40)
def test_equal_folders_have_equal_digests_whatever_their_order_and_times(tree: dict[str, Node]) -> None:
    with folders(2) as (one, other):
        make(one, tree)
        make(other, tree, backwards=True)
        assert packed(one).digest == packed(other).digest


@given(tree=trees(), other=trees())
@settings(max_examples=40)
def test_folders_that_differ_have_other_digests(tree: dict[str, Node], other: dict[str, Node]) -> None:
    with folders(2) as (here, there):
        make(here, tree)
        make(there, other)
        assert (packed(here).digest == packed(there).digest) == (expected(tree) == expected(other))


@given(tree=trees(), before=trees(max_size=5))
@settings(max_examples=60)
def test_a_folder_that_holds_other_things_gets_the_files_and_keeps_what_does_not_stand_in_their_way(
    tree: dict[str, Node], before: dict[str, Node]
) -> None:
    with folders(2) as (source, target):
        make(source, tree)
        make(target, before)
        remote, sent = MemoryRemote(), packed(source)
        upload(sent, remote)
        kept = found(target)
        try:
            download(sent.entries, target, remote)
        except HarchError as error:
            codes = [error.code]
        else:
            codes = []
            assert found(target) == kept | expected(tree)
        if codes:
            assert codes == ["E1113"]
            # Only what stands in the way of a folder, or is one, stops it.
            assert any(
                isinstance(before.get(path), Folder) != isinstance(node, Folder)
                for path, node in tree.items()
                if path in before
            )


@given(tree=trees(), data=st.data())
@settings(max_examples=60)
def test_what_was_cut_at_any_request_ends_right_when_it_is_repeated(tree: dict[str, Node], data: st.DataObject) -> None:
    with folders(2) as (source, target):
        tree = tree | {"large": File(3 * MIB, 9, 0o644)}
        make(source, tree)
        remote, sent = MemoryRemote(chunks_per_answer=2), packed(source)
        for act in (lambda: upload(sent, remote), lambda: download(sent.entries, target, remote)):
            for _ in range(data.draw(st.integers(0, 3))):
                remote.cut_at = remote.requests + data.draw(st.integers(0, 3))
                with suppress(HarchError):
                    act()
            remote.cut_at = None
            act()
        assert remote.missing(sent.ids) == []
        assert found(target) == expected(tree)


def test_edits_in_a_large_file_send_the_chunks_around_them_only() -> None:
    """On average: after an edit the old cuts are mostly found again at once, and now and then some chunks later."""
    draw, remote, edits = random.Random(7), MemoryRemote(), 6
    sent = 0
    with folders(1) as (source,):
        content = draw.randbytes(12 * MIB)
        for edit in range(1 + edits):
            (source / "large").write_bytes(content)
            report = upload(packed(source), remote)
            sent += report.bytes_missing if edit else 0
            at, removed = draw.randrange(len(content)), draw.randrange(4096)
            content = content[:at] + draw.randbytes(draw.randrange(4096)) + content[at + removed :]
    assert sent <= edits * 1.5 * MIB


EDITS = ("write", "append", "truncate", "replace", "remove", "set times", "touch")


@given(
    sizes=st.lists(st.sampled_from([1, 4096, 300_000]), min_size=1, max_size=4),
    edits=st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 3), st.integers(0, 5)), max_size=6),
)
@settings(max_examples=60)
def test_a_cache_never_hides_a_change_even_where_size_and_mtime_are_the_same(
    sizes: list[int], edits: list[tuple[str, int, int]]
) -> None:
    """Each edit comes at once after the folder was packed: within one tick of the clock, if the machine is fast."""
    with folders(2) as (source, caches):
        for number, size in enumerate(sizes):
            (source / str(number)).write_bytes(File(size, number, 0).content)
        for edit in (None, *edits):
            if edit is not None:
                _edit(source / str(edit[1] % len(sizes)), edit[0], edit[2])
            with_cache = pack(scanned(source), cache=FileCache(source, root=caches))
            assert with_cache.digest == packed(source).digest


def _edit(path: Path, what: str, seed: int) -> None:
    if not path.exists():
        path.write_bytes(b"again")
    status = path.stat()
    match what:
        case "write":  # as many bytes, and the same mtime
            path.write_bytes(File(status.st_size, 100 + seed, 0).content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        case "append":
            path.write_bytes(path.read_bytes() + bytes([seed]))
        case "truncate":
            os.truncate(path, status.st_size // 2)
        case "replace":
            (new := path.with_suffix(".new")).write_bytes(File(status.st_size, 200 + seed, 0).content)
            os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
            new.replace(path)
        case "remove":
            path.unlink()
        case "set times":
            os.utime(path, (seed, seed))
        case "touch":
            path.touch()


def entries_of(paths: list[str], chunks: int = 1) -> list[TreeEntry]:
    return [
        TreeEntry(path, EntryKind.FILE, 0o644, tuple(ChunkRef(bytes([n % 256]) * 32, 1 + n) for n in range(chunks)))
        for path in paths
    ]


@given(paths=st.sets(st.text("abcdef", min_size=1, max_size=8), max_size=40), chunks=st.integers(0, 3))
def test_the_chunks_of_a_manifest_are_the_manifest(paths: set[str], chunks: int) -> None:
    entries = entries_of(sorted(paths), chunks)
    assert b"".join(cut_manifest(entries)) == encode_manifest(entries)


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_manifests_are_cut_the_same_at_every_length_that_their_encoding_tells_apart(count: int) -> None:
    entries = entries_of([f"{number:06}" for number in range(count)])
    assert decode_manifest(b"".join(cut_manifest(entries))) == entries
    assert b"".join(cut_manifest(entries)) == encode_manifest(entries)


@given(changed=st.integers(0, 19_999), seed=st.integers(0, 5))
@settings(max_examples=15)
def test_a_file_that_changes_or_comes_makes_few_new_chunks_of_a_large_manifest(changed: int, seed: int) -> None:
    entries = entries_of([f"folder-{seed}/{number:05}" for number in range(20_000)])
    before = build_tree(entries)
    assert len(before.root.manifest) > 5
    sizes = [chunk.size for chunk in before.root.manifest]
    assert all(size >= MANIFEST_CHUNK_BYTES_MIN for size in sizes[:-1])
    other = list(entries)
    other[changed] = TreeEntry(entries[changed].path, EntryKind.FILE, 0o600, entries[changed].chunks)
    more = [*entries, TreeEntry(f"{entries[changed].path}-more", EntryKind.FOLDER, 0o755)]
    # One chunk and the root; and where a file comes, the count at the beginning too, and what it moves to the next cut.
    assert len(build_tree(other).chunks.keys() - before.chunks.keys()) == 2
    assert len(build_tree(more).chunks.keys() - before.chunks.keys()) <= 5


def test_a_file_whose_entry_alone_is_longer_than_a_chunk_can_be_listed() -> None:
    entries = entries_of(["huge"], chunks=60_000)
    tree = build_tree(entries)
    assert len(tree.root.manifest) > 1
    assert decode_manifest(b"".join(tree.chunks[chunk.id] for chunk in tree.root.manifest)) == entries


def test_the_order_in_which_entries_are_listed_changes_nothing() -> None:
    entries = entries_of(["a", "b", "c", "a.b"])
    assert {build_tree(list(order)).digest for order in itertools.permutations(entries)} == {build_tree(entries).digest}


def test_a_link_that_was_a_file_and_a_file_that_was_a_link_are_replaced() -> None:
    with folders(3) as (source, target, outside):
        (outside / "secret").write_text("kept")
        make(source, {"one": Link("two"), "two": File(10, 1, 0o644)})
        make(target, {"one": File(5, 2, 0o644), "two": Link(str(outside / "secret"))})
        remote, sent = MemoryRemote(), packed(source)
        upload(sent, remote)
        download(sent.entries, target, remote)
        assert found(target) == found(source)
        assert (outside / "secret").read_text() == "kept"

"""Is nothing outside of a folder ever written, whatever a tree says and whatever lies in the folder?"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packing_trees import found

from harch.base.errors import HarchError
from harch.content.exchange import download, read_tree
from harch.content.frames import chunk_id
from harch.content.model import (
    ChunkRef,
    EntryKind,
    TreeEntry,
    TreeRoot,
    check_entries,
    encode_manifest,
    encode_root,
)
from harch.testing.memory_remote import MemoryRemote

BAD = b"written by a hostile tree"
_PARTS = st.sampled_from(["..", ".", "", "a", "b", "link", "up", "/", "\\0", "harch"])
_PATHS = st.lists(_PARTS, min_size=1, max_size=4).map("/".join)
_TARGETS = st.sampled_from(["..", "../outside", "/", "a", "b", "../outside/new", ".", "link"])
_REF = ChunkRef(chunk_id(BAD), len(BAD))
_ENTRIES = st.one_of(
    st.builds(TreeEntry, _PATHS, st.just(EntryKind.FILE), st.sampled_from([0o644, 0o6777]), st.just((_REF,))),
    st.builds(TreeEntry, _PATHS, st.just(EntryKind.FILE), st.just(0o644), st.just((_REF, _REF))),
    st.builds(TreeEntry, _PATHS, st.just(EntryKind.FOLDER), st.sampled_from([0o755, 0o7777])),
    st.builds(TreeEntry, _PATHS, st.just(EntryKind.LINK), st.just(0o777), st.just(()), _TARGETS),
)
_PLANTED = st.dictionaries(
    st.sampled_from(["a", "b", "link", "a/b", "a/link"]),
    st.sampled_from(["outside", "outside/file", "outside/new", "folder", "fifo", "hard link"]),
    max_size=4,
)


def plant(target: Path, outside: Path, what: dict[str, str]) -> None:
    """What somebody who can write to the folder puts there to have other files written."""
    for path in sorted(what):
        place = target / path
        with suppress(OSError):
            match what[path]:
                case "folder":
                    place.mkdir()
                case "fifo":
                    os.mkfifo(place)
                case "hard link":
                    os.link(outside / "file", place)
                case where:
                    place.symlink_to(outside.parent / where)


@given(entries=st.lists(_ENTRIES, max_size=5), planted=_PLANTED)
@example([TreeEntry("link/new", EntryKind.FILE, 0o644, (_REF,))], {"link": "outside"})
@example([TreeEntry("a/b/new", EntryKind.FILE, 0o644, (_REF,))], {"a": "folder", "a/b": "outside"})
@example([TreeEntry("a", EntryKind.FILE, 0o644, (_REF,))], {"a": "outside/file"})
@example([TreeEntry("a", EntryKind.FILE, 0o755, (_REF,))], {"a": "hard link"})
@example([TreeEntry("link", EntryKind.FOLDER, 0o711)], {"link": "outside"})
@example([TreeEntry("link/a", EntryKind.LINK, 0o777, (), "b")], {"link": "outside"})
@settings(max_examples=150)
def test_no_tree_and_no_planted_link_changes_anything_outside(
    entries: list[TreeEntry], planted: dict[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        target, outside = Path(root, "target"), Path(root, "outside")
        target.mkdir()
        outside.mkdir()
        (outside / "file").write_bytes(BAD)  # equal content: not even its mode may change
        plant(target, outside, planted)
        remote = MemoryRemote()
        remote.chunks[_REF.id] = BAD
        before = found(outside)
        with suppress(HarchError):
            download(entries, target, remote)
        assert found(outside) == before
        assert sorted(os.listdir(root)) == ["outside", "target"]


@given(entries=st.lists(_ENTRIES, min_size=1, max_size=5))
@settings(max_examples=100)
def test_a_tree_is_refused_before_anything_is_written_if_any_entry_of_it_is_bad(entries: list[TreeEntry]) -> None:
    with tempfile.TemporaryDirectory() as root:
        try:
            check_entries(entries)
        except HarchError:
            with pytest.raises(HarchError) as refused:
                download(entries, Path(root, "target"), MemoryRemote())
            assert refused.value.code == "E1105"
            assert os.listdir(root) == []


def served(remote: MemoryRemote, entries: list[TreeEntry], *, size_bytes: int, files: int) -> str:
    """The digest of a tree whose root says what it likes."""
    manifest = encode_manifest(entries)
    root = encode_root(TreeRoot(1, size_bytes, files, (ChunkRef(chunk_id(manifest), len(manifest)),)))
    remote.chunks |= {chunk_id(manifest): manifest, chunk_id(root): root}
    return chunk_id(root).hex()


def test_a_root_that_says_less_than_its_files_are_is_refused() -> None:
    remote = MemoryRemote()
    entries = [TreeEntry("a", EntryKind.FILE, 0o644, (_REF,))]
    assert read_tree(served(remote, entries, size_bytes=len(BAD), files=1), remote)[1] == entries
    for size_bytes, files in ((0, 1), (len(BAD), 0)):
        with pytest.raises(HarchError) as refused:
            read_tree(served(remote, entries, size_bytes=size_bytes, files=files), remote)
        assert refused.value.code == "E1105"


def test_a_manifest_with_a_path_that_leads_out_is_refused_when_it_is_read() -> None:
    remote = MemoryRemote()
    digest = served(remote, [TreeEntry("../a", EntryKind.FILE, 0o644, (_REF,))], size_bytes=len(BAD), files=1)
    with pytest.raises(HarchError) as refused:
        read_tree(digest, remote)
    assert refused.value.code == "E1105"


@pytest.mark.parametrize("digest", ["", "xyz", "A" * 64, "0" * 63])
def test_what_is_no_digest_is_not_even_asked_for(digest: str) -> None:
    remote = MemoryRemote()
    with pytest.raises(HarchError) as refused:
        read_tree(digest, remote)
    assert refused.value.code == "E1105"
    assert remote.requests == 0


@pytest.mark.parametrize("size", [1, len(BAD) - 1, len(BAD) + 1])
def test_a_tree_that_lies_about_the_size_of_a_chunk_is_refused(tmp_path: Path, size: int) -> None:
    remote = MemoryRemote()
    remote.chunks[_REF.id] = BAD
    with pytest.raises(HarchError) as refused:
        download([TreeEntry("a", EntryKind.FILE, 0o644, (ChunkRef(_REF.id, size),))], tmp_path / "to", remote)
    assert refused.value.code == "E1105"
    assert not (tmp_path / "to" / "a").exists()

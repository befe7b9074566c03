"""Nothing in a tree leads out of the folder that it is unpacked into, whoever made it."""

from __future__ import annotations

import msgspec
import pytest

from harch.content.model import (
    CHUNK_BYTES_MAX,
    ENTRIES_MAX,
    MANIFEST_BYTES_MAX,
    ROOT_VERSION,
    TREE_BYTES_MAX,
    ChunkRef,
    EntryKind,
    TreeEntry,
    TreeRoot,
    chunks_of,
    decode_manifest,
    decode_root,
    encode_manifest,
    encode_root,
    is_digest,
    path_problem,
)
from unit.content_store.content_samples import refused

CHUNK = ChunkRef(bytes(32), 10)
FILE, FOLDER, LINK = EntryKind.FILE, EntryKind.FOLDER, EntryKind.LINK


@pytest.mark.parametrize(
    "path",
    ["a", "a/b.txt", ".hidden", "...", "a b", "häuser/日本", "x" * 255, "/".join(["x" * 200] * 20), "-rf", "a\nb", "~"],
)
def test_ordinary_paths_are_allowed(path: str) -> None:
    assert path_problem(path) == ""
    assert decode_manifest(encode_manifest([TreeEntry(path, FILE)]))[0].path == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/etc/passwd",
        "..",
        ".",
        "../x",
        "a/../b",
        "a/..",
        "a/./b",
        "./a",
        "a//b",
        "a/",
        "a\0b",
        "x" * 256,
        "ü" * 128,
        "a/" + "ü" * 128,
        "/".join(["x" * 200] * 21),
        "/".join(["ü" * 100] * 21),
        "\udc80",
    ],
)
def test_paths_that_lead_astray_are_refused(path: str) -> None:
    assert path_problem(path)
    if path != "\udc80":  # cannot even be encoded
        with refused("E1105"):
            decode_manifest(encode_manifest([TreeEntry(path, FILE)]))


@pytest.mark.parametrize(
    "entries",
    [
        [TreeEntry("a", FILE), TreeEntry("a", FOLDER)],
        [TreeEntry("a", LINK, target="/etc"), TreeEntry("a/passwd", FILE)],
        [TreeEntry("a", FILE), TreeEntry("a/b", FILE)],
        [TreeEntry("a/b", LINK, target=".."), TreeEntry("a/b/c/d", FILE)],
        [TreeEntry("a/b", FILE), TreeEntry("a/b/c", FILE), TreeEntry("a/b/d", FILE)],
        [TreeEntry("a", LINK)],
        [TreeEntry("a", LINK, target="b\0c")],
        [TreeEntry("a", FOLDER, chunks=(CHUNK,))],
        [TreeEntry("a", LINK, target="b", chunks=(CHUNK,))],
        [TreeEntry("a", FILE, chunks=(ChunkRef(bytes(31), 10),))],
        [TreeEntry("a", FILE, chunks=(ChunkRef(bytes(32), 0),))],
        [TreeEntry("a", FILE, chunks=(ChunkRef(bytes(32), CHUNK_BYTES_MAX + 1),))],
        [TreeEntry("a", FILE, chunks=(ChunkRef(bytes(32), -1),))],
    ],
)
def test_impossible_entries_are_refused(entries: list[TreeEntry]) -> None:
    with refused("E1105"):
        decode_manifest(encode_manifest(entries))


def test_folders_of_a_path_need_no_entry_and_may_have_one() -> None:
    entries = [TreeEntry("a/b/c", FILE), TreeEntry("a/b/d", FILE), TreeEntry("a", FOLDER), TreeEntry("a.b", FILE)]
    assert [entry.path for entry in decode_manifest(encode_manifest(entries))] == ["a", "a.b", "a/b/c", "a/b/d"]


def test_a_manifest_has_at_most_so_many_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harch.content.model.ENTRIES_MAX", 2)
    decode_manifest(encode_manifest([TreeEntry("a", FILE), TreeEntry("b", FILE)]))
    with refused("E1105"):
        decode_manifest(encode_manifest([TreeEntry(name, FILE) for name in "abc"]))


@pytest.mark.parametrize(
    "root",
    [
        TreeRoot(ROOT_VERSION + 1, 0, 0, ()),
        TreeRoot(ROOT_VERSION, -1, 0, ()),
        TreeRoot(ROOT_VERSION, TREE_BYTES_MAX + 1, 0, ()),
        TreeRoot(ROOT_VERSION, 0, -1, ()),
        TreeRoot(ROOT_VERSION, 0, ENTRIES_MAX + 1, ()),
        TreeRoot(ROOT_VERSION, 0, 0, (CHUNK,) * 16_385),
        TreeRoot(
            ROOT_VERSION, 0, 0, (ChunkRef(bytes(32), CHUNK_BYTES_MAX),) * (MANIFEST_BYTES_MAX // CHUNK_BYTES_MAX + 1)
        ),
        TreeRoot(ROOT_VERSION, 0, 0, (ChunkRef(b"short", 5),)),
    ],
)
def test_impossible_roots_are_refused(root: TreeRoot) -> None:
    with refused("E1105"):
        decode_root(encode_root(root))


@pytest.mark.parametrize("data", [b"", b"no tree", msgspec.msgpack.encode({"version": 1}), msgspec.msgpack.encode([1])])
def test_other_bytes_are_neither_root_nor_manifest(data: bytes) -> None:
    with refused("E1105"):
        decode_root(data)
    with refused("E1105"):
        decode_manifest(data)


def test_each_chunk_of_a_tree_is_named_once() -> None:
    one, two = ChunkRef(b"1" * 32, 1), ChunkRef(b"2" * 32, 2)
    entries = [TreeEntry("a", FILE, chunks=(one, two, one)), TreeEntry("b", FILE, chunks=(two,))]
    found = list(chunks_of(bytes(32), 9, TreeRoot(ROOT_VERSION, 6, 2, (two,)), entries))
    assert found == [ChunkRef(bytes(32), 9), two, one]


def test_digests_are_64_lower_case_hexadecimal_digits() -> None:
    assert is_digest("0a" * 32)
    assert not any(map(is_digest, ["", "0A" * 32, "0a" * 31, "0a" * 33, "0a" * 32 + "\n", "g" * 64]))

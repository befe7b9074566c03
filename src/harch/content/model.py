"""What is content made of? Chunks named by their hash, and trees of files made of chunks.

A chunk is named by the BLAKE3 hash of its raw bytes. A tree is a manifest (one entry per file, sorted by path), cut
into chunks itself, and a root that lists those chunks. The digest of a tree is the name of the chunk that holds its
root, so one name vouches for every byte below it. Times and owners are no part of a tree: equal files make equal
digests.
"""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import IntEnum

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError

CHUNK_BYTES_MAX = 2 * 1024 * 1024  # raw
DIGEST_BYTES = 32
PATH_BYTES_MAX = 4096
NAME_BYTES_MAX = 255
ENTRIES_MAX = 1_000_000
TREE_BYTES_MAX = 64 * 1024**4
MANIFEST_BYTES_MAX = 1024**3
ROOT_CHUNKS_MAX = 16_384  # of a manifest: with chunks of half a megabyte far more than `MANIFEST_BYTES_MAX`
_NO_PARTS = frozenset(("", ".", ".."))
_DIGEST = re.compile("[0-9a-f]{64}")


class ChunkRef(Struct, frozen=True, array_like=True, gc=False):
    """A chunk by its name, with the size of its raw bytes."""

    id: bytes
    size: int


class EntryKind(IntEnum):
    FILE = 0
    FOLDER = 1
    LINK = 2


class TreeEntry(Struct, frozen=True, array_like=True, gc=False):
    """One path of a tree, relative and with `/`. Of the mode only the permission bits count."""

    path: str
    kind: EntryKind
    mode: int = 0o644
    chunks: tuple[ChunkRef, ...] = ()  # of a file, in order
    target: str = ""  # of a symbolic link

    @property
    def size(self) -> int:
        return sum(chunk.size for chunk in self.chunks)


class TreeRoot(Struct, frozen=True, array_like=True, gc=False):
    """What the digest of a tree names. `size_bytes` and `files` count what the manifest lists."""

    version: int
    size_bytes: int
    files: int
    manifest: tuple[ChunkRef, ...]


ROOT_VERSION = 1

_encode = msgspec.msgpack.Encoder().encode
_decode_root = msgspec.msgpack.Decoder(TreeRoot).decode
_decode_entries = msgspec.msgpack.Decoder(list[TreeEntry]).decode


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def encode_root(root: TreeRoot) -> bytes:
    return _encode(root)


def decode_root(data: bytes) -> TreeRoot:
    """Raises E1105 for anything that is not a root that this version can read."""
    try:
        root = _decode_root(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"its root cannot be read: {error}") from error
    if root.version != ROOT_VERSION:
        raise invalid(f"it has version {root.version}, this program knows {ROOT_VERSION}")
    if not 0 <= root.files <= ENTRIES_MAX or not 0 <= root.size_bytes <= TREE_BYTES_MAX:
        raise invalid("it claims to be larger than any tree may be")
    if len(root.manifest) > ROOT_CHUNKS_MAX or sum(chunk.size for chunk in root.manifest) > MANIFEST_BYTES_MAX:
        raise invalid("its manifest is too large")
    check_chunks(root.manifest)
    return root


def encode_manifest(entries: Iterable[TreeEntry]) -> bytes:
    """Sorted by path, so that equal trees have equal digests."""
    return _encode(sorted(entries, key=lambda entry: entry.path))


def decode_manifest(data: bytes) -> list[TreeEntry]:
    """Every entry checked: nothing in a tree may lead out of the folder that it is unpacked into. Raises E1105."""
    try:
        entries = _decode_entries(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"its manifest cannot be read: {error}") from error
    check_entries(entries)
    return entries


def check_entries(entries: list[TreeEntry]) -> None:
    """Raises E1105 for the first entry that no tree may have."""
    if len(entries) > ENTRIES_MAX:
        raise invalid(f"it has {len(entries)} entries; at most {ENTRIES_MAX} are allowed")
    kinds: dict[str, EntryKind] = {}
    for entry in entries:
        why = path_problem(entry.path)
        if why:
            raise invalid(f"the path `{entry.path[:200]}` {why}")
        if entry.path in kinds:
            raise invalid(f"`{entry.path[:200]}` is in it twice")
        kinds[entry.path] = entry.kind
        if entry.kind is not EntryKind.FILE and entry.chunks:
            raise invalid(f"`{entry.path[:200]}` is no file, but has content")
        if entry.kind is EntryKind.LINK and (not entry.target or "\0" in entry.target):
            raise invalid(f"the link `{entry.path[:200]}` has no target")
        check_chunks(entry.chunks)
    parents: set[str] = set()
    for path in kinds:  # nothing is unpacked through a link or below a file
        parent = path.rpartition("/")[0]
        while parent and parent not in parents:
            if kinds.get(parent, EntryKind.FOLDER) is not EntryKind.FOLDER:
                raise invalid(f"`{path[:200]}` lies below `{parent[:200]}`, which is no folder")
            parents.add(parent)
            parent = parent.rpartition("/")[0]


def check_chunks(chunks: tuple[ChunkRef, ...]) -> None:
    for chunk in chunks:
        if len(chunk.id) != DIGEST_BYTES or not 0 < chunk.size <= CHUNK_BYTES_MAX:
            raise invalid("it names a chunk that cannot be one")


def path_problem(path: str) -> str:
    """Why this is no path of a tree; empty if it is one."""
    if not path:
        return "is empty"
    if path.startswith("/"):
        return "is absolute"
    if "\0" in path:
        return "has a NUL character"
    try:
        size = len(path) if path.isascii() else len(path.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    if size > PATH_BYTES_MAX:
        return f"is longer than {PATH_BYTES_MAX} bytes"
    parts = path.split("/")
    for part in parts:
        if part in _NO_PARTS:
            return f"has the part `{part}`"
    if size > NAME_BYTES_MAX and any(len(part.encode()) > NAME_BYTES_MAX for part in parts):
        return f"has a part longer than {NAME_BYTES_MAX} bytes"
    return ""


def chunks_of(root_id: bytes, root_size: int, root: TreeRoot, entries: Iterable[TreeEntry]) -> Iterator[ChunkRef]:
    """Every chunk of a tree once: its root, its manifest, its files."""
    seen: set[bytes] = set()
    for chunk in (ChunkRef(root_id, root_size), *root.manifest):
        if chunk.id not in seen:
            seen.add(chunk.id)
            yield chunk
    for entry in entries:
        for chunk in entry.chunks:
            if chunk.id not in seen:
                seen.add(chunk.id)
                yield chunk


def invalid(why: str) -> HarchError:
    return HarchError("E1105", f"this is no valid tree: {why}", hint="pack the folder again")

"""How do chunks move between a folder and a hub? Only those that are missing, several requests at a time.

A `ChunkRemote` is whatever has or takes chunks: a hub as its users see it, or as its agents do. Nothing is tried again
here: a remote knows which of its failures are worth it, and raises the others. What was cut is called again, and does
only what is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import Struct

from harch.base.errors import HarchError
from harch.content.frames import BATCH_CHUNKS_MAX, decode_frames, frame_head, pack_chunk, unpack_chunk
from harch.content.model import (
    ChunkRef,
    EntryKind,
    TreeEntry,
    TreeRoot,
    decode_manifest,
    decode_root,
    invalid,
    is_digest,
)
from harch.content.packing import PackedFolder, Progress, no_progress
from harch.content.parallel import for_each
from harch.content.unpacking import TreeWriter
from harch.wire.content import ChunksStored

# Raw bytes of one request. Compressed or not they fit into `BATCH_BYTES_MAX` with their heads; a connection of 1 Gbit/s
# and 45 ms is full with two of them under way; and no more than this is sent again after a cut.
REQUEST_BYTES = 8 * 1024 * 1024
REQUESTS_AT_ONCE = 3  # each holds its chunks in memory, once raw and once compressed


class ChunkRemote(Protocol):
    """May be called from several threads at a time."""

    def missing(self, ids: Sequence[bytes]) -> list[bytes]:
        """Which of these it does not have; at most `BATCH_CHUNKS_MAX` are named."""
        ...

    def put(self, body: bytes) -> ChunksStored:
        """Takes frames, of at most `BATCH_BYTES_MAX`."""
        ...

    def fetch(self, ids: Sequence[bytes]) -> bytes:
        """Frames of these, or of the first of them. Raises E1102 for chunks that it does not have."""
        ...


class UploadReport(Struct, frozen=True, kw_only=True):
    """What an upload came to. `bytes_sent` counts what travelled, `bytes_missing` the same chunks unpacked."""

    chunks: int
    chunks_sent: int
    bytes_missing: int
    bytes_sent: int


def upload(
    packed: PackedFolder,
    remote: ChunkRemote,
    *,
    progress: Progress = no_progress,
    threads: int = REQUESTS_AT_ONCE,
) -> UploadReport:
    """Sends what the remote lacks. `progress` counts up to `packed.chunk_bytes`; an exception that it raises stops it.

    Raises E1106 for a file that has changed since it was packed, and whatever the remote raises.
    """
    count = _serialised(progress)
    sent: list[tuple[int, int, int]] = []  # of each request: chunks, bytes, bytes as they travelled

    def requests() -> Iterator[list[bytes]]:
        for names in _batches(packed.ids, BATCH_CHUNKS_MAX):
            lacking = set(remote.missing(names))
            count(sum(packed.size_of(name) for name in names if name not in lacking))
            yield from _by_size([ChunkRef(name, packed.size_of(name)) for name in names if name in lacking])

    def send(names: list[bytes]) -> None:
        frames = [pack_chunk(packed.raw(name), chunk=name) for name in names]
        body = b"".join(piece for frame in frames for piece in (frame_head(frame), frame.payload))
        remote.put(body)
        size = sum(packed.size_of(name) for name in names)
        sent.append((len(names), size, len(body)))
        count(size)

    for_each(requests(), send, threads=threads)
    return UploadReport(
        chunks=len(packed.ids),
        chunks_sent=sum(chunks for chunks, _, _ in sent),
        bytes_missing=sum(size for _, size, _ in sent),
        bytes_sent=sum(travelled for _, _, travelled in sent),
    )


def read_tree(digest: str, remote: ChunkRemote) -> tuple[TreeRoot, list[TreeEntry]]:
    """The list of files. Raises E1105 for what is no tree, E1102 and E1101 for what cannot be had as it should be."""
    if not is_digest(digest):
        raise invalid(f"`{digest[:80]}` is no digest")
    name = bytes.fromhex(digest)
    root = decode_root(_fetch_raw([name], remote)[name])
    pieces: dict[bytes, bytes] = {}
    for names in _by_size(root.manifest):
        pieces |= _fetch_raw(names, remote)
    entries = decode_manifest(b"".join(pieces[chunk.id] for chunk in root.manifest))
    files = [entry for entry in entries if entry.kind is EntryKind.FILE]
    if (len(files), sum(entry.size for entry in files)) != (root.files, root.size_bytes):
        raise invalid("its files are not what its root says")
    return root, entries


def download(
    entries: list[TreeEntry],
    folder: Path,
    remote: ChunkRemote,
    *,
    progress: Progress = no_progress,
    read_only: bool = False,
    within: Path | None = None,
    threads: int = REQUESTS_AT_ONCE,
) -> None:
    """Makes a folder hold these files; what else is in it stays. Files that are right already are kept.

    `progress` counts up to the sum of all files; an exception that it raises stops it, and what has come so far is
    used next time. `within`: a folder that others can write to; no link below it is followed on the way to `folder`.
    Raises E1105 for entries that no tree may have, E1113 for what cannot be written, E1101, and what the remote raises.
    """
    count = _serialised(progress)
    with TreeWriter(entries, folder, read_only=read_only, within=within, progress=count) as writer:

        def write(batch: _Batch) -> None:
            for name, raw in _fetched(list(batch.places), remote):
                for place in batch.places[name]:
                    if len(raw) != place.size:
                        raise invalid(f"chunk {name.hex()[:16]} has {len(raw)} bytes, and not {place.size}")
                    writer.write(place.number, place.at, raw)
                    count(len(raw))

        for_each(_wanted_batches(writer), write, threads=threads)
        writer.finish()


class _Place(NamedTuple):
    """Where a chunk belongs: in which entry, at which byte."""

    number: int
    at: int
    size: int


class _Batch(NamedTuple):
    """What one request brings. A chunk that stands in several places is fetched once."""

    places: dict[bytes, list[_Place]]


def _wanted_batches(writer: TreeWriter) -> Iterator[_Batch]:
    batch, size, count = _Batch({}), 0, 0
    for number, at, chunk in writer.wanted():
        place = _Place(number, at, chunk.size)
        known = batch.places.get(chunk.id)
        is_full = count == BATCH_CHUNKS_MAX or (known is None and size + chunk.size > REQUEST_BYTES)
        if is_full and batch.places:
            yield batch
            batch, size, count, known = _Batch({}), 0, 0, None
        if known is None:
            batch.places[chunk.id] = [place]
            size += chunk.size
        else:
            known.append(place)
        count += 1
    if batch.places:
        yield batch


def _fetch_raw(names: Sequence[bytes], remote: ChunkRemote) -> dict[bytes, bytes]:
    return dict(_fetched(names, remote))


def _fetched(names: Sequence[bytes], remote: ChunkRemote) -> Iterator[tuple[bytes, bytes]]:
    """Each chunk once, with its bytes, which are what its name says. An answer that leaves some out is asked for the
    rest, as long as each brings something."""
    lacking = dict.fromkeys(names)
    while lacking:
        before = len(lacking)
        for frame in decode_frames(remote.fetch(list(lacking))):
            if frame.id in lacking:  # what nobody has asked for is not even unpacked
                raw = unpack_chunk(frame)
                del lacking[frame.id]
                yield frame.id, raw
        if len(lacking) == before:
            name = next(iter(lacking))
            raise HarchError("E1102", f"chunk {name.hex()[:16]} was not sent", hint="try again")


def _by_size(chunks: Iterable[ChunkRef]) -> Iterator[list[bytes]]:
    names: list[bytes] = []
    size = 0
    for chunk in chunks:
        if names and (size + chunk.size > REQUEST_BYTES or len(names) == BATCH_CHUNKS_MAX):
            yield names
            names, size = [], 0
        names.append(chunk.id)
        size += chunk.size
    if names:
        yield names


def _batches(names: Sequence[bytes], count: int) -> Iterator[Sequence[bytes]]:
    for at in range(0, len(names), count):
        yield names[at : at + count]


def _serialised(progress: Progress) -> Callable[[int], None]:
    """One call at a time: whoever shows progress need not know of threads."""
    lock = threading.Lock()

    def count(size: int) -> None:
        with lock:
            progress(size)

    return count

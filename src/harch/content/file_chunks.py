"""Into which chunks does an open file fall, and which of those are as they were?

A chunk ends where its own bytes say so, and nothing before or behind it counts (the last one of a file aside). So where
the bytes that follow are those of a chunk that the file had before, that is how it is cut there, and comparing hashes
is ten times as cheap as looking for the cut. After an edit, only what lies around it is searched: once a chunk is found
that the file had, those that followed it are tried again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from harch.content import chunking
from harch.content.frames import chunk_id
from harch.content.model import CHUNK_BYTES_MAX, ChunkRef

BUFFER_BYTES = 2 * CHUNK_BYTES_MAX  # a longest chunk always ends in it


class FileChunks(NamedTuple):
    """In order. `tail` holds the bytes of the last one."""

    chunks: tuple[ChunkRef, ...]
    tail: bytes


def cut_file(
    descriptor: int, size: int, *, before: Sequence[ChunkRef] = (), buffer: memoryview | None = None
) -> FileChunks | None:
    """None if it has fewer bytes than `size` by now. `before`: the chunks that it had when it was cut last.

    `buffer`: of `BUFFER_BYTES`, for callers with many files.
    """
    if size <= chunking.CHUNK_BYTES_MIN:
        raw = read_exactly(descriptor, size, 0)
        if len(raw) < size:
            return None
        return FileChunks((ChunkRef(chunk_id(raw), size),) if size else (), raw)
    view = buffer if buffer is not None else memoryview(bytearray(BUFFER_BYTES))
    search = _Search(before)
    at = held = 0
    while at < size:
        count = os.preadv(descriptor, [view[held : min(len(view), held + size - at)]], at)
        if count == 0:
            return None
        at, held = at + count, held + count
        if held < len(view) and at < size:
            continue  # a read may give less than there is
        done = search.run(view[:held], is_last=at == size)
        if at == size:
            break
        view[: held - done] = view[done:held]
        held -= done
    return FileChunks(tuple(search.found), bytes(view[held - search.found[-1].size : held]))


class _Search:
    """The chunks of one file, found from its beginning to its end."""

    def __init__(self, before: Sequence[ChunkRef]) -> None:
        self.found: list[ChunkRef] = []
        # The last chunk was cut by the end of the file, and would go on where the file does.
        self._last = before[-1].id if before else b""
        self._following = {one.id: other for one, other in pairwise(before)}
        self._expected = before[0] if before else None

    def run(self, view: memoryview, *, is_last: bool) -> int:
        """Adds the chunks that end in `view`, which begins with one; returns where the last of them ends."""
        at = 0
        while at < len(view):
            expected = self._expected
            if expected is not None:
                end = at + expected.size
                if end > len(view) and not is_last:
                    return at  # it cannot be compared before more is read
                if end <= len(view) and (expected.id != self._last or (is_last and end == len(view))):
                    name = chunk_id(view[at:end])
                    if name == expected.id:
                        self._add(name, expected.size)
                        at = end
                        continue
                self._expected = None
            end = self._cut(view, at, is_last=is_last)
            if end == at:
                return at
            at = end
        return at

    def _cut(self, view: memoryview, begin: int, *, is_last: bool) -> int:
        """Adds chunks from `begin` on, up to one that is followed by what the file had before; returns its end."""
        # With something to find again, no further than one chunk may reach: what is cut behind it is cut for nothing.
        end = min(len(view), begin + CHUNK_BYTES_MAX) if self._following else len(view)
        at = begin
        for length in chunking.cut(view[begin:end], is_last=is_last and end == len(view)):
            piece = view[at : begin + length]
            at = begin + length
            self._add(chunk_id(piece), len(piece))
            if self._expected is not None:
                break
        return at

    def _add(self, name: bytes, size: int) -> None:
        self.found.append(ChunkRef(name, size))
        self._expected = self._following.get(name)


def read_exactly(descriptor: int, size: int, at: int) -> bytes:
    """Less only where the file ends."""
    raw = os.pread(descriptor, size, at)
    while len(raw) < size and (more := os.pread(descriptor, size - len(raw), at + len(raw))):
        raw += more
    return raw

"""Where do chunks go in a test without a hub? To a dictionary, which counts what travels and can be cut at will."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from harch.base.errors import HarchError
from harch.content.frames import decode_frames, decode_ids, encode_frame, encode_ids, pack_chunk, unpack_chunk
from harch.wire.content import ChunksStored


class MemoryRemote:
    """A `ChunkRemote`. Requests from number `cut_at` on fail with E1113, until it is set to None."""

    def __init__(self, *, cut_at: int | None = None, chunks_per_answer: int = 8192) -> None:
        self.chunks: dict[bytes, bytes] = {}
        self.cut_at = cut_at
        self.requests = 0
        self.bytes_received = 0
        self.fetched: list[bytes] = []
        self._chunks_per_answer = chunks_per_answer
        self._lock = threading.Lock()

    def missing(self, ids: Sequence[bytes]) -> list[bytes]:
        self._count()
        return [name for name in decode_ids(encode_ids(ids)) if name not in self.chunks]

    def put(self, body: bytes) -> ChunksStored:
        self._count()
        received = {frame.id: unpack_chunk(frame) for frame in decode_frames(body)}
        with self._lock:
            known = sum(name in self.chunks for name in received)
            self.chunks |= received
            self.bytes_received += len(body)
        return ChunksStored(stored=len(received) - known, known=known, bytes=len(body))

    def fetch(self, ids: Sequence[bytes]) -> bytes:
        self._count()
        for name in ids:
            if name not in self.chunks:
                raise HarchError("E1102", f"chunk {name.hex()[:16]} is not here")
        answered = list(ids[: self._chunks_per_answer])
        with self._lock:
            self.fetched += answered
        return b"".join(encode_frame(pack_chunk(self.chunks[name], chunk=name)) for name in answered)

    def _count(self) -> None:
        with self._lock:
            number, self.requests = self.requests, self.requests + 1
        if self.cut_at is not None and number >= self.cut_at:
            raise HarchError("E1113", "the connection was cut", hint="try again")

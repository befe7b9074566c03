"""Which connection fetches which chunk next? Work is shared while it is done; nothing that arrived is fetched twice.

Every connection has so much requested as the round trip needs, and less towards the end, so that all of them end
together. What a connection had requested when it was cut goes to the front; the beginning of a chunk is kept, and
whoever takes the chunk next goes on from there.
"""

# harch: pure

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from harch.base.errors import HarchError
from harch.content.model import CHUNK_BYTES_MAX, ChunkRef, check_chunks
from harch.federation.bulk.protocol import REQUESTED_MAX, ChunkRequest, PartialChunk

WINDOW_BYTES = 16 * 1024 * 1024  # of one connection: 2.8 Gbit/s over 45 ms
WINDOW_CHUNKS = REQUESTED_MAX // 2
DAMAGED_MAX = 2  # of one chunk: bytes change on the way once in a blue moon, and in a damaged store always


class FetchPlan:
    """The chunks of one transfer: to be requested, on their way, arrived. Sizes are those of raw bytes.

    Raises E1105 for names or sizes that no chunk has.
    """

    def __init__(self, wanted: Iterable[ChunkRef], *, connections: int, window_bytes: int = WINDOW_BYTES) -> None:
        sizes = {chunk.id: chunk for chunk in wanted}
        check_chunks(tuple(sizes.values()))
        self._pending = deque(sizes.values())
        self._connections = connections
        self._window_bytes = window_bytes
        self._requested: dict[int, dict[bytes, ChunkRef]] = {}
        self._requested_bytes: dict[int, int] = {}
        self._partial: dict[bytes, PartialChunk] = {}
        self._damaged: dict[bytes, int] = {}
        self.chunks_total = len(sizes)
        self.chunks_done = 0
        self.bytes_total = self._bytes_left = sum(chunk.size for chunk in sizes.values())

    @property
    def is_done(self) -> bool:
        return self.chunks_done == self.chunks_total

    @property
    def bytes_done(self) -> int:
        return self.bytes_total - self._bytes_left

    @property
    def bytes_held(self) -> int:
        """Memory of beginnings that wait for their rest."""
        return sum(len(one.begun) for one in self._partial.values())

    def requested(self, connection: int) -> int:
        """How many chunks are on their way there."""
        return len(self._requested.get(connection, ()))

    def assign(self, connection: int) -> tuple[list[ChunkRequest], list[PartialChunk]]:
        """What this connection should request now, with the beginnings it builds on; often nothing."""
        mine = self._requested.setdefault(connection, {})
        size = self._requested_bytes.setdefault(connection, 0)
        target = self._target()
        if mine and (size > target - target // 4 or len(mine) > WINDOW_CHUNKS // 2):
            return [], []  # a few large requests instead of many small ones
        requests: list[ChunkRequest] = []
        held: list[PartialChunk] = []
        while self._pending and len(mine) < WINDOW_CHUNKS and (not mine or size + self._pending[0].size <= target):
            chunk = self._pending.popleft()
            mine[chunk.id] = chunk
            size += chunk.size
            begun = self._partial.pop(chunk.id, None)
            if begun is None:
                requests.append(ChunkRequest(chunk.id, chunk.size))
            else:
                requests.append(ChunkRequest(chunk.id, chunk.size, len(begun.begun), begun.length))
                held.append(begun)
        self._requested_bytes[connection] = size
        return requests, held

    def arrived(self, connection: int, chunk: bytes) -> None:
        """It is complete, and is what its name says."""
        found = self._taken(connection, chunk)
        self.chunks_done += 1
        self._bytes_left -= found.size

    def damaged(self, connection: int, chunk: bytes) -> None:
        """It is not what its name says: it is fetched again from its beginning. Raises E1101 if that went wrong too."""
        found = self._taken(connection, chunk)
        self._damaged[chunk] = self._damaged.get(chunk, 0) + 1
        if self._damaged[chunk] >= DAMAGED_MAX:
            raise HarchError(
                "E1101",
                f"chunk {chunk.hex()[:16]} arrived damaged {DAMAGED_MAX} times",
                hint="run `harch content check` at the hub that sends it",
            )
        self._pending.appendleft(found)

    def lost(self, connection: int, beginnings: Iterable[PartialChunk] = ()) -> None:
        """The connection has ended: others fetch what it did not bring."""
        mine = self._requested.pop(connection, {})
        self._requested_bytes.pop(connection, None)
        self._pending.extendleft(reversed(mine.values()))
        for one in beginnings:
            if one.id in mine:
                self._partial[one.id] = one

    def _taken(self, connection: int, chunk: bytes) -> ChunkRef:
        found = self._requested[connection].pop(chunk)
        self._requested_bytes[connection] -= found.size
        return found

    def _target(self) -> int:
        fair = self._bytes_left // (2 * self._connections)
        return min(self._window_bytes, max(fair, CHUNK_BYTES_MAX))

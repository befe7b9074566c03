"""What waits to be sent to one peer? A limited number of messages and bytes; gossip never takes all the room."""

from __future__ import annotations

from collections import deque

MESSAGES_MAX = 50_000
BYTES_MAX = 16 * 1024 * 1024
DROPPABLE_SHARE = 4  # messages that will be repeated anyway may fill a quarter of it


class Outbox:
    """Frames in the order in which they were accepted."""

    def __init__(self, *, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._frames: deque[bytes] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: bytes, *, droppable: bool) -> bool:
        """False if there is no room for it; then nothing has changed."""
        share = DROPPABLE_SHARE if droppable else 1
        if len(self._frames) >= self._messages_max // share or self._bytes + len(frame) > self._bytes_max // share:
            return False
        self._frames.append(frame)
        self._bytes += len(frame)
        return True

    def take(self, bytes_max: int) -> bytes:
        """Frames from the front, together, up to about `bytes_max`: one write for many messages."""
        taken, size = [], 0
        while self._frames and size < bytes_max:
            frame = self._frames.popleft()
            size += len(frame)
            taken.append(frame)
        self._bytes -= size
        return b"".join(taken)

    def clear(self) -> None:
        self._frames.clear()
        self._bytes = 0

"""Where do requests wait while the hub is away? In numbered files, at most so many bytes; the oldest give way."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

BYTES_MAX = 64 * 1024 * 1024
_SUFFIX = ".rw"


class Spool:
    """A queue of request bodies on disk. One process owns the folder."""

    def __init__(self, folder: Path, bytes_max: int = BYTES_MAX) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._bytes_max = bytes_max
        for torn in folder.glob("*.part"):
            torn.unlink()
        found = sorted((int(path.stem), path.stat().st_size) for path in folder.glob(f"*{_SUFFIX}"))
        self._waiting: deque[tuple[int, int]] = deque(found)
        self._bytes = sum(size for _, size in found)
        self._next = found[-1][0] + 1 if found else 1
        self.dropped = 0  # bodies that gave way since the start

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def add(self, body: bytes) -> None:
        """Never raises for a full disk: telemetry is not worth the node's work. The body counts as dropped then."""
        if len(body) > self._bytes_max:
            self.dropped += 1
            return
        while self._waiting and self._bytes + len(body) > self._bytes_max:
            self.take()
            self.dropped += 1
        part = self._folder / f"{self._next}.part"
        try:
            part.write_bytes(body)
            os.replace(part, self._path(self._next))
        except OSError:
            self.dropped += 1
            part.unlink(missing_ok=True)
            return
        self._waiting.append((self._next, len(body)))
        self._bytes += len(body)
        self._next += 1

    def oldest(self) -> bytes | None:
        """The body that has waited longest; it stays until `take`."""
        while self._waiting:
            try:
                return self._path(self._waiting[0][0]).read_bytes()
            except OSError:
                self.take()
                self.dropped += 1
        return None

    def take(self) -> None:
        """Lets go of the oldest."""
        number, size = self._waiting.popleft()
        self._bytes -= size
        self._path(number).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:012}{_SUFFIX}"

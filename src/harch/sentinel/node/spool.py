"""Where do requests wait while the hub is away? In numbered files, at most so many bytes; the oldest give way.

A file's name has the checksum of its body. One that is not as it was written is set aside and counts as dropped.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import deque
from pathlib import Path

from harch.base.state_files import set_aside

BYTES_MAX = 64 * 1024 * 1024
_SUFFIX = ".rw"
_NAME = re.compile(r"(\d+)(?:-([0-9a-f]{8}))?\.rw")  # of an older release: without a checksum


class RequestSpool:
    """A queue of request bodies on disk. One process owns the folder."""

    def __init__(self, folder: Path, bytes_max: int = BYTES_MAX) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._bytes_max = bytes_max
        for torn in folder.glob("*.part"):
            torn.unlink()
        named = ((_NAME.fullmatch(path.name), path) for path in folder.glob(f"*{_SUFFIX}"))
        found = sorted((int(name[1]), path.stat().st_size, path.name) for name, path in named if name is not None)
        self._waiting: deque[tuple[int, int, str]] = deque(found)
        self._bytes = sum(size for _, size, _ in found)
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
            name = f"{self._next:012}-{zlib.crc32(body):08x}{_SUFFIX}"
            os.replace(part, self._folder / name)
        except OSError:
            self.dropped += 1
            part.unlink(missing_ok=True)
            return
        self._waiting.append((self._next, len(body), name))
        self._bytes += len(body)
        self._next += 1

    def oldest(self) -> bytes | None:
        """The body that has waited longest; it stays until `take`."""
        while self._waiting:
            path = self._folder / self._waiting[0][2]
            try:
                body = path.read_bytes()
                if _is_sound(path.name, body):
                    return body
                set_aside(path, "does not match its checksum", code="E1030")
            except OSError:
                pass
            self.take()
            self.dropped += 1
        return None

    def take(self) -> None:
        """Lets go of the oldest."""
        _, size, name = self._waiting.popleft()
        self._bytes -= size
        (self._folder / name).unlink(missing_ok=True)


def _is_sound(name: str, body: bytes) -> bool:
    found = _NAME.fullmatch(name)
    return found is None or found[2] is None or int(found[2], 16) == zlib.crc32(body)

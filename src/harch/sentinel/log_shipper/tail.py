"""What was printed since the last look? Output that grows on disk, read a piece at a time and cut into lines.

How far a source was shipped is remembered on disk once SENTINEL has it: so output waits where it is while SENTINEL is
away, and nothing is kept twice. What gave way meanwhile is counted and reported in its place.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from harch.base.errors import HarchError
from harch.base.seal import LINE
from harch.base.state_files import read_sealed
from harch.sentinel.log_shipper.records import LEVEL, TEXT_MAX, ShippedLine, level_in, masked
from harch.sentinel.model.labels import Labels, labels

PIECE_BYTES = 256 * 1024  # of one source at one look
LOOK_BYTES = 512 * 1024  # of all of them together: what is left waits for the next look
SOURCES_MAX = 4096
_ENDED = -1  # the position of a source that was shipped to its end

_log = logging.getLogger("harch.damage")

Read = Callable[[int, int], tuple[int, bytes, int, int]]


@dataclass(frozen=True, slots=True)
class OutputSource:
    """Output of one task or worker. `read(offset, bytes_max)` gives where the data begins, the data, the offset of the
    end so far, and when it was last written (ns), or raises OSError. `ended`: nothing will follow what is there."""

    name: str
    tenant: str
    stream: Labels
    read: Read
    ended: bool = False
    metadata: Labels = ()
    finds_level: bool = False  # whether its lines name a level


@dataclass(frozen=True, slots=True)
class NewLines:
    """Lines of a source, and how far they reach."""

    source: OutputSource
    lines: list[ShippedLine]
    position: int


@dataclass
class OutputTail:
    """Positions by the name of a source. `lost_bytes`: output that was gone before it could be shipped."""

    file: Path
    sources: Callable[[], Iterable[OutputSource]]
    lost_bytes: int = 0
    _positions: dict[str, int] = field(default_factory=dict)
    _times_ns: dict[str, int] = field(default_factory=dict)
    _changed: bool = False
    _turn: int = 0

    def __post_init__(self) -> None:
        try:
            found = json.loads(read_sealed(self.file))
            self._positions = {str(name): int(at) for name, at in found.items()}
        except FileNotFoundError:
            self._positions = {}
        except (OSError, ValueError, AttributeError, TypeError, HarchError) as damage:
            _log.error("E1030: cannot read %s, so output is resent from its start: %s", self.file, damage)
            self._positions = {}  # twice is better than not at all

    def is_finished(self, name: str) -> bool:
        return self._positions.get(name) == _ENDED

    def look(self) -> Generator[NewLines, None, None]:
        """What is new, a source at a time; each must be `done` before the next look, or it comes again."""
        listed = list(islice(self.sources(), SOURCES_MAX))
        self._forget({source.name for source in listed})
        left = LOOK_BYTES
        first = self._turn % len(listed) if listed else 0
        for source in (*listed[first:], *listed[:first]):
            if left <= 0:
                return  # the others come first with the next look
            self._turn += 1
            latest = None if self.is_finished(source.name) else self._news(source, min(PIECE_BYTES, left))
            if latest is not None:
                left -= PIECE_BYTES if latest.lines else 0
                yield latest

    def done(self, latest: NewLines) -> None:
        if self._positions.get(latest.source.name) != latest.position:
            self._positions[latest.source.name] = latest.position
            self._changed = True
        if latest.lines:
            self._times_ns[latest.source.name] = latest.lines[-1].time_ns

    def save(self) -> None:
        """Never raises for a full disk: then some lines may come twice after a restart."""
        if not self._changed:
            return
        part = self.file.with_suffix(".part")
        try:
            part.write_bytes(LINE.seal(json.dumps(self._positions).encode()))
            os.replace(part, self.file)
            self._changed = False
        except OSError:
            part.unlink(missing_ok=True)

    def _forget(self, known: set[str]) -> None:
        for gone in [name for name in self._positions if name not in known]:
            del self._positions[gone]
            self._times_ns.pop(gone, None)
            self._changed = True

    def _news(self, source: OutputSource, bytes_max: int) -> NewLines | None:
        position = self._positions.get(source.name, 0)
        try:
            begin, data, end, written_ns = source.read(position, bytes_max)
            if end < position:  # a file that was begun anew
                position = 0
                begin, data, end, written_ns = source.read(0, bytes_max)
        except OSError:
            return None  # it is being moved or removed: the next look finds it, or does not
        lost = max(0, begin - position) if data else 0
        is_last = source.ended and begin + len(data) >= end
        cut = len(data) if is_last or len(data) >= bytes_max else data.rfind(b"\n") + 1
        if len(data) >= bytes_max and (whole := data.rfind(b"\n") + 1):
            cut = whole
        lines = self._lines(source, data[:cut], lost, written_ns)
        if not lines and not is_last:
            return None
        return NewLines(source, lines, _ENDED if is_last else begin + cut)

    def _lines(self, source: OutputSource, data: bytes, lost: int, written_ns: int) -> list[ShippedLine]:
        """Times are when the output was last written: a program's output has no clock of its own. They never go back,
        so that lines stay in their order."""
        whole = data.decode("utf-8", "replace")
        whole = masked(whole)
        rows = whole.split("\n")
        if not rows[-1]:
            rows.pop()
        if lost:
            self.lost_bytes += lost
            rows.insert(0, f"({lost} bytes of output were lost before they could be stored)")
        if "\r" in whole:
            rows = [text.removesuffix("\r") for text in rows]
        if len(max(rows, key=len, default="")) > TEXT_MAX:
            rows = [piece for text in rows for piece in _pieces(text)]
        at = max(written_ns, self._times_ns.get(source.name, 0) + 1)
        if not source.finds_level:
            return [ShippedLine(at + place, text, source.metadata) for place, text in enumerate(rows)]
        return [ShippedLine(at + place, text, _with_level(source.metadata, text)) for place, text in enumerate(rows)]


def _with_level(metadata: Labels, text: str) -> Labels:
    level = level_in(text)
    return labels((*metadata, (LEVEL, level))) if level else metadata


def _pieces(text: str) -> Iterator[str]:
    """Long lines in pieces: a progress bar may print for hours without an end of line."""
    for begin in range(0, max(1, len(text)), TEXT_MAX):
        yield text[begin : begin + TEXT_MAX]


def file_source(path: Path, tenant: str, stream: Labels, metadata: Labels = ()) -> OutputSource:
    """A log file that grows, and is begun anew when it has become too large."""

    def read(offset: int, bytes_max: int) -> tuple[int, bytes, int, int]:
        latest = path.stat()
        if latest.st_size <= offset:
            return offset, b"", latest.st_size, latest.st_mtime_ns
        with path.open("rb") as file:
            file.seek(offset)
            return offset, file.read(bytes_max), latest.st_size, latest.st_mtime_ns

    return OutputSource(str(path), tenant, stream, read, metadata=metadata, finds_level=True)

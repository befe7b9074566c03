"""What came in lately? Accepted batches of one source in files, as long as the pipeline keeps them, to be replayed.

Written before a sender hears yes, so that nothing accepted is missing; what was written and then not accepted is cut
off when the file is opened again. The oldest go first, a file at a time, by age and by size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.pipelines.wire.checksum import Buffer
from harch.pipelines.wire.header import MESSAGE_BYTES_MAX, unpack_header

PIECES = 16  # files that the whole is cut into
PIECE_BYTES_MIN, PIECE_BYTES_MAX = 1 << 16, 64 << 20
_HEAD = struct.Struct("<Iq")  # bytes of the message, and when it was accepted
_BEGUN = "begun"  # since when all is here, in milliseconds; 0: since the first event ever


class KeptBatch(Struct, frozen=True):
    """A batch as it came, and when."""

    at_ms: int
    message: bytes


class History:
    """One source, one process. `append` is quick enough for an event loop: it writes and does not sync."""

    def __init__(
        self, folder: Path, *, age_s_max: float, bytes_max: int, accepted: Mapping[int, int], now_ms: int
    ) -> None:
        """`accepted`: the last number of each sender that was accepted; none: this source begins now."""
        self._folder = folder
        self._age_ms = round(age_s_max * 1000)
        self._bytes_max = bytes_max
        self._piece_bytes = min(max(bytes_max // PIECES, PIECE_BYTES_MIN), PIECE_BYTES_MAX)
        self._file: BinaryIO | None = None
        self._began_ms = 0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (folder / _BEGUN).exists():
                (folder / _BEGUN).write_text(str(now_ms if accepted else 0))
            for path in _pieces(folder)[-1:]:
                _cut_off(path, accepted)
        except OSError as error:
            raise _failed(folder, error) from error

    def append(self, at_ms: int, messages: Sequence[Buffer]) -> None:
        """Raises E0752."""
        try:
            file = self._open(at_ms)
            for message in messages:
                file.write(_HEAD.pack(len(message), at_ms))
                file.write(message)
            file.flush()
        except OSError as error:
            self._file = None  # half a record may stand at its end: readers stop there, and the next one is a new file
            raise _failed(self._folder, error) from error

    def tidy(self, now_ms: int) -> None:
        """Deletes what is too old or too much; never the file that is written to."""
        pieces = _pieces(self._folder)
        total = sum(path.stat().st_size for path in pieces)
        for path, following in pairwise(pieces):
            if total <= self._bytes_max and _began_ms(following) >= now_ms - self._age_ms:
                return
            total -= path.stat().st_size
            (self._folder / _BEGUN).write_text(str(_began_ms(following)))
            path.unlink()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self, at_ms: int) -> BinaryIO:
        full = self._file is not None and self._file.tell() >= self._piece_bytes
        old = at_ms - self._began_ms > self._age_ms // PIECES
        if self._file is None or full or old:
            self.close()
            number = len(list(self._folder.glob(f"{at_ms:015d}-*.log")))
            self._file = (self._folder / f"{at_ms:015d}-{number:04d}.log").open("ab")
            self._began_ms = at_ms
        return self._file


def complete_from_ms(folder: Path) -> int:
    """Everything that was accepted since then is here; 0: everything at all."""
    try:
        return int((folder / _BEGUN).read_text())
    except (OSError, ValueError):
        return 0


def read_history(folder: Path) -> Iterator[KeptBatch]:
    """In the order in which they were accepted. Of two with one number the later one counts: the first was refused."""
    waiting: dict[int, tuple[int, KeptBatch]] = {}
    for path in _pieces(folder):
        for kept in _records(path):
            header = unpack_header(kept.message)
            if isinstance(header, Rejection):
                continue
            before = waiting.pop(header.source, None)
            if before is not None and before[0] < header.seq:
                yield before[1]
            waiting[header.source] = (header.seq, kept)
    yield from sorted((kept for _, kept in waiting.values()), key=lambda kept: kept.at_ms)


def _pieces(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def _began_ms(path: Path) -> int:
    return int(path.stem.partition("-")[0])


def _records(path: Path) -> Iterator[KeptBatch]:
    """Whole ones; what was cut off by a crash ends the file. One that `tidy` has just deleted is empty."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            size, at_ms = _HEAD.unpack(head)
            message = file.read(size) if size <= MESSAGE_BYTES_MAX else b""
            if len(message) != size:
                return
            yield KeptBatch(at_ms, message)


def _cut_off(path: Path, accepted: Mapping[int, int]) -> None:
    """What stands at the end and was not accepted: the process died between the two writes."""
    good = 0
    for kept in _records(path):
        header = unpack_header(kept.message)
        if not isinstance(header, Rejection) and header.seq > accepted.get(header.source, 0):
            break
        good += _HEAD.size + len(kept.message)
    with path.open("r+b") as file:
        file.truncate(good)


def _failed(folder: Path, error: OSError) -> HarchError:
    return HarchError("E0752", f"{folder}: {error.strerror or error}", hint="is the disk full, or not writable?")

"""What does a source keep on disk?

What it has accepted and no checkpoint has yet, and what came in lately, to be replayed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError
from harch.base.seal import LINE
from harch.base.sqlite_guard import SqliteGuard
from harch.base.state_files import SUFFIX, read_sealed, rewrite
from harch.pipelines.wire.header import (
    MAGIC,
    MESSAGE_BYTES_MAX,
    TIME_NS_MAX,
    BatchHeader,
    Buffer,
    crc32c,
    unpack_header,
)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (
    source INTEGER, partition INTEGER, seq INTEGER, message BLOB NOT NULL, PRIMARY KEY (source, partition, seq)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS line (
    source INTEGER, partition INTEGER, last_seq INTEGER NOT NULL, PRIMARY KEY (source, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sender (source INTEGER PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
"""

LineKey = tuple[int, int]  # source, partition


class SpooledBatch(Struct, frozen=True):
    """A batch with its number in its line."""

    source: int
    partition: int
    seq: int
    message: bytes


class SavedLine(Struct, frozen=True):
    last_seq: int
    messages: tuple[bytes, ...]  # the last ones of the line, in order, without a hole


class SourceSpool:
    """One file, one process. All methods are quick enough for an event loop: a commit of what one call brought."""

    def __init__(self, path: Path, *, synced: bool) -> None:
        """Raises E0752, and E1030 for a file that is not as it was written."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._guard = SqliteGuard(path, synced=synced)
            if synced:
                self._guard.require_whole()
        except OSError as error:
            raise _spool_failed(path, error) from error
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            # NORMAL: what is committed survives the process, since the system has it; FULL: the machine, too.
            self._db.execute(f"PRAGMA synchronous = {'FULL' if synced else 'NORMAL'}")
            self._db.executescript(_SCHEMA)
            self._guard.attach(self._db)
        except (sqlite3.Error, OSError) as error:
            self._guard.release()
            raise _spool_failed(path, error) from error
        except HarchError:
            self._guard.release()
            raise
        self._path = path
        self._forgettable: dict[LineKey, int] = {}

    def senders(self) -> dict[int, int]:
        """The last number of each sender that was accepted."""
        return dict(self._db.execute("SELECT source, seq FROM sender"))

    def lines(self) -> dict[LineKey, SavedLine]:
        """What is to be sent again after a start."""
        found: dict[LineKey, list[bytes]] = {}
        last = {(source, part): seq for source, part, seq in self._db.execute("SELECT * FROM line")}
        for source, part, message in self._db.execute(
            "SELECT source, partition, message FROM kept ORDER BY source, partition, seq"
        ):
            found.setdefault((source, part), []).append(message)
        return {key: SavedLine(seq, tuple(found.get(key, ()))) for key, seq in last.items()}

    def add(self, batches: Iterable[SpooledBatch], senders: Mapping[int, int]) -> None:
        """All of it or nothing. Raises E0752."""
        try:
            with self._written():
                for one in batches:
                    self._db.execute(
                        "INSERT INTO kept VALUES (?, ?, ?, ?)", (one.source, one.partition, one.seq, one.message)
                    )
                    self._db.execute("REPLACE INTO line VALUES (?, ?, ?)", (one.source, one.partition, one.seq))
                self._db.executemany("REPLACE INTO sender VALUES (?, ?)", senders.items())
                self._forget()
        except sqlite3.Error as error:
            raise _spool_failed(self._path, error) from error
        self._forgettable.clear()

    def replace(self, source: int, partition: int, first_seq: int, last_seq: int, gap: bytes) -> None:
        """What was shed needs no room any more; the gap in its place is reported instead. Raises E0752."""
        try:
            with self._written():
                self._db.execute(
                    "DELETE FROM kept WHERE source = ? AND partition = ? AND seq BETWEEN ? AND ?",
                    (source, partition, first_seq, last_seq),
                )
                self._db.execute("INSERT INTO kept VALUES (?, ?, ?, ?)", (source, partition, last_seq, gap))
        except sqlite3.Error as error:
            raise _spool_failed(self._path, error) from error

    def checkpointed(self, source: int, partition: int, seq: int) -> None:
        """No longer needed; forgotten with the next write, or by `tidy`."""
        self._forgettable[(source, partition)] = seq

    def tidy(self) -> None:
        """A disk that is full is tried again with the next write."""
        if self._forgettable:
            with contextlib.suppress(sqlite3.OperationalError):
                with self._written():
                    self._forget()
                self._forgettable.clear()

    def close(self) -> None:
        self.tidy()
        self._guard.close(self._db)

    def _forget(self) -> None:
        for (source, partition), seq in self._forgettable.items():
            self._db.execute(
                "DELETE FROM kept WHERE source = ? AND partition = ? AND seq <= ?", (source, partition, seq)
            )

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """One transaction: all or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
            self._guard.committed(self._db)
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def _spool_failed(path: Path, error: sqlite3.Error | OSError) -> HarchError:
    return HarchError("E0752", f"{path}: {error}", hint="check that the disk is not full and the folder is writable")


# What came in lately? Accepted batches of one source in files, as long as the pipeline keeps them, to be replayed.
#
# Written before a sender hears yes, so that nothing accepted is missing; what was written and then not accepted is cut
# off when the file is opened again. The oldest go first, a file at a time, by age and by size.
#
# Each record has a checksum, and each file says how long the one before it was. What is damaged is left out, said and
# set
# aside, and everything counts as complete only from there on.


PIECES = 16  # files that the whole is cut into
PIECE_BYTES_MIN, PIECE_BYTES_MAX = 1 << 16, 64 << 20
_MAGIC = b"HHIST\x00\x00\x01"
_BEGIN = struct.Struct("<8sqI")  # magic, bytes of the file before this one, checksum of both
_OLD_HEAD = struct.Struct("<Iq")  # of an older release: bytes of the message, and when it was accepted
_HEAD = struct.Struct("<IqI")  # the same, and a checksum of both and of the message
_NOT_KNOWN = -1
_LATER_MS = TIME_NS_MAX // 1_000_000  # than all that is kept
_BATCH = MAGIC.to_bytes(4, "little")  # what every message begins with
_BEGUN = "begun"  # since when all is here, in milliseconds; 0: since the first event ever

_log = logging.getLogger("harch.damage")


class KeptBatch(Struct, frozen=True):
    """A batch as it came, and when."""

    at_ms: int
    message: bytes


class _Begun(Struct, frozen=True):
    begun_ms: int


class SourceHistory:
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
                _begin(folder, now_ms if accepted else 0)
            if not _is_up_to_date(folder, accepted):
                _log.error("E1030: %s lacks accepted batches", folder)
                _begin(folder, now_ms)
        except OSError as error:
            raise _history_failed(folder, error) from error

    def append(self, at_ms: int, messages: Sequence[Buffer]) -> None:
        """Raises E0752."""
        try:
            file = self._open(at_ms)
            for message in messages:
                file.write(_HEAD.pack(len(message), at_ms, _checksum(len(message), at_ms, message)))
                file.write(message)
            file.flush()
        except OSError as error:
            self._file = None  # half a record may stand at its end: readers stop there, and the next one is a new file
            raise _history_failed(self._folder, error) from error

    def tidy(self, now_ms: int) -> None:
        """Deletes what is too old or too much; never the file that is written to."""
        pieces = _pieces(self._folder)
        total = sum(path.stat().st_size for path in pieces)
        for path, following in pairwise(pieces):
            if total <= self._bytes_max and _began_ms(following) >= now_ms - self._age_ms:
                return
            total -= path.stat().st_size
            _begin(self._folder, max(_begun(self._folder), _began_ms(following)))
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
            before = [path.stat().st_size for path in _pieces(self._folder)[-1:]]
            self._file = (self._folder / f"{at_ms:015d}-{number:04d}.log").open("ab")
            self._file.write(_beginning(before[0] if before else _NOT_KNOWN))
            self._began_ms = at_ms
        return self._file


def complete_from_ms(folder: Path) -> int:
    """Everything that was accepted since then is here; 0: everything at all. Reads all of it."""
    complete, lost = _begun(folder), False
    for record in _all_records(folder):
        if record is None:
            lost = True
        elif lost:
            complete, lost = max(complete, record.at_ms), False
    return _LATER_MS if lost else complete


def read_history(folder: Path) -> Iterator[KeptBatch]:
    """In the order in which they were accepted. Of two with one number the later one counts: the first was refused."""
    waiting: dict[int, tuple[int, KeptBatch]] = {}
    for kept in _all_records(folder):
        header = unpack_header(kept.message) if kept is not None else None
        if kept is None or not isinstance(header, BatchHeader):
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


def _begun(folder: Path) -> int:
    """Written by an older release: a number alone. One that is damaged, and set aside, proves nothing of before now."""
    try:
        found = msgspec.json.decode(read_sealed(folder / _BEGUN), type=int | _Begun)
        return found if isinstance(found, int) else found.begun_ms
    except (OSError, msgspec.MsgspecError, HarchError):
        return 0


def _begin(folder: Path, at_ms: int) -> None:
    rewrite(folder / _BEGUN, LINE.seal(msgspec.json.encode({"begun_ms": at_ms})))


def _beginning(before: int) -> bytes:
    head = _MAGIC + struct.pack("<q", before)
    return head + struct.pack("<I", crc32c(head))


def _checksum(size: int, at_ms: int, message: Buffer) -> int:
    return crc32c(message, crc32c(_OLD_HEAD.pack(size, at_ms)))


def _all_records(folder: Path) -> Iterator[KeptBatch | None]:
    """Those of all files in order; None where something is lost."""
    before: tuple[Path, int] | None = None
    for path in _pieces(folder):
        expected = _bytes_before(path)
        if before is not None and expected not in (_NOT_KNOWN, before[1]):
            _log.error("E1030: %s has %d bytes, expected %d", before[0], before[1], expected)
            yield None
        for record in _records(path):
            yield record.kept if record.kept is not None else None
        try:
            before = (path, path.stat().st_size)
        except FileNotFoundError:
            before = None


class _Found(Struct, frozen=True):
    end: int
    kept: KeptBatch | None  # None: what stood here is damaged


def _bytes_before(path: Path) -> int:
    try:
        with path.open("rb") as file:
            begin = file.read(_BEGIN.size)
    except FileNotFoundError:
        return _NOT_KNOWN
    return int(_BEGIN.unpack(begin)[1]) if _is_beginning(begin) else _NOT_KNOWN


def _is_beginning(begin: bytes) -> bool:
    return len(begin) == _BEGIN.size and begin == _beginning(_BEGIN.unpack(begin)[1])


def _records(path: Path) -> Iterator[_Found]:
    """Records one by one; what was cut off by a crash ends the file. One that `tidy` has just deleted is empty."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    if raw[:4] != _MAGIC[:4] and raw[_OLD_HEAD.size : _OLD_HEAD.size + 4] == _BATCH:
        yield from _old_records(raw)
        return
    at = _BEGIN.size
    if raw and not _is_beginning(raw[:at]) and len(raw) >= at:
        _say(path, 0, at)
        yield _Found(at, None)
    while at < len(raw):
        found = _record_at(raw, at)
        if found is not None:
            yield found
            at = found.end
            continue
        following = _next_record(raw, at)
        end = following if following >= 0 else len(raw)
        message = raw[at + _HEAD.size : end]
        if len(raw) - at > _HEAD.size and _is_of_size(raw, at, message):  # only its length was hit
            _say(path, at, at + 4)
            yield _Found(end, KeptBatch(_HEAD.unpack_from(raw, at)[1], message))
        elif following < 0 and _is_torn(raw, at):
            return
        else:
            _say(path, at, end)
            yield _Found(end, None)
        at = end


def _record_at(raw: bytes, at: int) -> _Found | None:
    begin = at + _HEAD.size
    if begin > len(raw):
        return None
    size, at_ms, checksum = _HEAD.unpack_from(raw, at)
    if size > MESSAGE_BYTES_MAX or begin + size > len(raw):
        return None
    message = raw[begin : begin + size]
    return _Found(begin + size, KeptBatch(at_ms, message)) if _checksum(size, at_ms, message) == checksum else None


def _is_of_size(raw: bytes, at: int, message: bytes) -> bool:
    _, at_ms, checksum = _HEAD.unpack_from(raw, at)
    return bool(_checksum(len(message), at_ms, message) == checksum)


def _next_record(raw: bytes, after: int) -> int:
    """Where the next whole record begins; -1 if there is none. Every message begins with the same four bytes."""
    place = raw.find(_BATCH, after + 1)
    while place >= 0:
        if place - _HEAD.size > after and _record_at(raw, place - _HEAD.size) is not None:
            return place - _HEAD.size
        place = raw.find(_BATCH, place + 1)
    return -1


def _is_torn(raw: bytes, at: int) -> bool:
    """Whether a crash can have left this at the end: it is shorter than it says."""
    if at + _HEAD.size > len(raw):
        return True
    size, _, _ = _HEAD.unpack_from(raw, at)
    return bool(size <= MESSAGE_BYTES_MAX and at + _HEAD.size + size > len(raw))


def _old_records(raw: bytes) -> Iterator[_Found]:
    at = 0
    while at + _OLD_HEAD.size <= len(raw):
        size, at_ms = _OLD_HEAD.unpack_from(raw, at)
        end = at + _OLD_HEAD.size + size
        if size > MESSAGE_BYTES_MAX or end > len(raw):
            return
        yield _Found(end, KeptBatch(at_ms, raw[at + _OLD_HEAD.size : end]))
        at = end


def _say(path: Path, begin: int, end: int) -> None:
    kept = path.with_name(f"{path.name}{SUFFIX}")
    if not kept.exists():
        with contextlib.suppress(OSError):
            os.link(path, kept)
    _log.error("E1030: %d bytes of %s are damaged; kept as %s", end - begin, path, kept.name)


def _cut_off(path: Path, accepted: Mapping[int, int]) -> tuple[dict[int, int], bool]:
    """Takes off what stands at the end and was not accepted: the process died between the two writes.

    Answers the last number of each sender that is left, and whether nothing is damaged."""
    good, last, is_whole = 0, dict[int, int](), True
    for found in _records(path):
        header = unpack_header(found.kept.message) if found.kept is not None else None
        if isinstance(header, BatchHeader):
            if header.seq > accepted.get(header.source, 0):
                break
            last[header.source] = max(header.seq, last.get(header.source, 0))
        elif found.kept is None:
            is_whole = False
        good = found.end
    if good:
        os.truncate(path, good)
    else:
        path.unlink()
    return last, is_whole


def _is_up_to_date(folder: Path, accepted: Mapping[int, int]) -> bool:
    """Cuts off what was not accepted; False if something is missing that was. Senders that fell silent long ago are not
    looked for."""
    pieces, known = _pieces(folder), dict[int, int]()
    is_whole = True
    for place, path in enumerate(reversed(pieces[-2:])):
        last, is_sound = _cut_off(path, accepted) if place == 0 else (_last_numbers(path), True)
        is_whole = is_whole and is_sound
        known = {**last, **known}
    return is_whole and all(accepted.get(source, 0) == seq for source, seq in known.items())


def _last_numbers(path: Path) -> dict[int, int]:
    headers = (unpack_header(found.kept.message) for found in _records(path) if found.kept is not None)
    return {header.source: header.seq for header in headers if isinstance(header, BatchHeader)}


def _history_failed(folder: Path, error: OSError) -> HarchError:
    return HarchError(
        "E0752", f"{folder}: {error.strerror or error}", hint="check that the disk is writable and not full"
    )

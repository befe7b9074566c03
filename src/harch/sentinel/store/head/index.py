"""Which series are there, and which have this value of a label?

Labels as bytes, found by hash, and as one column of codes for each label name, found by matchers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from harch.sentinel.model.labels import Labels, Matcher, MatchKind
from harch.sentinel.model.selection import LabelColumn, SeriesTable
from harch.sentinel.store.bytes_kernels import hash_spans
from harch.sentinel.store.head.arena_kernels import (
    EXISTS,
    KEY_AT,
    KEY_HASH,
    KEY_LENGTH,
    LAST_TS,
    NEVER,
    Array,
)
from harch.sentinel.store.head.index_kernels import UNKNOWN, clear_rows, find_series, insert_key, refill
from harch.sentinel.store.head.label_kernels import split_labels
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.memory import grown, reserved
from harch.sentinel.store.series_encoding import SeriesRefusal, decode_labels, encode_labels, read_labels

VERDICTS_KEPT_MAX = 64  # matchers of one label whose verdicts on all values are remembered

Mask = npt.NDArray[np.bool_]


class SeriesColumn:
    """One label over all series of a head: `values[codes[sid]]`; code 0 is "" and means absent."""

    def __init__(self, series_max: int) -> None:
        self.codes: npt.NDArray[np.int32] = np.zeros(series_max, np.int32)
        self.values: list[str] = [""]
        self._code_of: dict[str, int] = {"": 0}
        self._verdicts: OrderedDict[Matcher, Mask] = OrderedDict()

    def set(self, sid: int, value: str) -> None:
        code = self._code_of.get(value)
        if code is None:
            code = self._code_of[value] = len(self.values)
            self.values.append(value)
        if sid >= len(self.codes):
            self.codes = grown(self.codes, sid + 1)
        self.codes[sid] = code

    def code_of(self, value: str) -> int | None:
        return self._code_of.get(value)

    def judge(self, matcher: Matcher) -> None:
        """Asks the matcher about values it was not asked about yet. May run without the head's lock."""
        known = self._verdicts.get(matcher)
        count, seen = len(self.values), 0 if known is None else len(known)
        if known is None or seen < count:
            fresh = np.fromiter((matcher.matches(value) for value in self.values[seen:count]), np.bool_, count - seen)
            self._verdicts[matcher] = fresh if known is None else np.concatenate((known, fresh))
            while len(self._verdicts) > VERDICTS_KEPT_MAX:
                self._verdicts.popitem(last=False)

    def mask(self, matcher: Matcher, series_count: int) -> Mask:
        """Which of the first series match? Holds the head's lock; only values that came just now are judged."""
        codes = self.codes[:series_count]
        if len(codes) < series_count:  # series that came after the last one with this label
            codes = np.concatenate((codes, np.zeros(series_count - len(codes), np.int32)))
        if matcher.kind in (MatchKind.EQUAL, MatchKind.NOT_EQUAL):
            code = self._code_of.get(matcher.value, -1)
            equal: Mask = codes == code
            return equal if matcher.kind is MatchKind.EQUAL else ~equal
        self.judge(matcher)
        verdicts = self._verdicts.get(matcher)
        if verdicts is None or len(verdicts) < len(self.values):  # another thread has pushed it out
            verdicts = np.fromiter((matcher.matches(value) for value in self.values), np.bool_, len(self.values))
        return verdicts[codes]

    def take(self, series: npt.NDArray[np.int64]) -> LabelColumn | None:
        """The column of these series, None where none of them has the label."""
        if len(series) and series[-1] >= len(self.codes):  # they are in ascending order
            codes = np.zeros(len(series), np.int32)
            inside = np.searchsorted(series, len(self.codes))
            codes[:inside] = self.codes[series[:inside]]
        else:
            codes = self.codes[series]
        return LabelColumn(codes, self.values) if codes.any() else None

    def drop(self, series: npt.NDArray[np.int64]) -> None:
        self.codes[series[series < len(self.codes)]] = 0

    def repacked(self) -> SeriesColumn | None:
        """The same column without values that no series has any more; None where no series has any."""
        used = np.unique(self.codes)
        if not used.any():
            return None
        if 2 * len(used) > len(self.values):
            return self  # not worth it
        fresh = SeriesColumn(len(self.codes))
        renamed = np.zeros(len(self.values), np.int32)
        for code in used[used > 0].tolist():
            renamed[code] = len(fresh.values)
            fresh._code_of[self.values[code]] = len(fresh.values)
            fresh.values.append(self.values[code])
        fresh.codes = renamed[self.codes]
        return fresh


def match_nothing(columns: dict[str, SeriesColumn], matchers: Iterable[Matcher]) -> bool:
    """True where a value is asked for that no series has, which the dictionaries tell without a look at any series."""
    return any(
        matcher.kind is MatchKind.EQUAL
        and matcher.value != ""
        and (matcher.name not in columns or columns[matcher.name].code_of(matcher.value) is None)
        for matcher in matchers
    )


def matching(columns: dict[str, SeriesColumn], matchers: Sequence[Matcher], series_count: int, exists: Mask) -> Mask:
    """Which series fulfil all matchers? A label that no series has has the value "" in all of them."""
    mask = exists
    for matcher in matchers:
        column = columns.get(matcher.name)
        if column is None:
            if not matcher.matches_empty():
                return np.zeros(series_count, np.bool_)
            continue
        mask = mask & column.mask(matcher, series_count)
    return mask


def judge_ahead(columns: dict[str, SeriesColumn], matchers: Iterable[Matcher]) -> None:
    """Runs regular expressions over the values before the lock is taken."""
    for matcher in matchers:
        column = columns.get(matcher.name)
        if column is not None and matcher.kind in (MatchKind.REGEX, MatchKind.NOT_REGEX):
            column.judge(matcher)


# Which series are there? Their labels as bytes, found by hash, and as columns, found by matchers.


_FIRST_SLOTS = 1 << 12
_FIRST_COLUMN = 1 << 10
_USUAL_LABELS_MAX = 32  # series with more are read by hand
_ROWS_MIN = 1 << 21  # so that a limit that is lowered later does not keep the log from being read

Series = npt.NDArray[np.int64]


class SeriesIndex:
    """All series of a head. Not safe for several threads: the head's lock is held, but for `judge_ahead`."""

    def __init__(self, rows: Array, limits: TenantLimits, seed: int) -> None:
        self.rows = rows  # shared with the head, which keeps the samples' part of it
        self.limits = limits
        self.seed = np.uint64(seed)  # secret and new in every process, so that nobody can prepare collisions
        self.count = 0  # rows ever used; some may be free again
        self.alive = 0
        self.columns: dict[str, SeriesColumn] = {}
        self._free: list[int] = []
        self._table: Array = np.zeros((_FIRST_SLOTS, 4), np.int64)
        self._filled = 0
        self._aliases = 0
        self._keys: Array = np.zeros(1 << 16, np.uint8)
        self._keys_used = 0
        self._followers: Array = reserved(len(rows), np.int32)

    def find(self, data: Array, starts: Array, ends: Array, hashes: Array, series: Array) -> int:
        """Fills `series` with those that have these labels, UNKNOWN for others; returns how many are unknown.

        Of the unknown ones, `hashes` holds the hashes of the labels afterwards.
        """
        return find_series(
            data, starts, ends, self.seed, self._table, self._keys, self.rows, self._followers, hashes, series
        )

    def make_all(
        self, data: Array, starts: Array, ends: Array, hashes: Array, rows: Sequence[int], *, limited: bool = True
    ) -> Sequence[int | SeriesRefusal]:
        """The series of rows that `find` did not find, made now or known by labels in another order; or why not.

        Without limits for what the log holds: it was taken once.
        """
        chosen = np.array(rows, np.int64)
        counts = np.zeros(len(rows), np.int32)
        parts = np.empty((len(rows), min(self.limits.labels_per_series_max, _USUAL_LABELS_MAX), 4), np.int32)
        lengths = (
            (self.limits.label_name_bytes_max, self.limits.label_value_bytes_max) if limited else (1 << 30, 1 << 30)
        )
        split_labels(data, starts[chosen], ends[chosen], self.limits.labels_per_series_max, *lengths, parts, counts)
        made: dict[bytes, int | SeriesRefusal] = {}  # the same new labels may come in several rows
        found: list[int | SeriesRefusal] = []
        for place, row in enumerate(rows):
            given = data[starts[row] : ends[row]].tobytes()
            result = made.get(given)
            if result is None:
                try:
                    labels = _usual(given, parts[place, : counts[place]].tolist())
                    if labels:
                        result = self._make(given, labels, hashes[row], limited=limited)
                    else:
                        result = self._find_or_make(given) if limited else self.restore(given)
                except SeriesRefusal as refusal:
                    result = refusal
                made[given] = result
            found.append(result)
        return found

    def _find_or_make(self, given: bytes) -> int:
        labels = read_labels(given, self.limits)
        key = encode_labels(labels)
        sid = self._find_one(key)
        if sid == UNKNOWN:
            sid = self._make(key, labels, self._hash(np.frombuffer(key, np.uint8))[0])
        if key != given and self._aliases < max(1024, 2 * self.alive):  # an unusual order is found at once next time
            self._aliases += 1
            self._insert(given, sid, self._hash(np.frombuffer(given, np.uint8))[0])
        return sid

    def restore(self, key: bytes) -> int:
        """The series of a key that the log holds: it was taken once, so no limit refuses it now."""
        sid = self._find_one(key)
        if sid != UNKNOWN:
            return sid
        return self._make(key, decode_labels(key), self._hash(np.frombuffer(key, np.uint8))[0], limited=False)

    def key_of(self, sid: int) -> bytes:
        at, length = self.rows[sid, KEY_AT], self.rows[sid, KEY_LENGTH]
        return self._keys[at : at + length].tobytes()

    @property
    def table(self) -> Array:
        return self._table

    @property
    def keys(self) -> Array:
        return self._keys

    def labels_of(self, sid: int) -> Labels:
        return decode_labels(self.key_of(sid))

    def judge_ahead(self, matchers: Sequence[Matcher]) -> None:
        judge_ahead(self.columns, matchers)

    def matching(self, matchers: Sequence[Matcher]) -> Series:
        """The series that fulfil all matchers, in ascending order."""
        if match_nothing(self.columns, matchers):
            return np.empty(0, np.int64)
        exists = self.rows[: self.count, EXISTS] != 0
        found: Series = np.flatnonzero(matching(self.columns, matchers, self.count, exists))
        return found

    def table_of(self, series: Series) -> SeriesTable:
        """Labels of these series, which are in ascending order."""
        taken = ((name, column.take(series)) for name, column in self.columns.items())
        return SeriesTable(len(series), {name: column for name, column in taken if column is not None})

    def remove(self, series: Series) -> None:
        """Takes series out of the index; their numbers are given to others later."""
        if not len(series):
            return
        clear_rows(self.rows, series)
        self._free.extend(series.tolist())
        self.alive -= len(series)
        for name, column in list(self.columns.items()):
            column.drop(series)
            packed = column.repacked()
            if packed is None:
                del self.columns[name]
            else:
                self.columns[name] = packed
        self._rebuild(len(self._table))

    def _find_one(self, key: bytes) -> int:
        data = np.frombuffer(key, np.uint8)
        series = np.empty(1, np.int32)
        self.find(data, np.zeros(1, np.int64), np.full(1, len(key)), np.empty(1, np.uint64), series)
        return int(series[0])

    def _hash(self, data: Array) -> Array:
        hashes = np.empty(1, np.uint64)
        hash_spans(data, np.zeros(1, np.int64), np.full(1, len(data)), self.seed, hashes)
        return hashes

    def _make(self, key: bytes, labels: Labels, key_hash: np.uint64, *, limited: bool = True) -> int:
        if limited and self.alive >= self.limits.series_max:
            raise SeriesRefusal("E0608", f"{self.alive} active series is the limit")
        fresh_names = sum(name not in self.columns for name, _ in labels)
        if limited and fresh_names and len(self.columns) + fresh_names > self.limits.label_names_max:
            raise SeriesRefusal("E0608", f"{len(self.columns)} label names is the limit")
        if not self._free and self.count >= len(self.rows):
            raise SeriesRefusal("E0608", f"{self.count} series in memory is the limit")
        sid = self._free.pop() if self._free else self.count
        for name, value in labels:
            column = self.columns.get(name)
            if column is None:
                column = self.columns[name] = SeriesColumn(_FIRST_COLUMN)
            column.set(sid, value)
        row = self.rows[sid]
        row[KEY_AT], row[KEY_LENGTH], row[KEY_HASH] = self._insert(key, sid, key_hash)
        row[EXISTS], row[LAST_TS] = 1, NEVER  # only now: a table that had to grow took in all that exist
        self.count = max(self.count, sid + 1)
        self.alive += 1
        return sid

    def _insert(self, key: bytes, sid: int, key_hash: np.uint64) -> tuple[int, int, int]:
        if 2 * (self._filled + 1) > len(self._table):
            self._rebuild(2 * len(self._table))
        self._keys = grown(self._keys, self._keys_used + len(key) + 8)
        at = self._keys_used
        self._keys[at : at + len(key)] = np.frombuffer(key, np.uint8)
        self._keys_used += len(key)
        insert_key(self._table, key_hash, sid, at, len(key))
        self._filled += 1
        return at, len(key), int(key_hash.view(np.int64))

    def _rebuild(self, slots: int) -> None:
        """A new table of this size. Other ways to write the same labels are forgotten, and learnt again."""
        self._table = np.zeros((slots, 4), np.int64)
        old = self._keys
        self._keys = np.zeros(len(old), np.uint8)
        self._keys_used = refill(self._table, self.rows, self.count, old, self._keys)
        self._filled, self._aliases = self.alive, 0


def _usual(key: bytes, parts: list[list[int]]) -> Labels | None:
    """Labels that the kernel has split; None where it has not, or they are not UTF-8."""
    try:
        labels = tuple(
            (key[name:name_to].decode(), key[value:value_to].decode()) for name, name_to, value, value_to in parts
        )
    except UnicodeDecodeError:
        return None
    return labels or None


def rows_needed(limits: TenantLimits) -> int:
    return max(limits.series_max, _ROWS_MIN)

"""Which series have this value of a label? One column of codes for each label name, matched by looking values up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from harch.sentinel.model.matchers import Matcher, MatchKind
from harch.sentinel.model.selection import LabelColumn
from harch.sentinel.store.memory import grown

VERDICTS_KEPT_MAX = 64  # matchers of one label whose verdicts on all values are remembered

Mask = npt.NDArray[np.bool_]


class Column:
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

    def repacked(self) -> Column | None:
        """The same column without values that no series has any more; None where no series has any."""
        used = np.unique(self.codes)
        if not used.any():
            return None
        if 2 * len(used) > len(self.values):
            return self  # not worth it
        fresh = Column(len(self.codes))
        renamed = np.zeros(len(self.values), np.int32)
        for code in used[used > 0].tolist():
            renamed[code] = len(fresh.values)
            fresh._code_of[self.values[code]] = len(fresh.values)
            fresh.values.append(self.values[code])
        fresh.codes = renamed[self.codes]
        return fresh


def match_nothing(columns: dict[str, Column], matchers: Iterable[Matcher]) -> bool:
    """True where a value is asked for that no series has, which the dictionaries tell without a look at any series."""
    return any(
        matcher.kind is MatchKind.EQUAL
        and matcher.value != ""
        and (matcher.name not in columns or columns[matcher.name].code_of(matcher.value) is None)
        for matcher in matchers
    )


def matching(columns: dict[str, Column], matchers: Sequence[Matcher], series_count: int, exists: Mask) -> Mask:
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


def judge_ahead(columns: dict[str, Column], matchers: Iterable[Matcher]) -> None:
    """Runs regular expressions over the values before the lock is taken."""
    for matcher in matchers:
        column = columns.get(matcher.name)
        if column is not None and matcher.kind in (MatchKind.REGEX, MatchKind.NOT_REGEX):
            column.judge(matcher)

"""Which series of a block match? Every matcher looks at dictionary values, once each, and the codes say the rest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from harch.sentinel.model.matchers import Matcher, MatchKind
from harch.sentinel.model.selection import Codes, Ints, LabelColumn

_ORDER = (MatchKind.EQUAL, MatchKind.REGEX, MatchKind.NOT_EQUAL, MatchKind.NOT_REGEX)  # cheap and narrow ones first


def matching_series(count: int, column_of: Callable[[str], LabelColumn | None], matchers: Sequence[Matcher]) -> Ints:
    """Places of the series that all matchers take, ascending. Dictionaries are sorted, "" first.

    A regular expression sees only the values that the matchers before it left over.
    """
    places = np.arange(count)
    for matcher in sorted(matchers, key=lambda matcher: _ORDER.index(matcher.kind)):
        column = column_of(matcher.name)
        if column is None:
            if not matcher.matches_empty():
                return places[:0]
            continue
        codes = column.codes if len(places) == count else column.codes[places]
        places = places[_accepted(matcher, column.values, codes)]
        if not len(places):
            break
    return places


def _accepted(matcher: Matcher, values: Sequence[str], codes: Codes) -> npt.NDArray[np.bool_]:
    if matcher.kind in (MatchKind.EQUAL, MatchKind.NOT_EQUAL):
        code = bisect_left(values, matcher.value)
        known = code < len(values) and values[code] == matcher.value
        equal: npt.NDArray[np.bool_] = codes == (code if known else -1)
        return equal if matcher.kind is MatchKind.EQUAL else ~equal
    taken = np.zeros(len(values), np.bool_)
    present = np.zeros(len(values), np.bool_)
    present[codes] = True
    for code in np.flatnonzero(present).tolist():
        taken[code] = matcher.matches(values[code])
    return taken[codes]

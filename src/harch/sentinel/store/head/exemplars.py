"""Which examples are behind the counters? The newest of all series of a tenant, in a ring."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from harch.sentinel.model.labels import Labels, Matcher
from harch.sentinel.model.selection import Exemplar, SeriesExemplars


class ExemplarRing:
    """At most `count_max` exemplars; the oldest make room. The head's lock is held."""

    def __init__(self, count_max: int) -> None:
        self._ring: deque[tuple[Labels, Exemplar]] = deque()
        self._newest: dict[Labels, Exemplar] = {}
        self._count_max = count_max

    def add(self, series: Labels, exemplar: Exemplar) -> bool:
        """False for one that is older than the newest of its series; the same one again is fine and not kept twice."""
        newest = self._newest.get(series)
        if newest == exemplar:
            return True
        if newest is not None and exemplar.timestamp < newest.timestamp:
            return False
        if self._count_max <= 0:
            return True
        self._ring.append((series, exemplar))
        self._newest[series] = exemplar
        while len(self._ring) > self._count_max:
            gone, oldest = self._ring.popleft()
            if self._newest.get(gone) is oldest:
                del self._newest[gone]
        return True

    def __len__(self) -> int:
        return len(self._ring)

    def snapshot(self) -> tuple[tuple[Labels, Exemplar], ...]:
        return tuple(self._ring)

    def erase(self, matchers: Sequence[Matcher], start: int, end: int) -> None:
        kept = [
            (series, exemplar)
            for series, exemplar in self._ring
            if not (start <= exemplar.timestamp <= end and _match(series, matchers))
        ]
        self._ring = deque(kept)
        self._newest = dict(kept)


def found_in(
    ring: Sequence[tuple[Labels, Exemplar]], matchers: Sequence[Matcher], start: int, end: int
) -> Sequence[SeriesExemplars]:
    """Exemplars of matching series in the range, by series and time."""
    found: dict[Labels, list[Exemplar]] = {}
    verdicts: dict[Labels, bool] = {}
    for series, exemplar in ring:
        if not start <= exemplar.timestamp <= end:
            continue
        if series not in verdicts:
            verdicts[series] = _match(series, matchers)
        if verdicts[series]:
            found.setdefault(series, []).append(exemplar)
    return [
        SeriesExemplars(series, tuple(sorted(exemplars, key=lambda exemplar: exemplar.timestamp)))
        for series, exemplars in sorted(found.items())
    ]


def _match(series: Labels, matchers: Sequence[Matcher]) -> bool:
    values = dict(series)
    return all(matcher.matches(values.get(matcher.name, "")) for matcher in matchers)

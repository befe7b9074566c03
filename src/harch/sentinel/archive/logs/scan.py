"""Which lines match, and in which order do they come out?

Streams first, then times, then contents; for people by time, from as few sources as will do.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Protocol

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.archive.literals import required_literals
from harch.sentinel.archive.logs.rows import REST, LogRows, metadata_of, rest_labels
from harch.sentinel.archive.string_columns import Mask, StringColumn, grams_in, joined_strings, passing, sizes_of
from harch.sentinel.model.labels import Labels, Matcher, MatchKind
from harch.sentinel.model.logs import SPAN_ID, TRACE_ID, FilterKind, LineChunk, LineFilter, LineOrder
from harch.sentinel.model.selection import Codes, Ints
from harch.sentinel.store.bytes_kernels import Array


class LineSource(Protocol):
    """Lines that are looked at together: a group of rows of a file, or a piece of memory. Columns come when asked."""

    @property
    def streams(self) -> Sequence[Labels]: ...

    def stream_at(self) -> Codes: ...

    def times(self) -> Ints: ...

    def sizes(self) -> Ints: ...

    def bodies(self) -> StringColumn: ...

    def more(self, name: str) -> StringColumn | None:
        """None: every line is empty there."""
        ...


class MemorySource:
    def __init__(self, rows: LogRows) -> None:
        self._rows = rows

    @property
    def streams(self) -> Sequence[Labels]:
        return self._rows.streams

    def stream_at(self) -> Codes:
        return self._rows.stream_at

    def times(self) -> Ints:
        return self._rows.times

    def sizes(self) -> Ints:
        return sizes_of(self._rows.bodies)

    def bodies(self) -> StringColumn:
        return self._rows.bodies

    def more(self, name: str) -> StringColumn | None:
        return self._rows.extras.get(name)


@dataclass(slots=True)
class ScanBudget:
    """Bytes of lines that a query may still look at."""

    bytes_max: int
    used: int = 0

    def spend(self, count: int) -> None:
        self.used += count
        if self.used > self.bytes_max:
            raise HarchError("E0624", f"the query reads more than {self.bytes_max} bytes of log lines")


@dataclass(slots=True)
class LineSelector:
    """What a line must be, prepared once for a whole query."""

    matchers: tuple[Matcher, ...]
    filters: tuple[LineFilter, ...]
    metadata: tuple[Matcher, ...] = ()
    grams: Array = field(init=False)
    _known: dict[Labels, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.filters = tuple(one for one in self.filters if one.text or one.kind is not FilterKind.CONTAINS)
        self.grams = grams_in(_literals(self.filters, self.metadata))

    def streams(self, streams: Sequence[Labels]) -> Mask:
        """Which of these streams the matchers take; each is looked at once."""
        if not self.matchers:
            return np.ones(len(streams), np.bool_)
        return np.array([self._takes(stream) for stream in streams], np.bool_)

    def _takes(self, stream: Labels) -> bool:
        found = self._known.get(stream)
        if found is None:
            values = dict(stream)
            found = all(matcher.matches(values.get(matcher.name, "")) for matcher in self.matchers)
            self._known[stream] = found
        return found


def _literals(filters: Sequence[LineFilter], metadata: Sequence[Matcher]) -> list[str]:
    """Texts that every wanted line has, in itself or in its metadata."""
    found: list[str] = []
    for one in filters:
        if one.kind is FilterKind.CONTAINS:
            found.append(one.text)
        elif one.kind is FilterKind.MATCHES:
            found += required_literals(one.text)
    for matcher in metadata:
        is_plain = matcher.value.isascii() and matcher.value.isprintable() and not set('"\\') & set(matcher.value)
        if matcher.kind is MatchKind.EQUAL and is_plain:
            found.append(matcher.value)
    return found


def places_of(source: LineSource, wanted: LineSelector, start_ns: int, end_ns: int, budget: ScanBudget | None) -> Ints:
    """The rows of a source that are asked for, in their order. Raises E0624 once the budget is spent."""
    chosen = wanted.streams(source.streams)
    if not chosen.any():
        return np.empty(0, np.int64)
    times = source.times()
    mask = (times >= start_ns) & (times < end_ns)
    if not chosen.all():
        mask &= chosen[source.stream_at()]
    places: Ints = np.flatnonzero(mask)
    if not len(places):
        return places
    if wanted.filters:
        bodies = source.bodies()
        if budget is not None:
            sizes = sizes_of(bodies)
            budget.spend(int(sizes.sum() if len(places) == len(sizes) else sizes[places].sum()))
        if len(places) < len(bodies):
            bodies = bodies.take(places)
        for number, one in enumerate(wanted.filters):
            kept = passing(bodies, one)
            if not kept.all():
                places = places[kept]
                if number + 1 < len(wanted.filters):
                    bodies = bodies.filter(kept)
    for matcher in wanted.metadata:
        if len(places):
            places = places[_matching(source, matcher, places)]
    return places


def _matching(source: LineSource, matcher: Matcher, places: Ints) -> Mask:
    """Each different value is looked at once."""
    column = source.more(matcher.name if matcher.name in (TRACE_ID, SPAN_ID) else REST)
    if column is None:
        return np.full(len(places), matcher.matches(""), np.bool_)
    coded = column.take(places).dictionary_encode()
    values: list[str] = coded.dictionary.to_pylist()
    if matcher.name not in (TRACE_ID, SPAN_ID):
        values = [dict(rest_labels(value)).get(matcher.name, "") for value in values]
    taken = np.array([matcher.matches(value) for value in values], np.bool_)
    found: Mask = taken[coded.indices.to_numpy()]
    return found


@dataclass(frozen=True, slots=True)
class SelectedLines:
    """Lines that were asked for, of one source."""

    order: tuple[int, int]  # by arrival, among those of one stream and time
    streams: Sequence[Labels]
    stream_at: Codes
    times: Ints
    sizes: Ints
    bodies: StringColumn | None
    extras: Mapping[str, StringColumn]

    def __len__(self) -> int:
        return len(self.times)


def found_in(
    source: LineSource, places: Ints, order: tuple[int, int], extras: Sequence[str], *, with_bodies: bool
) -> SelectedLines:
    """The columns of these rows that were asked for."""
    times = source.times()
    all_of_them = len(places) == len(times)

    def of(column: StringColumn) -> StringColumn:
        return column if all_of_them else column.take(places)

    if with_bodies:
        bodies = of(source.bodies())
        sizes = sizes_of(bodies)
    else:
        bodies, sizes = None, source.sizes() if all_of_them else source.sizes()[places]
    columns = ((name, source.more(name)) for name in extras)
    return SelectedLines(
        order,
        source.streams,
        source.stream_at() if all_of_them else source.stream_at()[places],
        times if all_of_them else times[places],
        sizes,
        bodies,
        {name: of(column) for name, column in columns if column is not None},
    )


# In which order do lines come out? Source by source for counting; for people by time, as few sources as will do.


_CHUNK_LINES = 4096
_LOOKERS = min(4, os.cpu_count() or 1)  # Arrow and RE2 let other threads run meanwhile


@dataclass(frozen=True, slots=True)
class Lead:
    """A source that may have wanted lines, its times, and how to look. `look` takes the times that still matter."""

    start_ns: int
    end_ns: int  # of its newest line, included
    look: Callable[[int, int], SelectedLines | None]


def in_any_order(
    leads: Sequence[Lead], start_ns: int, end_ns: int, limit: int | None, stopped: Callable[[], bool]
) -> Iterator[LineChunk]:
    left = limit
    for found in _looked(leads, [start_ns, end_ns], _LOOKERS, stopped):
        if found is None:
            continue
        if left is not None:
            found = found if len(found) <= left else _part(found, np.arange(left))
            left -= len(found)
        yield _whole(found)
        if left == 0:
            return


def _looked(
    leads: Sequence[Lead], span: Sequence[int], lookers: int, stopped: Callable[[], bool]
) -> Iterator[SelectedLines | None]:
    """What is found in one source after the other. Other cores look ahead, within the `span` of that moment."""
    ahead: deque[Future[SelectedLines | None]] = deque()
    waiting = iter(leads)
    try:
        while not stopped():
            for lead in islice(waiting, lookers - len(ahead)):
                ahead.append(_pool().submit(lead.look, span[0], span[1]))
            if not ahead:
                return
            yield ahead.popleft().result()
    finally:
        for one in ahead:
            one.cancel()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_LOOKERS, thread_name_prefix="archive-look")


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads stay behind


def by_time(
    leads: Sequence[Lead],
    start_ns: int,
    end_ns: int,
    order: LineOrder,
    limit: int | None,
    stopped: Callable[[], bool],
    *,
    ahead: bool = False,
) -> Iterator[LineChunk]:
    """A line goes out as soon as no source that is left can have one before it.

    `ahead`: looking is dear and finds little, so that it is worth to begin with later sources already.
    """
    newest_first = order is LineOrder.NEWEST_FIRST
    waiting = sorted(leads, key=lambda lead: -lead.end_ns if newest_first else lead.start_ns)
    pool: list[SelectedLines] = []
    left = limit
    span = [start_ns, end_ns]
    for number, found in enumerate(_looked(waiting, span, _LOOKERS if ahead else 1, stopped)):
        if found is not None:
            pool.append(found)
        following = waiting[number + 1] if number + 1 < len(waiting) else None
        edge = _edge(following, newest_first)
        ready, pool = _ready(pool, edge, newest_first, left)
        if ready is not None:
            founds, places = ready
            yield from _chunks(founds, places)
            if left is not None:
                left -= len(places)
                if left <= 0:
                    return
        if left is not None and pool and sum(map(len, pool)) >= left:
            # What comes later must be at least as good as the last of these.
            times = np.concatenate([one.times for one in pool])
            if newest_first:
                span[0] = max(span[0], int(np.partition(times, len(times) - left)[len(times) - left]))
            else:
                span[1] = min(span[1], int(np.partition(times, left - 1)[left - 1]) + 1)


def _whole(found: SelectedLines) -> LineChunk:
    """All of a source at once, as it lies there."""
    return LineChunk(
        streams=found.streams,
        stream_at=found.stream_at,
        times_ns=found.times,
        text_bytes=found.sizes,
        bodies=() if found.bodies is None else found.bodies.to_pylist(),
        metadata=_metadata([found], np.arange(len(found))),
    )


def _ready(
    pool: Sequence[SelectedLines], edge: int | None, newest_first: bool, limit: int | None
) -> tuple[tuple[list[SelectedLines], Ints] | None, list[SelectedLines]]:
    """Lines of the pool that are surely next, sorted; and the pool without them."""
    if not pool:
        return None, []
    founds = sorted(pool, key=lambda found: found.order)
    times = np.concatenate([found.times for found in founds])
    out = _before(times, edge, newest_first)
    if not out.any():
        return None, list(pool)
    ranks = _ranks(founds)
    places = np.flatnonzero(out)
    signed = -times[places] if newest_first else times[places]
    places = places[np.lexsort((ranks[places], signed))]
    if limit is not None:
        places = places[:limit]
    rest: list[SelectedLines] = []
    if not out.all():
        begin = 0
        for found in founds:
            kept = np.flatnonzero(~out[begin : begin + len(found)])
            begin += len(found)
            if len(kept):
                rest.append(_part(found, kept))
    return (founds, places), rest


def _edge(following: Lead | None, newest_first: bool) -> int | None:
    """The best time that the next source can have; None: there is none."""
    if following is None:
        return None
    return following.end_ns if newest_first else following.start_ns


def _before(times: Ints, edge: int | None, newest_first: bool) -> Mask:
    if edge is None:
        return np.ones(len(times), np.bool_)
    return times > edge if newest_first else times < edge


def _ranks(founds: Sequence[SelectedLines]) -> Ints:
    """Of each line, the place of its stream among all streams by labels."""
    used: dict[Labels, int] = {}
    codes = []
    for found in founds:
        local = np.zeros(len(found.streams), np.int64)
        for code in np.unique(found.stream_at):
            local[code] = used.setdefault(found.streams[code], len(used))
        codes.append(local[found.stream_at])
    ordered = sorted(used)
    rank = np.empty(len(used), np.int64)
    for place, stream in enumerate(ordered):
        rank[used[stream]] = place
    ranked: Ints = rank[np.concatenate(codes)]
    return ranked


def _part(found: SelectedLines, places: Ints) -> SelectedLines:
    return SelectedLines(
        found.order,
        found.streams,
        found.stream_at[places],
        found.times[places],
        found.sizes[places],
        None if found.bodies is None else found.bodies.take(places),
        {name: column.take(places) for name, column in found.extras.items()},
    )


def _chunks(founds: Sequence[SelectedLines], places: Ints) -> Iterator[LineChunk]:
    """Lines at these places of all founds one behind the other."""
    bounds = np.cumsum([0, *(len(found) for found in founds)])
    for begin in range(0, len(places), _CHUNK_LINES):
        yield _chunk(founds, bounds, places[begin : begin + _CHUNK_LINES])


def _chunk(founds: Sequence[SelectedLines], bounds: Ints, places: Ints) -> LineChunk:
    """Gathers from each source what the chunk has of it, then brings that into order."""
    owner = np.searchsorted(bounds, places, side="right") - 1
    streams: dict[Labels, int] = {}
    parts: list[SelectedLines] = []
    order: list[Ints] = []
    codes = []
    for number in np.unique(owner):
        mine = np.flatnonzero(owner == number)
        part = _part(founds[number], places[mine] - bounds[number])
        local = np.zeros(len(part.streams), np.int32)
        for code in np.unique(part.stream_at):
            local[code] = streams.setdefault(part.streams[code], len(streams))
        codes.append(local[part.stream_at])
        parts.append(part)
        order.append(mine)
    back = np.argsort(np.concatenate(order), kind="stable")
    bodies: Sequence[str] = ()
    if parts[0].bodies is not None:
        bodies = joined_strings([part.bodies for part in parts]).take(back).to_pylist()
    return LineChunk(
        streams=tuple(streams),
        stream_at=np.concatenate(codes)[back],
        times_ns=np.concatenate([part.times for part in parts])[back],
        text_bytes=np.concatenate([part.sizes for part in parts])[back],
        bodies=bodies,
        metadata=_metadata(parts, back),
    )


def _metadata(parts: Sequence[SelectedLines], back: Ints) -> Sequence[Labels]:
    if not any(part.extras for part in parts):
        return ()
    lines: list[Labels] = []
    for part in parts:
        columns = [
            part.extras[name].to_pylist() if name in part.extras else [""] * len(part)
            for name in (TRACE_ID, SPAN_ID, REST)
        ]
        lines += map(metadata_of, *columns)
    found = [lines[place] for place in back]
    return found if any(found) else ()

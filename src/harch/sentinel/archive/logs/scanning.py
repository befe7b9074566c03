"""In which order do lines come out? Source by source for counting; for people by time, as few sources as will do."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import islice

import numpy as np

from harch.sentinel.archive.logs.rows import REST, metadata_of
from harch.sentinel.archive.logs.selecting import Found
from harch.sentinel.archive.texts import Mask, joined_texts
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import SPAN_ID, TRACE_ID, LogChunk, Order
from harch.sentinel.model.selection import Ints

_CHUNK_LINES = 4096
_LOOKERS = min(4, os.cpu_count() or 1)  # Arrow and RE2 let other threads run meanwhile


@dataclass(frozen=True, slots=True)
class Lead:
    """A source that may have wanted lines, its times, and how to look. `look` takes the times that still matter."""

    start_ns: int
    end_ns: int  # of its newest line, included
    look: Callable[[int, int], Found | None]


def in_any_order(
    leads: Sequence[Lead], start_ns: int, end_ns: int, limit: int | None, stopped: Callable[[], bool]
) -> Iterator[LogChunk]:
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
) -> Iterator[Found | None]:
    """What is found in one source after the other. Other cores look ahead, within the `span` of that moment."""
    ahead: deque[Future[Found | None]] = deque()
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


def by_time(
    leads: Sequence[Lead],
    start_ns: int,
    end_ns: int,
    order: Order,
    limit: int | None,
    stopped: Callable[[], bool],
    *,
    ahead: bool = False,
) -> Iterator[LogChunk]:
    """A line goes out as soon as no source that is left can have one before it.

    `ahead`: looking is dear and finds little, so that it is worth to begin with later sources already.
    """
    newest_first = order is Order.NEWEST_FIRST
    waiting = sorted(leads, key=lambda lead: -lead.end_ns if newest_first else lead.start_ns)
    pool: list[Found] = []
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


def _whole(found: Found) -> LogChunk:
    """All of a source at once, as it lies there."""
    return LogChunk(
        streams=found.streams,
        stream_at=found.stream_at,
        times_ns=found.times,
        text_bytes=found.sizes,
        texts=() if found.texts is None else found.texts.to_pylist(),
        metadata=_metadata([found], np.arange(len(found))),
    )


def _ready(
    pool: Sequence[Found], edge: int | None, newest_first: bool, limit: int | None
) -> tuple[tuple[list[Found], Ints] | None, list[Found]]:
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
    rest: list[Found] = []
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


def _ranks(founds: Sequence[Found]) -> Ints:
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


def _part(found: Found, places: Ints) -> Found:
    return Found(
        found.order,
        found.streams,
        found.stream_at[places],
        found.times[places],
        found.sizes[places],
        None if found.texts is None else found.texts.take(places),
        {name: column.take(places) for name, column in found.extras.items()},
    )


def _chunks(founds: Sequence[Found], places: Ints) -> Iterator[LogChunk]:
    """Lines at these places of all founds one behind the other."""
    bounds = np.cumsum([0, *(len(found) for found in founds)])
    for begin in range(0, len(places), _CHUNK_LINES):
        yield _chunk(founds, bounds, places[begin : begin + _CHUNK_LINES])


def _chunk(founds: Sequence[Found], bounds: Ints, places: Ints) -> LogChunk:
    """Gathers from each source what the chunk has of it, then brings that into order."""
    owner = np.searchsorted(bounds, places, side="right") - 1
    streams: dict[Labels, int] = {}
    parts: list[Found] = []
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
    texts: Sequence[str] = ()
    if parts[0].texts is not None:
        texts = joined_texts([part.texts for part in parts]).take(back).to_pylist()
    return LogChunk(
        streams=tuple(streams),
        stream_at=np.concatenate(codes)[back],
        times_ns=np.concatenate([part.times for part in parts])[back],
        text_bytes=np.concatenate([part.sizes for part in parts])[back],
        texts=texts,
        metadata=_metadata(parts, back),
    )


def _metadata(parts: Sequence[Found], back: Ints) -> Sequence[Labels]:
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

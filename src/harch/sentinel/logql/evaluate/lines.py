"""Which lines does a query find, now and while they come in?

In order, through the pipeline, up to a limit; filters go down to the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from harch.base.errors import HarchError
from harch.sentinel.logql.evaluate.context import LogQueryContext
from harch.sentinel.logql.stages.page import EXTRACTED, LabelsRead, LinePage, pages
from harch.sentinel.logql.stages.pipeline import LinePipeline, may_drop_lines
from harch.sentinel.logql.stages.requirements import needs_bodies, needs_labels, pushed_down
from harch.sentinel.logql.syntax import nodes
from harch.sentinel.logql.syntax.nodes import Condition, LogQuery, Stage
from harch.sentinel.model.labels import Labels, Matcher, MatchKind
from harch.sentinel.model.logs import LineChunk, LineOrder, LogBatch, LogRequest, chunk_of


@dataclass(frozen=True, slots=True)
class PlannedScan:
    """A request to the store, and the pipeline for what it answers."""

    request: LogRequest
    pipeline: LinePipeline


def planned(
    query: LogQuery,
    start_ns: int,
    end_ns: int,
    order: LineOrder,
    work: LogQueryContext,
    *,
    wanted: LabelsRead | None,
    answer_bodies: bool,
    answer_labels: bool,
) -> PlannedScan:
    """`answer_texts` and `answer_labels`: whether the answer itself shows texts, or labels that metadata may hold."""
    filters, left = pushed_down(query.stages)
    request = LogRequest(
        query.matchers,
        start_ns,
        end_ns,
        filters,
        _metadata_matchers(query, start_ns, end_ns, work),
        order,
        with_bodies=answer_bodies or needs_bodies(left),
        with_metadata=answer_labels or needs_labels(left),
        scanned_bytes_max=work.limits.scanned_bytes_max,
    )
    return PlannedScan(request, LinePipeline(left, wanted, work.now_ns))


def _metadata_matchers(query: LogQuery, start_ns: int, end_ns: int, work: LogQueryContext) -> tuple[Matcher, ...]:
    """`| trace_id="…"` before any other stage is the store's to answer, if no stream has such a label itself."""
    found = [matcher for stage in _first_filters(query.stages) for matcher in _equalities(stage.condition)]
    if not found:
        return ()
    streams = work.readable.streams(query.matchers, start_ns, end_ns)
    known = {name for labels in streams for name, _ in labels}
    return tuple(matcher for matcher in found if matcher.name not in known)


def _first_filters(pipeline: tuple[Stage, ...]) -> Iterator[nodes.LabelFilter]:
    for stage in pipeline:
        if isinstance(stage, nodes.LabelFilter):
            yield stage
        elif not isinstance(stage, nodes.LineFilterStage):
            return


def _equalities(condition: Condition) -> list[Matcher]:
    """What must hold in any case. Errors and names that hide no stream's label are ours, and no store knows them."""
    match condition:
        case nodes.Both(left=left, right=right):
            return [*_equalities(left), *_equalities(right)]
        case nodes.TextCondition(matcher=Matcher(kind=MatchKind.EQUAL, value=value) as matcher):
            is_ours = matcher.name.startswith("__") or matcher.name.endswith(EXTRACTED)
            return [matcher] if value and not is_ours else []
        case _:
            return []


# Which lines does a query find? In order, through the pipeline, up to a limit.


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of an answer, with its labels by where they come from. No name is in two of them."""

    time_ns: int
    text: str
    stream: Labels
    metadata: Labels = ()
    parsed: Labels = ()

    @property
    def labels(self) -> Labels:
        return tuple(sorted((*self.stream, *self.metadata, *self.parsed)))


@dataclass(frozen=True, slots=True)
class LineWindow:
    """From `start_ns` up to `end_ns`, which is not included. Lines are at least `interval_ns` apart; 0: all of them."""

    start_ns: int
    end_ns: int
    order: LineOrder = LineOrder.NEWEST_FIRST
    limit: int = 100
    interval_ns: int = 0


def selected_lines(query: LogQuery, window: LineWindow, work: LogQueryContext) -> list[LogEntry]:
    """At most `limit` lines, in order."""
    plan = planned(
        query,
        window.start_ns,
        window.end_ns,
        window.order,
        work,
        wanted=None,
        answer_bodies=True,
        answer_labels=True,
    )
    request = plan.request
    if not may_drop_lines(plan.pipeline.stages) and not window.interval_ns:
        request = replace(request, limit=window.limit)
    found: list[LogEntry] = []
    size, last_ns = 0, None
    for chunk in work.chunks(request, lambda: len(found) >= window.limit):
        for entry in _entries(chunk, plan.pipeline):
            if last_ns is not None and abs(entry.time_ns - last_ns) < window.interval_ns:
                continue
            last_ns = entry.time_ns
            size += len(entry.text) + sum(len(name) + len(value) for name, value in entry.labels)
            _check_size(size, work.limits.result_bytes_max)
            found.append(entry)
            if len(found) >= window.limit:
                break
    return found


def _entries(chunk: LineChunk, pipeline: LinePipeline) -> Iterator[LogEntry]:
    """Page by page, so that no more lines are worked on than are asked for."""
    for page in pages(chunk, None, whole=False):
        pipeline.run(page)
        yield from entries_of(page)


def _check_size(size: int, size_max: int) -> None:
    if size > size_max:
        raise HarchError(
            "E0687",
            f"the lines of the result exceed {size_max >> 20} MiB",
            hint="request fewer lines with `limit`, or shorten them with line_format",
        )


def entries_of(page: LinePage) -> Sequence[LogEntry]:
    """The lines of a page as they are answered. Equal labels are made once."""
    metadata, parsed = page.metadata, page.parsed
    rows = zip(page.codes, *metadata.values(), *parsed.values(), strict=True)
    known: dict[tuple[object, ...], tuple[Labels, Labels, Labels]] = {}
    entries = []
    for row, time_ns, text in zip(rows, page.times_ns.tolist(), page.bodies, strict=True):
        labels = known.get(row)
        if labels is None:
            labels = known[row] = _split(page, row)
        entries.append(LogEntry(time_ns, text, *labels))
    return entries


def _split(page: LinePage, row: tuple[object, ...]) -> tuple[Labels, Labels, Labels]:
    """Labels of one line by layer; a later layer takes names away from earlier ones."""
    count = 1 + len(page.metadata)
    parsed = {name: value for name, value in zip(page.parsed, row[count:], strict=True) if isinstance(value, str)}
    metadata = {
        name: value
        for name, value in zip(page.metadata, row[1:count], strict=True)
        if isinstance(value, str) and name not in parsed
    }
    code = row[0]
    stream = page.streams[code] if isinstance(code, int) else {}
    left = {name: value for name, value in stream.items() if name not in parsed and name not in metadata}
    return _labels(left), _labels(metadata), _labels(parsed)


def _labels(pairs: dict[str, str]) -> Labels:
    return tuple(sorted((name, value) for name, value in pairs.items() if value))


# Which lines are new? What a writer has just stored, filtered and kept for one reader within limits.


LINES_WAITING_MAX = 10_000
DROPPED_LISTED_MAX = 100


@dataclass(slots=True)
class DroppedLines:
    """Lines that found no room: how many, and some of them by stream and time."""

    count: int = 0
    listed: list[tuple[Labels, int]] = field(default_factory=list)


class TailBuffer:
    """Batches between the writers' threads and one reader. What does not fit is dropped and counted."""

    def __init__(
        self, matchers: Sequence[Matcher], wake: Callable[[], None], lines_max: int = LINES_WAITING_MAX
    ) -> None:
        self._matchers = matchers
        self._wake = wake
        self._lines_max = lines_max
        self._lock = threading.Lock()
        self._batches: list[LogBatch] = []
        self._lines = 0
        self._dropped = DroppedLines()

    def receive(self, batches: Sequence[LogBatch]) -> None:
        """Called by the store in a writer's thread."""
        mine = [batch for batch in batches if batch.bodies and _matches(self._matchers, batch.labels)]
        if not mine:
            return
        with self._lock:
            for batch in mine:
                if self._lines + len(batch.bodies) > self._lines_max:
                    self._drop(batch)
                else:
                    self._batches.append(batch)
                    self._lines += len(batch.bodies)
        self._wake()

    def _drop(self, batch: LogBatch) -> None:
        self._dropped.count += len(batch.bodies)
        room = DROPPED_LISTED_MAX - len(self._dropped.listed)
        self._dropped.listed += [(batch.labels, int(time_ns)) for time_ns in list(batch.times_ns)[: max(room, 0)]]

    def take(self) -> tuple[list[LogBatch], DroppedLines]:
        """All that waits, and what was dropped since the last time."""
        with self._lock:
            taken, self._batches, self._lines = self._batches, [], 0
            dropped, self._dropped = self._dropped, DroppedLines()
        return taken, dropped


def _matches(matchers: Sequence[Matcher], labels: Labels) -> bool:
    values = dict(labels)
    return all(matcher.matches(values.get(matcher.name, "")) for matcher in matchers)


def tailed_entries(query: LogQuery, batches: Sequence[LogBatch], now_ns: int) -> list[LogEntry]:
    """What a query makes of new lines, oldest first."""
    lines = [
        (batch.labels, int(time_ns), text, batch.metadata[place] if batch.metadata else ())
        for batch in batches
        for place, (time_ns, text) in enumerate(zip(batch.times_ns, batch.bodies, strict=True))
    ]
    if not lines:
        return []
    found: list[LogEntry] = []
    for page in pages(chunk_of(sorted(lines, key=lambda line: line[1])), None, whole=False):
        LinePipeline(query.stages, None, now_ns).run(page)
        found += entries_of(page)
    return found

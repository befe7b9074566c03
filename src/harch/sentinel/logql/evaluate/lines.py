"""Which lines does a query find? In order, through the pipeline, up to a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harch.base.errors import HarchError
from harch.sentinel.logql.evaluate.requests import planned
from harch.sentinel.logql.evaluate.work import Work
from harch.sentinel.logql.stages.page import Page, pages
from harch.sentinel.logql.stages.pipeline import Pipeline, may_drop_lines
from harch.sentinel.logql.syntax.nodes import LogQuery
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import LogChunk, Order


@dataclass(frozen=True, slots=True)
class Entry:
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
class Window:
    """From `start_ns` up to `end_ns`, which is not included. Lines are at least `interval_ns` apart; 0: all of them."""

    start_ns: int
    end_ns: int
    order: Order = Order.NEWEST_FIRST
    limit: int = 100
    interval_ns: int = 0


def selected_lines(query: LogQuery, window: Window, work: Work) -> list[Entry]:
    """At most `limit` lines, in order."""
    plan = planned(
        query,
        window.start_ns,
        window.end_ns,
        window.order,
        work,
        wanted=None,
        answer_texts=True,
        answer_labels=True,
    )
    request = plan.request
    if not may_drop_lines(plan.pipeline.stages) and not window.interval_ns:
        request = replace(request, limit=window.limit)
    found: list[Entry] = []
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


def _entries(chunk: LogChunk, pipeline: Pipeline) -> Iterator[Entry]:
    """Page by page, so that no more lines are worked on than are asked for."""
    for page in pages(chunk, None, whole=False):
        pipeline.run(page)
        yield from entries_of(page)


def _check_size(size: int, size_max: int) -> None:
    if size > size_max:
        raise HarchError(
            "E0687",
            f"the lines of the answer take more than {size_max >> 20} MiB",
            hint="ask for fewer lines with `limit`, or shorten them with line_format",
        )


def entries_of(page: Page) -> Sequence[Entry]:
    """The lines of a page as they are answered. Equal labels are made once."""
    metadata, parsed = page.metadata, page.parsed
    rows = zip(page.codes, *metadata.values(), *parsed.values(), strict=True)
    known: dict[tuple[object, ...], tuple[Labels, Labels, Labels]] = {}
    entries = []
    for row, time_ns, text in zip(rows, page.times_ns.tolist(), page.texts, strict=True):
        labels = known.get(row)
        if labels is None:
            labels = known[row] = _split(page, row)
        entries.append(Entry(time_ns, text, *labels))
    return entries


def _split(page: Page, row: tuple[object, ...]) -> tuple[Labels, Labels, Labels]:
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

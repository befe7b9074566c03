"""Which lines are new? What a writer has just stored, filtered and kept for one reader within limits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harch.sentinel.logql.evaluate.lines import Entry, entries_of
from harch.sentinel.logql.stages.page import pages
from harch.sentinel.logql.stages.pipeline import Pipeline
from harch.sentinel.logql.syntax.nodes import LogQuery
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import LogBatch, chunk_of
from harch.sentinel.model.matchers import Matcher

LINES_WAITING_MAX = 10_000
DROPPED_LISTED_MAX = 100


@dataclass(slots=True)
class Dropped:
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
        self._dropped = Dropped()

    def heard(self, batches: Sequence[LogBatch]) -> None:
        """Called by the store in a writer's thread."""
        mine = [batch for batch in batches if batch.texts and _matches(self._matchers, batch.labels)]
        if not mine:
            return
        with self._lock:
            for batch in mine:
                if self._lines + len(batch.texts) > self._lines_max:
                    self._drop(batch)
                else:
                    self._batches.append(batch)
                    self._lines += len(batch.texts)
        self._wake()

    def _drop(self, batch: LogBatch) -> None:
        self._dropped.count += len(batch.texts)
        room = DROPPED_LISTED_MAX - len(self._dropped.listed)
        self._dropped.listed += [(batch.labels, int(time_ns)) for time_ns in list(batch.times_ns)[: max(room, 0)]]

    def take(self) -> tuple[list[LogBatch], Dropped]:
        """All that waits, and what was dropped since the last time."""
        with self._lock:
            taken, self._batches, self._lines = self._batches, [], 0
            dropped, self._dropped = self._dropped, Dropped()
        return taken, dropped


def _matches(matchers: Sequence[Matcher], labels: Labels) -> bool:
    values = dict(labels)
    return all(matcher.matches(values.get(matcher.name, "")) for matcher in matchers)


def tailed_entries(query: LogQuery, batches: Sequence[LogBatch], now_ns: int) -> list[Entry]:
    """What a query makes of new lines, oldest first."""
    lines = [
        (batch.labels, int(time_ns), text, batch.metadata[place] if batch.metadata else ())
        for batch in batches
        for place, (time_ns, text) in enumerate(zip(batch.times_ns, batch.texts, strict=True))
    ]
    if not lines:
        return []
    found: list[Entry] = []
    for page in pages(chunk_of(sorted(lines, key=lambda line: line[1])), None, whole=False):
        Pipeline(query.stages, None, now_ns).run(page)
        found += entries_of(page)
    return found

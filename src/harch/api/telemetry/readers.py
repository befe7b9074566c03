"""What telemetry does a tenant have here, for a question of another hub? Nothing at all is an answer, too.

A question must not make a tenant: names come from other hubs, and folders would be made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from harch.api.telemetry.ports import LogTenants, SpanTenants, Tenants
from harch.sentinel.federated.owning.answering import Readers
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import LogChunk, LogRequest
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.model.selection import NOTHING, Selection, SeriesExemplars, SeriesTable
from harch.sentinel.model.spans import Field, Span, SpanGroup, SpanQuery, TraceSummary


class Archive(LogTenants, SpanTenants, Protocol):
    """Lines and spans of all tenants."""

    def names(self) -> Sequence[str]:
        """Tenants that have any."""
        ...


class NoSeries:
    """The metrics of a tenant that has none."""

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        return NOTHING

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        return NOTHING.series

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        return ()


class NoLines:
    def scan(self, request: LogRequest, stopped: Callable[[], bool]) -> Iterator[LogChunk]:
        return iter(())

    def streams(self, matchers: Sequence[Matcher], start_ns: int, end_ns: int) -> Sequence[Labels]:
        return ()


class NoSpans:
    def search(self, query: SpanQuery) -> Sequence[TraceSummary]:
        return ()

    def trace(self, trace_id: str) -> Sequence[Span]:
        return ()

    def statistics(self, query: SpanQuery, by: Sequence[Field]) -> Sequence[SpanGroup]:
        return ()

    def tag_names(self, start_ns: int, end_ns: int) -> Sequence[str]:
        return ()

    def tag_values(self, field: Field, attribute: str, start_ns: int, end_ns: int, limit: int) -> Sequence[str]:
        return ()


def readers_of(tenants: Tenants, archive: Archive) -> Callable[[str], Readers]:
    def readers(tenant: str) -> Readers:
        has_metrics, has_archive = tenant in tenants.names(), tenant in archive.names()
        return Readers(
            metrics=tenants.store(tenant) if has_metrics else NoSeries(),
            logs=archive.logs(tenant) if has_archive else NoLines(),
            spans=archive.spans(tenant) if has_archive else NoSpans(),
        )

    return readers

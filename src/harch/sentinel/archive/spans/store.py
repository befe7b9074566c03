"""Where are the spans of one tenant, and which are accepted? In memory and in files; a span sent twice is kept once."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harch.base.clock import Clock
from harch.sentinel.archive.limits import ArchivePolicy, SpanLimits
from harch.sentinel.archive.row_storage import TableSnapshot
from harch.sentinel.archive.spans.blocks import SpanBlock, block_of
from harch.sentinel.archive.spans.file import SpanRowStorage, erased, erasure_bytes, trace_words
from harch.sentinel.archive.spans.rows import SpanRows, encoded_span, keys_of, record_of, rows_of, spans_of
from harch.sentinel.archive.spans.search import TraceSearch, statistics, tag_names, tag_values
from harch.sentinel.archive.table import ArchiveTable, SharedMemory
from harch.sentinel.model.spans import Attributes, Span, SpanField, SpanGroup, SpanQuery, SpansWritten, TraceSummary
from harch.sentinel.store.disk import FileSystem
from harch.sentinel.store.limits import Rate
from harch.sentinel.store.wal.segments import LogDisk

_IDS = re.compile(r"[0-9a-f]{32} [0-9a-f]{16} (?:[0-9a-f]{16})?")
_TIME_MAX = 1 << 62


@dataclass(slots=True)
class AcceptedSpans:
    """Spans with their bytes for the log."""

    spans: list[Span] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    first_refusal: str = ""

    @property
    def written(self) -> SpansWritten:
        return SpansWritten(len(self.spans), dict(self.refused), self.first_refusal)


def accept(spans: Sequence[Span], limits: SpanLimits) -> AcceptedSpans:
    accepted = AcceptedSpans()
    plain_bytes = min(limits.span_bytes_max, limits.attribute_value_bytes_max, limits.attribute_name_bytes_max)
    for span in spans:
        reason = _wrong(span, limits)
        if not reason:
            try:
                record = encoded_span(span)
            except UnicodeEncodeError:
                reason = "a string in it is not UTF-8"
            except OverflowError:
                reason = "a number in it has more than 64 bits"
            else:
                # What is small as a whole has nothing in it that is too long.
                if len(record) > plain_bytes:
                    reason = _too_long(span, len(record), limits)
        if reason:
            accepted.refused["E0626"] += 1
            accepted.first_refusal = accepted.first_refusal or reason
        else:
            accepted.spans.append(span)
            accepted.records.append(record)
    return accepted


def _wrong(span: Span, limits: SpanLimits) -> str:
    """Why a span is not taken; empty if it is."""
    if not _IDS.fullmatch(f"{span.trace_id} {span.span_id} {span.parent_id}"):
        return f"ids `{span.trace_id[:40]}`, `{span.span_id[:20]}` must have 32 and 16 hexadecimal digits"
    if len(span.attributes) + len(span.resource) > limits.attributes_per_span_max:
        return f"{len(span.attributes)} attributes; {limits.attributes_per_span_max} are allowed"
    if len(span.events) > limits.events_per_span_max or len(span.links) > limits.links_per_span_max:
        return f"{len(span.events)} events and {len(span.links)} links exceed the limit"
    if not (-_TIME_MAX < span.start_ns < _TIME_MAX and -_TIME_MAX < span.duration_ns < _TIME_MAX):
        return "its times are out of range"
    return ""


def _too_long(span: Span, size: int, limits: SpanLimits) -> str:
    if size > limits.span_bytes_max:
        return f"a span of {size} bytes; {limits.span_bytes_max} are allowed"
    more: tuple[Attributes, ...] = (
        *(event.attributes for event in span.events),
        *(link.attributes for link in span.links),
    )
    for attributes in (span.attributes, span.resource, *more):
        for name, value in attributes:
            if len(name.encode()) > limits.attribute_name_bytes_max:
                return f"the name of attribute `{name[:40]}` is longer than {limits.attribute_name_bytes_max} bytes"
            if isinstance(value, str) and len(value.encode()) > limits.attribute_value_bytes_max:
                return f"attribute `{name[:40]}` is longer than {limits.attribute_value_bytes_max} bytes"
    return ""


# Where are the spans of one tenant? In memory and in files; this is both as one. A span sent twice is kept once.


_RECENT_MAX = 500_000
_ALL_TIMES = (-(1 << 63), (1 << 63) - 1)


class SpanArchive:
    """One tenant's spans, for any number of threads. A write that returns is on disk."""

    def __init__(
        self,
        folder: Path,
        limits: SpanLimits,
        policy: ArchivePolicy,
        clock: Clock,
        *,
        memory: SharedMemory | None = None,
        disk: FileSystem | None = None,
        log_disk: LogDisk | None = None,
    ) -> None:
        self._limits = limits
        self._kind = SpanRowStorage()
        self.table: ArchiveTable[SpanRows] = ArchiveTable(
            folder, self._kind, policy, clock, memory=memory, disk=disk, log_disk=log_disk
        )
        self._rate = Rate(limits.spans_per_s_max, limits.spans_burst_max, "spans", clock.monotonic_s)
        self._writing = threading.Lock()  # what is new is decided by one writer at a time
        self._recent = self._in_memory()  # spans in memory, and some that went into files since
        if self.table.erasures_wait():
            self.table.carry_out()  # a crash came between an erasure and its end

    def append(self, spans: Sequence[Span]) -> SpansWritten:
        self.table.check_writable()
        accepted = accept(spans, self._limits)
        self._rate.take(len(accepted.spans))
        with self._writing:
            places = self._new_ones(accepted.spans)
            if places:
                rows = rows_of([accepted.spans[place] for place in places])
                ticket = self.table.add(rows, record_of([accepted.records[place] for place in places]))
            else:
                ticket = self.table.last_ticket()  # what was sent again may still be on its way to the disk
        self.table.commit(ticket)
        return accepted.written

    def search(self, query: SpanQuery) -> Sequence[TraceSummary]:
        if query.limit <= 0:
            return []
        with self.table.view(*_ALL_TIMES) as view:
            return self._search(view, query).traces()

    def trace(self, trace_id: str) -> Sequence[Span]:
        words = trace_words(trace_id)
        found: dict[str, Span] = {}
        with self.table.view(*_ALL_TIMES) as view:
            for block in self._blocks(view):
                entry = block.traces.find(words)
                if entry >= 0:
                    rows = block.rows(int(block.traces.first[entry]), int(block.traces.count[entry]))
                    found.update((span.span_id, span) for span in spans_of(rows))
        return sorted(found.values(), key=lambda span: (span.start_ns, span.span_id))

    def statistics(self, query: SpanQuery, by: Sequence[SpanField]) -> Sequence[SpanGroup]:
        with self.table.view(query.start_ns, query.end_ns) as view:
            return statistics(self._search(view, query), by)

    def tag_names(self, start_ns: int, end_ns: int) -> Sequence[str]:
        with self.table.view(start_ns, end_ns) as view:
            return sorted(tag_names(self._blocks(view), start_ns, end_ns))

    def tag_values(self, field: SpanField, attribute: str, start_ns: int, end_ns: int, limit: int) -> Sequence[str]:
        with self.table.view(start_ns, end_ns) as view:
            return sorted(tag_values(self._blocks(view), field, attribute, start_ns, end_ns))[:limit]

    def delete(self, query: SpanQuery, trace_ids: Sequence[str]) -> int:
        """Files that hold such spans are rewritten at once: nobody sees them in a summary either."""
        content = erasure_bytes(query, trace_ids)
        with self.table.view(*_ALL_TIMES) as view:
            count = sum(int(erased(block, content).sum()) for block in self._blocks(view))
        if count:
            with self._writing:
                self.table.erase(content)
                self.table.carry_out()
                self._recent = self._in_memory()  # what was erased may come again, as new
        return count

    def purge(self) -> None:
        self.table.purge()

    def maintain(self) -> None:
        self.table.maintain()

    def facts(self) -> Mapping[str, object]:
        facts = dict(self.table.facts())
        return {"spans": facts.pop("rows"), **facts}

    def close(self) -> None:
        self.table.close()

    def _search(self, view: TableSnapshot[SpanRows], query: SpanQuery) -> TraceSearch:
        spans_max = min(query.scanned_spans_max, self._limits.scanned_spans_max)
        return TraceSearch(self._blocks(view), query, spans_max)

    def _blocks(self, view: TableSnapshot[SpanRows]) -> list[SpanBlock]:
        pieces: list[SpanBlock] = [block_of(rows) for rows in view.pieces]
        return self._files(view) + pieces

    def _files(self, view: TableSnapshot[SpanRows]) -> list[SpanBlock]:
        return [self._kind.file(self.table.files.folder / entry.name) for entry in view.files]

    def _new_ones(self, spans: Sequence[Span]) -> list[int]:
        """Places of spans that are not stored yet. One sent again has the same start: mostly no file is asked."""
        fresh: dict[str, int] = {}
        for place, span in enumerate(spans):
            key = span.trace_id + span.span_id
            if key not in self._recent:
                fresh.setdefault(key, place)
        if not fresh:
            return []
        starts = [spans[place].start_ns for place in fresh.values()]
        with self.table.view(min(starts), max(starts) + 1) as view:
            known = self._known(self._files(view), list(fresh)) if view.files else set()
        if len(self._recent) > _RECENT_MAX:
            self._recent = self._in_memory()
        self._recent.update(fresh)
        return [place for key, place in fresh.items() if key not in known]

    def _in_memory(self) -> set[str]:
        with self.table.view(0, 0) as view:
            return {key for rows in view.pieces for key in keys_of(rows)}

    def _known(self, files: Sequence[SpanBlock], keys: Sequence[str]) -> set[str]:
        by_trace: dict[str, list[str]] = {}
        for key in keys:
            by_trace.setdefault(key[:32], []).append(key)
        known: set[str] = set()
        for block in files:
            for trace_id, mine in by_trace.items():
                entry = block.traces.find(trace_words(trace_id))
                if entry >= 0:
                    held = _ids_of(block, entry)
                    known.update(key for key in mine if int(key[32:], 16) in held)
        return known


def _ids_of(block: SpanBlock, entry: int) -> set[int]:
    first, count = int(block.traces.first[entry]), int(block.traces.count[entry])
    held: set[int] = set()
    for group in range(len(block.groups)):
        low, high = max(first, int(block.bounds[group])), min(first + count, int(block.bounds[group + 1]))
        if low < high:
            begin = int(block.bounds[group])
            held.update(block.ids(group)[low - begin : high - begin].tolist())
    return held

"""Where are the spans of one tenant? In memory and in files; this is both as one. A span sent twice is kept once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from harch.base.clock import Clock
from harch.sentinel.archive.kinds import View
from harch.sentinel.archive.limits import Keeping, SpanLimits
from harch.sentinel.archive.memory import SharedMemory
from harch.sentinel.archive.spans.accepting import accept
from harch.sentinel.archive.spans.blocks import Block, block_of
from harch.sentinel.archive.spans.kind import SpanKindOfRows, erased, erasure_bytes, trace_words
from harch.sentinel.archive.spans.rows import SpanRows, keys_of, record_of, rows_of, spans_of
from harch.sentinel.archive.spans.searching import Search, statistics, tag_names, tag_values
from harch.sentinel.archive.table import Table
from harch.sentinel.model.spans import Field, Span, SpanGroup, SpanQuery, SpansWritten, TraceSummary
from harch.sentinel.store.blocks.disk import Disk
from harch.sentinel.store.rate import Rate
from harch.sentinel.store.wal.disk import Disk as LogDisk

_RECENT_MAX = 500_000
_ALL_TIMES = (-(1 << 63), (1 << 63) - 1)


class SpanArchive:
    """One tenant's spans, for any number of threads. A write that returns is on disk."""

    def __init__(
        self,
        folder: Path,
        limits: SpanLimits,
        keeping: Keeping,
        clock: Clock,
        *,
        memory: SharedMemory | None = None,
        disk: Disk | None = None,
        log_disk: LogDisk | None = None,
    ) -> None:
        self._limits = limits
        self._kind = SpanKindOfRows()
        self.table: Table[SpanRows] = Table(
            folder, self._kind, keeping, clock, memory=memory, disk=disk, log_disk=log_disk
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

    def statistics(self, query: SpanQuery, by: Sequence[Field]) -> Sequence[SpanGroup]:
        with self.table.view(query.start_ns, query.end_ns) as view:
            return statistics(self._search(view, query), by)

    def tag_names(self, start_ns: int, end_ns: int) -> Sequence[str]:
        with self.table.view(start_ns, end_ns) as view:
            return sorted(tag_names(self._blocks(view), start_ns, end_ns))

    def tag_values(self, field: Field, attribute: str, start_ns: int, end_ns: int, limit: int) -> Sequence[str]:
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

    def _search(self, view: View[SpanRows], query: SpanQuery) -> Search:
        spans_max = min(query.scanned_spans_max, self._limits.scanned_spans_max)
        return Search(self._blocks(view), query, spans_max)

    def _blocks(self, view: View[SpanRows]) -> list[Block]:
        pieces: list[Block] = [block_of(rows) for rows in view.pieces]
        return self._files(view) + pieces

    def _files(self, view: View[SpanRows]) -> list[Block]:
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

    def _known(self, files: Sequence[Block], keys: Sequence[str]) -> set[str]:
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


def _ids_of(block: Block, entry: int) -> set[int]:
    first, count = int(block.traces.first[entry]), int(block.traces.count[entry])
    held: set[int] = set()
    for group in range(len(block.groups)):
        low, high = max(first, int(block.bounds[group])), min(first + count, int(block.bounds[group + 1]))
        if low < high:
            begin = int(block.bounds[group])
            held.update(block.ids(group)[low - begin : high - begin].tolist())
    return held

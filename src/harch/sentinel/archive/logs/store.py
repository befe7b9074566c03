"""Where are the lines of one tenant? In memory and in files; this is both as one, with limits for what comes in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from harch.base.clock import Clock
from harch.sentinel.archive.entries import Erasure, FileEntry
from harch.sentinel.archive.kinds import View
from harch.sentinel.archive.limits import Keeping, LogLimits
from harch.sentinel.archive.logs.accepting import Accepting
from harch.sentinel.archive.logs.file import GroupSource, LogFile
from harch.sentinel.archive.logs.kind import LogKind, erased_places, erasure_bytes, groups_of
from harch.sentinel.archive.logs.rows import EXTRAS, LogRows, encoded, rows_of
from harch.sentinel.archive.logs.scanning import Lead, by_time, in_any_order
from harch.sentinel.archive.logs.selecting import Budget, Found, MemorySource, Source, Wanted, found_in, places_of
from harch.sentinel.archive.memory import SharedMemory
from harch.sentinel.archive.table import Table
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import LineFilter, LinesWritten, LogBatch, LogChunk, LogRequest, Order
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.model.selection import Ints
from harch.sentinel.store.blocks.disk import Disk
from harch.sentinel.store.wal.disk import Disk as LogDisk

_MEMORY_ORDER = 1 << 62  # what is in memory came after all that is in files


class LogArchive:
    """One tenant's lines, for any number of threads. A write that returns is on disk."""

    def __init__(
        self,
        folder: Path,
        limits: LogLimits,
        keeping: Keeping,
        clock: Clock,
        *,
        memory: SharedMemory | None = None,
        disk: Disk | None = None,
        log_disk: LogDisk | None = None,
    ) -> None:
        self._limits = limits
        self._kind = LogKind()
        self.table: Table[LogRows] = Table(
            folder, self._kind, keeping, clock, memory=memory, disk=disk, log_disk=log_disk
        )
        self._accepting = Accepting(limits, clock.monotonic_s)
        self._watchers: tuple[Callable[[Sequence[LogBatch]], None], ...] = ()

    def append(self, batches: Sequence[LogBatch]) -> LinesWritten:
        self.table.check_writable()
        accepted = self._accepting.accept(batches, self._streams_in_memory)
        if accepted.batches:
            rows = rows_of(accepted.batches)
            self.table.append(rows, encoded(rows))
            for heard in self._watchers:
                heard(accepted.batches)
        return accepted.written

    def scan(self, request: LogRequest, stopped: Callable[[], bool]) -> Iterator[LogChunk]:
        wanted = Wanted(request.matchers, request.filters, request.metadata)
        budget = Budget(min(request.scanned_bytes_max, self._limits.scanned_bytes_max))
        with self.table.view(request.start_ns, request.end_ns) as view:
            leads = list(self._leads(view, wanted, request, budget))
            span = (request.start_ns, request.end_ns)
            if request.order is Order.ANY:
                yield from in_any_order(leads, *span, request.limit, stopped)
            else:
                ahead = bool(wanted.filters or wanted.metadata)
                yield from by_time(leads, *span, request.order, request.limit, stopped, ahead=ahead)

    def streams(self, matchers: Sequence[Matcher], start_ns: int, end_ns: int) -> Sequence[Labels]:
        wanted = Wanted(tuple(matchers), ())
        found: set[Labels] = set()
        with self.table.view(start_ns, end_ns) as view:
            for rows in view.pieces:
                places = places_of(MemorySource(rows), wanted, start_ns, end_ns, None)
                found.update(rows.streams[code] for code in np.unique(rows.stream_at[places]))
            for entry in view.files:
                found |= self._streams_in(entry, view.due(entry), wanted, start_ns, end_ns)
        return sorted(found)

    def watch(self, heard: Callable[[Sequence[LogBatch]], None]) -> Callable[[], None]:
        self._watchers = (*self._watchers, heard)

        def end() -> None:
            self._watchers = tuple(one for one in self._watchers if one is not heard)

        return end

    def delete(self, matchers: Sequence[Matcher], filters: Sequence[LineFilter], start_ns: int, end_ns: int) -> int:
        request = LogRequest(
            tuple(matchers), start_ns, end_ns, tuple(filters), order=Order.ANY, with_texts=False, with_metadata=False
        )
        count = sum(len(chunk) for chunk in self.scan(request, lambda: False))
        if count:
            self.table.erase(erasure_bytes(matchers, filters, start_ns, end_ns))
        return count

    def purge(self) -> None:
        self.table.purge()

    def maintain(self) -> None:
        self.table.maintain()

    def facts(self) -> Mapping[str, object]:
        facts = dict(self.table.facts())
        lines = facts.pop("rows")
        return {"streams": len(self.streams((), -(1 << 63), (1 << 63) - 1)), "lines": lines, **facts}

    def close(self) -> None:
        self.table.close()

    def _streams_in_memory(self) -> set[Labels]:
        with self.table.view(0, 0) as view:
            return {stream for rows in view.pieces for stream in rows.streams}

    def _leads(self, view: View[LogRows], wanted: Wanted, request: LogRequest, budget: Budget) -> Iterator[Lead]:
        for number, rows in enumerate(view.pieces):
            look = _looker(partial(MemorySource, rows), wanted, (), (_MEMORY_ORDER, number), request, budget)
            yield Lead(int(rows.times.min()), int(rows.times.max()), look)
        for entry in view.files:
            file = self._file(entry)
            erasures = view.due(entry)
            for group in groups_of(file, wanted, request.start_ns, request.end_ns):
                mine = file.run_groups == group
                look = _looker(
                    partial(GroupSource, file, int(group)), wanted, erasures, (entry.first, int(group)), request, budget
                )
                yield Lead(int(file.run_starts[mine].min()), int(file.run_ends[mine].max()), look)

    def _streams_in(
        self, entry: FileEntry, erasures: Sequence[Erasure], wanted: Wanted, start_ns: int, end_ns: int
    ) -> set[Labels]:
        """Mostly from the index; where only part of a run lies in the time, by looking."""
        file = self._file(entry)
        chosen = wanted.streams(file.streams)[file.run_streams]
        inside = (file.run_starts >= start_ns) & (file.run_starts < end_ns)
        inside |= (file.run_ends >= start_ns) & (file.run_ends < end_ns)
        across = (file.run_starts < start_ns) & (file.run_ends >= end_ns)
        if erasures:
            inside, across = np.zeros_like(inside), inside | across
        found = {file.streams[code] for code in np.unique(file.run_streams[chosen & inside])}
        for group in np.unique(file.run_groups[chosen & across]):
            source = GroupSource(file, int(group))
            places = _left(source, places_of(source, wanted, start_ns, end_ns, None), erasures)
            found.update(file.streams[code] for code in np.unique(source.stream_at()[places]))
        return found

    def _file(self, entry: FileEntry) -> LogFile:
        return self._kind.file(self.table.files.folder / entry.name)


def _looker(
    opened: Callable[[], Source],
    wanted: Wanted,
    erasures: Sequence[Erasure],
    order: tuple[int, int],
    request: LogRequest,
    budget: Budget,
) -> Callable[[int, int], Found | None]:
    def look(start_ns: int, end_ns: int) -> Found | None:
        source = opened()  # here and not before: what it reads goes with it
        places = places_of(source, wanted, start_ns, end_ns, budget)
        places = _left(source, places, erasures)
        if not len(places):
            return None
        return found_in(source, places, order, EXTRAS if request.with_metadata else (), with_texts=request.with_texts)

    return look


def _left(source: Source, places: Ints, erasures: Sequence[Erasure]) -> Ints:
    for erasure in erasures:
        if len(places):
            places = np.setdiff1d(places, erased_places(source, erasure.content), assume_unique=True)
    return places

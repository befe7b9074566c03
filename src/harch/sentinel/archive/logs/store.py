"""Where are the lines of one tenant, and which are accepted?

In memory and in files; what is beyond a limit is counted by the reason why not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from harch.base.clock import Clock
from harch.sentinel.archive.limits import ArchivePolicy, LogLimits
from harch.sentinel.archive.logs.file import (
    GroupSource,
    LogFile,
    LogRowStorage,
    erased_places,
    erasure_bytes,
    groups_of,
)
from harch.sentinel.archive.logs.rows import EXTRAS, LogRows, encoded, rows_of
from harch.sentinel.archive.logs.scan import (
    Lead,
    LineSelector,
    LineSource,
    MemorySource,
    ScanBudget,
    SelectedLines,
    by_time,
    found_in,
    in_any_order,
    places_of,
)
from harch.sentinel.archive.planning import Erasure, FileEntry
from harch.sentinel.archive.row_storage import TableSnapshot
from harch.sentinel.archive.table import ArchiveTable, SharedMemory
from harch.sentinel.model.labels import Labels, Matcher
from harch.sentinel.model.logs import LineChunk, LineFilter, LineOrder, LinesWritten, LogBatch, LogRequest
from harch.sentinel.model.selection import Ints
from harch.sentinel.store.disk import FileSystem
from harch.sentinel.store.limits import Rate
from harch.sentinel.store.wal.segments import LogDisk

_TIME_MAX = 1 << 62


@dataclass(slots=True)
class Accepted:
    batches: list[LogBatch] = field(default_factory=list)
    lines: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    first_refusal: str = ""
    has_counted: bool = False

    @property
    def written(self) -> LinesWritten:
        return LinesWritten(self.lines, dict(self.refused), self.first_refusal)

    def refuse(self, code: str, reason: str, lines: int = 1) -> None:
        self.refused[code] += lines
        self.first_refusal = self.first_refusal or reason


class Accepting:
    def __init__(self, limits: LogLimits, monotonic_s: Callable[[], float]) -> None:
        self._limits = limits
        self._lines = Rate(limits.lines_per_s_max, limits.lines_burst_max, "lines", monotonic_s)
        self._bytes = Rate(limits.bytes_per_s_max, limits.bytes_burst_max, "bytes", monotonic_s)
        self._known: set[Labels] = set()  # streams that were found valid and counted

    def accept(self, batches: Sequence[LogBatch], in_memory: Callable[[], set[Labels]]) -> Accepted:
        """Raises E0628 where the tenant sends too fast. `in_memory` tells which streams count for the limit."""
        accepted = Accepted()
        for batch in batches:
            if not batch.bodies:
                continue
            code, reason = self._judged(batch.labels, accepted, in_memory)
            if code:
                accepted.refuse(code, reason, len(batch.bodies))
                continue
            taken = self._lines_of(batch, accepted)
            if taken is not None and taken.bodies:
                accepted.batches.append(taken)
                accepted.lines += len(taken.bodies)
        self._lines.take(accepted.lines)
        if self._limits.bytes_per_s_max is not None:
            self._bytes.take(sum(len(text) for batch in accepted.batches for text in batch.bodies))
        return accepted

    def _judged(self, labels: Labels, accepted: Accepted, in_memory: Callable[[], set[Labels]]) -> tuple[str, str]:
        """Code and reason why lines of this stream are not taken; empty if they are."""
        if labels in self._known:
            return "", ""
        if reason := self._wrong(labels):
            return "E0626", reason
        if len(self._known) >= self._limits.streams_max:
            if not accepted.has_counted:  # streams fall silent: once a request it is worth a look
                self._known = in_memory() | {batch.labels for batch in accepted.batches}
                accepted.has_counted = True
            if len(self._known) >= self._limits.streams_max:
                return "E0627", f"{self._limits.streams_max} streams is the limit"
        self._known.add(labels)
        return "", ""

    def _wrong(self, labels: Labels) -> str:
        limits = self._limits
        if not labels:
            return "a stream needs at least one label"
        if len(labels) > limits.labels_per_stream_max:
            return f"{len(labels)} labels; {limits.labels_per_stream_max} are allowed"
        for name, value in labels:
            try:
                sizes = len(name.encode()), len(value.encode())
            except UnicodeEncodeError:
                return "a label is not UTF-8"
            if sizes[0] > limits.label_name_bytes_max or sizes[1] > limits.label_value_bytes_max:
                return f"label `{name[:40]}` is longer than {limits.label_value_bytes_max} bytes"
        return ""

    def _lines_of(self, batch: LogBatch, accepted: Accepted) -> LogBatch | None:
        """The batch, or what may stay of it. The usual batch is looked at as a whole, without a step for each line."""
        longest = self._limits.line_bytes_max
        is_plain = (
            not batch.metadata
            and max(map(len, batch.bodies)) * 4 <= longest
            and -_TIME_MAX < min(batch.times_ns) <= max(batch.times_ns) < _TIME_MAX
        )
        if is_plain:
            try:
                "".join(batch.bodies).encode()
            except UnicodeEncodeError:
                is_plain = False
        if is_plain:
            return batch
        kept = [place for place in range(len(batch.bodies)) if self._takes(batch, place, accepted)]
        if len(kept) == len(batch.bodies):
            return batch
        return LogBatch(
            batch.labels,
            [batch.times_ns[place] for place in kept],
            [batch.bodies[place] for place in kept],
            [batch.metadata[place] for place in kept] if batch.metadata else (),
        )

    def _takes(self, batch: LogBatch, place: int, accepted: Accepted) -> bool:
        text, limits = batch.bodies[place], self._limits
        try:
            size = len(text) if text.isascii() else len(text.encode())
            more = batch.metadata[place] if batch.metadata else ()
            more_size = sum(len(name.encode()) + len(value.encode()) for name, value in more)
        except UnicodeEncodeError:
            accepted.refuse("E0626", "a line is not UTF-8")
            return False
        if size > limits.line_bytes_max:
            accepted.refuse("E0626", f"a line of {size} bytes; {limits.line_bytes_max} are allowed")
        elif len(more) > limits.metadata_per_line_max or more_size > limits.metadata_bytes_max:
            accepted.refuse("E0626", f"a line with {len(more)} fields of metadata, {more_size} bytes")
        elif not -_TIME_MAX < batch.times_ns[place] < _TIME_MAX:
            accepted.refuse("E0626", f"a line with the invalid time {batch.times_ns[place]}")
        else:
            return True
        return False


# Where are the lines of one tenant? In memory and in files; this is both as one, with limits for what comes in.


_MEMORY_ORDER = 1 << 62  # what is in memory came after all that is in files


class LogArchive:
    """One tenant's lines, for any number of threads. A write that returns is on disk."""

    def __init__(
        self,
        folder: Path,
        limits: LogLimits,
        policy: ArchivePolicy,
        clock: Clock,
        *,
        memory: SharedMemory | None = None,
        disk: FileSystem | None = None,
        log_disk: LogDisk | None = None,
    ) -> None:
        self._limits = limits
        self._kind = LogRowStorage()
        self.table: ArchiveTable[LogRows] = ArchiveTable(
            folder, self._kind, policy, clock, memory=memory, disk=disk, log_disk=log_disk
        )
        self._accepting = Accepting(limits, clock.monotonic_s)
        self._watchers: tuple[Callable[[Sequence[LogBatch]], None], ...] = ()

    def append(self, batches: Sequence[LogBatch]) -> LinesWritten:
        self.table.check_writable()
        accepted = self._accepting.accept(batches, self._streams_in_memory)
        if accepted.batches:
            rows = rows_of(accepted.batches)
            self.table.append(rows, encoded(rows))
            for callback in self._watchers:
                callback(accepted.batches)
        return accepted.written

    def scan(self, request: LogRequest, stopped: Callable[[], bool]) -> Iterator[LineChunk]:
        wanted = LineSelector(request.matchers, request.filters, request.metadata)
        budget = ScanBudget(min(request.scanned_bytes_max, self._limits.scanned_bytes_max))
        with self.table.view(request.start_ns, request.end_ns) as view:
            leads = list(self._leads(view, wanted, request, budget))
            span = (request.start_ns, request.end_ns)
            if request.order is LineOrder.ANY:
                yield from in_any_order(leads, *span, request.limit, stopped)
            else:
                ahead = bool(wanted.filters or wanted.metadata)
                yield from by_time(leads, *span, request.order, request.limit, stopped, ahead=ahead)

    def streams(self, matchers: Sequence[Matcher], start_ns: int, end_ns: int) -> Sequence[Labels]:
        wanted = LineSelector(tuple(matchers), ())
        found: set[Labels] = set()
        with self.table.view(start_ns, end_ns) as view:
            for rows in view.pieces:
                places = places_of(MemorySource(rows), wanted, start_ns, end_ns, None)
                found.update(rows.streams[code] for code in np.unique(rows.stream_at[places]))
            for entry in view.files:
                found |= self._streams_in(entry, view.due(entry), wanted, start_ns, end_ns)
        return sorted(found)

    def watch(self, callback: Callable[[Sequence[LogBatch]], None]) -> Callable[[], None]:
        self._watchers = (*self._watchers, callback)

        def end() -> None:
            self._watchers = tuple(one for one in self._watchers if one is not callback)

        return end

    def delete(self, matchers: Sequence[Matcher], filters: Sequence[LineFilter], start_ns: int, end_ns: int) -> int:
        request = LogRequest(
            tuple(matchers),
            start_ns,
            end_ns,
            tuple(filters),
            order=LineOrder.ANY,
            with_bodies=False,
            with_metadata=False,
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

    def _leads(
        self, view: TableSnapshot[LogRows], wanted: LineSelector, request: LogRequest, budget: ScanBudget
    ) -> Iterator[Lead]:
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
        self, entry: FileEntry, erasures: Sequence[Erasure], wanted: LineSelector, start_ns: int, end_ns: int
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
    opened: Callable[[], LineSource],
    wanted: LineSelector,
    erasures: Sequence[Erasure],
    order: tuple[int, int],
    request: LogRequest,
    budget: ScanBudget,
) -> Callable[[int, int], SelectedLines | None]:
    def look(start_ns: int, end_ns: int) -> SelectedLines | None:
        source = opened()  # here and not before: what it reads goes with it
        places = places_of(source, wanted, start_ns, end_ns, budget)
        places = _left(source, places, erasures)
        if not len(places):
            return None
        return found_in(source, places, order, EXTRAS if request.with_metadata else (), with_bodies=request.with_bodies)

    return look


def _left(source: LineSource, places: Ints, erasures: Sequence[Erasure]) -> Ints:
    for erasure in erasures:
        if len(places):
            places = np.setdiff1d(places, erased_places(source, erasure.content), assume_unique=True)
    return places

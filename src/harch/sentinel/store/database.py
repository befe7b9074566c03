"""Where are the series of one tenant?

The newest in the head, others in blocks; this is both as one, and decides when samples move from memory into blocks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.sentinel.model.labels import Matcher, MetricMetadata
from harch.sentinel.model.selection import Selection, SeriesBatch, SeriesExemplars, SeriesTable
from harch.sentinel.store.blocks.merge import merge_selections, merge_tables
from harch.sentinel.store.head.head import Head
from harch.sentinel.store.head.journal import NoJournal
from harch.sentinel.store.ingest.remote_write import BodyReader
from harch.sentinel.store.limits import TenantLimits, sample_rate
from harch.sentinel.store.wal.journal import LogJournal
from harch.sentinel.store.wal.log import Log
from harch.sentinel.store.wal.replay import Replayed, replay
from harch.sentinel.store.wal.salvage import damaged_files
from harch.sentinel.store.wal.segments import LogDisk, SystemDisk
from harch.sentinel.store.write_request import Receipt, WriteAuthorizer, WriteRequest, authorize_rows, request_of


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    block_ms: int = 7_200_000  # what one block of the head spans at most
    kept_ms: int = 7_200_000  # newer samples stay in memory, where queries are fastest
    idle_ms: int = 3_600_000  # series without samples for as long are forgotten after a flush
    log_bytes_max: int = 4 << 30  # a larger log is emptied, even if that takes samples out of memory early
    blocks_max: int = 64  # of one flush; samples spread wider than that share blocks


def flush_until(head: Head, log_bytes: int, now_ms: int, policy: FlushPolicy) -> int | None:
    """Up to which time should samples be written into blocks now? None: not yet.

    Measured on the samples, not on the clock, which may be wrong; but one sample far in the future, which would drag
    all others along, is held back by it.
    """
    if head.cut_until is not None:  # a flush that failed
        return head.cut_until
    if log_bytes > policy.log_bytes_max:
        return _FOREVER
    span = head.time_range()
    if span is None:
        return None
    oldest, newest = span
    if head.is_nearly_full:
        return oldest + (newest - oldest) // 2  # half of it: what is cut is copied for its block
    until = (min(newest, now_ms) - policy.kept_ms) // policy.block_ms * policy.block_ms - 1
    return until if oldest <= until else None


def windows_of(selection: Selection, policy: FlushPolicy) -> Iterator[tuple[int, int]]:
    """The times (first one, and the one behind the last) of the blocks that a cut becomes."""
    samples = selection.samples
    if not len(samples.timestamps):
        return
    windows = np.unique(samples.timestamps // policy.block_ms)
    groups = np.array_split(windows, min(len(windows), policy.blocks_max))
    for group in groups:
        yield int(group[0]) * policy.block_ms, (int(group[-1]) + 1) * policy.block_ms


# Where are the series of one tenant? The newest in the head, others in blocks; this is both as one.


_log = logging.getLogger(__name__)
_FOREVER = int(np.iinfo(np.int64).max)


class BlockStore(Protocol):
    """What is asked of the blocks of a tenant: see `harch.sentinel.store.blocks`. Ends of blocks are not included."""

    def write(self, selection: Selection, start_ms: int, end_ms: int, *, now_ms: int) -> object: ...

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection: ...

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable: ...

    def delete(self, matchers: Sequence[Matcher], start: int, end: int, *, now_ms: int) -> object: ...

    def maintain(self, *, now_ms: int) -> object: ...

    def purge(self, *, now_ms: int) -> object: ...

    def metas(self) -> Sized: ...

    def end_ms(self) -> int | None: ...

    def damaged_files(self) -> Sequence[Path]: ...

    def close(self) -> None: ...


class TenantDatabase:
    """One tenant's series, for any number of threads. A write that returns is on disk."""

    def __init__(
        self,
        folder: Path,
        blocks: BlockStore,
        clock: Clock,
        *,
        limits: TenantLimits | None = None,
        flushing: FlushPolicy | None = None,
        disk: LogDisk | None = None,
    ) -> None:
        """Opens the store in this folder, which the caller has locked. Reads the log, so it may take a while."""
        self._clock = clock
        self._blocks = blocks
        self._flushing = flushing or FlushPolicy()
        self.limits = limits or TenantLimits()
        self._log_folder = log_folder = folder / "wal"
        log_folder.mkdir(parents=True, exist_ok=True)
        self.head = Head(self.limits, NoJournal())
        self.replayed: Replayed = replay(log_folder, self.head)
        self._journal = LogJournal(self.replayed.last_segment + 1)
        self._journal.newest.update(self.replayed.newest)
        self._journal.remember(self.head.metadata())
        self.head.journal = self._journal
        self._log = Log(log_folder, self._journal, disk or SystemDisk(), clock.monotonic_s)
        self._bodies = BodyReader(self.limits, self.head.seed)
        self._rate = sample_rate(self.limits, clock.monotonic_s)
        self._upkeep = threading.Lock()  # one cut, deletion or maintenance at a time
        self._making_room = threading.Lock()
        self._counting = threading.Lock()
        self._taken, self._refused = 0, 0  # samples, since the store was opened

    def write_v1(self, body: bytes, judge: WriteAuthorizer | None = None) -> Receipt:
        """A remote-write 1 request as it came, snappy and protobuf. Raises HarchError for what cannot be read."""
        self._log.check_writable()
        with self._bodies.read_v1(body) as request:
            authorize_rows(request, judge, self.limits)
            return self._take(request)

    def write_v2(self, body: bytes, judge: WriteAuthorizer | None = None) -> Receipt:
        """The same for remote-write 2."""
        self._log.check_writable()
        with self._bodies.read_v2(body) as request:
            authorize_rows(request, judge, self.limits)
            return self._take(request)

    def append(self, batches: Sequence[SeriesBatch]) -> Receipt:
        self._log.check_writable()
        return self._take(request_of(batches, self.limits))

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        # The head first: what it hands to the blocks meanwhile is in both for a moment, and never in none.
        newest = self.head.select(matchers, start, end, limit=limit)
        if not self._reach(start):
            return newest
        older = self._blocks.select(matchers, start, end, limit=limit)
        merged = merge_selections([older, newest])
        count = int(merged.samples.count.sum())
        if count > limit:
            raise HarchError("E0603", f"the query reads {count} samples; {limit} are allowed")
        return merged

    def is_small(self, matchers: Sequence[Matcher], start: int, series_max: int) -> bool:
        """Whether `select` takes next to no time: few series, none of them on disk."""
        return not self._reach(start) and self.head.is_small(matchers, series_max)

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        newest = self.head.series(matchers, start, end)
        if not self._reach(start):
            return newest
        return merge_tables([self._blocks.series(matchers, start, end), newest])[0]

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        return self.head.exemplars(matchers, start, end)

    def metadata(self) -> Mapping[str, MetricMetadata]:
        return self.head.metadata()

    def describe(self, metadata: Mapping[str, MetricMetadata]) -> None:
        """Notes what metrics mean. Durable with the next write: senders say it again and again."""
        with self.head.lock:
            for metric, known in metadata.items():
                self.head.set_metadata(metric, known)

    def delete(self, matchers: Sequence[Matcher], start: int, end: int) -> None:
        """Erases samples: no query sees them any more. `purge` takes them off the disk."""
        self._log.check_writable()
        with self._upkeep:
            self.head.erase(matchers, start, end)
            self._log.commit(self._journal.ticket)
            self._blocks.delete(matchers, start, end, now_ms=self._now_ms())

    def purge(self) -> None:
        """Takes erased samples off the disk now: out of the log, by writing all of it into blocks, and out of those."""
        with self._upkeep:
            self._flush(_FOREVER)
            self._blocks.purge(now_ms=self._now_ms())
        if damaged := damaged_files(self._log_folder):
            raise HarchError("E0616", "a damaged log may still hold erased samples", hint=f"delete {damaged[0]}")

    def maintain(self) -> None:
        """Writes samples into blocks where it is time to, and lets the blocks do what is due."""
        with self._upkeep:
            until = flush_until(self.head, self._log.size(), self._now_ms(), self._flushing)
            if until is not None:
                self._flush(until)
            if self.head.is_nearly_full:  # half of the time was not half of the samples
                self._flush(_FOREVER)
            self._blocks.maintain(now_ms=self._now_ms())

    def flush(self) -> None:
        """Writes all samples into blocks."""
        with self._upkeep:
            self._flush(_FOREVER)

    def facts(self) -> Mapping[str, object]:
        """Counts for people and dashboards."""
        return {
            "series_in_memory": self.head.series_count,
            "samples_in_memory": self.head.sample_count,
            "histograms_in_memory": len(self.head.histograms),
            "exemplars": len(self.head.exemplar_ring),
            "samples_taken": self._taken,
            "samples_refused": self._refused,
            "log_segments": len(self._journal.newest),
            "log_segment_replayed": self.replayed.last_segment,
            "log_bytes_written": self._log.synced_bytes,
            "log_failure": self._log.failure,
            "log_damaged_segments": [one.number for one in self.replayed.damaged],
            "log_lost_bytes": sum(one.lost_bytes for one in self.replayed.damaged),
            "damaged_files": len(self.damaged_files()),
            "blocks": len(self._blocks.metas()),
            "blocks_end_ms": self._blocks.end_ms(),
        }

    def damaged_files(self) -> list[Path]:
        """What was set aside, of the log and of blocks, until somebody has looked at it and deletes it."""
        return [*damaged_files(self._log_folder), *self._blocks.damaged_files()]

    def close(self) -> None:
        """Makes all durable and lets go of the files."""
        try:
            self._log.commit(self._journal.ticket)
        finally:
            self._log.close()
            self._blocks.close()

    def _reach(self, start: int) -> bool:
        """Whether blocks may hold something of this time or later."""
        end = self._blocks.end_ms()
        return end is not None and end > start

    def _take(self, request: WriteRequest) -> Receipt:
        self._rate.take(len(request.rows) + len(request.histograms))
        receipt = self.head.append(request, now_ms=self._now_ms())
        if self.head.is_nearly_full:
            self._make_room()
        self._log.commit(self._journal.ticket)
        with self._counting:
            self._taken += receipt.samples + receipt.histograms
            self._refused += sum(receipt.refused.values())
        if "E0612" in receipt.refused and receipt.first_refusal is not None:
            # The sender shall send all of it again: what was taken is known by then.
            raise HarchError("E0612", receipt.first_refusal.message, retry_after_s=1)
        return receipt

    def _make_room(self) -> None:
        """Flushes in a thread of its own when memory gets short, instead of waiting for the next upkeep."""
        if not self._making_room.acquire(blocking=False):
            return

        def maintain() -> None:
            try:
                self.maintain()
            except (HarchError, OSError) as problem:
                _log.error("could not free memory, will retry: %s", problem)
            finally:
                self._making_room.release()

        threading.Thread(target=maintain, name="sentinel-room", daemon=True).start()

    def _flush(self, until: int) -> None:
        """Cuts, makes blocks, forgets, and removes what the log no longer needs. A cut left by a failure goes first."""
        for _ in range(2):
            again = self.head.cut_until is not None
            segment, selection = self._cut(until)
            for start, end in windows_of(selection, self._flushing):
                self._blocks.write(selection, start, end, now_ms=self._now_ms())
            cut_until = self.head.cut_until
            self.head.forget(idle_since=self._idle_since(until))
            self._log.commit(self._journal.ticket)
            if cut_until is not None:
                self._log.drop_segments(segment, cut_until)
            if not again:
                return

    def _cut(self, until: int) -> tuple[int, Selection]:
        selection = self.head.cut(until)
        self._log.commit(self._journal.ticket)
        return self.head.cut_segment, selection

    def _idle_since(self, until: int) -> int:
        """Series that sent until lately stay known, so that their next samples need no new names."""
        newest = self.head.newest_ms()
        return min(until, newest - self._flushing.idle_ms) if newest is not None else until

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

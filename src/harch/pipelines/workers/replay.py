"""Which windows come of events that came before? Kept batches through their own SENSE, in the time of then. No I/O.

It starts empty, so a window is told only if everything that belongs to it can be here: it lies within the time asked
for, and after the moment since which all is kept.
"""

from __future__ import annotations

from msgspec.structs import replace

from harch.base.rejection import Rejection
from harch.pipelines.sense.edge import Permit
from harch.pipelines.sense.features import FeatureBatch
from harch.pipelines.sense.settings import NS_PER_S
from harch.pipelines.sense.stage import SenseStage
from harch.pipelines.wire.header import HEADER_BYTES, BatchHeader, Flags, pack_batch, unpack_header
from harch.pipelines.workers.history import KeptBatch
from harch.pipelines.workers.replay_order import ReplayCounts

NS_PER_MS = 1_000_000


class EventReplay:
    """One run. Batches come in the order in which they were accepted."""

    def __init__(
        self,
        stage: SenseStage,
        permit: Permit,
        counts: ReplayCounts,
        *,
        since_ns: int = 0,
        until_ns: int | None = None,
        complete_from_ms: int = 0,
    ) -> None:
        self._stage = stage
        self._permit = permit
        self._counts = counts
        # What was accepted before may have been as far ahead of its clock as is believed.
        future_ns = round(stage.settings.windows.future_s * NS_PER_S) if complete_from_ms else 0
        self._from_ns = max(since_ns, complete_from_ms * NS_PER_MS + future_ns)
        self._until_ns = until_ns
        self._seqs: dict[int, int] = {}
        self._last_ms = 0

    def take(self, kept: KeptBatch) -> list[FeatureBatch]:
        """Windows that are over with this batch. What is no batch of this pipeline's schema is passed over."""
        header = unpack_header(kept.message)
        if isinstance(header, Rejection) or header.schema != self._stage.settings.event_schema.id:
            return []
        if self._until_ns is not None and header.t_first_ns >= self._until_ns:
            return []
        self._last_ms = max(self._last_ms, kept.at_ms)
        now_ns, now_s = self._last_ms * NS_PER_MS, self._last_ms / 1000
        outcome = self._stage.take(self._stamped(header, kept.message), now_ns=now_ns, now_s=now_s)
        passed = self._stage.tick(now_ns=now_ns, now_s=now_s)
        return self._whole([*outcome.features, *passed.features])

    def finish(self, *, now_ms: int, is_all: bool) -> list[FeatureBatch]:
        """The last windows: those that time has closed since. `is_all`: nothing more belongs to any of them."""
        found = self._stage.tick(now_ns=now_ms * NS_PER_MS, now_s=max(self._last_ms, now_ms) / 1000).features
        if is_all or self._until_ns is not None or now_ms - self._last_ms > self._silence_ms():
            found += self._stage.flush().features
        told = self._whole(found)
        counters = self._stage.counters
        self._counts.events = counters.events_in
        self._counts.events_aside = counters.events_aside + counters.events_dropped + counters.events_refused
        return told

    def _silence_ms(self) -> float:
        """After so long without a word, windows of a pipeline that runs are closed as well."""
        settings = self._stage.settings
        windows = settings.windows
        return 1000 * (2 * settings.source_idle_s + windows.size_s + windows.lateness_s + windows.skew_s)

    def _stamped(self, header: BatchHeader, message: bytes) -> bytes:
        """Numbered from 1 per source, and permitted where the pipeline permits."""
        if header.is_watermark_only:
            seq = self._seqs.get(header.source, 0)
        else:
            seq = self._seqs[header.source] = self._seqs.get(header.source, 0) + 1
        mask = header.juris_mask
        if header.policy_version == self._permit.policy_version:
            mask &= self._permit.juris_mask
        flags = header.flags | Flags.REPLAY
        return pack_batch(replace(header, seq=seq, juris_mask=mask, flags=flags), message[HEADER_BYTES:])

    def _whole(self, features: list[FeatureBatch]) -> list[FeatureBatch]:
        found = []
        for batch in features:
            is_late = self._until_ns is not None and batch.window_end_ns > self._until_ns
            if batch.window_start_ns < self._from_ns or is_late:
                self._counts.windows_cut += 1
            else:
                self._counts.windows += 1
                self._counts.rows += len(batch.device)
                found.append(batch)
        return found

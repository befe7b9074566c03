"""What does SENSE do with a message?

The whole stage of one partition as a machine without input or output: batches are taken in their turn, windows that
are over become features.
"""

# harch: pure

from __future__ import annotations

from msgspec.structs import asdict

from harch.base.rejection import Rejection
from harch.pipelines.sense.accounting import Disposition, SenseAccounting, SenseOutcome, StageCounters
from harch.pipelines.sense.checkpoint import SenseCheckpoint
from harch.pipelines.sense.devices import DeviceTable, EnrichmentTable
from harch.pipelines.sense.features import FeatureBatch, FeatureMaker
from harch.pipelines.sense.gate import BatchVerdict, GateAnswer, PolicyTable, ResidencyGate
from harch.pipelines.sense.pending import Ahead, PendingBatch, PendingBatches
from harch.pipelines.sense.quarantine import Quarantine
from harch.pipelines.sense.settings import NS_PER_S, SenseSettings
from harch.pipelines.sense.sources import BatchAdmission
from harch.pipelines.sense.state import StageIdentity, StageState
from harch.pipelines.wire.columns import Columns, decode_columns
from harch.pipelines.wire.header import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    SequenceGap,
    check_payload,
    read_gap,
    unpack_header,
)


def close_windows(
    state: StageState, maker: FeatureMaker, table: EnrichmentTable | None, policy_version: int, watermark_ns: int
) -> list[FeatureBatch]:
    """Closes every window that the watermark has passed and gives its panes free. Empty windows are not emitted."""
    found = []
    for pane in state.windows.close_until(watermark_ns):
        closed = state.windows.window(pane)
        if state.forecast is not None:
            state.forecast.pane_closed(pane, state.windows.pane(pane))
        if closed is not None:
            forecast = state.forecast.columns() if state.forecast else None
            device, metric, matrix = maker.rows(closed.cells, forecast, table)
            found.append(
                FeatureBatch(
                    pipeline=state.name.pipeline,
                    partition=state.name.partition,
                    window_start_ns=closed.start_ns,
                    window_end_ns=closed.end_ns,
                    seq=state.next_seq,
                    juris_mask=state.window_mask(pane),
                    policy_version=policy_version,
                    device=device,
                    metric=metric,
                    names=maker.names,
                    matrix=matrix,
                    device_version=state.devices.version,
                    enrichment_version=table.version if table else 0,
                )
            )
            state.next_seq += 1
        state.recycle(pane)
    state.windows.skip_to(watermark_ns)
    return found


# What becomes of a batch once the gate has answered? It is taken in its turn, or refused with the reason, and accounted
# for.


class Taking:
    """Everything that changes the state of a stage."""

    def __init__(self, settings: SenseSettings, state: StageState, gate: ResidencyGate, books: SenseAccounting) -> None:
        self.enrichment: EnrichmentTable | None = None
        self.watermark_ns = 0
        self._state = state
        self._gate = gate
        self._books = books
        self._schema = settings.event_schema
        self._maker = FeatureMaker(settings)
        self._future_ns = round(settings.windows.future_s * NS_PER_S)

    def take(
        self,
        outcome: SenseOutcome,
        header: BatchHeader,
        payload: memoryview,
        answer: GateAnswer,
        now_ns: int,
        now_s: float,
    ) -> None:
        """A whole batch, gap or watermark. With disposition AHEAD nothing was done: it is to come again later."""
        state, counters = self._state, self._books.counters
        # 1. Is it the next of its source? Repeats were counted once, and after a hole we would count wrongly.
        gap = gap_of(header, payload)
        admission = state.sources.admit(header, gap.first_seq)
        if admission is not BatchAdmission.NEXT:
            self.not_next(outcome, header, admission)
            return
        limit_ns = now_ns + self._future_ns
        if header.is_gap:
            counters.batches_shed += gap.last_seq - gap.first_seq + 1
            counters.events_shed += gap.events
            self._account(outcome, Disposition.GAP, header, now_ns, now_s)
            return
        if header.is_watermark_only:
            self._account(outcome, Disposition.WATERMARK, header, now_ns, now_s)
            return
        # 2. Nothing of this source is older than its first event: close what that closes. Is it too far ahead even so?
        if answer.verdict is BatchVerdict.ADMIT:
            before_ns = min(header.watermark_ns, header.t_first_ns, limit_ns)
            self.move_on(outcome, state.sources.advance(header.source, before_ns, now_s))
            first_ns = min(header.t_first_ns, limit_ns, state.sources.least_ns or limit_ns)
            state.windows.begin(first_ns, self.watermark_ns)
            if header.t_first_ns <= limit_ns and state.windows.is_ahead(header.t_first_ns):
                outcome.disposition = Disposition.AHEAD
                return
        counters.batches_in += 1
        counters.events_in += header.n
        # 3. Drop what may not be here; its watermark counts, so that windows do not wait for what will not come.
        if answer.verdict is not BatchVerdict.ADMIT:
            counters.events_dropped += header.n
            self._books.batch_aside(header, answer.reason, answer.detail, now_ns)
            self._books.alert(answer.reason, answer.detail, max(1, header.n))
            self._account(outcome, Disposition.DROPPED, header, now_ns, now_s)
            return
        # 4. Read its columns, add its events.
        columns = self._columns(header, payload, now_ns)
        if columns is None:
            counters.events_refused += header.n
            self._account(outcome, Disposition.REFUSED, header, now_ns, now_s)
            return
        state.permit(self._gate.in_current_numbering(header.juris_mask, header.policy_version), header.t_first_ns)
        added = state.windows.add(
            columns, devices=state.devices.version, t_first_ns=header.t_first_ns, time_ns_max=limit_ns
        )
        if side := self._books.set_aside_events(header, columns, added, now_ns):
            outcome.aside.append(side)
        # 5. Account for it, and close what its watermark closes.
        self._account(outcome, Disposition.TAKEN, header, now_ns, now_s)

    def not_next(self, outcome: SenseOutcome, header: BatchHeader, admission: BatchAdmission) -> None:
        """Says why it was not taken."""
        counters = self._books.counters
        if admission is BatchAdmission.DUPLICATE:
            counters.batches_duplicate += 1
            outcome.disposition = Disposition.DUPLICATE
        elif admission is BatchAdmission.HOLE:
            counters.holes += 1
            outcome.disposition = Disposition.HOLE
            outcome.missing = (header.source, self._state.sources.seq_of(header.source) + 1)
        else:
            outcome.disposition = Disposition.REFUSED
            detail = f"source {header.source} exceeds the limit"
            self._books.batch_aside(header, "too_many_sources", detail, 0)
            self._books.alert("too_many_sources", detail, 1)

    def move_on(self, outcome: SenseOutcome, watermark_ns: int) -> None:
        """Closes windows up to the watermark and makes features of them."""
        if watermark_ns > self.watermark_ns:
            self.watermark_ns = watermark_ns
            version = self._gate.current.version
            found = close_windows(self._state, self._maker, self.enrichment, version, watermark_ns)
            self._books.counters.windows_closed += len(found)
            self._books.counters.rows_out += sum(len(batch.device) for batch in found)
            outcome.features += found

    def _columns(self, header: BatchHeader, payload: memoryview, now_ns: int) -> Columns | None:
        if header.schema != self._schema.id:
            detail = f"schema {header.schema:#010x}; this pipeline reads {self._schema.id:#010x}"
            self._books.batch_aside(header, "unknown_schema", detail, now_ns)
            return None
        columns = decode_columns(self._schema, header.n, payload)
        if isinstance(columns, Rejection):
            self._books.batch_aside(header, "bad_columns", columns.detail, now_ns)
            return None
        return columns

    def _account(
        self, outcome: SenseOutcome, disposition: Disposition, header: BatchHeader, now_ns: int, now_s: float
    ) -> None:
        sources = self._state.sources
        mark_ns = min(header.watermark_ns, now_ns + self._future_ns)
        if mark_ns < header.watermark_ns:
            detail = f"watermark {(header.watermark_ns - now_ns) / NS_PER_S:.1f} s ahead of the clock"
            self._books.batch_aside(header, "watermark_in_future", detail, now_ns, count=1)
        watermark_ns = sources.advance(header.source, mark_ns, now_s)
        sources.done(header, now_s)
        if header.is_end:
            watermark_ns = sources.watermark_ns(now_s)
        self.move_on(outcome, watermark_ns)
        if header.is_end and sources.all_ended:
            self.move_on(outcome, self._state.windows.all_content_ns())
        outcome.disposition = disposition


def gap_of(header: BatchHeader, payload: memoryview) -> SequenceGap:
    """What a message accounts for: a gap that was found to be readable, or the one batch that it is."""
    gap = read_gap(header, payload) if header.is_gap else None
    return gap if isinstance(gap, SequenceGap) else SequenceGap(header.seq, header.seq, 0)


# What does SENSE do with a message? The whole stage of one partition as a machine without input or output.
#
# `take` is three numbered steps here and five in `taking`. Messages and times come in, an `Outcome` comes out; somebody
# else reads sockets, fetches policy tables, stores checkpoints and passes features on. So it runs alone, or in one
# process with THINK, or in a test.


DEAF_S = 1.0  # without a message or a tick for so long, the stage itself has paused
STALLED_S = 1.0  # who holds others back and does not move for so long is left behind


class SenseStage:
    """One partition of one pipeline at one hub."""

    def __init__(self, name: StageIdentity, settings: SenseSettings, devices: DeviceTable, gate: ResidencyGate) -> None:
        self.name = name
        self.settings = settings
        self.gate = gate
        self.state = StageState(name, settings, devices)
        self.books = SenseAccounting(settings.limits.quarantine_kept)
        self._taking = Taking(settings, self.state, gate, self.books)
        self._holding = PendingBatches(bytes_max=settings.limits.hold_bytes_max, age_s_max=settings.limits.hold_s_max)
        self._ahead = Ahead(bytes_max=settings.limits.ahead_bytes_max, age_s_max=settings.source_idle_s)
        self._released: list[tuple[int, int]] = []
        self._checkpoint_s: float | None = None
        self._listened_s: float | None = None

    @property
    def watermark_ns(self) -> int:
        return self._taking.watermark_ns

    @property
    def counters(self) -> StageCounters:
        return self.books.counters

    @property
    def quarantine(self) -> Quarantine:
        return self.books.quarantine

    def take(self, message: Buffer, *, now_ns: int, now_s: float) -> SenseOutcome:
        """One message. `now_ns` is wall time, `now_s` monotonic. The message may be reused after the call."""
        self._listen(now_s)
        outcome = self._take(message, now_ns, now_s, since_s=now_s)
        self._release(outcome, now_ns, now_s)
        outcome.alerts += self.books.alerts_due(now_s)
        return outcome

    def _take(self, message: Buffer, now_ns: int, now_s: float, since_s: float) -> SenseOutcome:
        outcome = SenseOutcome()
        # 1. Is it a message, and whole? Before the gate, because a damaged mask must neither admit nor drop.
        header = unpack_header(message)
        if isinstance(header, Rejection):
            return self._damaged(outcome, "bad_header", header, now_ns)
        payload = check_payload(header, message)
        if isinstance(payload, Rejection):
            return self._damaged(outcome, "bad_checksum", payload, now_ns)
        if header.is_gap and isinstance(gap := read_gap(header, payload), Rejection):
            return self._damaged(outcome, "bad_header", gap, now_ns)
        # 2. May it be here? Nothing of it is decoded or kept before this is answered with yes.
        answer = self.gate.decide(header)
        if answer.verdict is BatchVerdict.HOLD or self._holding.holds_source(header.source):
            return self._hold(outcome, header, message, now_ns, now_s, since_s)
        # 3. Its turn: behind those of its source that wait for slower sources, or now.
        if self._ahead.holds_source(header.source):
            return self._queue(outcome, header, message, gap_of(header, payload), now_s)
        self._taking.take(outcome, header, payload, answer, now_ns, now_s)
        if outcome.disposition is Disposition.AHEAD:
            self._ahead.put(PendingBatch(header, bytes(message), now_s))
        return outcome

    def tick(self, *, now_ns: int, now_s: float) -> SenseOutcome:
        """Lets time pass: silent sources stop holding windows open, held messages run out."""
        self._listen(now_s)
        outcome = SenseOutcome()
        for held in self._holding.expired(now_s):
            self._give_up(outcome, held, now_ns, now_s)
        if self._ahead:
            needed_ns = self.state.windows.watermark_for(self._ahead.heads()[0].header.t_first_ns)
            stall_limit_s = 0.0 if self._ahead.is_overdue(now_s) else STALLED_S
            self.state.sources.leave_behind(needed_ns, now_s, stall_limit_s=stall_limit_s)
        self._taking.move_on(outcome, self.state.sources.watermark_ns(now_s))
        self._release(outcome, now_ns, now_s)
        outcome.released, self._released = self._released, []
        outcome.fetch_versions = self._holding.versions()
        outcome.alerts += self.books.alerts_due(now_s)
        return outcome

    def learn_policy(self, table: PolicyTable, *, now_ns: int, now_s: float) -> list[SenseOutcome]:
        """A policy table was fetched. What waited for it is decided now, in its order."""
        before = self.gate.current.version
        self.gate.learn(table)
        if self.gate.current.version != before:
            self.state.renumber(self.gate, before)
        return [self._take(held.message, now_ns, now_s, held.since_s) for held in self._holding.take_all()]

    def learn_enrichment(self, table: EnrichmentTable) -> None:
        """From the next window on. An older version than the present one is passed over."""
        known = self._taking.enrichment
        if known is None or table.version > known.version:
            self._taking.enrichment = table

    def flush(self) -> SenseOutcome:
        """Closes all windows, whatever the watermark: at the end of a replay, or before a stage goes for good."""
        outcome = SenseOutcome()
        self._taking.move_on(outcome, self.state.windows.all_content_ns())
        return outcome

    def warm_up(self) -> None:
        """Compiles the kernels for these settings on no events, so that the first batch does not wait for it."""
        columns = decode_columns(self.settings.event_schema, 0, b"")
        if isinstance(columns, Columns):
            self.state.windows.warm_up(columns)
        if self.state.forecast is not None:
            self.state.forecast.refresh()

    def checkpoint_due(self, now_s: float) -> bool:
        """True at most every `checkpoint.every_s`; the first call starts the count."""
        if self._checkpoint_s is None:
            self._checkpoint_s = now_s
        if now_s - self._checkpoint_s < self.settings.checkpoint.every_s:
            return False
        self._checkpoint_s = now_s
        return True

    def snapshot(self) -> SenseCheckpoint:
        """The state between two messages, as a copy. Held messages are not in it: their sources send them again."""
        return self.state.save(
            watermark_ns=self.watermark_ns,
            policy_version=self.gate.current.version,
            counters=asdict(self.counters),
            quarantine=dict(self.quarantine.counts),
        )

    def restore(self, saved: SenseCheckpoint, now_s: float) -> None:
        """Into a new stage, before its first message."""
        self.state.load(saved, now_s)
        if saved.policy_version != self.gate.current.version:
            self.state.renumber(self.gate, saved.policy_version)
        known = {name: saved.counters.get(name, 0) for name in StageCounters.__struct_fields__}
        self.books.counters = StageCounters(**known)
        self.quarantine.counts = dict(saved.quarantine)
        self._taking.watermark_ns = saved.watermark_ns

    def _listen(self, now_s: float) -> None:
        """Silence counts only while we listen: after a pause of our own all sources have something to say at once."""
        if self._listened_s is not None and now_s - self._listened_s > DEAF_S:
            self.state.sources.forgive(now_s - self._listened_s)
        self._listened_s = now_s

    def _queue(
        self, outcome: SenseOutcome, header: BatchHeader, message: Buffer, gap: SequenceGap, now_s: float
    ) -> SenseOutcome:
        """Behind a batch of its own source that waits already."""
        self.state.sources.touch(header.source, now_s)
        admission = self._ahead.admit(header, gap.first_seq)
        if admission is BatchAdmission.NEXT:
            self._ahead.put(PendingBatch(header, bytes(message), now_s))
            outcome.disposition = Disposition.AHEAD
        elif admission is BatchAdmission.DUPLICATE and header.is_watermark_only:
            outcome.disposition = Disposition.WATERMARK  # it is reported when those before it were taken
        else:
            self._taking.not_next(outcome, header, admission)
        return outcome

    def _release(self, outcome: SenseOutcome, now_ns: int, now_s: float) -> None:
        """Takes what no longer is ahead; each may move the watermark on, so that more can follow."""
        disposition, has_moved = outcome.disposition, True
        while self._ahead and has_moved:
            has_moved, before_ns = False, self.watermark_ns
            for held in self._ahead.heads():
                answer = self.gate.decide(held.header)
                payload = memoryview(held.message)[HEADER_BYTES:]
                self._taking.take(outcome, held.header, payload, answer, now_ns, now_s)
                if outcome.disposition is not Disposition.AHEAD:
                    self._ahead.pop(held.header.source)
                    self._released.append((held.header.source, len(held.message)))
                    has_moved = True
            has_moved = has_moved or self.watermark_ns > before_ns  # also one that goes on waiting may let others in
        outcome.disposition = disposition

    def _hold(
        self, outcome: SenseOutcome, header: BatchHeader, message: Buffer, now_ns: int, now_s: float, since_s: float
    ) -> SenseOutcome:
        expected = max(self._holding.last_seq(header.source), self.state.sources.seq_of(header.source)) + 1
        if header.seq < expected:
            self.counters.batches_duplicate += 1
            outcome.disposition = Disposition.DUPLICATE
            return outcome
        outcome.disposition = Disposition.HELD
        for pushed_out in self._holding.put(PendingBatch(header, bytes(message), since_s)):
            self._give_up(outcome, pushed_out, now_ns, now_s)
        outcome.fetch_versions = self._holding.versions()
        return outcome

    def _give_up(self, outcome: SenseOutcome, held: PendingBatch, now_ns: int, now_s: float) -> None:
        """Its policy stayed unknown: the answer is no, and it is accounted for like any other that is dropped."""
        answer = GateAnswer(BatchVerdict.DROP, "policy_unknown", f"version {held.header.policy_version} did not arrive")
        payload = check_payload(held.header, held.message)
        if isinstance(payload, memoryview):
            self._taking.take(outcome, held.header, payload, answer, now_ns, now_s)

    def _damaged(self, outcome: SenseOutcome, reason: str, why: Rejection, now_ns: int) -> SenseOutcome:
        self.books.damaged(reason, f"{why.rule}: {why.detail}", now_ns)
        outcome.disposition = Disposition.DAMAGED
        return outcome

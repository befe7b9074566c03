"""What does SENSE do with a message? The whole stage of one partition as a machine without input or output.

`take` is seven numbered steps. Messages and times come in, an `Outcome` comes out; somebody else reads sockets, fetches
policy tables, stores checkpoints and passes features on. So it runs alone, or in one process with THINK, or in a test.
"""

from __future__ import annotations

from msgspec.structs import asdict

from harch.base.rejection import Rejection
from harch.pipelines.sense.books import Books
from harch.pipelines.sense.checkpoint import Checkpoint
from harch.pipelines.sense.devices import DeviceTable, EnrichmentTable
from harch.pipelines.sense.features import FeatureBatch, FeatureMaker
from harch.pipelines.sense.gate import Gate, GateAnswer, PolicyTable, Verdict
from harch.pipelines.sense.holding import Held, Holding
from harch.pipelines.sense.outcome import Disposition, Outcome, StageCounters
from harch.pipelines.sense.quarantine import Quarantine
from harch.pipelines.sense.settings import NS_PER_S, SenseSettings
from harch.pipelines.sense.sources import Admission
from harch.pipelines.sense.state import StageName, StageState
from harch.pipelines.wire.checksum import Buffer
from harch.pipelines.wire.columns import Columns, decode_columns
from harch.pipelines.wire.header import BatchHeader, Gap, check_payload, read_gap, unpack_header


class SenseStage:
    """One partition of one pipeline at one hub."""

    def __init__(self, name: StageName, settings: SenseSettings, devices: DeviceTable, gate: Gate) -> None:
        self.name = name
        self.settings = settings
        self.gate = gate
        self.state = StageState(name, settings, devices)
        self.books = Books(settings.limits.quarantine_kept)
        self.enrichment: EnrichmentTable | None = None
        self._schema = settings.event_schema
        self._maker = FeatureMaker(settings)
        self._future_ns = round(settings.windows.future_s * NS_PER_S)
        self._holding = Holding(bytes_max=settings.limits.hold_bytes_max, age_s_max=settings.limits.hold_s_max)
        self._watermark_ns = 0
        self._checkpoint_s: float | None = None

    @property
    def watermark_ns(self) -> int:
        return self._watermark_ns

    @property
    def counters(self) -> StageCounters:
        return self.books.counters

    @property
    def quarantine(self) -> Quarantine:
        return self.books.quarantine

    def take(self, message: Buffer, *, now_ns: int, now_s: float) -> Outcome:
        """One message. `now_ns` is wall time, `now_s` monotonic. The message may be reused after the call."""
        outcome = self._take(message, now_ns, now_s, since_s=now_s)
        outcome.alerts += self.books.alerts_due(now_s)
        return outcome

    def _take(self, message: Buffer, now_ns: int, now_s: float, since_s: float) -> Outcome:
        outcome = Outcome()
        # 1. Is it a message, and whole? Before the gate, because a damaged mask must neither admit nor drop.
        header = unpack_header(message)
        if isinstance(header, Rejection):
            return self._damaged(outcome, "bad_header", header, now_ns)
        payload = check_payload(header, message)
        if isinstance(payload, Rejection):
            return self._damaged(outcome, "bad_checksum", payload, now_ns)
        # 2. May it be here? Nothing of it is decoded or kept before this is answered with yes.
        answer = self.gate.decide(header)
        if answer.verdict is Verdict.HOLD or self._holding.holds_source(header.source):
            return self._hold(outcome, header, message, now_ns, now_s, since_s)
        return self._decided(outcome, header, payload, answer, now_ns, now_s)

    def tick(self, *, now_ns: int, now_s: float) -> Outcome:
        """Lets time pass: silent sources stop holding windows open, held messages run out."""
        outcome = Outcome()
        for held in self._holding.expired(now_s):
            self._give_up(outcome, held, now_ns, now_s)
        self._move_on(outcome, self.state.sources.watermark_ns(now_s))
        outcome.fetch_versions = self._holding.versions()
        outcome.alerts += self.books.alerts_due(now_s)
        return outcome

    def learn_policy(self, table: PolicyTable, *, now_ns: int, now_s: float) -> list[Outcome]:
        """A policy table was fetched. What waited for it is decided now, in its order."""
        before = self.gate.current.version
        self.gate.learn(table)
        if self.gate.current.version != before:
            self.state.renumber(self.gate, before)
        return [self._take(held.message, now_ns, now_s, held.since_s) for held in self._holding.take_all()]

    def learn_enrichment(self, table: EnrichmentTable) -> None:
        """From the next window on. An older version than the present one is passed over."""
        if self.enrichment is None or table.version > self.enrichment.version:
            self.enrichment = table

    def flush(self) -> Outcome:
        """Closes all windows, whatever the watermark: at the end of a replay, or before a stage goes for good."""
        outcome = Outcome()
        self._move_on(outcome, self.state.windows.all_content_ns())
        return outcome

    def warm_up(self) -> None:
        """Compiles the kernels for these settings on no events, so that the first batch does not wait for it."""
        columns = decode_columns(self._schema, 0, b"")
        if isinstance(columns, Columns):
            self.state.windows.add(columns, devices=0, t_first_ns=0, time_ns_max=0)

    def checkpoint_due(self, now_s: float) -> bool:
        """True at most every `checkpoint.every_s`; the first call starts the count."""
        if self._checkpoint_s is None:
            self._checkpoint_s = now_s
        if now_s - self._checkpoint_s < self.settings.checkpoint.every_s:
            return False
        self._checkpoint_s = now_s
        return True

    def snapshot(self) -> Checkpoint:
        """The state between two messages, as a copy. Held messages are not in it: their sources send them again."""
        return self.state.save(
            watermark_ns=self._watermark_ns,
            policy_version=self.gate.current.version,
            counters=asdict(self.counters),
            quarantine=dict(self.quarantine.counts),
        )

    def restore(self, saved: Checkpoint, now_s: float) -> None:
        """Into a new stage, before its first message."""
        self.state.load(saved, now_s)
        if saved.policy_version != self.gate.current.version:
            self.state.renumber(self.gate, saved.policy_version)
        known = {name: saved.counters.get(name, 0) for name in StageCounters.__struct_fields__}
        self.books.counters = StageCounters(**known)
        self.quarantine.counts = dict(saved.quarantine)
        self._watermark_ns = saved.watermark_ns

    def _decided(
        self,
        outcome: Outcome,
        header: BatchHeader,
        payload: memoryview,
        answer: GateAnswer,
        now_ns: int,
        now_s: float,
    ) -> Outcome:
        # 3. Is it the next of its source? Repeats were counted once, and after a hole we would count wrongly.
        gap = read_gap(header, payload) if header.is_gap else Gap(header.seq, header.seq, 0)
        if isinstance(gap, Rejection):
            return self._damaged(outcome, "bad_header", gap, now_ns)
        if not self._admitted(outcome, header, gap.first_seq, now_ns):
            return outcome
        limit_ns = now_ns + self._future_ns
        if header.watermark_ns > limit_ns:
            detail = f"watermark {(header.watermark_ns - now_ns) / NS_PER_S:.1f} s ahead of the clock"
            self.books.batch_aside(header, "watermark_in_future", detail, now_ns, count=1)
        mark_ns = min(header.watermark_ns, limit_ns)
        if header.is_gap:
            self.counters.batches_shed += gap.last_seq - gap.first_seq + 1
            self.counters.events_shed += gap.events
            return self._account(outcome, Disposition.GAP, header, mark_ns, now_s)
        if header.is_watermark_only:
            return self._account(outcome, Disposition.WATERMARK, header, mark_ns, now_s)
        self.counters.batches_in += 1
        self.counters.events_in += header.n
        # 4. Drop what may not be here; its watermark counts, so that windows do not wait for what will not come.
        if answer.verdict is Verdict.DROP:
            self.counters.events_dropped += header.n
            self.books.batch_aside(header, answer.reason, answer.detail, now_ns)
            self.books.alert(answer.reason, answer.detail, max(1, header.n))
            return self._account(outcome, Disposition.DROPPED, header, mark_ns, now_s)
        # 5. Read its columns.
        columns = self._columns(header, payload, now_ns)
        if columns is None:
            self.counters.events_refused += header.n
            return self._account(outcome, Disposition.REFUSED, header, mark_ns, now_s)
        # 6. Nothing of this source is older than its first event: close what that closes, then add its events.
        before_ns = min(mark_ns, header.t_first_ns)
        self._move_on(outcome, self.state.sources.advance(header.source, before_ns, now_s))
        self.state.windows.begin(min(header.t_first_ns, limit_ns))
        self.state.permit(self.gate.in_current_numbering(header.juris_mask, header.policy_version), header.t_first_ns)
        added = self.state.windows.add(
            columns, devices=self.state.devices.version, t_first_ns=header.t_first_ns, time_ns_max=limit_ns
        )
        if side := self.books.events_told(header, columns, added, now_ns):
            outcome.aside.append(side)
        # 7. Account for it, and close what its watermark closes.
        return self._account(outcome, Disposition.TAKEN, header, mark_ns, now_s)

    def _admitted(self, outcome: Outcome, header: BatchHeader, first_seq: int, now_ns: int) -> bool:
        admission = self.state.sources.admit(header, first_seq)
        if admission is Admission.NEXT:
            return True
        if admission is Admission.DUPLICATE:
            self.counters.batches_duplicate += 1
            outcome.disposition = Disposition.DUPLICATE
        elif admission is Admission.HOLE:
            self.counters.holes += 1
            outcome.disposition = Disposition.HOLE
            outcome.missing = (header.source, self.state.sources.seq_of(header.source) + 1)
        else:
            outcome.disposition = Disposition.REFUSED
            detail = f"source {header.source} is one too many"
            self.books.batch_aside(header, "too_many_sources", detail, now_ns)
            self.books.alert("too_many_sources", detail, 1)
        return False

    def _columns(self, header: BatchHeader, payload: memoryview, now_ns: int) -> Columns | None:
        if header.schema != self._schema.id:
            detail = f"schema {header.schema:#010x}; this pipeline reads {self._schema.id:#010x}"
            self.books.batch_aside(header, "unknown_schema", detail, now_ns)
            return None
        columns = decode_columns(self._schema, header.n, payload)
        if isinstance(columns, Rejection):
            self.books.batch_aside(header, "bad_columns", columns.detail, now_ns)
            return None
        return columns

    def _account(
        self, outcome: Outcome, disposition: Disposition, header: BatchHeader, mark_ns: int, now_s: float
    ) -> Outcome:
        watermark_ns = self.state.sources.advance(header.source, mark_ns, now_s)
        self.state.sources.done(header, now_s)
        if header.is_end:
            watermark_ns = self.state.sources.watermark_ns(now_s)
        self._move_on(outcome, watermark_ns)
        if header.is_end and self.state.sources.all_ended:
            self._move_on(outcome, self.state.windows.all_content_ns())
        outcome.disposition = disposition
        return outcome

    def _move_on(self, outcome: Outcome, watermark_ns: int) -> None:
        """Closes windows up to the watermark and makes features of them."""
        if watermark_ns <= self._watermark_ns:
            return
        self._watermark_ns = watermark_ns
        state = self.state
        for pane in state.windows.close_until(watermark_ns):
            closed = state.windows.window(pane)
            if state.forecast is not None:
                state.forecast.pane_closed(pane, state.windows.pane(pane))
            if closed is not None:
                forecast = state.forecast.columns() if state.forecast else None
                device, metric, matrix = self._maker.rows(closed.cells, forecast, self.enrichment)
                outcome.features.append(
                    FeatureBatch(
                        pipeline=self.name.pipeline,
                        partition=self.name.partition,
                        window_start_ns=closed.start_ns,
                        window_end_ns=closed.end_ns,
                        seq=state.next_seq,
                        juris_mask=state.window_mask(pane),
                        policy_version=self.gate.current.version,
                        device=device,
                        metric=metric,
                        names=self._maker.names,
                        matrix=matrix,
                        device_version=state.devices.version,
                        enrichment_version=self.enrichment.version if self.enrichment else 0,
                    )
                )
                state.next_seq += 1
                self.counters.windows_closed += 1
                self.counters.rows_out += len(device)
            state.recycle(pane)
        state.windows.skip_to(watermark_ns)

    def _hold(
        self, outcome: Outcome, header: BatchHeader, message: Buffer, now_ns: int, now_s: float, since_s: float
    ) -> Outcome:
        expected = max(self._holding.last_seq(header.source), self.state.sources.seq_of(header.source)) + 1
        if header.seq < expected:
            self.counters.batches_duplicate += 1
            outcome.disposition = Disposition.DUPLICATE
            return outcome
        outcome.disposition = Disposition.HELD
        for pushed_out in self._holding.put(Held(header, bytes(message), since_s)):
            self._give_up(outcome, pushed_out, now_ns, now_s)
        outcome.fetch_versions = self._holding.versions()
        return outcome

    def _give_up(self, outcome: Outcome, held: Held, now_ns: int, now_s: float) -> None:
        """Its policy stayed unknown: the answer is no, and it is accounted for like any other that is dropped."""
        answer = GateAnswer(Verdict.DROP, "policy_unknown", f"version {held.header.policy_version} did not arrive")
        payload = check_payload(held.header, held.message)
        if isinstance(payload, memoryview):
            self._decided(outcome, held.header, payload, answer, now_ns, now_s)

    def _damaged(self, outcome: Outcome, reason: str, why: Rejection, now_ns: int) -> Outcome:
        self.books.damaged(reason, f"{why.rule}: {why.detail}", now_ns)
        outcome.disposition = Disposition.DAMAGED
        return outcome

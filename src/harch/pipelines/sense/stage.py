"""What does SENSE do with a message? The whole stage of one partition as a machine without input or output.

`take` is three numbered steps here and five in `taking`. Messages and times come in, an `Outcome` comes out; somebody
else reads sockets, fetches policy tables, stores checkpoints and passes features on. So it runs alone, or in one
process with THINK, or in a test.
"""

from __future__ import annotations

from msgspec.structs import asdict

from harch.base.rejection import Rejection
from harch.pipelines.sense.ahead import Ahead
from harch.pipelines.sense.books import Books
from harch.pipelines.sense.checkpoint import Checkpoint
from harch.pipelines.sense.devices import DeviceTable, EnrichmentTable
from harch.pipelines.sense.gate import Gate, GateAnswer, PolicyTable, Verdict
from harch.pipelines.sense.holding import Held, Holding
from harch.pipelines.sense.outcome import Disposition, Outcome, StageCounters
from harch.pipelines.sense.quarantine import Quarantine
from harch.pipelines.sense.settings import SenseSettings
from harch.pipelines.sense.sources import Admission
from harch.pipelines.sense.state import StageName, StageState
from harch.pipelines.sense.taking import Taking, gap_of
from harch.pipelines.wire.checksum import Buffer
from harch.pipelines.wire.columns import Columns, decode_columns
from harch.pipelines.wire.header import (
    HEADER_BYTES,
    BatchHeader,
    Gap,
    check_payload,
    read_gap,
    unpack_header,
)

DEAF_S = 1.0  # without a message or a tick for so long, the stage itself has paused
STALLED_S = 1.0  # who holds others back and does not move for so long is left behind


class SenseStage:
    """One partition of one pipeline at one hub."""

    def __init__(self, name: StageName, settings: SenseSettings, devices: DeviceTable, gate: Gate) -> None:
        self.name = name
        self.settings = settings
        self.gate = gate
        self.state = StageState(name, settings, devices)
        self.books = Books(settings.limits.quarantine_kept)
        self._taking = Taking(settings, self.state, gate, self.books)
        self._holding = Holding(bytes_max=settings.limits.hold_bytes_max, age_s_max=settings.limits.hold_s_max)
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

    def take(self, message: Buffer, *, now_ns: int, now_s: float) -> Outcome:
        """One message. `now_ns` is wall time, `now_s` monotonic. The message may be reused after the call."""
        self._listen(now_s)
        outcome = self._take(message, now_ns, now_s, since_s=now_s)
        self._release(outcome, now_ns, now_s)
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
        if header.is_gap and isinstance(gap := read_gap(header, payload), Rejection):
            return self._damaged(outcome, "bad_header", gap, now_ns)
        # 2. May it be here? Nothing of it is decoded or kept before this is answered with yes.
        answer = self.gate.decide(header)
        if answer.verdict is Verdict.HOLD or self._holding.holds_source(header.source):
            return self._hold(outcome, header, message, now_ns, now_s, since_s)
        # 3. Its turn: behind those of its source that wait for slower sources, or now.
        if self._ahead.holds_source(header.source):
            return self._queue(outcome, header, message, gap_of(header, payload), now_s)
        self._taking.take(outcome, header, payload, answer, now_ns, now_s)
        if outcome.disposition is Disposition.AHEAD:
            self._ahead.put(Held(header, bytes(message), now_s))
        return outcome

    def tick(self, *, now_ns: int, now_s: float) -> Outcome:
        """Lets time pass: silent sources stop holding windows open, held messages run out."""
        self._listen(now_s)
        outcome = Outcome()
        for held in self._holding.expired(now_s):
            self._give_up(outcome, held, now_ns, now_s)
        if self._ahead:
            needed_ns = self.state.windows.watermark_for(self._ahead.heads()[0].header.t_first_ns)
            patience_s = 0.0 if self._ahead.is_overdue(now_s) else STALLED_S
            self.state.sources.leave_behind(needed_ns, now_s, patience_s=patience_s)
        self._taking.move_on(outcome, self.state.sources.watermark_ns(now_s))
        self._release(outcome, now_ns, now_s)
        outcome.released, self._released = self._released, []
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
        known = self._taking.enrichment
        if known is None or table.version > known.version:
            self._taking.enrichment = table

    def flush(self) -> Outcome:
        """Closes all windows, whatever the watermark: at the end of a replay, or before a stage goes for good."""
        outcome = Outcome()
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

    def snapshot(self) -> Checkpoint:
        """The state between two messages, as a copy. Held messages are not in it: their sources send them again."""
        return self.state.save(
            watermark_ns=self.watermark_ns,
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
        self._taking.watermark_ns = saved.watermark_ns

    def _listen(self, now_s: float) -> None:
        """Silence counts only while we listen: after a pause of our own all sources have something to say at once."""
        if self._listened_s is not None and now_s - self._listened_s > DEAF_S:
            self.state.sources.forgive(now_s - self._listened_s)
        self._listened_s = now_s

    def _queue(self, outcome: Outcome, header: BatchHeader, message: Buffer, gap: Gap, now_s: float) -> Outcome:
        """Behind a batch of its own source that waits already."""
        self.state.sources.touch(header.source, now_s)
        admission = self._ahead.admit(header, gap.first_seq)
        if admission is Admission.NEXT:
            self._ahead.put(Held(header, bytes(message), now_s))
            outcome.disposition = Disposition.AHEAD
        elif admission is Admission.DUPLICATE and header.is_watermark_only:
            outcome.disposition = Disposition.WATERMARK  # it is told when those before it were taken
        else:
            self._taking.not_next(outcome, header, admission)
        return outcome

    def _release(self, outcome: Outcome, now_ns: int, now_s: float) -> None:
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
            self._taking.take(outcome, held.header, payload, answer, now_ns, now_s)

    def _damaged(self, outcome: Outcome, reason: str, why: Rejection, now_ns: int) -> Outcome:
        self.books.damaged(reason, f"{why.rule}: {why.detail}", now_ns)
        outcome.disposition = Disposition.DAMAGED
        return outcome

"""What becomes of a batch once the gate has answered? It is taken in its turn, or told why not, and accounted for."""

from __future__ import annotations

from harch.base.rejection import Rejection
from harch.pipelines.sense.books import Books
from harch.pipelines.sense.devices import EnrichmentTable
from harch.pipelines.sense.emission import close_windows
from harch.pipelines.sense.features import FeatureMaker
from harch.pipelines.sense.gate import Gate, GateAnswer, Verdict
from harch.pipelines.sense.outcome import Disposition, Outcome
from harch.pipelines.sense.settings import NS_PER_S, SenseSettings
from harch.pipelines.sense.sources import Admission
from harch.pipelines.sense.state import StageState
from harch.pipelines.wire.columns import Columns, decode_columns
from harch.pipelines.wire.header import BatchHeader, Gap, read_gap


class Taking:
    """Everything that changes the state of a stage."""

    def __init__(self, settings: SenseSettings, state: StageState, gate: Gate, books: Books) -> None:
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
        outcome: Outcome,
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
        if admission is not Admission.NEXT:
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
        if answer.verdict is Verdict.ADMIT:
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
        if answer.verdict is not Verdict.ADMIT:
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
        if side := self._books.events_told(header, columns, added, now_ns):
            outcome.aside.append(side)
        # 5. Account for it, and close what its watermark closes.
        self._account(outcome, Disposition.TAKEN, header, now_ns, now_s)

    def not_next(self, outcome: Outcome, header: BatchHeader, admission: Admission) -> None:
        """Says why it was not taken."""
        counters = self._books.counters
        if admission is Admission.DUPLICATE:
            counters.batches_duplicate += 1
            outcome.disposition = Disposition.DUPLICATE
        elif admission is Admission.HOLE:
            counters.holes += 1
            outcome.disposition = Disposition.HOLE
            outcome.missing = (header.source, self._state.sources.seq_of(header.source) + 1)
        else:
            outcome.disposition = Disposition.REFUSED
            detail = f"source {header.source} is one too many"
            self._books.batch_aside(header, "too_many_sources", detail, 0)
            self._books.alert("too_many_sources", detail, 1)

    def move_on(self, outcome: Outcome, watermark_ns: int) -> None:
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
        self, outcome: Outcome, disposition: Disposition, header: BatchHeader, now_ns: int, now_s: float
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


def gap_of(header: BatchHeader, payload: memoryview) -> Gap:
    """What a message accounts for: a gap that was found to be readable, or the one batch that it is."""
    gap = read_gap(header, payload) if header.is_gap else None
    return gap if isinstance(gap, Gap) else Gap(header.seq, header.seq, 0)

"""What did a workload go through, and for how long? One span per phase, exported when the phase is over.

The job machine is pure and knows nothing of spans. Its runtime shows what it handled and what it recorded; the ids of
spans follow from the workload, so a hub that was restarted goes on in the same trace. Of work that is not traced
nothing is kept here.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from harch.base.clock import epoch_ns
from harch.base.tracing.spans import (
    CONSUMER,
    EVENTS_MAX,
    Attributes,
    FinishedSpan,
    RecordedEvent,
    TraceContext,
    lease_id,
    read_header,
    run_id,
    span_id_of,
    start_id,
)
from harch.base.tracing.tracer import Tracing, ids_of
from harch.federation.offers import BidRequest, Bids, Need
from harch.hub.jobs import effects as fx
from harch.hub.jobs.state import JobState
from harch.hub.tracing import span_attributes
from harch.workloads.lifecycle import FINAL, State, Workload

LIVES_MAX = 10_000  # workloads followed at a time; further ones keep their ids and get no spans
BID_REQUESTS_MAX = 1_000
BIDS_PER_REQUEST_MAX = 32
_KIND = "workload."
_ENDS = frozenset(f"{_KIND}{state.value}" for state in FINAL)

_log = logging.getLogger("harch.work")


class WorkSpans:
    """Follows the traced work of one hub."""

    def __init__(self, tracing: Tracing, hub_id: str) -> None:
        self._tracing, self._hub_id = tracing, hub_id
        self._lives: dict[str, Life] = {}
        self._bid_requests: OrderedDict[tuple[str, int], tuple[str, ...]] = OrderedDict()  # workloads by `ref`

    def restored(self, workloads: Iterable[Workload]) -> None:
        self._lives.clear()
        self._bid_requests.clear()
        for workload in workloads:
            if workload.trace and not workload.state.is_final:
                self._follow(workload)

    def recorded(self, record: fx.Record, workload: Workload, at_ns: int) -> None:
        """A line of the history of a traced workload."""
        life = self._lives.get(workload.id) or self._follow(workload)
        if life is None:
            return
        kind = record.kind.removeprefix(_KIND)
        _log.info("%s %s", workload.id, kind, extra=ids_of(life.trace))
        match kind:
            case "submitted" | "borrowed":
                life.enter(Phase.WAIT, at_ns)
            case "scheduled":
                self._placed(life, workload, at_ns)
            case "lent":
                self._lent(life, workload, at_ns)
            case "running" if life.phase is Phase.START:
                self._close(life, workload, at_ns, "running")
                life.enter(Phase.RUN, at_ns)
            case "requeued":
                why = span_attributes.ending(workload) if life.phase is Phase.RUN else {}
                error = span_attributes.failure(workload) or None
                self._close(life, workload, at_ns, "requeued", more=why, error=error)
                life.enter(Phase.WAIT, at_ns)
            case "deferred" | "routed" | "replanned" if workload.carbon is not None:
                self._emit(life, workload, "workload.carbon", at_ns, at_ns, span_attributes.carbon(workload.carbon))
            case _ if record.kind in _ENDS:
                self._ended(life, workload, at_ns)
            case _:
                life.note(at_ns, kind, {"workload.state": workload.state.value})

    # Other hubs

    def requested(self, hub_id: str, bid_request: BidRequest, workload_ids: tuple[str, ...], at_ns: int) -> None:
        traced = [life for one in workload_ids if (life := self._lives.get(one)) is not None]
        if not traced:
            return
        self._bid_requests[hub_id, bid_request.number] = workload_ids
        if len(self._bid_requests) > BID_REQUESTS_MAX:
            self._bid_requests.popitem(last=False)
        for life in traced:
            life.requested_ns = life.requested_ns or at_ns
            life.answered(at_ns, "asked", {"hub": hub_id})

    def answered(self, hub_id: str, bids: Bids, at_ns: int) -> None:
        workload_ids = self._bid_requests.pop((hub_id, bids.number), ())
        answers: dict[int, Attributes] = {ref: {"reason": why[:100]} for ref, why in bids.refusals.items()}
        answers |= {bid.ref: {"start_in_s": bid.start_in_s, "slowdown": bid.slowdown} for bid in bids.bids}
        held = {bid.ref for bid in bids.bids}
        for ref, workload_id in enumerate(workload_ids):
            life = self._lives.get(workload_id)
            if life is not None:
                life.answered(at_ns, "bid" if ref in held else "refused", {"hub": hub_id, **answers.get(ref, {})})

    def bid(self, owner: str, bid_request: BidRequest, bids: Bids, at_ns: int) -> None:
        """This hub was asked. What it knows of the work is its shape and its trace."""
        traced = [need for need in bid_request.needs if need.trace][:BIDS_PER_REQUEST_MAX]
        done_ns = self._tracing.now_ns() if traced else at_ns
        for need in traced:
            self._emit_bid(owner, bid_request.number, need, bids, at_ns, max(at_ns, done_ns))

    def _emit_bid(self, owner: str, number: int, need: Need, bids: Bids, at_ns: int, done_ns: int) -> None:
        trace = read_header(need.trace)
        if trace is None:
            return
        self._tracing.emit(
            FinishedSpan(
                trace_id=trace.trace_id,
                span_id=span_id_of(trace.trace_id, "bid", self._hub_id, number, need.ref, at_ns),
                parent_id=trace.span_id,
                name="workload.bid",
                start_ns=at_ns,
                end_ns=done_ns,
                kind=CONSUMER,
                attributes={"hub": self._hub_id, "workload.owner": owner, **span_attributes.answer_to(need, bids)},
            )
        )

    # Phases

    def _placed(self, life: Life, workload: Workload, at_ns: int) -> None:
        self._offered(life, workload, at_ns, "home")
        if at_ns > life.since_ns or not workload.borrowed:  # for most guests the place was held: they never waited
            self._close(life, workload, at_ns, "placed", more=span_attributes.size(workload))
        done_ns = max(at_ns, self._tracing.now_ns())  # the round that placed it, with all others of that round
        self._emit(life, workload, "workload.place", at_ns, done_ns, span_attributes.placement(workload))
        life.enter(Phase.START, at_ns)

    def _lent(self, life: Life, workload: Workload, at_ns: int) -> None:
        self._offered(life, workload, at_ns, workload.runner_hub)
        self._close(life, workload, at_ns, "lent", more=span_attributes.size(workload))
        life.enter(Phase.LEASE, at_ns)

    def _ended(self, life: Life, workload: Workload, at_ns: int) -> None:
        self._offered(life, workload, at_ns, "none")
        ending, error = span_attributes.ending(workload), span_attributes.error_of(workload)
        outcome = "handed back" if workload.handed_back else workload.state.value
        self._close(life, workload, at_ns, outcome, more=ending, error=error)
        if not workload.borrowed:
            whole = {**span_attributes.size(workload), **ending, "workload.runner": workload.runner_hub or self._hub_id}
            self._emit(life, workload, "workload", epoch_ns(workload.created_at), at_ns, whole, error=error)
        del self._lives[workload.id]

    def _offered(self, life: Life, workload: Workload, at_ns: int, outcome: str) -> None:
        if life.requested_ns:
            attributes: Attributes = {"offer.outcome": outcome}
            self._emit(life, workload, "workload.offer", life.requested_ns, at_ns, attributes, events=life.answers)

    def _close(
        self,
        life: Life,
        workload: Workload,
        at_ns: int,
        outcome: str,
        *,
        more: Attributes | None = None,
        error: str | None = None,
    ) -> None:
        attributes: Attributes = {"outcome": outcome, **(more or {})}
        if life.phase is Phase.LEASE:
            attributes["workload.runner"] = workload.runner_hub
        self._emit(
            life,
            workload,
            f"workload.{life.phase.value}",
            life.since_ns,
            at_ns,
            attributes,
            span_id=life.phase_id(workload, self._hub_id),
            events=life.events,
            error=error,
        )

    def _emit(
        self,
        life: Life,
        workload: Workload,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: Attributes,
        *,
        span_id: bytes = b"",
        events: Iterable[RecordedEvent] = (),
        error: str | None = None,
    ) -> None:
        trace_id = life.trace.trace_id
        self._tracing.emit(
            FinishedSpan(
                trace_id=trace_id,
                span_id=span_id or span_id_of(trace_id, name, self._hub_id, workload.id, start_ns),
                parent_id=life.trace.span_id,
                name=name,
                start_ns=start_ns,
                end_ns=max(start_ns, end_ns),
                error=error,
                attributes={**span_attributes.identity(workload), **attributes},
                events=tuple(events),
            )
        )

    def _follow(self, workload: Workload) -> Life | None:
        trace = read_header(workload.trace)
        if trace is None or not trace.sampled or len(self._lives) >= LIVES_MAX:
            return None
        life = self._lives[workload.id] = life_of(workload, trace)
        return life


def bid_requests_in(effects: Iterable[fx.Effect], state: JobState) -> Iterable[tuple[str, BidRequest, tuple[str, ...]]]:
    """The questions to other hubs among what is about to be done, with the workloads that they are about."""
    for effect in effects:
        if isinstance(effect, fx.SendPeer) and isinstance(effect.message, BidRequest):
            yield (
                effect.hub_id,
                effect.message,
                state.lending.bid_requests.get((effect.hub_id, effect.message.number), ()),
            )


# How far is a traced workload? The phase that it is in, since when, and what happened in it.


class Phase(StrEnum):
    WAIT = "wait"  # for its turn, or for its power
    START = "start"  # GPUs are given, its tasks are on their way
    RUN = "run"
    LEASE = "lease"  # another hub has it


@dataclass(slots=True)
class Life:
    """Of one workload at one hub. Its phases follow each other without a gap."""

    trace: TraceContext  # the caller's span, or for a guest the owner's lease
    phase: Phase
    since_ns: int
    events: list[RecordedEvent] = field(default_factory=list)
    requested_ns: int = 0  # when other hubs were first asked about it in this phase
    answers: list[RecordedEvent] = field(default_factory=list)

    def note(self, at_ns: int, name: str, attributes: Attributes) -> None:
        if len(self.events) < EVENTS_MAX:
            self.events.append(RecordedEvent(at_ns, name, attributes))

    def answered(self, at_ns: int, name: str, attributes: Attributes) -> None:
        if len(self.answers) < EVENTS_MAX:
            self.answers.append(RecordedEvent(at_ns, name, attributes))

    def enter(self, phase: Phase, at_ns: int) -> None:
        self.phase, self.since_ns, self.events, self.requested_ns, self.answers = phase, at_ns, [], 0, []

    def phase_id(self, workload: Workload, hub_id: str) -> bytes:
        """Of the span of this phase: the agent and the other hub compute the same for those that they know of."""
        trace_id = self.trace.trace_id
        match self.phase:
            case Phase.START:
                return start_id(trace_id, workload.id, workload.attempt)
            case Phase.RUN:
                return run_id(trace_id, workload.id, workload.attempt)
            case Phase.LEASE:
                return lease_id(trace_id, workload.id, workload.epoch)
            case _:
                return span_id_of(trace_id, "wait", hub_id, workload.id, self.since_ns)


def life_of(workload: Workload, trace: TraceContext) -> Life:
    """As the store has it: after a restart a phase goes on from when the workload last changed."""
    if workload.borrowed:
        trace = trace.within(lease_id(trace.trace_id, workload.id, workload.epoch))
    changed_ns = epoch_ns(workload.updated_at)
    if workload.leased:
        return Life(trace, Phase.LEASE, changed_ns)
    if not workload.is_placed:
        return Life(trace, Phase.WAIT, changed_ns)
    if workload.state is State.SCHEDULED or workload.started_at is None:
        return Life(trace, Phase.START, changed_ns)
    return Life(trace, Phase.RUN, epoch_ns(workload.started_at))

"""How far is a traced workload? The phase that it is in, since when, and what happened in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from harch.base.clock import epoch_ns
from harch.base.tracing.context import TraceContext, lease_id, run_id, span_id_of, start_id
from harch.base.tracing.span import EVENTS_MAX, Attributes, SpanEvent
from harch.workloads.lifecycle import State, Workload


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
    events: list[SpanEvent] = field(default_factory=list)
    asked_ns: int = 0  # when other hubs were first asked about it in this phase
    answers: list[SpanEvent] = field(default_factory=list)

    def note(self, at_ns: int, name: str, attributes: Attributes) -> None:
        if len(self.events) < EVENTS_MAX:
            self.events.append(SpanEvent(at_ns, name, attributes))

    def answered(self, at_ns: int, name: str, attributes: Attributes) -> None:
        if len(self.answers) < EVENTS_MAX:
            self.answers.append(SpanEvent(at_ns, name, attributes))

    def enter(self, phase: Phase, at_ns: int) -> None:
        self.phase, self.since_ns, self.events, self.asked_ns, self.answers = phase, at_ns, [], 0, []

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
    if workload.guest:
        trace = trace.within(lease_id(trace.trace_id, workload.id, workload.epoch))
    changed_ns = epoch_ns(workload.updated_at)
    if workload.leased:
        return Life(trace, Phase.LEASE, changed_ns)
    if not workload.is_placed:
        return Life(trace, Phase.WAIT, changed_ns)
    if workload.state is State.SCHEDULED or workload.started_at is None:
        return Life(trace, Phase.START, changed_ns)
    return Life(trace, Phase.RUN, epoch_ns(workload.started_at))

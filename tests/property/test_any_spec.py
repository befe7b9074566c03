"""Whatever may be submitted: admission refuses it, or it is served; nothing else is ever raised, and books balance."""

from __future__ import annotations

import contextlib
from random import Random
from typing import get_args

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from harch.base.errors import HarchError
from harch.federation.offers import LeaseTerms
from harch.hub.explain import explain
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.machine import JobMachine
from harch.hub.jobs.placement import plan_defragmentation
from harch.placement.query import apply_query
from harch.testing.books import unbalanced
from harch.testing.clock import SimClock
from harch.testing.random_events import DRAWS, RandomEvents
from harch.testing.samples import FIELDS, random_spec
from harch.workloads.lifecycle import State
from harch.workloads.spec import WorkloadSpec

STEPS = 150
seeds = st.integers(0, 2**32 - 1)


def parts_of(kind: type[Struct]) -> set[type[Struct]]:
    """The schema of a specification: its own type and those of its fields."""
    found = {kind}
    for field in msgspec.structs.fields(kind):
        found |= {part for struct in structs_in(field.type) for part in parts_of(struct)}
    return found


def structs_in(annotation: object) -> set[type[Struct]]:
    """Whether it stands alone, may be absent, or is one of a list."""
    while hasattr(annotation, "__metadata__"):
        annotation = annotation.__origin__  # type: ignore[attr-defined]
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return {annotation}
    return {struct for inner in get_args(annotation) for struct in structs_in(inner)}


def test_every_field_of_the_schema_is_drawn() -> None:
    parts = parts_of(WorkloadSpec)
    assert len(parts) == 7, "another part of the schema: does this test find its fields?"
    assert {part: set(part.__struct_fields__) for part in parts} == {part: set(drawn) for part, drawn in FIELDS.items()}


def test_every_event_is_drawn() -> None:
    assert set(get_args(ev.Event)) == {kind for kind in DRAWS if isinstance(kind, type)}


@settings(max_examples=300, deadline=None)
@given(seed=seeds)
def test_drawn_specifications_are_ones_that_a_file_may_hold(seed: int) -> None:
    spec = random_spec(Random(seed), "job")
    assert msgspec.convert(msgspec.to_builtins(spec), WorkloadSpec) == spec
    with contextlib.suppress(HarchError):  # the query says something else than another field
        apply_query(spec)


class PureHub:
    """The job machine with its scheduler and nothing around it, in a random world."""

    def __init__(self, seed: int) -> None:
        self.clock = SimClock()
        self.world = RandomEvents(Random(seed), self.clock)
        self.machine = JobMachine(self.world.fleet, self.world.hub, rules=self.world.rules, leases=LeaseTerms())
        self.machine.restore((), (), context=EventContext(now=self.clock.now()), lifetime="pure")

    def context(self) -> EventContext:
        return EventContext(now=self.clock.now(), boot_s=self.clock.boot_s())

    def step(self) -> ev.Event:
        event = self.world.draw(self.machine)
        self.handle(event)
        return event

    def handle(self, event: ev.Event) -> None:
        try:
            effects = self.machine.apply(event, self.context())
        except HarchError:
            assert not self.machine.is_changed, f"refused too late: {event}"
            return
        for effect in effects:
            if isinstance(effect, fx.Send):
                self.world.sent(effect.agent_id, effect.message)
            elif isinstance(effect, fx.SendPeer):
                self.world.sent_peer(effect.hub_id, effect.message)


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_any_work_goes_through_the_scheduler_and_the_books_balance_after_each_step(seed: int) -> None:
    hub = PureHub(seed)
    for _ in range(STEPS):
        event = hub.step()
        assert unbalanced(hub.machine) == [], event


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_any_work_that_waits_can_be_explained(seed: int) -> None:
    hub = PureHub(seed)
    state = hub.machine.state
    for _ in range(STEPS):
        hub.step()
    for workload in list(state.registry.workloads.values()):
        found = explain(
            hub.machine,
            hub.context(),
            state.request(workload),
            list(state.lending.peers.values()),
            workload,
            may_leave=True,
        )
        assert found.sentence
        if workload.state is State.PENDING:
            plan_defragmentation(state, workload.id, now_s=hub.context().now_s)


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_when_everything_has_been_deleted_nothing_is_held(seed: int) -> None:
    hub = PureHub(seed)
    for _ in range(STEPS):
        hub.step()
    state = hub.machine.state
    for _ in range(20):
        hub.clock.jump(60.0)
        hub.handle(ev.LendingDue())  # bids end, and so do leases of which nothing is heard
        while (joined := hub.world.agent_joined(hub.machine)) is not None:
            hub.handle(joined)
        for workload in list(state.registry.workloads.values()):
            if not workload.borrowed:
                hub.handle(ev.StopRequested(workload.id, "deleted", hide=True))
        while (report := hub.world.reported(hub.machine)) is not None:
            hub.handle(report)
    assert unbalanced(hub.machine) == []
    assert {key: state.registry.workloads[key].state for key in state.scheduler.running} == {}
    assert len(state.scheduler.queue) == 0

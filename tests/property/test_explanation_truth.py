"""Explanations are true: "about to be placed" exactly if the next round places it, "never" exactly if an empty hub
would not take it, and whoever waits is told a rule that says no. In random states, with random requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.hub.explain import explain
from harch.hub.jobs import events as ev
from harch.hub.jobs.machine import JobMachine
from harch.hub.store.records import ConditionKind
from harch.placement.checks import HARD_CHECKS
from harch.placement.explanation import Verdict
from harch.placement.queueing.settings import QueueSettings, Quota
from harch.placement.request import PlacementRequest
from harch.placement.scheduler import Scheduler
from harch.testing.samples import tiny_fleet
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import (
    Gang,
    Level,
    Resources,
    SchedulingClass,
    Strategy,
    Topology,
    WorkloadSpec,
)
from unit.hub.conftest import Bench

PERMANENT = {check.rule for check in HARD_CHECKS if check.permanent}
QUOTAS = QueueSettings(tenant_quotas={"poor": Quota(gpus_held_max=6, tasks_held_max=3)})


def mostly(usual: object, *rare: object) -> st.SearchStrategy:  # type: ignore[type-arg]
    return st.sampled_from([usual] * 8 + list(rare))


@st.composite
def specs(draw: st.DrawFn) -> WorkloadSpec:
    tasks = draw(st.sampled_from([1, 1, 1, 2, 2, 3, 4, 6]))
    spread = draw(st.booleans()) and tasks > 1
    shared = draw(mostly(False, True, True))
    levels = [Level.RACK, Level.ROW, Level.HUB] if spread else list(Level)
    runs = draw(mostly(False, True, True, True))
    return WorkloadSpec(
        name=f"w{draw(st.integers(0, 10**9))}",
        tasks=tasks,
        command=("true",) if runs else (),
        modelled_duration_s=None if runs else draw(st.sampled_from([600.0, 5000.0, 50000.0])),
        max_duration_s=draw(st.sampled_from([None, 600.0, 50000.0])) if runs else None,
        resources=Resources(
            gpus=1 if shared else draw(st.sampled_from([8, 4, 4, 8, 2, 1, 3, 0, 9])),
            gpu_fraction=draw(st.sampled_from([0.2, 0.5])) if shared else None,
            gpu_memory_gb=draw(st.sampled_from([None, 20, 60, 80, 81])) if shared else None,
            gpu_models=draw(mostly((), ("h100-80gb",), ("a100-80gb", "h100-80gb"), ("b200",))),
            gpu_memory_gb_min=draw(mostly(0, 40, 81)),
            cpus=draw(mostly(1, 8, 40, 113)),
            memory_gb=draw(mostly(1, 200, 3000)),
            storage_gb=draw(mostly(0, 5000, 12000, 31000)),
        ),
        topology=Topology(
            required=draw(mostly(Level.HUB, *levels)),
            preferred=draw(st.sampled_from(levels)),
            strategy=Strategy.SPREAD if spread else Strategy.PACK,
            exclusive=draw(mostly(False, True)),
        ),
        gang=Gang(tasks_min=draw(mostly(None, 1)), degrade_after_s=draw(st.sampled_from([0.0, 100.0]))),
        scheduling_class=draw(st.sampled_from([None, None, *SchedulingClass])),
        preemptible=draw(st.booleans()),
        countries_allowed=draw(mostly((), ("MA",), ("SN",))),
    )


@st.composite
def happenings(draw: st.DrawFn) -> Callable[[Bench], None]:
    """One thing that happens to a hub."""
    kind = draw(
        st.sampled_from(["submit"] * 8 + ["crowd", "place", "place", "end", "later", "hardware", "hardware", "hub"])
    )
    if kind == "submit":
        spec, tenant = draw(specs()), draw(mostly("rich", "poor"))
        return lambda bench: submit(bench, spec, tenant)
    if kind == "crowd":
        nodes, hours = draw(st.integers(1, 3)), draw(st.sampled_from([1, 10]))
        return lambda bench: crowd(bench, nodes, hours)
    if kind == "place":
        return lambda bench: place(bench)
    if kind == "end":
        which = draw(st.integers(0, 20))
        return lambda bench: end(bench, which)
    if kind == "later":
        seconds = draw(st.sampled_from([1.0, 60.0, 150.0, 1000.0]))
        return lambda bench: bench.later(seconds=seconds)
    if kind == "hub":
        closed = draw(mostly(0, 1))
        return lambda bench: bench.handle(ev.HubClosed(closed, "test")) and None
    subject = draw(
        st.sampled_from(
            [
                (ConditionKind.CORDONED, "dakhla-r01-n01", (1.0, None)),
                (ConditionKind.CORDONED, "dakhla-r03-n01", (1.0, None)),
                (ConditionKind.UNHEALTHY, "dakhla-r02-n01-g3", (1.0, None)),
                (ConditionKind.COOLING_KW, "dakhla-hall-1", (25.0, 28.0, 32.0, 45.0)),
                (ConditionKind.NVLINK, "dakhla-r01-n02", (0.05, None)),
                (ConditionKind.UPLINK, "dakhla-r02", (0.1, None)),
            ]
        )
    )
    condition, name, values = subject
    value = draw(st.sampled_from(values))
    return lambda bench: bench.handle(ev.HardwareChanged(condition, name, value, "test")) and None


def submit(bench: Bench, spec: WorkloadSpec, tenant: str) -> None:
    bench.count += 1
    with contextlib.suppress(HarchError):  # refused for good: it never fits, or its name is taken
        bench.handle(ev.Submitted(f"wl_{bench.count}", tenant, spec, {}, None))


def crowd(bench: Bench, nodes: int, hours: int) -> None:
    """Some nodes are held for hours, and a gang keeps all of them for itself."""
    whole, duration_s = Resources(gpus=8, gpu_model="h100-80gb"), hours * 3600.0
    for number in range(nodes):
        held = WorkloadSpec(name=f"held-{bench.count}-{number}", modelled_duration_s=duration_s, resources=whole)
        submit(bench, held, "rich")
    place(bench)
    gang = WorkloadSpec(name=f"gang-{bench.count}", tasks=4, modelled_duration_s=duration_s, resources=whole)
    submit(bench, gang, "rich")
    place(bench)


def place(bench: Bench) -> None:
    bench.handle(ev.PlacementDue())
    while bench.machine.state.more_to_place:
        bench.handle(ev.PlacementDue())


def end(bench: Bench, which: int) -> None:
    placed = [workload for workload in bench.machine.state.registry.workloads.values() if workload.is_placed]
    if placed:
        workload = placed[which % len(placed)]
        for task in workload.placement:
            bench.end(workload, task.rank)


def hub_with(events: list[Callable[[Bench], None]]) -> Bench:
    bench = Bench()
    bench.machine = JobMachine(tiny_fleet(), bench.hub, QUOTAS)
    bench.join()
    for event in events:
        event(bench)
    return bench


def waiting(bench: Bench) -> list[Workload]:
    return [w for w in bench.machine.state.registry.workloads.values() if w.state is State.PENDING]


@given(st.lists(happenings(), min_size=10, max_size=40))
@settings(max_examples=120, deadline=None)
def test_what_is_about_to_be_placed_is_what_the_next_round_places(events: list[Callable[[Bench], None]]) -> None:
    bench = hub_with(events)
    told = {
        workload.id: explain(bench.machine, bench.context, bench.machine.state.request(workload), [], workload)
        for workload in waiting(bench)
    }
    place(bench)
    for workload in bench.machine.state.registry.workloads.values():
        if workload.id not in told:
            continue
        explanation = told[workload.id]
        failed = [rule for rule in explanation.hubs[0].rules if not rule.passed]
        assert (explanation.verdict is Verdict.FITS_NOW) == workload.is_placed, (explanation.sentence, workload)
        assert (explanation.verdict is Verdict.FITS_NOW) == (not failed)
        assert explanation.verdict is not Verdict.NEVER_FITS, "it was admitted"
        assert not any(rule.rule == "layout" for rule in failed), "a rule in words explains it"


@given(st.lists(happenings(), max_size=15), specs(), st.sampled_from(["rich", "poor"]))
@settings(max_examples=200, deadline=None)
def test_never_is_said_exactly_of_what_an_empty_hub_would_not_take(
    events: list[Callable[[Bench], None]], spec: WorkloadSpec, tenant: str
) -> None:
    bench = hub_with(events)
    state = bench.machine.state
    request = PlacementRequest.of("asked", spec, tenant=tenant, submitted_s=bench.context.now_s)
    told = explain(bench.machine, bench.context, request, [], None)
    empty = Scheduler(bench.hub, QUOTAS)
    empty.serve(tuple(node.id for node in bench.hub.nodes), True)
    empty.room.process_slots_free = state.agents.process_slots
    empty.submit(request, now_s=bench.context.now_s)
    takes = any(
        empty.plan(now_s=at_s, placed_max=1).assignments
        for at_s in (bench.context.now_s, bench.context.now_s + request.degrade_after_s)
    )
    assert (told.verdict is Verdict.NEVER_FITS) == (not takes), told.sentence
    assert told.hubs[0].never == (told.verdict is Verdict.NEVER_FITS)
    assert told.hubs[0].never == any(not rule.passed and rule.rule in PERMANENT for rule in told.hubs[0].rules)

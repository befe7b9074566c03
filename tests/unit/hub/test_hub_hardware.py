"""Hardware that changes while it runs: seen by the next decision, told in the reasons, remembered."""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.hub.explain import explain
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.machine import JobMachine
from harch.hub.store.records import Condition, ConditionKind
from harch.hub.summary import node_states, nodes_by_state, rack_states, zone_states
from harch.testing.samples import tiny_fleet
from harch.workloads.lifecycle import ExitReason, State, Workload
from harch.workloads.spec import Resources, WorkloadSpec
from unit.hub.conftest import Bench

NODE = "dakhla-r01-n01"


def change(bench: Bench, kind: ConditionKind, subject: str, value: float | None, why: str = "") -> list[fx.Effect]:
    return bench.handle(ev.HardwareChanged(kind, subject, value, why))


def cordon_all(bench: Bench, value: float | None = 1) -> None:
    for node in bench.hub.nodes:
        change(bench, ConditionKind.CORDONED, node.id, value)


def failed_rule(bench: Bench, workload: Workload) -> tuple[str, str, str]:
    told = explain(bench.machine, bench.context, bench.machine.state.request(workload), [], workload)
    rule = next(rule for rule in told.hubs[0].rules if not rule.passed)
    return rule.rule, rule.detail, rule.nearest_fix


def test_a_cordoned_node_is_given_nothing_and_the_reason_names_it(bench: Bench) -> None:
    for node in bench.hub.nodes[:3]:
        change(bench, ConditionKind.CORDONED, node.id, 1, "new memory")
    fits = bench.submit(gpus=8)
    waits = bench.submit(gpus=8)
    bench.run(fits)
    assert fits.placement[0].node_id == "dakhla-r02-n02"
    rule, detail, fix = failed_rule(bench, waits)
    assert rule == "capacity"
    assert "3 more would fit on cordoned nodes (dakhla-r01-n01" in detail
    assert "harch node uncordon" in fix
    change(bench, ConditionKind.CORDONED, NODE, None)
    (start,) = bench.place()
    assert start.task.node_id == NODE


def test_nodes_are_counted_by_whether_somebody_serves_them_or_took_them_out_of_service() -> None:
    bench = Bench()
    nodes = len(bench.hub.nodes)
    assert nodes_by_state(bench.machine.state) == {"served": 0, "cordoned": 0, "unserved": nodes}
    bench.join()
    change(bench, ConditionKind.CORDONED, NODE, 1)
    assert nodes_by_state(bench.machine.state) == {"served": nodes - 1, "cordoned": 1, "unserved": 0}


def test_a_hub_whose_nodes_are_all_cordoned_says_so(bench: Bench) -> None:
    cordon_all(bench)
    waits = bench.submit(gpus=1)
    assert bench.place() == []
    rule, detail, _ = failed_rule(bench, waits)
    assert rule == "nodes_up"
    assert "no node accepts work" in detail
    assert "and 3 more" in detail
    cordon_all(bench, None)
    assert len(bench.place()) == 1


def test_an_unhealthy_gpu_keeps_its_work_and_is_not_given_again(bench: Bench) -> None:
    first = bench.submit(gpus=8)
    bench.run(first)
    gpu = first.placement[0].gpu_ids[0]
    change(bench, ConditionKind.UNHEALTHY, gpu, 1, "ECC errors")
    assert first.state is State.RUNNING
    bench.end(first)
    seven = bench.submit(gpus=7)
    bench.run(seven)
    eights = [bench.submit(gpus=8) for _ in range(4)]
    for eight in eights:
        bench.run(eight)
    waits = next(eight for eight in eights if not eight.is_placed)
    assert gpu not in {id_ for eight in (*eights, seven) for task in eight.placement for id_ in task.gpu_ids}
    assert "1 suitable GPUs are idle but unhealthy" in failed_rule(bench, waits)[1]


def test_a_drained_node_hands_its_work_over(bench: Bench) -> None:
    workload = bench.submit(gpus=8)
    bench.run(workload)
    node = workload.placement[0].node_id
    bench.handle(ev.NodeDrained(node, "new power supply"))
    assert bench.stops_sent() == {0}
    bench.end(workload, reason=ExitReason.STOPPED, code=None)
    (start,) = bench.place()
    assert start.task.node_id != node
    assert workload.attempt == 2


def test_cooling_that_comes_back_lets_waiting_work_start_at_once(bench: Bench) -> None:
    zone = bench.hub.cooling_zones[0].id
    change(bench, ConditionKind.COOLING_KW, zone, 21, "pump failed")
    waits = bench.submit_spec(WorkloadSpec(name="warm", modelled_duration_s=60, resources=Resources(gpus=8)))
    assert bench.place() == []
    rule, detail, _ = failed_rule(bench, waits)
    told = "cooling zone dakhla-hall-1 has 0.2 kW free; it would draw 5.6 kW there"
    assert (rule, detail) == ("power_and_cooling", told)
    assert bench.place() == []
    change(bench, ConditionKind.COOLING_KW, zone, None)
    assert len(bench.place()) == 1


def test_conditions_are_shown_where_an_operator_looks(bench: Bench) -> None:
    workload = bench.submit(gpus=8)
    bench.run(workload)
    hub_state = bench.machine.state
    conditions = [
        Condition(kind=ConditionKind.CORDONED, subject=NODE, value=1, why="new memory"),
        Condition(kind=ConditionKind.UNHEALTHY, subject=f"{NODE}-g3", value=1),
        Condition(kind=ConditionKind.UPLINK, subject="dakhla-r01", value=0.5, why="one of two cables"),
        Condition(kind=ConditionKind.COOLING_KW, subject="dakhla-hall-1", value=40, why="hot day"),
    ]
    for condition in conditions:
        change(bench, condition.kind, condition.subject, condition.value, condition.why)
    states = {state.id: state for state in node_states(hub_state, conditions)}
    state = states[NODE]
    assert (state.cordoned, state.available, state.served, state.gpus_unhealthy) == (True, False, True, 1)
    assert [found.kind for found in state.conditions] == ["cordoned", "unhealthy", "uplink", "cooling_kw"]
    held = states[workload.placement[0].node_id]
    assert (held.gpus_held, held.gpus_free, held.tasks) == (8, 0, 1)
    (zone,) = zone_states(hub_state, conditions)
    assert (zone.heat_kw_built, zone.heat_kw_max, zone.why) == (60, 40, "hot day")
    rack = rack_states(hub_state, conditions)[0]
    assert (rack.uplink_factor, rack.why, rack.nodes[0]) == (0.5, "one of two cables", NODE)


@pytest.mark.parametrize(
    ("kind", "subject", "value", "code"),
    [
        (ConditionKind.CORDONED, "nowhere", 1, "E0311"),
        (ConditionKind.UNHEALTHY, f"{NODE}-g99", 1, "E0311"),
        (ConditionKind.COOLING_KW, "dakhla-hall-1", 61, "E0201"),
        (ConditionKind.NVLINK, NODE, 1.5, "E0201"),
        (ConditionKind.UPLINK, "dakhla-r01", 0, "E0201"),
    ],
)
def test_what_cannot_be_is_refused(bench: Bench, kind: ConditionKind, subject: str, value: float, code: str) -> None:
    with pytest.raises(HarchError) as refused:
        change(bench, kind, subject, value)
    assert refused.value.code == code


def test_conditions_survive_a_restart(bench: Bench) -> None:
    machine = JobMachine(tiny_fleet(), bench.hub)
    stored = [
        Condition(kind=ConditionKind.CORDONED, subject=NODE, value=1),
        Condition(kind=ConditionKind.CORDONED, subject="sold-last-year", value=1),
        Condition(kind=ConditionKind.UNHEALTHY, subject=f"{NODE}-g3", value=1),
    ]
    machine.restore((), (), stored, context=EventContext(now=bench.now))
    assert machine.state.scheduler.room.cordoned[0]
    assert not machine.state.scheduler.room.healthy[0, 3]

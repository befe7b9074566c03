"""Kept nodes from round to round: for whom, how often a plan is made, what is dropped, and who restarts elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from harch.placement.queueing import reserved_nodes
from harch.placement.queueing.preemption import PastPreemptions, PreemptionPlan
from harch.placement.queueing.releases import Releases
from harch.placement.queueing.reservations import Reservation
from harch.placement.queueing.reserved_nodes import (
    KeptNodes,
    is_worth_room,
    may_have_room_made,
    plan_making_room,
)
from harch.placement.queueing.running import RunningRequest
from harch.placement.queueing.settings import QueueSettings
from harch.placement.queueing.vacancies import Vacancies
from harch.placement.request import PlacementRequest
from harch.placement.room import TaskSlot
from harch.workloads.spec import Level, SchedulingClass, Strategy, Topology
from unit.turns.turn_fixtures import INTERACTIVE, TRAINING, ask, room_of, start, stop, whole_node

HOUR_S = 3600.0


@dataclass
class Hub:
    """Nodes of one rack, each full of one piece of work unless it is said otherwise."""

    nodes: int = 4
    settings: QueueSettings = field(default_factory=lambda: QueueSettings(makes_room_after_s=1e9))
    full: bool = True
    power_kw_max: float = 1000.0

    def __post_init__(self) -> None:
        self.room = room_of(racks=1, nodes_per_rack=self.nodes, power_kw_max=self.power_kw_max)
        self.running: dict[str, RunningRequest] = {}
        self.releases = Releases(self.room)
        self.vacancies = Vacancies(self.room)
        self.planned_for: list[str] = []
        self.spared: tuple[str, ...] = ()
        self.kept = KeptNodes(
            self.room,
            self.settings,
            self.releases,
            self.vacancies,
            stopping={},
            spared=lambda _: self.spared,
            look_at=lambda request: self.planned_for.append(request.id),
        )
        if self.full:
            for row in range(self.nodes):
                self.start(ask(f"w{row}", gpus=8, duration_s_max=1000.0 * (row + 1)), whole_node(row))
        self.vacancies.clear()

    def start(self, request: PlacementRequest, slots: tuple[TaskSlot, ...], started_s: float = 0.0) -> None:
        self.running[request.id] = start(self.room, request, slots, started_s)
        self.releases.add(self.running[request.id])

    def end(self, name: str) -> None:
        self.releases.remove(name)
        stop(self.room, self.running.pop(name))

    def round(self, now_s: float, gone: Iterable[str] = ()) -> None:
        self.kept.begin_round(lambda name: name not in set(gone), now_s)

    def keep(self, *requests: PlacementRequest, now_s: float = 0.0) -> list[str]:
        """One round for each; whose nodes are kept then."""
        for request in requests:
            self.round(now_s)
            self.kept.keep_for(request, now_s)
        return self.names()

    def names(self) -> list[str]:
        return [item.request.id for item in self.kept.reservations]

    def row_of(self, name: str) -> tuple[int, ...]:
        found = self.kept.of(name)
        assert found is not None
        return found.rows


def one(name: str, *, gpus: int = 8, submitted_s: float = 0.0, **also: object) -> PlacementRequest:
    return msgspec.structs.replace(ask(name, gpus=gpus, **also), submitted_s=submitted_s)  # type: ignore[arg-type]


# For what is room made?


@pytest.mark.parametrize(
    ("gpus", "bound_s", "worth"),
    [(0, None, False), (1, None, True), (1, 299.9, False), (1, 300.0, True), (8, 1e6, True), (0, 1e6, False)],
)
def test_nobody_is_stopped_for_what_needs_no_gpu_or_is_over_in_a_moment(
    gpus: int, bound_s: float | None, worth: bool
) -> None:
    request = one("r", gpus=gpus, submitted_s=100.0, duration_s_max=bound_s)
    assert is_worth_room(request) is worth
    settings = QueueSettings(makes_room_after_s=50.0)
    assert may_have_room_made(request, settings, 150.0) is worth
    assert not may_have_room_made(request, settings, 149.9)


# Keeping


def test_nodes_are_kept_for_one_request_per_round_up_to_the_limit() -> None:
    hub = Hub(nodes=8, settings=QueueSettings(reservations_max=3))
    hub.round(0.0)
    for name in ("a", "b"):
        hub.kept.keep_for(one(name), 0.0)
    assert hub.names() == ["a"], "a plan costs time: one per round"
    assert hub.planned_for == ["a"]
    assert not hub.kept.can_keep_more
    assert hub.keep(one("b"), one("c"), one("d")) == ["a", "b", "c"]
    assert hub.planned_for == ["a", "b", "c"]
    assert hub.kept.by_row == {row: item for item in hub.kept.reservations for row in item.rows}
    assert hub.row_of("a") == (0,)
    assert hub.kept.of("d") is None


def test_whose_nodes_could_not_be_kept_is_looked_at_again_after_a_minute() -> None:
    hub = Hub(nodes=1)
    assert hub.keep(one("large", gpus=8, tasks=2)) == []
    assert hub.keep(one("large", gpus=8, tasks=2), now_s=59.0) == []
    assert hub.planned_for == ["large"]
    hub.keep(one("large", gpus=8, tasks=2), now_s=60.0)
    assert hub.planned_for == ["large", "large"]
    hub.kept.plan_anew()
    hub.keep(one("large", gpus=8, tasks=2), now_s=61.0)
    assert hub.planned_for == ["large"] * 3, "the hardware has changed"


def test_who_has_nodes_kept_is_not_planned_for_again() -> None:
    hub = Hub()
    hub.keep(one("a"), now_s=0.0)
    assert hub.keep(one("a"), now_s=100.0) == ["a"]
    assert hub.planned_for == ["a"]


@pytest.mark.parametrize("forgets", ["new hardware", "too many"])
def test_a_plan_of_which_nothing_is_remembered_is_made_again(forgets: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    hub.room.process_slots_free = 4
    hub.keep(one("a", runs_process=True))
    hub.round(1.0)
    assert hub.planned_for == ["a"], "nothing has changed"
    if forgets == "new hardware":
        hub.kept.plan_anew()
    else:
        monkeypatch.setattr(reserved_nodes, "RESTS_MAX", 1)
        hub.kept.keep_for(one("nowhere", tasks=9), 1.0)
        assert hub.planned_for.pop() == "nowhere"
    hub.round(2.0)
    assert hub.planned_for == ["a", "a"]


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserved_nodes, "RESTS_MAX", 3)
    hub = Hub(nodes=1)
    for name in "abcd":
        hub.keep(one(name, tasks=2))
    assert hub.planned_for == ["a", "b", "c", "d"]
    hub.keep(one("d", tasks=2))
    assert hub.planned_for[4:] == [], "it was looked at a moment ago"
    hub.keep(one("a", tasks=2))
    assert hub.planned_for[4:] == ["a"], "forgotten with the others when there were three"


@pytest.mark.parametrize(
    ("gpus", "tasks", "now_s", "kept"),
    [
        (1, 1, 199.9, False),  # such work starts with what comes free piece by piece
        (1, 1, 200.0, True),  # unless it has waited long
        (2, 1, 101.0, True),
        (1, 2, 101.0, True),
        (0, 1, 199.9, False),
    ],
)
def test_no_node_is_kept_for_the_work_of_one_gpu_before_it_has_waited_long(
    gpus: int, tasks: int, now_s: float, kept: bool
) -> None:
    hub = Hub(settings=QueueSettings(starvation_s=100.0))
    for row in range(4):  # so that no CPU is free either
        hub.start(
            msgspec.structs.replace(
                ask(f"cpus{row}", gpus=0, duration_s_max=500.0),
                needs=msgspec.structs.replace(
                    ask("").needs, gpus=0, cpus=float(hub.room.arrays.cpu_milli_free[row]) / 1000
                ),
            ),
            (TaskSlot(row, ()),),
        )
    assert bool(hub.keep(one("r", gpus=gpus, tasks=tasks, submitted_s=100.0), now_s=now_s)) is kept
    assert bool(hub.planned_for) is kept


@pytest.mark.parametrize(("nodes", "names"), [(6, ["a", "b"]), (5, ["a"])])
def test_half_of_the_nodes_stay_open_unless_one_request_needs_more(nodes: int, names: list[str]) -> None:
    hub = Hub(nodes=nodes)
    assert hub.keep(one("a", tasks=2), one("b"), one("c")) == names
    alone = Hub(nodes=nodes)
    assert alone.keep(one("all", tasks=nodes), one("b")) == ["all"]


def test_those_who_are_blocked_are_looked_at_every_half_minute_while_a_plan_can_be_made() -> None:
    hub = Hub()
    assert not hub.kept.looks_at_blocked(0.0), "before the first round there is no plan to give"
    hub.round(0.0)
    assert hub.kept.looks_at_blocked(0.0)
    assert not hub.kept.looks_at_blocked(29.9)
    assert hub.kept.looks_at_blocked(30.0)
    assert not hub.kept.looks_at_blocked(59.9)
    hub.kept.keep_for(one("a"), 60.0)
    assert not hub.kept.looks_at_blocked(100.0), "the plan of this round is made"
    assert not Hub(settings=QueueSettings(reservations_max=0)).kept.can_keep_more


# From round to round


def test_nodes_of_who_no_longer_waits_or_that_are_gone_are_open_to_others() -> None:
    hub = Hub()
    hub.keep(one("a"), one("b"))
    hub.vacancies.clear()
    hub.round(1.0, gone=["a"])
    assert hub.names() == ["b"]
    assert [hub.vacancies.is_on([row]) for row in range(4)] == [True, False, False, False]
    assert hub.kept.by_row.keys() == {1}
    hub.room.cordon(hub.room.hub.nodes[1].id, True)
    hub.round(2.0)
    assert hub.names() == []
    assert hub.planned_for == ["a", "b"]


def test_a_node_that_is_given_up_is_open_although_another_has_it_kept_in_the_same_round() -> None:
    hub = Hub(full=False)
    for row, duration_s in enumerate((3000.0, 1000.0, 9000.0, 9000.0)):
        hub.start(ask(f"w{row}", gpus=8, duration_s_max=duration_s), whole_node(row))
    hub.keep(one("first"), one("second"))
    assert (hub.row_of("first"), hub.row_of("second")) == ((1,), (0,))
    hub.end("w0")
    hub.vacancies.clear()  # everybody was tried: the node is kept
    hub.round(1041.0, gone=["second"])
    assert hub.row_of("first") == (0,), "it can start there now"
    assert hub.vacancies.is_on([0]), "and has to be tried there"


def test_of_a_gang_all_nodes_must_be_there() -> None:
    hub = Hub()
    hub.keep(one("gang", tasks=2))
    hub.round(1.0)
    assert hub.row_of("gang") == (0, 1)
    hub.room.cordon(hub.room.hub.nodes[1].id, True)
    hub.round(2.0)
    assert hub.names() == []


def test_what_has_started_leaves_its_nodes_to_others() -> None:
    hub = Hub()
    hub.keep(one("a"), one("b"))
    hub.vacancies.clear()
    hub.kept.release("other")
    assert hub.names() == ["a", "b"]
    hub.kept.release("a")
    assert hub.names() == ["b"]
    assert [hub.vacancies.is_on([row]) for row in range(4)] == [True, False, False, False]


def test_a_plan_that_is_overdue_is_made_again_after_a_minute() -> None:
    hub = Hub()
    hub.keep(one("a"), now_s=0.0)
    (before,) = hub.kept.reservations
    assert before.start_s == 1040.0, "promise, grace and margin"
    hub.round(1039.0)
    assert hub.planned_for == ["a"]
    hub.round(1040.0)
    assert hub.planned_for == ["a", "a"]
    hub.round(1099.0)
    assert hub.planned_for == ["a", "a"]
    hub.vacancies.clear()
    hub.round(1100.0)
    assert hub.planned_for == ["a", "a", "a"]
    (after,) = hub.kept.reservations
    assert after.start_s > before.start_s
    assert hub.vacancies.is_on(before.rows), "it is kept for later: others may use it until then"


def test_a_plan_that_stays_opens_nothing() -> None:
    hub = Hub()
    hub.keep(one("a"), now_s=0.0)
    hub.vacancies.clear()
    hub.round(10.0)
    hub.round(1040.0)
    (item,) = hub.kept.reservations
    assert not hub.vacancies.is_on(item.rows) or item.start_s > 1040.0


def test_later_plans_count_what_earlier_ones_need_and_leave_the_nodes_of_others_alone() -> None:
    hub = Hub(nodes=8)
    hub.keep(one("a"), one("b"), one("c"))
    assert [item.ahead for item in hub.kept.reservations] == [(), ("a",), ("a", "b")]
    rows = [item.rows for item in hub.kept.reservations]
    hub.kept.plan_anew()
    for name in ("w0", "w1", "w2"):
        hub.end(name)
    hub.round(5000.0)
    assert hub.planned_for[3:] == ["a", "b", "c"]
    assert [item.rows for item in hub.kept.reservations] == rows
    assert [item.ahead for item in hub.kept.reservations] == [(), ("a",), ("a", "b")]


@pytest.mark.parametrize("binds", [True, False])
@pytest.mark.parametrize("runs_process", [True, False])
def test_what_depends_on_everything_that_runs_is_planned_anew_with_every_change(
    binds: bool, runs_process: bool
) -> None:
    hub = Hub(power_kw_max=4 + 3 * 5.6 if binds else 1000.0, full=False)
    hub.room.process_slots_free = 2
    for row in range(3):
        hub.start(ask(f"w{row}", gpus=8, duration_s_max=1000.0), whole_node(row))
    hub.keep(one("gang", tasks=2, runs_process=runs_process))
    assert hub.names() == ["gang"]
    hub.round(1.0)
    assert hub.planned_for == ["gang"]
    hub.end("w2")
    hub.round(2.0)
    assert hub.planned_for == ["gang"] * (2 if binds or runs_process else 1)


def test_processes_that_are_no_longer_counted_on_are_there_for_others() -> None:
    for runs_process in (True, False):
        hub = Hub()
        hub.room.process_slots_free = 4
        hub.keep(one("a", runs_process=runs_process), one("b", runs_process=runs_process))
        hub.vacancies.clear()
        waits = ask("waits", gpus=8, runs_process=True)
        hub.round(1.0)
        assert not hub.vacancies.may_serve(waits)
        hub.kept.release("a")
        assert hub.vacancies.may_serve(waits) is runs_process


def test_who_has_room_made_comes_first_and_whose_nodes_it_takes_plans_again() -> None:
    hub = Hub()
    hub.keep(one("a"), one("b"))
    assert hub.row_of("a") == (0,)
    hub.end("w3")
    hub.kept.keep_first_for(one("urgent"), 1.0)
    assert hub.names() == ["urgent", "a", "b"]
    assert hub.row_of("urgent") == (3,)
    hub.start(ask("w3", gpus=8, duration_s_max=1e6), whole_node(3))
    hub.end("w0")
    hub.kept.keep_first_for(one("more urgent"), 2.0)
    assert hub.names() == ["more urgent", "urgent", "b"], "the nodes of `a` are taken"
    hub.kept.keep_first_for(one("b"), 3.0)
    assert hub.names() == ["b", "urgent"]
    hub.kept.keep_first_for(one("nowhere", tasks=9), 4.0)
    assert hub.names() == ["b", "urgent"]


def test_a_gang_is_looked_at_every_minute_once_room_may_be_made_for_it() -> None:
    hub = Hub(settings=QueueSettings(makes_room_after_s=100.0))
    hub.keep(one("a", submitted_s=10.0), now_s=10.0)
    (item,) = hub.kept.reservations
    assert not hub.kept.may_be_ready(item, 109.0)
    assert hub.kept.may_be_ready(item, 110.0)
    assert not hub.kept.may_be_ready(item, 169.0)
    assert hub.kept.may_be_ready(item, 170.0)


def test_small_work_is_counted_on_only_until_room_is_made_and_never_if_it_is_spared() -> None:
    def kept(request: PlacementRequest, spared: tuple[str, ...] = ()) -> Reservation:
        hub = Hub(nodes=1, settings=QueueSettings(makes_room_after_s=100.0, assumed_duration_s=5000.0), full=False)
        for device in range(8):
            hub.start(ask(f"w{device}"), (TaskSlot(0, (device,)),))
        hub.spared = spared
        hub.keep(request, now_s=20.0)
        (item,) = hub.kept.reservations
        return item

    moved = kept(one("gang", submitted_s=10.0))
    assert (moved.start_s, moved.has_room_made) == (10.0 + 100.0 + 10.0 + 30.0, True)
    for waits in (
        kept(one("gang", submitted_s=10.0), ("w1",)),
        kept(one("short", submitted_s=10.0, duration_s_max=299.0)),
    ):
        assert waits.start_s == 5030.0


# One node for a gang


def topology(preferred: Level, required: Level = Level.HUB, strategy: Strategy = Strategy.PACK) -> Topology:
    return Topology(preferred=preferred, required=required, strategy=strategy)


@pytest.mark.parametrize(
    ("tasks", "wanted", "nodes"),
    [
        (8, topology(Level.NODE), 1),
        (2, topology(Level.NODE), 1),
        (8, topology(Level.NODE, Level.RACK), 1),
        (8, topology(Level.NODE, strategy=Strategy.SPREAD), 2),
        (8, topology(Level.RACK), 2),
        (8, topology(Level.NODE, Level.NODE), 1),
        (4, topology(Level.ISLAND), 1),
        (9, topology(Level.NODE), 2),
    ],
)
def test_a_gang_that_prefers_one_node_waits_an_hour_longer_for_it(tasks: int, wanted: Topology, nodes: int) -> None:
    """Half of each node is free at once, and a whole one some minutes later."""
    hub = Hub(nodes=2, full=False)
    for row in range(2):
        for half in range(2):
            hub.start(
                ask(f"w{row}-{half}", gpus=4, preemptible=False, duration_s_max=100.0 if half else 1000.0 + row),
                (TaskSlot(row, tuple(range(4 * half, 4 * half + 4))),),
            )
    gang = msgspec.structs.replace(one("gang", gpus=4 if tasks == 2 else 1, tasks=tasks), topology=wanted)
    hub.settings = hub.kept.settings = QueueSettings(makes_room_after_s=0.0)
    hub.keep(gang)
    (item,) = hub.kept.reservations
    assert (len(item.rows), item.request) == (nodes, gang)


@pytest.mark.parametrize(("bound_s", "nodes"), [(3560.0, 1), (3561.0, 2)])
def test_a_node_that_clears_more_than_an_hour_later_is_not_waited_for(bound_s: float, nodes: int) -> None:
    hub = Hub(nodes=2, full=False, settings=QueueSettings(makes_room_after_s=50.0))
    for row in range(2):
        hub.start(
            ask(f"w{row}", gpus=4, preemptible=False, duration_s_max=bound_s + 75.0), (TaskSlot(row, (0, 1, 2, 3)),)
        )
    gang = msgspec.structs.replace(one("gang", gpus=1, tasks=8, submitted_s=25.0), topology=topology(Level.NODE))
    hub.start(ask("short", gpus=4, duration_s_max=50.0), (TaskSlot(0, (4, 5, 6, 7)),))
    hub.keep(gang, now_s=30.0)
    (item,) = hub.kept.reservations
    assert len(item.rows) == nodes


# Making room


def making_room(
    hub: Hub,
    *,
    tasks: int = 1,
    rows: tuple[int, ...] = (0,),
    now_s: float = 1000.0,
    spared: tuple[str, ...] = (),
    stopping: tuple[str, ...] = (),
    past: PastPreemptions | None = None,
    turn_class: SchedulingClass = TRAINING,
) -> PreemptionPlan | None:
    hub.kept.settings = hub.settings
    hub.keep(one("seed", tasks=len(rows)))
    (template,) = hub.kept.reservations
    request = one("gang", tasks=tasks, turn_class=turn_class)
    item = replace(template, request=request, tasks=tasks, rows=rows)
    return plan_making_room(
        hub.releases,
        item,
        hub.settings,
        now_s,
        past=past or PastPreemptions(),
        spared=spared,
        stopping=stopping,
    )


def small_work(nodes: int = 1, per_node: int = 8, **limits: float) -> Hub:
    """Work of one GPU, `s0` on the first: each has lost a second less than the one before it."""
    settings = QueueSettings(**{"makes_room_after_s": 1000.0, **limits})  # type: ignore[arg-type]
    hub = Hub(nodes=nodes, full=False, settings=settings)
    for number in range(nodes * per_node):
        request = ask(f"s{number}")
        hub.start(request, (TaskSlot(number // per_node, (number % per_node,)),), float(number))
    return hub


def victims(plan: PreemptionPlan | None) -> list[str]:
    return [] if plan is None else [item.request.id for item in plan.victims]


def test_those_that_lose_least_restart_elsewhere_as_few_as_it_takes() -> None:
    hub = small_work(nodes=2)
    plan = making_room(hub)
    assert plan is not None
    assert victims(plan) == [f"s{number}" for number in range(7, -1, -1)]
    assert (plan.request.id, plan.rows, plan.level, plan.notice_s) == ("gang", (0,), Level.NODE, 10.0)
    assert plan.lost_gpu_s == sum(1000.0 - number for number in range(8))
    both = making_room(small_work(nodes=2), tasks=2, rows=(0, 1))
    assert both is not None
    assert (len(both.victims), both.level) == (16, Level.HUB)


def test_room_is_made_from_the_hour_on_at_which_the_request_has_waited_long() -> None:
    assert making_room(small_work(), now_s=999.0) is None
    assert making_room(small_work(), now_s=1000.0) is not None


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({"makes_room_victims_max": 7}, False),
        ({"makes_room_victims_max": 8}, True),
        ({"makes_room_per_hour_max": 7}, False),
        ({"makes_room_per_hour_max": 8}, True),
        ({"makes_room_victims_max": 0}, False),
    ],
)
def test_making_room_has_limits(limits: dict[str, float], found: bool) -> None:
    assert (making_room(small_work(**limits)) is not None) is found


@pytest.mark.parametrize(("limit", "found"), [(1, True), (0, False)])
def test_one_victim_is_within_a_limit_of_one(limit: int, found: bool) -> None:
    assert (making_room(small_work(per_node=1, makes_room_victims_max=limit)) is not None) is found


def test_what_was_stopped_in_the_last_hour_counts() -> None:
    hub, other = small_work(makes_room_per_hour_max=9), small_work()
    first = making_room(other)
    assert first is not None
    for count, found in ((1, True), (2, False)):
        past = PastPreemptions()
        past.note(replace(first, victims=first.victims[:count]), 900.0)
        assert (making_room(hub, past=past) is not None) is found


def test_nobody_is_moved_in_vain() -> None:
    assert making_room(small_work(), spared=("s3",)) is None, "without it the others would move for nothing"
    rest = tuple(f"s{number}" for number in range(8))
    assert making_room(small_work(), stopping=rest) is None, "those who are leaving make room enough"
    assert victims(making_room(small_work(), stopping=rest[:5])) == ["s7", "s6", "s5"]
    assert making_room(Hub(nodes=1, full=False, settings=QueueSettings(makes_room_after_s=1000.0))) is None, (
        "it is free"
    )
    assert making_room(small_work(), turn_class=INTERACTIVE) is not None, "a lower class"


def test_who_is_in_nobodys_way_stays() -> None:
    hub = small_work(nodes=2, per_node=8)
    extra = msgspec.structs.replace(ask("cpus", gpus=0), needs=msgspec.structs.replace(ask("").needs, gpus=0, cpus=1.0))
    hub.start(extra, (TaskSlot(0, ()),), 999.0)
    plan = making_room(hub)
    assert "cpus" not in victims(plan)
    assert len(victims(plan)) == 8


def test_notice_is_that_of_the_slowest() -> None:
    hub = small_work(per_node=2)
    slow = msgspec.structs.replace(hub.running["s1"], stop_grace_s=25.0)
    hub.releases.remove("s1")
    hub.releases.add(slow)
    plan = making_room(hub)
    assert plan is not None
    assert plan.notice_s == 25.0

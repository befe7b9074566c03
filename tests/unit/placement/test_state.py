"""The books of a hub: everything is booked once and freed once, in the room, the scorer and the queue alike."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from harch.base.errors import InvariantBroken
from harch.placement.plan import placements_of
from harch.placement.policy.shapes import Bools, Floats
from harch.placement.policy.shapes import ShapeRequest as Kind
from harch.placement.queueing.preemption import PreemptionPlan
from harch.placement.queueing.settings import QueueSettings, Quota
from harch.placement.request import PlacementRequest
from harch.placement.room import TaskSlot
from harch.placement.scoring import BestFit, Choice
from harch.placement.state import PlacementState, is_anchor
from harch.workloads.spec import Level, Resources, SchedulingClass
from unit.placement.mixed_hub import mixed_hub, request_of

ONE, TWO, SHARE = Resources(gpus=1), Resources(gpus=2), Resources(gpus=1, gpu_fraction=0.25)


class Mirror(BestFit):
    """A scorer that keeps account itself, from what it is shown only."""

    name = "mirror"

    def __init__(self, state: PlacementState) -> None:
        super().__init__(state.room)
        self.seen: list[Kind] = []
        self.free = np.where(state.room.island >= 0, 1000, 0)
        self.cpu = state.room.arrays.cpu_milli.copy()
        self.open = np.ones(len(self.cpu), np.bool_)

    def observe(self, kind: Kind) -> None:
        self.seen.append(kind)

    def choose(self, kind: Kind, allowed: Bools) -> Choice | None:
        raise AssertionError("nothing is decided here")

    def node_scores(self, kind: Kind, allowed: Bools) -> Floats:
        raise AssertionError("nothing is decided here")

    def take(self, kind: Kind, slot: TaskSlot) -> None:
        self.cpu[slot.row] -= kind.cpu_milli
        for device in slot.devices:
            self.free[slot.row, device] -= kind.gpu_milli

    def release(self, kind: Kind, slot: TaskSlot) -> None:
        self.cpu[slot.row] += kind.cpu_milli
        for device in slot.devices:
            self.free[slot.row, device] += kind.gpu_milli

    def set_available(self, row: int, available: bool) -> None:
        self.open[row] = available

    def withhold(self, row: int, device: int, gpu_milli: int) -> None:
        self.free[row, device] -= gpu_milli


def made(settings: QueueSettings | None = None) -> PlacementState:
    state = PlacementState(mixed_hub(), settings or QueueSettings())
    state.serve(tuple(state.room.row_of), True)
    state.room.process_slots_free = 20
    return state


def released(state: PlacementState) -> set[str]:
    """Of whom it is known what they would give back."""
    return {state.releases.item(number).request.id for number in state.releases.numbers}


def check_mirror(state: PlacementState, mirror: Mirror) -> None:
    arrays = state.room.arrays
    assert mirror.free.tolist() == arrays.gpu_milli_free.tolist()
    assert mirror.cpu.tolist() == arrays.cpu_milli_free.tolist()
    assert mirror.open.tolist() == arrays.available.tolist()


@pytest.mark.parametrize("seed", range(6))
def test_a_scorer_that_follows_sees_what_one_that_comes_later_is_shown(seed: int) -> None:
    random, state = Random(seed), made()
    follower = Mirror(state)
    state.use(follower)
    running: dict[str, tuple[PlacementRequest, tuple[TaskSlot, ...]]] = {}
    for number in range(25):
        needs = random.choice((ONE, TWO, SHARE, Resources(cpus=2)))
        request = request_of(
            needs,
            random.choice((1, 2)),
            key=f"w{number}",
            command=("x",) if random.random() < 0.5 else (),
            modelled_duration_s=None,
            scheduling_class=random.choice(list(SchedulingClass)),
            preemptible=random.random() < 0.6,
        )
        rows = np.flatnonzero(state.room.slots(needs) >= request.tasks).tolist()
        if rows:
            row, slots, kind = random.choice(rows), [], state.room.kind(needs)
            free = state.room.arrays.gpu_milli_free[row].copy()
            for _ in range(request.tasks):
                devices = np.flatnonzero((free >= kind.gpu_milli) & (free > 0))[: kind.gpus] if kind.gpus else []
                free[devices] -= kind.gpu_milli
                slots.append(TaskSlot(row, tuple(int(device) for device in devices)))
            state.book(request, tuple(slots), started_s=number, now_s=number)
            running[request.id] = (request, tuple(slots))
        if running and random.random() < 0.4:
            key = random.choice(list(running))
            state.ended(key, now_s=number)
            running.pop(key)
        node = random.choice(state.hub.nodes)
        match random.randrange(4):
            case 0:
                state.set_health(node.id, random.randrange(len(node.gpus)), random.random() < 0.5)
            case 1:
                state.cordon(node.id, random.random() < 0.5)
            case 2:
                state.serve((node.id,), random.random() < 0.7)
        check_mirror(state, follower)
        anchored = np.zeros(6, int)
        for held, slots in running.values():
            for slot in slots:
                anchored[slot.row] += held.turn_class is not SchedulingClass.TRAINING or not held.preemptible
        assert state.anchored.tolist() == anchored.tolist()
        processes = sum(len(slots) for held, slots in running.values() if held.runs_process)
        assert state.room.process_slots_free == 20 - processes
        assert set(state.running) == set(running)
        assert released(state) == set(running)
    late = Mirror(state)
    state.use(late)
    check_mirror(state, late)
    assert state.scorer is late


def test_what_is_booked_twice_or_freed_twice_is_refused() -> None:
    state, request = made(), request_of(TWO)
    state.book(request, (TaskSlot(0, (0, 1)),), started_s=0, now_s=0)
    with pytest.raises(InvariantBroken, match="a workload is placed once"):
        state.book(request, (TaskSlot(0, (2, 3)),), started_s=0, now_s=0)
    assert state.room.arrays.gpu_milli_free_sum[0] == 6000
    state.ended("w", now_s=1)
    with pytest.raises(InvariantBroken, match="only held GPUs are freed"):
        state.ended("w", now_s=1)
    assert state.room.arrays.gpu_milli_free_sum[0] == 8000


def test_everything_that_is_booked_counts_as_a_change_and_nothing_else_does() -> None:
    state, first, second = made(), request_of(TWO, key="a"), request_of(TWO, key="b")
    steps = [
        (lambda: state.submit(first, now_s=0), 1),
        (lambda: state.withdraw("a"), 1),
        (lambda: state.withdraw("a"), 0),
        (lambda: state.book(first, (TaskSlot(0, (0, 1)),), started_s=0, now_s=0), 1),
        (lambda: state.stops("a", now_s=0), 1),
        (lambda: state.hand_over("a", second, now_s=1), 1),
        (lambda: state.ended("b", now_s=2), 1),
        (lambda: state.cordon("n0", True), 1),
        (lambda: state.serve(("n0",), False), 1),
        (lambda: state.set_health("n0", 0, False), 1),
        (lambda: state.set_cooling(0, 30), 1),
        (lambda: state.look_again(), 1),
        (lambda: state.spared(0.0), 0),
    ]
    for step, changes in steps:
        before = state.changes
        step()
        assert state.changes - before == changes


def test_what_is_held_under_one_name_becomes_anothers() -> None:
    state = made(QueueSettings(tenant_quotas={"t": Quota(gpus_held_max=4)}))
    hold = replace(request_of(TWO, key="hold"), tenant="other", turn_class=SchedulingClass.TRAINING, preemptible=True)
    late = replace(request_of(TWO, key="late"), turn_class=SchedulingClass.INFERENCE)
    slots = (TaskSlot(0, (0, 1)), TaskSlot(1, (2, 3)))
    state.book(hold, slots, started_s=0, now_s=0)
    state.stops("hold", now_s=0)
    assert state.anchored.tolist() == [0] * 6
    state.hand_over("hold", late, now_s=50)
    assert list(state.running) == ["late"]
    held = state.running["late"]
    assert (held.request, held.slots, held.started_s, held.stop_grace_s) == (late, slots, 50, late.stop_grace_s)
    assert state.anchored.tolist() == [1, 1, 0, 0, 0, 0]
    assert state.stopping == {}
    assert released(state) == {"late"}
    assert state.room.arrays.gpu_milli_free_sum[0] == 6000
    assert state.queue.quota_rejection(request_of(ONE, key="next")) is not None, "its tenant holds four now"
    state.ended("late", now_s=60)
    assert state.queue.quota_rejection(request_of(ONE, key="next")) is None
    assert state.anchored.tolist() == [0] * 6


def test_what_was_stopped_ends_after_its_grace_and_the_margin() -> None:
    state = made(QueueSettings(backfill_margin_s=7.0))
    request = replace(request_of(ONE), stop_grace_s=30.0)
    state.book(request, (TaskSlot(0, (0,)),), started_s=0, now_s=0)
    state.stops("w", now_s=100)
    assert state.stopping == {"w": 137.0}
    state.ended("w", now_s=110)
    assert state.stopping == {}


def test_whoever_was_stopped_for_others_waits_anew() -> None:
    state, request = made(), request_of(ONE, key="victim", submitted_s=0.0)
    other = request_of(ONE, key="other", submitted_s=5.0)
    state.book(request, (TaskSlot(0, (0,)),), started_s=0, now_s=0)
    running = state.running["victim"]
    for past in (state.past, state.past_moves):
        past.note(PreemptionPlan(other, (running,), (0,), Level.NODE, 0.0, 0.0), 100.0)
    assert state.spared(100.0) == {"victim"}
    state.ended("victim", now_s=110)
    state.submit(other, now_s=120)
    state.submit(request, now_s=121)
    order = [waiting.id for waiting in state.queue.in_order(130.0)]
    assert order == ["other", "victim"]
    state.withdraw("victim")
    assert "victim" not in state.queue


def test_whoever_was_not_stopped_keeps_the_age_that_it_came_with() -> None:
    state = made()
    state.submit(request_of(ONE, key="young", submitted_s=5.0), now_s=120)
    state.submit(request_of(ONE, key="old", submitted_s=0.0), now_s=121)
    assert [waiting.id for waiting in state.queue.in_order(150.0)] == ["old", "young"]


def test_the_scorer_learns_of_every_kind_that_comes() -> None:
    state = made()
    mirror = Mirror(state)
    state.use(mirror)
    state.submit(request_of(SHARE), now_s=0)
    assert mirror.seen == [state.room.kind(SHARE)]


# Work that holds GPUs already


def test_work_is_found_again_where_it_was_by_the_names_of_its_gpus() -> None:
    state, slots = made(), (TaskSlot(2, (1, 3)), TaskSlot(5, (0, 7)))
    tasks = placements_of(state.room, slots)
    assert [(task.rank, task.node_id, task.gpu_ids) for task in tasks] == [
        (0, "n2", ("n2-g1", "n2-g3")),
        (1, "n5", ("n5-g0", "n5-g7")),
    ]
    state.resume(request_of(TWO, 2), tasks, started_s=3.0, now_s=9.0)
    assert state.running["w"].slots == slots
    assert state.running["w"].started_s == 3.0


@pytest.mark.parametrize(
    ("storage_gb", "tasks", "counted"), [(40, 2, True), (41, 2, False), (80, 1, True), (81, 1, False)]
)
def test_storage_is_counted_for_work_that_goes_on_only_where_its_node_has_it(
    storage_gb: int, tasks: int, counted: bool
) -> None:
    state, slots = made(), tuple(TaskSlot(0, (device,)) for device in range(tasks))
    request = request_of(Resources(gpus=1, storage_gb=storage_gb), tasks)
    state.resume(request, placements_of(state.room, slots), started_s=0, now_s=0)
    assert state.running["w"].request.needs.storage_gb == (storage_gb if counted else 0)
    assert state.room.storage_mib_free[0] == (80 - storage_gb * tasks if counted else 80) * 1024
    assert state.running["w"].request.needs.gpus == 1


def test_a_share_that_goes_on_is_as_large_as_on_the_gpu_that_it_has() -> None:
    """30 GB are 750 thousandths of a small GPU and 375 of a big one; new shares are as large as on the smallest."""
    share = Resources(gpus=1, gpu_fraction=0.2, gpu_memory_gb=30)
    for row, milli, fraction in ((0, 375, 0.375), (2, 750, 0.2)):
        state = made()
        assert state.room.kind(share).gpu_milli == 750
        state.resume(request_of(share), placements_of(state.room, (TaskSlot(row, (0,)),)), started_s=0, now_s=0)
        assert state.room.arrays.gpu_milli_free[row, 0] == 1000 - milli
        needs = state.running["w"].request.needs
        assert (needs.gpu_fraction, needs.gpu_memory_gb) == (fraction, None if row == 0 else 30)


@pytest.mark.parametrize(
    ("turn_class", "preemptible", "anchor"),
    [
        (SchedulingClass.TRAINING, True, False),
        (SchedulingClass.TRAINING, False, True),
        (SchedulingClass.INTERACTIVE, True, True),
        (SchedulingClass.INFERENCE, False, True),
    ],
)
def test_only_preemptible_work_of_the_lowest_class_can_be_moved(
    turn_class: SchedulingClass, preemptible: bool, anchor: bool
) -> None:
    assert is_anchor(replace(request_of(ONE), turn_class=turn_class, preemptible=preemptible)) is anchor


def test_worn_hardware_is_known_at_once() -> None:
    state, pair = made(), request_of(Resources(gpus=2))
    steps = [
        (lambda: state.set_nvlink("n5", 0.5), lambda: state.set_nvlink("n5", 1.0)),
        (lambda: state.set_cooling(1, 10), lambda: state.set_cooling(1, 20)),
        (lambda: state.set_health("n0", 0, False), lambda: state.set_health("n0", 0, True)),
    ]
    for wear, mend in steps:
        wear()
        assert state.degradation.of(pair) is not None
        mend()
        assert state.degradation.of(pair) is None
    state.set_uplink("r0", 0.5)
    assert state.degradation.of(pair, 2) is not None


def test_what_did_not_fit_is_looked_at_again_once_hardware_changes() -> None:
    """A new scorer, a node that is served or open again, a device or a plant that is mended."""
    for change in (
        lambda state: state.serve(("n0",), True),
        lambda state: state.cordon("n0", False),
        lambda state: state.set_health("n0", 0, True),
        lambda state: state.set_cooling(0, 50),
        lambda state: state.use(BestFit(state.room)),
        lambda state: state.look_again(),
    ):
        state = made()
        state.vacancies.clear()
        assert not state.vacancies.may_serve(request_of(ONE))
        change(state)
        assert state.vacancies.may_serve(request_of(ONE))


def test_what_ends_is_a_vacancy_on_its_nodes() -> None:
    state = made()
    state.book(request_of(TWO), (TaskSlot(2, (0, 1)),), started_s=0, now_s=0)
    state.vacancies.clear()
    assert not state.vacancies.is_on(range(6))
    state.ended("w", now_s=1)
    assert state.vacancies.is_on([2])
    assert not state.vacancies.is_on([0, 1, 3, 4, 5])
    assert state.vacancies.may_serve(request_of(Resources(gpus=4)))
    state.book(request_of(TWO, key="again"), (TaskSlot(2, (0, 1)),), started_s=0, now_s=0)
    assert not state.vacancies.may_serve(request_of(Resources(gpus=4))), "taken again"

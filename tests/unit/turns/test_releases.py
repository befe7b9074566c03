"""The table of what would come free: it follows starts and ends, and answers as plain sums over what runs."""

from __future__ import annotations

from copy import deepcopy
from random import Random

import msgspec
import numpy as np
import pytest

from harch.base.errors import InvariantBroken
from harch.placement.queueing.releases import Releases, RoomOutlook
from harch.placement.queueing.running import RunningRequest, could_fit, domains, is_movable
from harch.placement.queueing.settings import CLASS_ORDER
from harch.placement.request import PlacementRequest
from harch.placement.room import Room, TaskSlot
from harch.workloads.spec import Level, Resources, Topology
from unit.turns.turn_fixtures import INFERENCE, INTERACTIVE, TRAINING, ask, room_of, start, stop, whole_node

MARGIN_S, ASSUMED_S = 5.0, 64.0
NEEDS = (
    Resources(gpus=1),
    Resources(gpus=2, memory_gb=40.0),
    Resources(gpus=4, storage_gb=100.0),
    Resources(gpus=1, gpu_fraction=0.3),
    Resources(gpus=1, gpu_fraction=0.1, gpu_memory_gb=40.0),
    Resources(gpus=0, cpus=3.0),
)


class History:
    """A room with a random past, what runs in it, and the table that followed every start and end."""

    def __init__(self, seed: int, steps: int = 240) -> None:
        self.random = Random(seed)
        self.room = room_of(racks=4, nodes_per_rack=2)
        self.room.process_slots_free = 1000
        self.table = Releases(self.room)
        self.running: dict[str, RunningRequest] = {}
        looks = self.random.choice((0.0, 0.02, 1.0))  # what starts and ends between two looks is settled at the second
        for number in range(steps):
            if self.random.random() < looks:
                assert self.table.of_lower_class(ask("any", INFERENCE)).size == len(self.table)
            if self.running and self.random.random() < 0.46:
                name = self.random.choice(sorted(self.running))
                self.table.remove(name)
                stop(self.room, self.running.pop(name))
            else:
                self._start(number)
            if number % 40 == 20:
                node = self.random.choice(self.room.hub.nodes).id
                self.room.set_health(node, self.random.randrange(8), self.random.random() < 0.5)
        if self.random.random() < 0.5:
            self.table = deepcopy(self.table, {id(self.room): self.room})  # a preview of a round looks at a copy

    def _start(self, number: int) -> None:
        random = self.random
        request = msgspec.structs.replace(
            ask(
                f"w{number}",
                random.choice(CLASS_ORDER),
                tasks=random.choice((1, 1, 3)),
                duration_s_max=random.choice((None, 0.0, 16.0, 100.0)),
                preemptible=random.random() < 0.7,
                runs_process=random.random() < 0.5,
            ),
            needs=random.choice(NEEDS),
            topology=Topology(exclusive=random.random() < 0.1),
        )
        slots = self._slots(request)
        if slots is not None:
            began = start(self.room, request, slots, started_s=float(random.randrange(200)))
            began = RunningRequest(
                request,
                began.slots,
                began.started_s,
                restarts=random.randrange(3),
                stop_grace_s=random.choice((0.0, 2.0, 10.0)),
                checkpoint_s=random.choice((None, 10.0, 150.0, 300.0)),
            )
            self.running[request.id] = began
            self.table.add(began)

    def _slots(self, request: PlacementRequest) -> tuple[TaskSlot, ...] | None:
        """Wherever there is room, without any order."""
        room, found = self.room.copy(), []
        kind = room.kind(request.needs)
        for _ in range(request.tasks):
            rows = [row for row in range(8) if room.slots(request.needs, exclusive=request.topology.exclusive)[row]]
            if not rows:
                return None
            row = self.random.choice(rows)
            free = room.arrays.gpu_milli_free[row]
            devices = [device for device in range(8) if room.healthy[row, device] and free[device] >= kind.gpu_milli]
            found.append(TaskSlot(row, tuple(sorted(self.random.sample(devices, kind.gpus)))))
            room.take(request.needs, found[-1])
            if request.topology.exclusive:
                room.exclusive_on[row] = False  # its own tasks may stand together
        return tuple(found) if not request.topology.exclusive or len({slot.row for slot in found}) == 1 else None

    def after(self, names: set[str]) -> Room:
        """The room once these have ended, one by one."""
        room = self.room.copy()
        for name in names:
            stop(room, self.running[name])
        return room

    def named(self, mask: np.ndarray) -> set[str]:
        return {self.table.item(number).request.id for number in np.flatnonzero(mask).tolist()}

    def by_name(self, values: object) -> dict[str, object]:
        """Of an array by number: the values of those that run."""
        listed = list(values)  # type: ignore[call-overload]
        return {self.table.item(number).request.id: listed[number] for number in self.table.numbers}


def same_room(one: Room, other: Room) -> None:
    for left, right in zip(one.arrays, other.arrays, strict=True):
        np.testing.assert_array_equal(left, right)
    for name in ("tasks_on", "exclusive_on", "storage_mib_free", "healthy"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_allclose(one.rack_power_w_free, other.rack_power_w_free)
    np.testing.assert_allclose(one.zone_heat_w, other.zone_heat_w)
    assert one.process_slots_free == other.process_slots_free


SEEDS = pytest.mark.parametrize("seed", range(4))


@SEEDS
def test_the_room_after_some_have_ended_is_the_room_in_which_they_end(seed: int) -> None:
    history = History(seed)
    before = history.room.copy()
    for share in (0.0, 0.3, 0.7, 1.0):
        names = {name for name in history.running if history.random.random() < share}
        marked = history.table.marked([*names, "not here"])
        assert history.named(marked) == names
        same_room(history.table.room_after(marked), history.after(names))
    same_room(history.room, before)


@SEEDS
def test_who_may_be_moved_or_stopped_is_judged_as_one_by_one(seed: int) -> None:
    history = History(seed)
    running, table = history.running, history.table
    assert [table.item(number).request.id for number in table.numbers] == list(running)
    for request in (
        ask("gang", INTERACTIVE, gpus=4, tasks=3),
        ask("node", TRAINING, gpus=8),
        ask("eight", INFERENCE, gpus=1, tasks=16),
    ):
        spared = {name for name in running if history.random.random() < 0.2}
        assert history.named(table.movable_for(request, spared)) == {
            name for name, item in running.items() if name not in spared and is_movable(item.request, request)
        }
        behind = CLASS_ORDER[CLASS_ORDER.index(request.turn_class) + 1 :]
        assert history.named(table.of_lower_class(request)) == {
            name for name, item in running.items() if item.request.preemptible and item.request.turn_class in behind
        }
    for rows in (np.arange(8) < 3, np.arange(8) == 5, np.zeros(8, np.bool_)):
        assert history.named(table.touching(rows)) == {
            name for name, item in running.items() if any(rows[slot.row] for slot in item.slots)
        }
    for level in (Level.NODE, Level.RACK, Level.ROW, Level.HUB):
        domain_of = domains(history.room, level)
        alone = history.by_name(table.domain_of_each(domain_of))
        for name, item in running.items():
            found = {int(domain_of[slot.row]) for slot in item.slots}
            assert alone[name] == (found.pop() if len(found) == 1 else -1)


@SEEDS
def test_what_is_lost_and_how_long_it_takes_is_counted_as_one_by_one(seed: int) -> None:
    history = History(seed)
    running, table, room = history.running, history.table, history.room
    now_s = 170.0
    lost = {name: item.lost_gpu_s(now_s) for name, item in running.items()}
    assert history.by_name(table.lost_gpu_s(now_s)) == pytest.approx(lost)
    for name, item in running.items():
        since_s = max(item.started_s, item.checkpoint_s or 0.0)
        gpus = max(item.request.needs.gpus * (item.request.needs.gpu_fraction or 1.0), 0.001)
        assert lost[name] == pytest.approx(max(0.0, now_s - since_s) * len(item.slots) * gpus)
    assert history.by_name(table.notice_s()) == {name: item.stop_grace_s for name, item in running.items()}
    assert history.by_name(table.gpu_milli) == {
        name: len(item.slots) * item.gpu_milli_per_task for name, item in running.items()
    }
    assert history.by_name(table.gpu_milli_taken) == {
        name: len(item.slots) * max(room.kind(item.request.needs).gpu_milli_total, 1) for name, item in running.items()
    }
    chosen = {name for name in running if history.random.random() < 0.6}
    order = [table.item(number).request.id for number in table.cheapest_first(table.marked(chosen), now_s)]
    assert order == sorted(chosen, key=lambda name: (lost[name], running[name].restarts, list(running).index(name)))


def latest_end(item: RunningRequest, now_s: float) -> tuple[float, bool]:
    """As it was promised, or as long as is assumed; twice that and so on for what has lasted longer."""
    bound_s = item.request.duration_s_max
    lasts_s, assumed = (ASSUMED_S, True) if bound_s is None else (max(bound_s + item.stop_grace_s, 1.0), False)
    while item.started_s + lasts_s + MARGIN_S < now_s:
        lasts_s, assumed = 2 * lasts_s, True
    return item.started_s + lasts_s + MARGIN_S, assumed


@SEEDS
def test_ends_are_promised_assumed_doubled_or_known(seed: int) -> None:
    history = History(seed)
    stopping = dict.fromkeys([*list(history.running)[:3], "not here"], 777.0)
    for now_s in (0.0, 133.0, 216.0, 1000.0):
        ends_s, assumed = history.table.ends_s(now_s, margin_s=MARGIN_S, assumed_s=ASSUMED_S, stopping=stopping)
        expected = {name: latest_end(item, now_s) for name, item in history.running.items()}
        expected |= {name: (777.0, False) for name in stopping if name in history.running}
        assert history.by_name(zip(ends_s.tolist(), assumed.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("bound_s", "now_s", "end_s", "assumed"),
    [
        (50.0, 0.0, 65.0, False),
        (50.0, 65.0, 65.0, False),  # promise, grace and margin have just passed
        (50.0, 65.5, 125.0, True),
        (50.0, 125.0, 125.0, True),
        (50.0, 125.5, 245.0, True),
        (None, 69.0, 69.0, True),
        (None, 69.5, 133.0, True),
    ],
)
def test_a_broken_promise_is_an_assumption(bound_s: float | None, now_s: float, end_s: float, assumed: bool) -> None:
    room = room_of()
    table = Releases(room, [start(room, ask("w", gpus=8, duration_s_max=bound_s), whole_node(0))])
    ends_s, guessed = table.ends_s(now_s, margin_s=MARGIN_S, assumed_s=ASSUMED_S, stopping={})
    assert (ends_s.tolist(), guessed.tolist()) == ([end_s], [assumed])


@SEEDS
def test_a_hub_empties_in_the_order_of_the_ends(seed: int) -> None:
    history = History(seed)
    running, table, now_s, moved_from_s = history.running, history.table, 120.0, 130.0
    movable = {name for name in running if history.random.random() < 0.4}
    ends = {name: latest_end(item, now_s) for name, item in running.items()}
    for name in movable:
        moved_s = moved_from_s + running[name].stop_grace_s + MARGIN_S
        if moved_s < ends[name][0]:
            ends[name] = moved_s, False
    outlook = RoomOutlook(
        table,
        now_s,
        margin_s=MARGIN_S,
        assumed_s=ASSUMED_S,
        stopping={},
        movable=table.marked(movable),
        moved_from_s=moved_from_s,
    )
    order = sorted(running, key=lambda name: ends[name][0])
    assert list(outlook.counts) == list(range(len(order) + 1))
    for ended in outlook.counts:
        gone = order[:ended]
        moment_s = max(now_s, ends[gone[-1]][0]) if gone else now_s
        assert outlook.moment_s(ended) == moment_s
        assert outlook.has_room_made(ended) == (moment_s >= moved_from_s)
        if ended % 5 == 0:
            same_room(outlook.room_after(ended), history.after(set(gone)))
        for rows in ([0], [1, 4, 6], range(8)):
            assert outlook.is_assumed(ended, rows) == any(
                ends[name][1] and any(slot.row in rows for slot in running[name].slots) for name in gone
            )


@SEEDS
def test_the_quick_look_ahead_finds_the_first_moment_at_which_it_could_fit(seed: int) -> None:
    history = History(seed)
    room = history.room
    room.cordon(room.hub.nodes[history.random.randrange(8)].id, True)
    outlook = RoomOutlook(history.table, 120.0, margin_s=MARGIN_S, assumed_s=ASSUMED_S, stopping={})
    allowed = np.array([history.random.random() < 0.8 for _ in range(8)])
    for needs in (*NEEDS[:2], *NEEDS[3:], Resources(gpus=8), Resources(gpus=0, cpus=60.0), Resources(memory_gb=400.0)):
        for tasks, level, exclusive in (
            (1, Level.NODE, False),
            (2, Level.RACK, True),
            (3, Level.ROW, False),
            (6, Level.HUB, False),
            (60, Level.HUB, False),
        ):
            request = msgspec.structs.replace(
                ask("gang", tasks=tasks), needs=needs, topology=Topology(required=level, exclusive=exclusive)
            )
            moments = (
                count for count in outlook.counts if could_fit(outlook.room_after(count), request, tasks, allowed)
            )
            assert outlook.first_look(request, tasks, allowed) == next(moments, None)


def test_without_small_work_that_moves_no_room_is_made() -> None:
    room = room_of()
    table = Releases(room, [start(room, ask("w", gpus=8, duration_s_max=50.0), whole_node(0))])
    outlook = RoomOutlook(table, 0.0, margin_s=0.0, assumed_s=ASSUMED_S, stopping={}, moved_from_s=10.0)
    assert [outlook.has_room_made(ended) for ended in outlook.counts] == [False, False]
    assert outlook.moment_s(1) == 60.0
    late = RoomOutlook(
        table, 20.0, margin_s=0.0, assumed_s=ASSUMED_S, stopping={}, movable=table.marked(["w"]), moved_from_s=10.0
    )
    assert (late.moment_s(1), late.has_room_made(0)) == (30.0, True), "from now on, with its grace"


def test_a_workload_is_placed_once_and_not_asked_about_after_its_end() -> None:
    room = room_of()
    one = start(room, ask("w", gpus=8), whole_node(0))
    table = Releases(room, [one])
    versions = [table.version]
    with pytest.raises(InvariantBroken, match="placed once"):
        table.add(one)
    table.remove("w")
    versions.append(table.version)
    with pytest.raises(InvariantBroken, match="finished holder"):
        table.item(0)
    with pytest.raises(KeyError):
        table.remove("w")
    table.add(one)
    versions.append(table.version)
    assert versions == sorted(set(versions)), "every change is a new version"
    assert (len(table), table.numbers) == (2, [1])


def test_a_table_stays_as_long_as_what_runs() -> None:
    room = room_of()
    table = Releases(room)
    kept = start(room, ask("kept"), (TaskSlot(0, (0,)),))
    table.add(kept)
    for number in range(500):
        one = start(room, ask(f"w{number}", gpus=2, tasks=2), (TaskSlot(1, (0, 1)), TaskSlot(1, (2, 3))))
        table.add(one)
        table.remove(f"w{number}")
        stop(room, one)
        assert len(table) <= 67
        assert [table.item(number).request.id for number in table.numbers] == ["kept"]
    assert table.tasks.shape[1] <= 2 * 67
    (number,) = table.numbers
    assert np.flatnonzero(table.touching(np.arange(4) == 0)).tolist() == [number]
    same_room(table.room_after(table.marked(["kept"])), room_of())


def test_work_that_is_alone_on_its_node_keeps_others_off_that_node_only() -> None:
    room = room_of(racks=1, nodes_per_rack=2)
    alone = msgspec.structs.replace(ask("alone", duration_s_max=50.0), topology=Topology(exclusive=True))
    running = [start(room, alone, (TaskSlot(0, (0,)),)), start(room, ask("other"), (TaskSlot(1, (0,)),))]
    outlook = RoomOutlook(Releases(room, running), 0.0, margin_s=0.0, assumed_s=ASSUMED_S, stopping={})
    assert [outlook.room_after(ended).exclusive_on.tolist() for ended in (0, 1)] == [[True, False], [False, False]]
    everywhere = np.ones(2, np.bool_)
    assert outlook.first_look(ask("here", gpus=4), 1, everywhere) == 0
    assert outlook.first_look(ask("both", gpus=4, tasks=3), 3, everywhere) == 1
    only = msgspec.structs.replace(ask("only", gpus=4), topology=Topology(exclusive=True))
    assert outlook.first_look(only, 1, everywhere) == 1
    assert outlook.first_look(only, 1, np.array([False, True])) == 2

"""Does the room's book stay true? Against one that is added up anew from all that is held."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest

from harch.base.errors import InvariantBroken
from harch.placement.policy.shapes import ShapeRequest as Kind
from harch.placement.room import Room, TaskSlot, gpu_slots
from harch.workloads.spec import Resources
from unit.placement.mixed_hub import mixed_hub, mixed_room

NEEDS = (
    Resources(cpus=2, memory_gb=3),
    Resources(gpus=1, cpus=4, memory_gb=8, storage_gb=7),
    Resources(gpus=2, cpus=9, memory_gb=20),
    Resources(gpus=4, gpu_models=("small", "big"), cpus=1, memory_gb=100),
    Resources(gpus=1, gpu_fraction=0.3, cpus=0.5, memory_gb=1.5),
    Resources(gpus=1, gpu_fraction=0.3, gpu_memory_gb=20, cpus=1, memory_gb=1),
    Resources(gpus=1, gpu_model="big", gpu_fraction=0.25, gpu_memory_gb=30),
    Resources(gpus=8, gpu_memory_gb_min=41, cpus=30, memory_gb=200),
)
# By hand: (cpu_milli, memory_mib, gpus, gpu_milli, models); the hub's models are big, card and small.
KINDS = (
    Kind(2000, 3072, 0, 0, -1),
    Kind(4000, 8192, 1, 1000, -1),
    Kind(9000, 20_480, 2, 1000, -1),
    Kind(1000, 102_400, 4, 1000, 0b101),
    Kind(500, 1536, 1, 300, -1),
    Kind(1000, 1024, 1, 834, 0b111),  # 20 of 24 GB on a card
    Kind(1000, 1024, 1, 375, 0b001),  # 30 of 80 GB
    Kind(30_000, 204_800, 8, 1000, 0b001),
)
HOST_W = 500
GPU_W = (700, 700, 300, 300, 250, 700)
RACK = (0, 0, 1, 1, 2, 2)
ZONE = (0, 1, 0)  # of each rack


@dataclass
class NaiveRoom:
    """All that happened, and what follows from it."""

    room: Room
    held: list[tuple[Resources, TaskSlot, bool]] = field(default_factory=list)
    sick: set[tuple[int, int]] = field(default_factory=set)
    cordoned: set[int] = field(default_factory=set)
    unserved: set[int] = field(default_factory=set)
    rack_kw: tuple[float, float, float] = (20, 20, 20)
    zone_kw: list[float] = field(default_factory=lambda: [40, 20])

    def kind(self, needs: Resources) -> Kind:
        return KINDS[NEEDS.index(needs)]

    def on(self, row: int) -> list[tuple[Resources, TaskSlot, bool]]:
        return [one for one in self.held if one[1].row == row]

    def cpu_free(self, row: int) -> int:
        return self.room.hub.nodes[row].cpus * 1000 - sum(self.kind(needs).cpu_milli for needs, _, _ in self.on(row))

    def memory_free(self, row: int) -> int:
        total = self.room.hub.nodes[row].memory_gb * 1024
        return total - sum(self.kind(needs).memory_mib for needs, _, _ in self.on(row))

    def storage_free(self, row: int) -> int:
        total = self.room.hub.nodes[row].storage_gb * 1024
        return total - sum(int(needs.storage_gb * 1024) for needs, _, _ in self.on(row))

    def unused(self, row: int) -> list[int]:
        """Of each device, healthy or not."""
        left = [1000] * len(self.room.hub.nodes[row].gpus)
        for needs, slot, _ in self.on(row):
            for device in slot.devices:
                left[device] -= self.kind(needs).gpu_milli
        return left

    def free(self, row: int) -> list[int]:
        return [0 if (row, device) in self.sick else left for device, left in enumerate(self.unused(row))]

    def watts_drawn(self, row: int) -> float:
        return HOST_W + GPU_W[row] * sum(1000 - left for left in self.unused(row)) / 1000

    def rack_w_free(self, rack: int) -> float:
        return self.rack_kw[rack] * 1000 - sum(self.watts_drawn(row) for row in range(6) if RACK[row] == rack)

    def zone_w(self, zone: int) -> float:
        return sum(self.watts_drawn(row) for row in range(6) if ZONE[RACK[row]] == zone)

    def available(self, row: int) -> bool:
        return row not in self.cordoned | self.unserved

    def slots(self, needs: Resources, row: int, *, exclusive: bool) -> int:
        kind = self.kind(needs)
        closed = any(alone for _, _, alone in self.on(row)) or (exclusive and bool(self.on(row)))
        if closed or not self.available(row):
            return 0
        counts = [self.cpu_free(row) // kind.cpu_milli, self.memory_free(row) // kind.memory_mib]
        if needs.storage_gb:
            counts.append(self.storage_free(row) // int(needs.storage_gb * 1024))
        if kind.gpus:
            if not kind.models >> int(self.room.arrays.model[row]) & 1:
                return 0
            whole = sum(left == 1000 for left in self.free(row)) // kind.gpus
            shares = sum(left // kind.gpu_milli for left in self.free(row))
            counts.append(whole if kind.gpu_milli == 1000 else shares)
            zone = ZONE[RACK[row]]
            watts = min(self.rack_w_free(RACK[row]), self.zone_kw[zone] * 1000 - self.zone_w(zone))
            counts.append(int(watts // (GPU_W[row] * kind.gpus * kind.gpu_milli / 1000)))
        return max(0, min(counts))

    def check(self) -> None:
        room, rows = self.room, range(6)
        arrays = room.arrays
        assert arrays.cpu_milli_free.tolist() == [self.cpu_free(row) for row in rows]
        assert arrays.memory_mib_free.tolist() == [self.memory_free(row) for row in rows]
        assert room.storage_mib_free.tolist() == [self.storage_free(row) for row in rows]
        assert [arrays.gpu_milli_free[row, : len(self.free(row))].tolist() for row in rows] == [
            self.free(row) for row in rows
        ]
        assert arrays.gpu_milli_free_sum.tolist() == [sum(self.free(row)) for row in rows]
        assert arrays.available.tolist() == [self.available(row) for row in rows]
        assert room.tasks_on.tolist() == [len(self.on(row)) for row in rows]
        assert room.exclusive_on.tolist() == [any(alone for _, _, alone in self.on(row)) for row in rows]
        for row in rows:
            withheld = [left if (row, at) in self.sick else 0 for at, left in enumerate(self.unused(row))]
            assert room.withheld_milli[row, : len(withheld)].tolist() == withheld
        assert room.rack_power_w_free.tolist() == pytest.approx([self.rack_w_free(rack) for rack in range(3)])
        assert room.zone_heat_w.tolist() == pytest.approx([self.zone_w(zone) for zone in range(2)])
        carried = [
            min(self.rack_w_free(RACK[row]), self.zone_kw[ZONE[RACK[row]]] * 1000 - self.zone_w(ZONE[RACK[row]]))
            for row in rows
        ]
        assert room.watts_free().tolist() == pytest.approx(carried)
        for needs in NEEDS:
            for exclusive in (False, True):
                expected = [self.slots(needs, row, exclusive=exclusive) for row in rows]
                assert room.slots(needs, exclusive=exclusive).tolist() == expected
            storage = [self.storage_free(row) >= needs.storage_gb * 1024 for row in rows]
            assert room.has_storage(needs).tolist() == storage


@pytest.mark.parametrize("seed", range(8))
def test_the_book_is_what_all_that_is_held_adds_up_to(seed: int) -> None:
    random = Random(seed)
    rack_kw = random.choice(((20, 20, 20), (9, 3, 7)))
    room = mixed_room(rack_kw=rack_kw, zone_kw=(15, 3.2) if seed % 2 else (40, 20))
    naive = NaiveRoom(room, rack_kw=rack_kw, zone_kw=[15, 3.2] if seed % 2 else [40, 20])
    naive.check()
    for _ in range(30):
        needs, exclusive = random.choice(NEEDS), random.random() < 0.15
        rows = [row for row in range(6) if naive.slots(needs, row, exclusive=exclusive)]
        if rows and random.random() < 0.7:
            row, kind = random.choice(rows), naive.kind(needs)
            fitting = [device for device, left in enumerate(naive.free(row)) if left >= kind.gpu_milli]
            slot = TaskSlot(row, tuple(sorted(random.sample(fitting, kind.gpus))) if kind.gpus else ())
            room.take(needs, slot, exclusive=exclusive)
            naive.held.append((needs, slot, exclusive))
        elif naive.held:
            needs, slot, exclusive = naive.held.pop(random.randrange(len(naive.held)))
            room.give_back(needs, slot, exclusive=exclusive)
        row = random.randrange(6)
        node = room.hub.nodes[row]
        match random.randrange(6):
            case 0:
                device = random.randrange(len(node.gpus))
                naive.sick ^= {(row, device)}
                room.set_health(node.id, device, (row, device) not in naive.sick)
            case 1:
                naive.cordoned ^= {row}
                room.cordon(node.id, row in naive.cordoned)
            case 2:
                naive.unserved ^= {row}
                room.serve([node.id], row not in naive.unserved)
            case 3:
                zone = random.randrange(2)
                naive.zone_kw[zone] = random.choice((2.0, 8.0, 40.0))
                room.set_cooling(zone, naive.zone_kw[zone])
        naive.check()


@pytest.mark.parametrize(("needs", "kind"), list(zip(NEEDS, KINDS, strict=True)))
def test_needs_become_thousandths_and_masks(needs: Resources, kind: Kind) -> None:
    room = mixed_room()
    assert room.kind(needs) == kind
    assert room.kind(needs) is room.kind(needs), "remembered"
    models = room.arrays.model.tolist()
    assert room.suits(needs).tolist() == [not kind.gpus or bool(kind.models >> model & 1) for model in models]
    assert room.watts(needs).tolist() == pytest.approx([watts * kind.gpu_milli_total / 1000 for watts in GPU_W])
    assert room.storage_mib_of(needs) == needs.storage_gb * 1024


def test_a_share_with_memory_that_no_gpu_has_keeps_the_size_of_its_compute() -> None:
    room = mixed_room()
    kind = room.kind(Resources(gpus=1, gpu_fraction=0.4, gpu_memory_gb=81))
    assert (kind.gpu_milli, kind.models) == (400, 0)
    assert not room.suits(Resources(gpus=1, gpu_fraction=0.4, gpu_memory_gb=81)).any()
    assert room.kind(Resources(gpus=1, gpu_memory_gb_min=80)).models == 0b001
    assert room.kind(Resources(gpus=1, gpu_memory_gb_min=40)).models == 0b101
    assert room.kind(Resources(gpu_memory_gb_min=40)).models == -1, "without GPUs their memory does not matter"


@pytest.mark.parametrize(
    ("needs", "slots"),
    [
        (Resources(cpus=2, memory_gb=3), [32, 32, 8, 32, 21, 32]),
        (Resources(cpus=0.001, memory_gb=0.001), [64_000, 64_000, 16_000, 64_000, 64_000, 64_000]),
        (Resources(gpus=1, cpus=1, memory_gb=1), [8, 8, 4, 4, 2, 8]),
        (Resources(gpus=2, cpus=5, memory_gb=1), [4, 4, 2, 2, 1, 4]),
        (Resources(gpus=2, cpus=9, memory_gb=1), [4, 4, 1, 2, 1, 4]),
        (Resources(gpus=3, cpus=1, memory_gb=1), [2, 2, 1, 1, 0, 2]),
        (Resources(gpus=1, gpu_fraction=0.3), [24, 24, 12, 12, 6, 24]),
        (Resources(gpus=1, gpu_fraction=0.5), [16, 16, 8, 8, 4, 16]),
        (Resources(gpus=1, storage_gb=21), [3, 3, 1, 1, 0, 3]),
        (Resources(gpus=1, storage_gb=0.0001), [8, 8, 4, 4, 2, 8]),
        (Resources(gpus=1, gpu_model="small"), [0, 0, 4, 4, 0, 0]),
    ],
)
def test_an_empty_hub_takes_so_many_tasks_per_node(needs: Resources, slots: list[int]) -> None:
    room = mixed_room(rack_kw=(1, 1, 1))  # power is not looked at
    room.take(Resources(cpus=16, memory_gb=200), TaskSlot(2, ()))
    room.set_health("n0", 0, False)
    room.cordon("n1", True)
    assert room.slots_when_empty(needs).tolist() == slots


@pytest.mark.parametrize(
    ("needs", "slot", "rule"),
    [
        (Resources(gpus=1), TaskSlot(0, ()), "a GPU is given once"),
        (Resources(gpus=1), TaskSlot(0, (4, 5)), "a GPU is given once"),
        (Resources(gpus=1), TaskSlot(0, (0,)), "a GPU is given once"),
        (Resources(gpus=1, gpu_fraction=0.8), TaskSlot(0, (0,)), "a GPU is given once"),
        (Resources(gpus=1, gpu_fraction=0.1), TaskSlot(0, (7,)), "a GPU is given once"),
        (Resources(gpus=2), TaskSlot(0, (1, 7)), "a GPU is given once"),
        (Resources(cpus=60.001), TaskSlot(0, ()), "capacity is never exceeded"),
        (Resources(cpus=1, memory_gb=253), TaskSlot(0, ()), "capacity is never exceeded"),
        (Resources(storage_gb=79), TaskSlot(0, ()), "storage is never exceeded"),
    ],
)
def test_what_is_not_there_is_never_given(needs: Resources, slot: TaskSlot, rule: str) -> None:
    room = mixed_room()
    room.take(Resources(gpus=1, gpu_fraction=0.3, cpus=4, memory_gb=4, storage_gb=2), TaskSlot(0, (0,)))
    room.set_health("n0", 7, False)
    before = deepcopy(room)
    with pytest.raises(InvariantBroken, match=rule):
        room.take(needs, slot)
    for name in ("tasks_on", "storage_mib_free", "rack_power_w_free", "zone_heat_w", "exclusive_on", "withheld_milli"):
        assert np.array_equal(getattr(room, name), getattr(before, name))
    for one, other in zip(room.arrays, before.arrays, strict=True):
        assert np.array_equal(one, other)


def test_all_that_is_left_is_given() -> None:
    room = mixed_room()
    room.take(Resources(gpus=1, gpu_fraction=0.3, cpus=4, memory_gb=4, storage_gb=2), TaskSlot(0, (0,)))
    room.take(Resources(gpus=1, gpu_fraction=0.7, cpus=60, memory_gb=252, storage_gb=78), TaskSlot(0, (0,)))
    assert room.arrays.cpu_milli_free[0] == 0
    assert room.arrays.memory_mib_free[0] == 0
    assert room.storage_mib_free[0] == 0
    assert room.arrays.gpu_milli_free[0, 0] == 0


@pytest.mark.parametrize(
    ("needs", "slot"),
    [
        (Resources(gpus=1), TaskSlot(0, (0,))),
        (Resources(gpus=1, gpu_fraction=0.31), TaskSlot(0, (0,))),
        (Resources(gpus=1, gpu_fraction=0.1), TaskSlot(0, (1,))),
        (Resources(gpus=1, gpu_fraction=0.1), TaskSlot(0, (7,))),
        (Resources(cpus=4.001), TaskSlot(0, ())),
        (Resources(), TaskSlot(1, ())),
    ],
)
def test_what_was_not_given_is_never_freed(needs: Resources, slot: TaskSlot) -> None:
    room = mixed_room()
    given, where = Resources(gpus=1, gpu_fraction=0.3, cpus=4), TaskSlot(0, (0,))
    room.take(given, where)
    room.set_health("n0", 7, False)
    with pytest.raises(InvariantBroken, match="a GPU is freed once"):
        room.give_back(needs, slot)
    room.give_back(given, where)
    with pytest.raises(InvariantBroken, match="a GPU is freed once"):
        room.give_back(given, where)


def test_a_copy_shares_nothing_that_changes() -> None:
    room = mixed_room()
    naive = NaiveRoom(room)
    for twin in (room.copy(), deepcopy(room)):
        twin.take(NEEDS[1], TaskSlot(0, (0,)), exclusive=True)
        twin.set_health("n1", 0, False)
        twin.cordon("n2", True)
        twin.set_cooling(0, 1.0)
        twin.serve(["n3"], False)
        twin.process_slots_free = 1
        naive.check()
        assert room.process_slots_free == 100
        assert not room.cordoned.any()
        assert room.served.all()
        assert room.healthy[1, 0]
        assert room.zone_heat_w_max.tolist() == [40_000, 20_000]


def test_a_hub_without_power_limits_takes_what_its_gpus_take() -> None:
    room = mixed_room(rack_kw=(1.5, 1.5, 1.5), zone_kw=(3, 3))
    assert room.power_can_bind
    assert room.slots(Resources(gpus=1)).tolist() == [0, 0, 1, 1, 2, 0], "500 W are left in each rack"
    free = room.without_power_limits()
    assert not free.power_can_bind
    assert free.slots(Resources(gpus=1)).tolist() == [8, 8, 4, 4, 2, 8]
    assert room.power_can_bind
    assert room.rack_power_w_free.tolist() == [500, 500, 500]


@pytest.mark.parametrize(
    ("rack_kw", "zone_kw", "binds"),
    [
        ((12.2, 3.4, 7.1), (19.3, 3.4), False),
        ((12.199, 3.4, 7.1), (19.3, 3.4), True),
        ((12.2, 3.4, 7.099), (19.3, 3.4), True),
        ((12.2, 3.4, 7.1), (19.299, 3.4), True),
        ((12.2, 3.4, 7.1), (19.3, 3.399), True),
    ],
)
def test_power_can_bind_once_any_feed_or_plant_carries_less_than_full_load(
    rack_kw: tuple[float, float, float], zone_kw: tuple[float, float], binds: bool
) -> None:
    room = mixed_room(rack_kw=rack_kw, zone_kw=zone_kw)
    assert room.power_can_bind is binds
    room.set_cooling(1, 3.399)
    assert room.power_can_bind
    room.set_cooling(1, zone_kw[1])
    assert room.power_can_bind is binds


def test_the_whole_and_empty_hub_is_as_the_fleet_file_says() -> None:
    room = Room(mixed_hub())
    assert not room.arrays.available.any(), "no agent is connected yet"
    room.serve(["n0"], True)
    room.take(Resources(gpus=8), TaskSlot(0, tuple(range(8))))
    whole = room.whole_and_empty
    assert whole.slots(Resources(gpus=1)).tolist() == [8, 8, 4, 4, 2, 8]
    assert whole.process_slots_free > 10**6
    assert room.whole_and_empty is whole


def test_kinds_beyond_the_limit_are_worked_out_again() -> None:
    room = mixed_room()
    first = room.kind(Resources(cpus=0.001))
    for number in range(2, 4099):
        assert room.kind(Resources(cpus=number / 1000)).cpu_milli == number
    again = room.kind(Resources(cpus=0.001))
    assert again == first
    assert again is not first


@pytest.mark.parametrize(
    ("gpus", "milli", "expected"),
    [(1, 1000, [2, 0]), (2, 1000, [1, 0]), (3, 1000, [0, 0]), (1, 300, [7, 4]), (1, 999, [2, 0]), (1, 500, [4, 2])],
)
def test_slots_by_gpus_count_whole_devices_or_shares_of_them(gpus: int, milli: int, expected: list[int]) -> None:
    free = np.array([[1000, 1000, 300], [700, 0, 699]])
    assert gpu_slots(Kind(0, 0, gpus, milli), free).tolist() == expected

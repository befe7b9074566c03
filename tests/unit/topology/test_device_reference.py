"""Are chosen devices the best of all subsets, ties to the lowest numbers? All are weighed by the written order."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from harch.placement.devices import best_devices, choose_among, choose_devices
from harch.placement.room import Neighbourhoods, TaskSlot, neighbourhoods
from harch.workloads.spec import Resources
from unit.placement.mixed_hub import mixed_room

TWO_ISLANDS = tuple((index // 4, index // 2, index // 4) for index in range(8))
NO_NVLINK = tuple((index, index // 2, index // 4) for index in range(8))
CROSSING = ((0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 1), (0, 2, 1), (2, 2, 1))
NINE = tuple((index // 3, index // 9, index // 9) for index in range(9))
TEN = tuple((index // 5, index, index // 10) for index in range(10))
TWELVE = tuple((index // 6, index // 3, index // 6) for index in range(12))
NUMA_INSIDE = tuple((index // 12, index // 4, index // 2) for index in range(12))


def worth(kind: Neighbourhoods, free: list[int], chosen: tuple[int, ...]) -> tuple[int, ...]:
    """One island, switch, NUMA domain; then pairs together; then pairs that are left together."""

    def pairs(devices: list[int] | tuple[int, ...], level: int) -> int:
        return sum(kind[one][level] == kind[other][level] for one, other in combinations(devices, 2))

    left = [device for device in free if device not in chosen]
    return (
        *(len({kind[device][level] for device in chosen}) == 1 for level in range(3)),
        *(pairs(chosen, level) for level in range(3)),
        *(pairs(left, level) for level in range(3)),
    )


@pytest.mark.parametrize("kind", [TWO_ISLANDS, NO_NVLINK, CROSSING, NINE, TEN, TWELVE, NUMA_INSIDE, ((0, 0, 0),)])
def test_the_best_subset_is_chosen_and_the_lowest_of_equals(kind: Neighbourhoods) -> None:
    random = Random(len(kind))
    for _ in range(25):
        free = sorted(random.sample(range(len(kind)), random.randint(1, len(kind))))
        count = random.randint(1, min(len(free), 6))
        everything = list(combinations(free, count))
        best = max(worth(kind, free, subset) for subset in everything)
        first = next(subset for subset in everything if worth(kind, free, subset) == best)
        assert best_devices(kind, sum(1 << device for device in free), count) == first


@pytest.mark.parametrize("kind", [TWO_ISLANDS, TWELVE])
def test_too_few_devices_are_none_and_all_are_all(kind: Neighbourhoods) -> None:
    assert best_devices(kind, 0b111, 4) is None
    assert best_devices(kind, 0b1011, 3) == (0, 1, 3)
    everything = (1 << len(kind)) - 1
    assert best_devices(kind, everything, len(kind)) == tuple(range(len(kind)))
    assert best_devices(kind, everything, len(kind) + 1) is None


def test_neighbourhoods_that_cross_on_a_large_node_leave_islands_whole() -> None:
    """Switches that cross islands are not counted: the island decides alone."""
    kind = tuple((index % 2, index // 3, 0) for index in range(12))
    everything = (1 << 12) - 1
    assert best_devices(kind, everything, 6) == (0, 2, 4, 6, 8, 10)
    assert best_devices(kind, everything & ~0b101, 5) == (1, 3, 5, 7, 9)
    assert best_devices(kind, everything & ~0b101, 4) == (4, 6, 8, 10), "the island that is broken already"


@pytest.mark.parametrize(
    ("free", "milli", "device", "within", "chosen"),
    [
        ([1000, 400, 600, 1000], 300, None, -1, (1,)),
        ([1000, 400, 600, 1000], 400, None, -1, (1,)),
        ([1000, 400, 600, 1000], 401, None, -1, (2,)),
        ([1000, 400, 400, 1000], 300, None, -1, (1,)),
        ([1000, 400, 600, 1000], 700, None, -1, (0,)),
        ([0, 400, 600, 1000], 700, None, -1, (3,)),
        ([0, 400, 600, 999], 1000 - 1, None, -1, (3,)),
        ([0, 400, 600, 0], 601, None, -1, None),
        ([1000, 400, 600, 1000], 300, 2, -1, (2,)),
        ([1000, 400, 600, 1000], 600, 2, -1, (2,)),
        ([1000, 400, 600, 1000], 601, 2, -1, None),
        ([1000, 400, 600, 1000], 300, 2, 0b1011, None),
        ([1000, 400, 600, 1000], 300, 2, 0b0100, (2,)),
        ([1000, 400, 600, 1000], 300, None, 0b1001, (0,)),
        ([1000, 400, 600, 1000], 300, None, 0b1000, (3,)),
        ([1000, 400, 600, 1000], 300, None, 0b1100, (2,)),
        ([1000, 400, 600, 1000], 700, None, 0b0110, None),
    ],
)
def test_a_share_takes_the_fullest_device_that_fits_inside_of_the_mask(
    free: list[int], milli: int, device: int | None, within: int, chosen: tuple[int, ...] | None
) -> None:
    kind = tuple((index // 2, index // 2, 0) for index in range(4))
    assert choose_among(kind, free, 1, milli, device=device, within=within) == chosen


@pytest.mark.parametrize(
    ("free", "gpus", "within", "chosen"),
    [
        ([1000, 999, 1000, 1000], 2, -1, (2, 3)),
        ([1000, 999, 1000, 1000], 3, -1, (0, 2, 3)),
        ([1000, 999, 1000, 1000], 4, -1, None),
        ([1000, 1000, 1000, 1000], 2, 0b1110, (2, 3)),
        ([1000, 1000, 1000, 1000], 2, 0b1001, (0, 3)),
        ([1000, 1000, 1000, 1000], 0, 0, ()),
        ([1000, 1000, 0, 1000], 1, -1, (3,)),  # its neighbour is in use already
    ],
)
def test_whole_devices_are_idle_ones_inside_of_the_mask(
    free: list[int], gpus: int, within: int, chosen: tuple[int, ...] | None
) -> None:
    kind = tuple((index // 2, index // 2, 0) for index in range(4))
    assert choose_among(kind, free, gpus, 1000, within=within) == chosen


def test_devices_of_a_room_are_chosen_by_what_is_free_there() -> None:
    room = mixed_room()
    assert neighbourhoods(room.hub.nodes[2]) == ((0, 0, 0), (0, 0, 0), (1, 1, 1), (1, 1, 1))
    room.take(Resources(gpus=1), TaskSlot(2, (0,)))
    assert choose_devices(room, 2, Resources(gpus=2)) == (2, 3)
    assert choose_devices(room, 2, Resources(gpus=1)) == (1,)
    assert choose_devices(room, 2, Resources(gpus=1, gpu_fraction=0.5), device=3) == (3,)
    assert choose_devices(room, 2, Resources(gpus=1), within=0b1100) == (2,)
    assert choose_devices(room, 2, Resources(cpus=1)) == ()

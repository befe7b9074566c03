"""Which devices of a node: together if they can be, and where they break the least."""

from __future__ import annotations

import time

import pytest

from harch.placement.devices import best_devices, choose_devices
from harch.placement.room import Room, TaskSlot
from harch.testing.fleet_generator import single_hub
from harch.workloads.spec import Resources

TWO_ISLANDS = tuple((i // 4, i // 2, i // 4) for i in range(8))
NO_NVLINK = tuple((i, i // 2, i // 4) for i in range(8))
RACK_SCALE = tuple((0, i // 4, i // 36) for i in range(72))


def mask(*devices: int) -> int:
    return sum(1 << device for device in devices)


@pytest.mark.parametrize(
    ("kind", "free", "count", "chosen"),
    [
        (TWO_ISLANDS, mask(*range(8)), 4, (0, 1, 2, 3)),
        (TWO_ISLANDS, mask(0, 1, 2, 4, 5, 6, 7), 2, (0, 1)),  # the island that is broken already
        (TWO_ISLANDS, mask(0, 1, 2, 4, 5, 6, 7), 1, (2,)),  # not from a whole PCIe switch
        (TWO_ISLANDS, mask(1, 2, 4, 5, 6, 7), 4, (4, 5, 6, 7)),
        (NO_NVLINK, mask(0, 2, 3, 5, 6), 2, (2, 3)),  # one PCIe switch
        (NO_NVLINK, mask(0, 3, 5), 2, (0, 3)),  # one NUMA domain
        (RACK_SCALE, mask(*range(72)) ^ mask(0), 3, (1, 2, 3)),
        (TWO_ISLANDS, mask(0, 1), 3, None),
    ],
)
def test_the_closest_devices_that_break_the_least(
    kind: tuple[tuple[int, int, int], ...], free: int, count: int, chosen: tuple[int, ...] | None
) -> None:
    assert best_devices(kind, free, count) == chosen


def room() -> Room:
    found = Room(single_hub(64).hubs[0])
    found.serve(found.row_of, True)
    return found


def test_a_share_goes_to_the_fullest_device_that_fits_or_where_the_policy_says() -> None:
    found, quarter, half = room(), Resources(gpus=1, gpu_fraction=0.25), Resources(gpus=1, gpu_fraction=0.5)
    found.take(half, TaskSlot(0, (3,)))
    found.take(quarter, TaskSlot(0, (5,)))
    assert choose_devices(found, 0, half) == (3,)
    assert choose_devices(found, 0, Resources(gpus=1, gpu_fraction=0.6)) == (5,)
    assert choose_devices(found, 0, half, device=1) == (1,)
    assert choose_devices(found, 0, Resources(gpus=1, gpu_fraction=0.6), device=3) is None
    assert choose_devices(found, 0, half, within=mask(1, 2)) in [(1,), (2,)]
    assert choose_devices(found, 0, Resources()) == ()


def test_a_device_that_is_shared_or_broken_is_not_whole() -> None:
    found = room()
    size = len(found.hub.nodes[0].gpus)
    found.take(Resources(gpus=1, gpu_fraction=0.1), TaskSlot(0, (0,)))
    found.set_health(found.hub.nodes[0].id, 1, False)
    assert choose_devices(found, 0, Resources(gpus=size - 2)) == tuple(range(2, size))
    assert choose_devices(found, 0, Resources(gpus=size - 1)) is None


def test_choosing_of_eight_is_cheap() -> None:
    """Far above the usual time on purpose: it is to catch a change of the method, not a busy machine."""
    best_devices(TWO_ISLANDS, 255, 1)
    started_s = time.perf_counter()
    for free in range(256):
        for count in range(1, free.bit_count() + 1):
            best_devices(TWO_ISLANDS, free, count)
    assert (time.perf_counter() - started_s) / 1024 < 300e-6

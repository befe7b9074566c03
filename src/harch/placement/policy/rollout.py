"""What would stay unused if the learned work came to this node? The innermost kernel: most of a decision's time.

All sequences walk side by side, position by position, and every step is a loop over them without a branch: the compiler
turns it into vector instructions. In whole runs that is faster than one sequence after the other, whose branches no
processor foresees; over the same few states again and again it is not. Flags are gathered by maximum, the form that the
compiler recognises.
"""

from __future__ import annotations

import numpy as np

from harch.placement.policy.compiled import inner_kernel
from harch.placement.policy.lessons import (
    ITEM_CPU,
    ITEM_CPU_AHEAD,
    ITEM_DEMAND,
    ITEM_GPUS,
    ITEM_MEMORY,
    ITEM_MILLI,
    ITEM_MILLI_AHEAD,
    SEQUENCES,
    Lessons,
)
from harch.placement.policy.shapes import GPU_MILLI, Ints, SmallInts

# Room to work in: one row per amount, one column per sequence, then one row per partly used device. It is a single
# array with fixed places, because the compiler must see that no row overlaps another.
_CPU = 0
_MEMORY = SEQUENCES
_IDLE = 2 * SEQUENCES
_LEFT = 3 * SEQUENCES
_COUNT = 4 * SEQUENCES  # devices in use
_LARGEST = 5 * SEQUENCES  # most that one device in use has free
_TIGHTEST = 6 * SEQUENCES  # least that suffices for the item
_OPENED = 7 * SEQUENCES
_DEVICES = 8 * SEQUENCES

# 32 bits throughout: a mixture of widths would halve the speed.
_NONE = np.int32(0)
_ONE = np.int32(1)
_WHOLE = np.int32(GPU_MILLI)
_NO_DEVICE = np.int32(-1)


def rollout_room(devices: int) -> int:
    """Numbers to work in for nodes with up to this many devices."""
    return _DEVICES + devices * SEQUENCES


@inner_kernel
def rollout_left(
    cpu_milli: int,
    memory_mib: int,
    idle: int,
    partial: Ints,
    partials: int,
    model: int,
    lessons: Lessons,
    room: SmallInts,
) -> tuple[float, int]:
    """V: mean milli-GPU left after each learned sequence was best-fitted onto the node; misfits are skipped.

    And the memory that was needed for it: with as much or more V is the same; -1 when memory refused an item.
    """
    free = idle * GPU_MILLI
    for index in range(partials):
        free += partial[index]
    positions = lessons.items.shape[1]
    if free == 0 or positions == 0:
        return 0.0, 0
    _begin(np.int32(cpu_milli), np.int32(memory_mib), np.int32(idle), np.int32(free), np.int32(partials), room)
    for index in range(partials):
        _fill(np.int32(partial[index]), index, room)
    used = partials
    ever_refused = 0
    for position in range(positions):
        items = lessons.items[model, position]
        _look(items, used, room)
        going_on, refused, used_most = _step(items, room)
        ever_refused = max(ever_refused, int(refused))
        if going_on == 0:
            break
        if used_most > used:
            _fill(_NONE, used, room)
            used += 1  # an item opens one device at most
        _share(items, used, room)
    left_sum = 0
    memory_least = memory_mib
    for lane in range(SEQUENCES):
        left_sum += room[_LEFT + lane]
        memory_least = min(memory_least, room[_MEMORY + lane])
    return float(left_sum / SEQUENCES), -1 if ever_refused > 0 else memory_mib - memory_least


@inner_kernel
def _begin(
    cpu_milli: np.int32, memory_mib: np.int32, idle: np.int32, free: np.int32, partials: np.int32, room: SmallInts
) -> None:
    for lane in range(SEQUENCES):
        room[_CPU + lane] = cpu_milli
        room[_MEMORY + lane] = memory_mib
        room[_IDLE + lane] = idle
        room[_LEFT + lane] = free
        room[_COUNT + lane] = partials


@inner_kernel
def _fill(free_milli: np.int32, device: int, room: SmallInts) -> None:
    for lane in range(SEQUENCES):
        room[_DEVICES + device * SEQUENCES + lane] = free_milli


@inner_kernel
def _look(items: SmallInts, used: int, room: SmallInts) -> None:
    """Per sequence: the largest device in use, and the tightest that has room for the item (an idle one if none)."""
    for lane in range(SEQUENCES):
        room[_LARGEST + lane] = _WHOLE if room[_IDLE + lane] > _NONE else _NONE
        room[_TIGHTEST + lane] = _WHOLE
    for device in range(used):
        base = _DEVICES + device * SEQUENCES
        for lane in range(SEQUENCES):
            free = room[base + lane]
            largest = room[_LARGEST + lane]
            tightest = room[_TIGHTEST + lane]
            room[_LARGEST + lane] = free if free > largest else largest
            tighter = (free >= items[ITEM_MILLI * SEQUENCES + lane]) & (free < tightest)
            room[_TIGHTEST + lane] = free if tighter else tightest


@inner_kernel
def _step(items: SmallInts, room: SmallInts) -> tuple[np.int32, np.int32, np.int32]:
    """Takes the item where it fits. Sequences that go on, refusals for memory, and the most devices in use."""
    going_on = _NONE
    refusals = _NONE
    used_most = _NONE
    for lane in range(SEQUENCES):
        cpu_left = room[_CPU + lane]
        memory_left = room[_MEMORY + lane]
        idle_left = room[_IDLE + lane]
        largest = room[_LARGEST + lane]
        tightest = room[_TIGHTEST + lane]
        cpu_milli = items[ITEM_CPU * SEQUENCES + lane]
        memory_mib = items[ITEM_MEMORY * SEQUENCES + lane]
        gpus = items[ITEM_GPUS * SEQUENCES + lane]
        gpu_milli = items[ITEM_MILLI * SEQUENCES + lane]
        # Otherwise neither this nor any later item can take GPU here.
        goes_on = (largest >= items[ITEM_MILLI_AHEAD * SEQUENCES + lane]) & (
            cpu_left >= items[ITEM_CPU_AHEAD * SEQUENCES + lane]
        )
        whole = gpu_milli == _WHOLE
        shared = (gpus > _NONE) & (gpu_milli < _WHOLE)
        has_devices = (gpu_milli <= largest) & ((gpus <= idle_left) | (gpu_milli < _WHOLE))
        fits = goes_on & has_devices & (cpu_milli <= cpu_left)
        taken = fits & (memory_mib <= memory_left)
        opened = taken & shared & (tightest == _WHOLE)
        room[_CPU + lane] = cpu_left - (cpu_milli if taken else _NONE)
        room[_MEMORY + lane] = memory_left - (memory_mib if taken else _NONE)
        room[_IDLE + lane] = idle_left - (gpus if taken & whole else (_ONE if opened else _NONE))
        room[_LEFT + lane] -= items[ITEM_DEMAND * SEQUENCES + lane] if taken else _NONE
        count = room[_COUNT + lane]
        room[_OPENED + lane] = count if opened else _NO_DEVICE
        room[_COUNT + lane] = count + (_ONE if opened else _NONE)
        room[_TIGHTEST + lane] = tightest if taken & shared & (tightest < _WHOLE) else _NO_DEVICE
        goes = _ONE if goes_on else _NONE
        going_on = goes if goes > going_on else going_on
        refuses = _ONE if fits & (memory_mib > memory_left) else _NONE
        refusals = refuses if refuses > refusals else refusals
        after = room[_COUNT + lane]
        used_most = after if after > used_most else used_most
    return going_on, refusals, used_most


@inner_kernel
def _share(items: SmallInts, used: int, room: SmallInts) -> None:
    """Takes the share from the first device that is as tight as the tightest, or from one that was idle."""
    for device in range(used):
        base = _DEVICES + device * SEQUENCES
        number = np.int32(device)
        for lane in range(SEQUENCES):
            free = room[base + lane]
            tightest = room[_TIGHTEST + lane]
            share = items[ITEM_MILLI * SEQUENCES + lane]
            chosen = free == tightest
            opened = room[_OPENED + lane] == number
            after = free - (share if chosen else _NONE)
            room[base + lane] = (_WHOLE - share) if opened else after
            room[_TIGHTEST + lane] = _NO_DEVICE if chosen else tightest

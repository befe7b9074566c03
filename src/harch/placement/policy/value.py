"""How useful is what a node has left?

Kernels: fit, fragment, and the rollout of learned work, in which most of the time of a decision goes.
"""

# harch: pure

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harch.placement.policy.compiled import inner_kernel, kernel
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
from harch.placement.policy.shapes import AMOUNT_MAX, GPU_MILLI, Floats, Ints, NodeArrays, SmallInts

# What would stay unused if the learned work came to this node? The innermost kernel: most of a decision's time.
#
# All sequences walk side by side, position by position, and every step is a loop over them without a branch: the
# compiler
# turns it into vector instructions. In whole runs that is faster than one sequence after the other, whose branches no
# processor foresees; over the same few states again and again it is not. Flags are gathered by maximum, the form that
# the
# compiler recognises.


# Room to work in: one row per amount, one column per sequence, then one row per partly used device. It is a single
# array with fixed places, because the compiler must see that no row overlaps another.
_MEMORY = SEQUENCES
_IDLE = 2 * SEQUENCES
_LEFT = 3 * SEQUENCES
_COUNT = 4 * SEQUENCES  # devices in use
_LARGEST = 5 * SEQUENCES  # most that one device in use has free
_TIGHTEST = 6 * SEQUENCES  # least that suffices for the item
_OPENED = 7 * SEQUENCES
_ROLLOUT_DEVICES = 8 * SEQUENCES

# 32 bits throughout: a mixture of widths would halve the speed.
_NONE = np.int32(0)
_ONE = np.int32(1)
_WHOLE = np.int32(GPU_MILLI)
_NO_DEVICE = np.int32(-1)


def rollout_room(devices: int) -> int:
    """Numbers to work in for nodes with up to this many devices."""
    return _ROLLOUT_DEVICES + devices * SEQUENCES


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
        room[_ROLLOUT_DEVICES + device * SEQUENCES + lane] = free_milli


@inner_kernel
def _look(items: SmallInts, used: int, room: SmallInts) -> None:
    """Per sequence: the largest device in use, and the tightest that has room for the item (an idle one if none)."""
    for lane in range(SEQUENCES):
        room[_LARGEST + lane] = _WHOLE if room[_IDLE + lane] > _NONE else _NONE
        room[_TIGHTEST + lane] = _WHOLE
    for device in range(used):
        base = _ROLLOUT_DEVICES + device * SEQUENCES
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
        base = _ROLLOUT_DEVICES + device * SEQUENCES
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


# How useful is what a node has left? Kernels: fit, rollout value, fragment.
#
# Value and fragment depend on a node's devices only through how many are idle and what is left on the partly used ones,
# so both work on that short profile. Sums are integers until the last step: they are exact, in whatever order.


STRANDED_WEIGHT = 1.0  # at full turnover
MEMO_PLACES_MIN, MEMO_PLACES_MAX = 1 << 12, 1 << 16  # powers of two
_STATES_PER_NODE = 64  # that are worth remembering: a small hub's memo stays in the processor's own cache

# A place of the memo is one line of the processor's cache: a look costs one access to memory, not one per field.
_PLACE = 8
_CPU = 0  # free, exactly; -1 when empty
_MEMORY_FROM = 1  # the value holds for this much free memory ...
_MEMORY_TO = 2  # ... up to this much: where memory refused nothing, more of it changes nothing
_DEVICES = 3  # hash of model, idle devices and shares left
_VALUE = 4


class ValueMemo(NamedTuple):
    """Values of node states seen under the present lessons; a later state overwrites an earlier one in its place."""

    states: Ints  # [place, field]
    values: Floats  # the same memory, for the field that is no integer


def new_memo(nodes: int) -> ValueMemo:
    wanted = nodes * _STATES_PER_NODE
    places = MEMO_PLACES_MIN
    while places < min(wanted, MEMO_PLACES_MAX):
        places *= 2
    memory: Ints = np.full((places + 1) * _PLACE, -1, np.int64)
    first = -(memory.ctypes.data // memory.itemsize) % _PLACE  # where a line begins
    states = memory[first : first + places * _PLACE].reshape(places, _PLACE)
    return ValueMemo(states, states.view(np.float64))


@inner_kernel
def profile(nodes: NodeArrays, node: int, partial: Ints) -> tuple[int, int]:
    """Idle devices, and the number of partly used ones, whose free milli-GPU are written to `partial`."""
    idle = 0
    partials = 0
    for device in range(nodes.gpus[node]):
        free = nodes.gpu_milli_free[node, device]
        if free == GPU_MILLI:
            idle += 1
        elif free > 0:
            partial[partials] = free
            partials += 1
    return idle, partials


@inner_kernel
def fits(nodes: NodeArrays, node: int, cpu_milli: int, memory_mib: int, gpus: int, gpu_milli: int, models: int) -> bool:
    """True when the node has room for the request now. Availability is asked elsewhere."""
    if nodes.cpu_milli_free[node] < cpu_milli or nodes.memory_mib_free[node] < memory_mib:
        return False
    if gpus == 0:
        return True
    if (models >> nodes.model[node]) & 1 == 0 or nodes.gpu_milli_free_sum[node] < gpus * gpu_milli:
        return False
    found = 0
    for device in range(nodes.gpus[node]):
        if nodes.gpu_milli_free[node, device] >= gpu_milli:
            found += 1
            if found >= gpus:
                return True
    return False


@inner_kernel
def fragment(
    cpu_milli: int, idle: int, partial: Ints, partials: int, model: int, kinds: Ints, kind_counts: Ints
) -> float:
    """FGD's fragment: mean milli-GPU that a request of the mix could not use here. `kinds` is ordered by gpu_milli."""
    free = idle * GPU_MILLI
    for index in range(partials):
        free += partial[index]
    if free == 0 or len(kind_counts) == 0:
        return 0.0
    stuck = 0
    total = 0
    counted_milli = -1
    fitting = 0
    too_small = 0
    for kind in range(len(kind_counts)):
        count = kind_counts[kind]
        total += count
        gpus = kinds[kind, 1]
        if gpus == 0 or kinds[kind, 0] > cpu_milli or (kinds[kind, 3] >> model) & 1 == 0:
            stuck += count * free
            continue
        gpu_milli = kinds[kind, 2]
        if gpu_milli != counted_milli:
            counted_milli = gpu_milli
            fitting = idle
            too_small = 0
            for index in range(partials):
                if partial[index] >= gpu_milli:
                    fitting += 1
                else:
                    too_small += partial[index]
        stuck += count * (too_small if fitting >= gpus else free)
    return stuck / total


@inner_kernel
def stranded(partial: Ints, partials: int) -> float:
    """Milli-GPU that are free on used devices, times how far those are used: what waits for shares to leave.

    Rollouts fill holes and never see one open again. Where work departs they do, so shares belong on the fullest
    devices that take them: the emptier ones then fall free as a whole, for those who need them whole.
    """
    waiting = 0
    for index in range(partials):
        waiting += partial[index] * (GPU_MILLI - partial[index])
    return waiting / GPU_MILLI


@inner_kernel
def node_value(
    cpu_milli: int,
    memory_mib: int,
    idle: int,
    partial: Ints,
    partials: int,
    model: int,
    lessons: Lessons,
    memo: ValueMemo,
    room: SmallInts,
) -> float:
    """F: what the policy wants to see fall. GPU that the learned work would leave unused, a little fragment, and
    where work departs, what is stranded on shared devices.

    Fleets repeat themselves: many nodes are, or would be, in the same state, so each state's value is computed once.
    """
    _, devices = state_key(cpu_milli, memory_mib, idle, partial, partials, model)
    place = place_of(cpu_milli, devices, len(memo.states))
    state, known = memo.states[place], memo.values[place]
    if (
        state[_CPU] == cpu_milli
        and state[_DEVICES] == np.int64(devices)
        and state[_MEMORY_FROM] <= memory_mib <= state[_MEMORY_TO]
    ):
        return float(known[_VALUE])
    left, memory_needed = rollout_left(cpu_milli, memory_mib, idle, partial, partials, model, lessons, room)
    stuck = fragment(cpu_milli, idle, partial, partials, model, lessons.kinds, lessons.kind_counts)
    value = left + lessons.fragment_weight * stuck + STRANDED_WEIGHT * lessons.turnover * stranded(partial, partials)
    state[_CPU] = cpu_milli
    state[_MEMORY_FROM] = memory_mib if memory_needed < 0 else memory_needed
    state[_MEMORY_TO] = memory_mib if memory_needed < 0 else AMOUNT_MAX
    state[_DEVICES] = np.int64(devices)
    known[_VALUE] = value
    return value


@inner_kernel
def state_key(
    cpu_milli: int, memory_mib: int, idle: int, partial: Ints, partials: int, model: int
) -> tuple[int, np.uint64]:
    """Names a node's state: equal states have equal keys. Amounts are exact, devices are hashed to 64 bits."""
    devices = _mixed(np.uint64(model * 128 + idle))
    for index in range(partials):
        if partial[index] > 0:
            devices += _mixed(np.uint64(partial[index] + 100_000))  # a sum: the order of devices is no matter
    return (cpu_milli << 32) | memory_mib, devices


@inner_kernel
def place_of(amounts: int, devices: np.uint64, places: int) -> int:
    """Where a state belongs in a table whose number of places is a power of two."""
    return int(_mixed(np.uint64(amounts) ^ devices) & np.uint64(places - 1))


@inner_kernel
def _mixed(bits: np.uint64) -> np.uint64:
    """Spreads bits evenly over 64 (the finaliser of SplitMix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@inner_kernel
def first_device(nodes: NodeArrays, node: int, free_milli: int) -> int:
    """The first device with exactly this much free, or -1."""
    for device in range(nodes.gpus[node]):
        if nodes.gpu_milli_free[node, device] == free_milli:
            return device
    return -1


@kernel
def choose_devices(nodes: NodeArrays, node: int, gpus: int, gpu_milli: int, chosen: Ints) -> None:
    """Writes the fullest devices that fit, lowest index first among equals; whole GPUs are thus taken in index order.

    The caller has checked the fit.
    """
    for place in range(gpus):
        best = -1
        for device in range(nodes.gpus[node]):
            free = nodes.gpu_milli_free[node, device]
            if free < gpu_milli or (best >= 0 and free >= nodes.gpu_milli_free[node, best]):
                continue
            taken = False
            for earlier in range(place):
                if chosen[earlier] == device:
                    taken = True
                    break
            if not taken:
                best = device
        chosen[place] = best

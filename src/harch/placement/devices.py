"""Which devices of a node does a task get? The best k of the free ones, exactly.

Better means, in this order:

1. all of them in one NVLink island, else behind one PCIe switch, else in one NUMA domain: the slowest pair sets the
   pace of a collective;
2. more pairs that share an island, then a switch, then a NUMA domain: the aggregate bandwidth;
3. more pairs *left free* that share an island, then a switch, then a NUMA domain: large islands stay whole for others.

Up to `ENUMERATED_MAX` devices every subset is compared. Above, counting replaces subsets: devices with the same
neighbourhoods are interchangeable and neighbourhoods are nested, so it suffices to know how many are taken from each;
a knapsack over the tree of neighbourhoods finds the optimum of the same key. (Where neighbourhoods of such a large node
cross each other, PCIe switches that cross islands, and NUMA domains that cross either, are not counted.)
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.room import Neighbourhoods, Room
from harch.workloads.spec import Resources

ENUMERATED_MAX = 8
_KINDS_MAX = 256  # node kinds remembered
_ANSWERS_MAX = 65536  # answers remembered; all 2,304 of a node of 8 and the usual ones of larger nodes

# The digits of the key, most significant first: one island, switch, NUMA; pairs chosen; pairs left. Each digit counts
# pairs, at most 72 * 71 / 2 of them, so that sums of keys compare like tuples.
_DIGIT = 4096
_ALL_IN_ONE = tuple(bit * _DIGIT**6 for bit in (4, 2, 1))
_CHOSEN = tuple(_DIGIT**power for power in (5, 4, 3))
_LEFT = tuple(_DIGIT**power for power in (2, 1, 0))


def choose_devices(
    room: Room, row: int, needs: Resources, *, device: int | None = None, within: int = -1
) -> tuple[int, ...] | None:
    """Devices for one task on that node, ascending; None if it has too few.

    `device` is the policy's choice for a share of a GPU. `within` is a mask: only devices whose bit is set will do.
    """
    free_milli, kind = room.arrays.gpu_milli_free[row].tolist(), room.kind(needs)
    return choose_among(room.neighbourhoods[row], free_milli, kind.gpus, kind.gpu_milli, device=device, within=within)


def choose_among(
    kind: Neighbourhoods,
    free_milli: list[int],
    gpus: int,
    milli: int,
    *,
    device: int | None = None,
    within: int = -1,
) -> tuple[int, ...] | None:
    """The same for a node that is not in a room: `free_milli` says what is free of each device, and `milli` what is
    taken of each (`Room.kind`)."""
    if not gpus:
        return ()
    if milli < GPU_MILLI:
        return _share(kind, free_milli, milli, device, within)
    free = 0
    for index, left in enumerate(free_milli):
        if left == GPU_MILLI:
            free |= 1 << index
    return best_devices(kind, free & within, gpus)


@lru_cache(_ANSWERS_MAX)
def best_devices(kind: Neighbourhoods, free: int, count: int) -> tuple[int, ...] | None:
    """The best `count` devices among those whose bit is set in `free`; ties go to the lowest numbers."""
    if free.bit_count() < count:
        return None
    chosen = _enumerate(kind, free, count) if len(kind) <= ENUMERATED_MAX else _count(kind, free, count)
    return tuple(index for index in range(len(kind)) if chosen >> index & 1)


def _share(
    kind: Neighbourhoods, free_milli: list[int], milli: int, device: int | None, within: int
) -> tuple[int, ...] | None:
    """The policy's device, or the fullest that fits; an idle device is opened where that breaks the least."""
    if device is not None:
        return (device,) if free_milli[device] >= milli and within >> device & 1 else None
    fitting = [(left, index) for index, left in enumerate(free_milli) if left >= milli and within >> index & 1]
    if not fitting:
        return None
    left, index = min(fitting)
    if left < GPU_MILLI:
        return (index,)
    idle = sum(1 << index for _, index in fitting)
    return best_devices(kind, idle, 1)


# Few devices: compare every subset


def _enumerate(kind: Neighbourhoods, free: int, count: int) -> int:
    worth, left_worth = _subset_worths(kind)
    best_key, best = -1, 0
    for subset in _subsets(len(kind), count):
        if subset & free == subset:
            key = worth[subset] + left_worth[free ^ subset]
            if key > best_key:
                best_key, best = key, subset
    return best


@lru_cache(_KINDS_MAX)
def _subset_worths(kind: Neighbourhoods) -> tuple[list[int], list[int]]:
    """For every subset: its part of the key when chosen, and when left free."""
    chosen, left = [], []
    for subset in range(1 << len(kind)):
        members = [kind[index] for index in range(len(kind)) if subset >> index & 1]
        chosen_key = left_key = 0
        for level in range(3):
            groups = [member[level] for member in members]
            pairs = sum(_pairs(groups.count(group)) for group in set(groups))
            chosen_key += pairs * _CHOSEN[level] + (len(set(groups)) == 1) * _ALL_IN_ONE[level]
            left_key += pairs * _LEFT[level]
        chosen.append(chosen_key)
        left.append(left_key)
    return chosen, left


@lru_cache(_KINDS_MAX)
def _subsets(size: int, count: int) -> tuple[int, ...]:
    """Lowest devices first, so that the first of equals wins."""
    found = [mask for mask in range(1 << size) if mask.bit_count() == count]
    return tuple(sorted(found, key=lambda mask: [index for index in range(size) if mask >> index & 1]))


def _pairs(count: int) -> int:
    return count * (count - 1) // 2


# Many devices: count per neighbourhood


@dataclass(frozen=True, slots=True)
class _Group:
    """A neighbourhood that all `devices` share at these levels, with the smaller ones inside it."""

    devices: int  # mask
    levels: tuple[int, ...]
    inside: tuple[_Group, ...]


@lru_cache(_KINDS_MAX)
def _tree(kind: Neighbourhoods) -> _Group:
    """The nested neighbourhoods under a root that is the node itself. Islands are kept first, then switches, NUMA."""
    levels: dict[int, tuple[int, ...]] = {}
    for level in range(3):
        masks: dict[int, int] = {}
        for index, member in enumerate(kind):
            masks[member[level]] = masks.get(member[level], 0) | 1 << index
        for mask in masks.values():
            if all(mask & other in (0, mask, other) for other in levels):
                levels[mask] = (*levels.get(mask, ()), level)
    everything = (1 << len(kind)) - 1
    levels.setdefault(everything, ())
    for index in range(len(kind)):
        levels.setdefault(1 << index, ())
    ordered = sorted(levels, key=int.bit_count)
    children: dict[int, list[int]] = {mask: [] for mask in ordered}
    for place, mask in enumerate(ordered[:-1]):
        parent = next(other for other in ordered[place + 1 :] if mask & other == mask)
        children[parent].append(mask)

    def group(mask: int) -> _Group:
        inside = sorted(children[mask], key=lambda child: child & -child)
        return _Group(mask, levels[mask], tuple(group(child) for child in inside))

    return group(everything)


def _count(kind: Neighbourhoods, free: int, count: int) -> int:
    return _best_by_count(_tree(kind), free, count)[count][1]


def _best_by_count(group: _Group, free: int, count: int) -> list[tuple[int, int]]:
    """Entry t: the best key, and the devices, when t of the group's free devices are taken."""
    here = (group.devices & free).bit_count()
    best: list[tuple[int, int]] = [(0, 0)]
    if not group.inside:
        best = [(0, 0), (0, group.devices)] if here else best
    for child in group.inside:
        if child.devices & free:
            best = _merged(best, _best_by_count(child, free, count), count)
    return [(key + _own_key(group, taken, here, count), chosen) for taken, (key, chosen) in enumerate(best)]


def _merged(ours: list[tuple[int, int]], theirs: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """The best split of every total. Taking more from the earlier group wins among equals: lowest devices first."""
    merged: list[tuple[int, int]] = []
    for total in range(min(len(ours) + len(theirs) - 2, count) + 1):
        best_key, best = -1, 0
        for taken in range(min(total, len(ours) - 1), max(0, total - len(theirs) + 1) - 1, -1):
            key = ours[taken][0] + theirs[total - taken][0]
            if key > best_key:
                best_key, best = key, ours[taken][1] | theirs[total - taken][1]
        merged.append((best_key, best))
    return merged


def _own_key(group: _Group, taken: int, free: int, count: int) -> int:
    key = 0
    for level in group.levels:
        key += _pairs(taken) * _CHOSEN[level] + _pairs(free - taken) * _LEFT[level]
        key += (taken == count) * _ALL_IN_ONE[level]
    return key

"""Which series share labels? Kernels that number groups of series, one label column after the other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.jit import kernel

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]


@kernel
def refine_groups(groups: Ints, codes: Codes) -> int:
    """Splits groups by one more column and renumbers them by first appearance; gives how many there are.

    The pair (group, code) is the key of a small hash table, so that no product of cardinalities is ever formed.
    """
    count = groups.shape[0]
    size = 16
    while size < 2 * count:
        size *= 2
    mask = size - 1
    key_group = np.full(size, -1, np.int64)
    key_code = np.empty(size, np.int64)
    number = np.empty(size, np.int64)
    found = 0
    for row in range(count):
        group, code = groups[row], np.int64(codes[row])
        mixed = np.uint64(group) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(code) * np.uint64(0xC2B2AE3D27D4EB4F)
        place = np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(mask))
        while key_group[place] != -1 and (key_group[place] != group or key_code[place] != code):
            place = (place + 1) & mask
        if key_group[place] == -1:
            key_group[place] = group
            key_code[place] = code
            number[place] = found
            found += 1
        groups[row] = number[place]
    return found


@kernel
def first_members(groups: Ints, count: int) -> Ints:
    """The first row of every group."""
    first = np.full(count, -1, np.int64)
    for row in range(groups.shape[0]):
        if first[groups[row]] == -1:
            first[groups[row]] = row
    return first


@kernel
def count_present(of_row: Ints, present: Bools, counts: Ints) -> None:
    """How many series of each group are present at each step."""
    for row in range(present.shape[0]):
        for step in range(present.shape[1]):
            if present[row, step]:
                counts[of_row[row], step] += 1

"""What do groups of series come to at each step? Kernels that walk the rows of a matrix once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.jit import inner_kernel, kernel
from harch.sentinel.promql.evaluate.ranges.window_kernels import compensated, sort_nan_first, sorted_quantile

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SUM, AVERAGE, MIN, MAX, COUNT, GROUP, STDDEV, STDVAR = range(8)


@kernel
def reduce_groups(
    operation: int,
    values: Floats,
    present: Bools,
    groups: Ints,
    step_from: int,
    step_to: int,
    out: Floats,
    filled: Bools,
) -> None:
    """One number for each group and step, of the series that are present there, in their order.

    The inner loops call no function that takes an array: each such call would count references, once a point.
    """
    width = step_to - step_from
    shape = (out.shape[0], width)
    total, extra, count = np.full(shape, -0.0), np.zeros(shape), np.zeros(shape, np.int64)
    for row in range(values.shape[0]):
        group = groups[row]
        value, there = values[row, step_from:step_to], present[row, step_from:step_to]
        sums, rests, counts = total[group], extra[group], count[group]
        if operation in (SUM, AVERAGE):
            for at in range(width):
                if there[at]:
                    sums[at], rests[at] = compensated(value[at], sums[at], rests[at])
                    counts[at] += 1
        elif operation in (MIN, MAX):
            sign = 1.0 if operation == MAX else -1.0
            for at in range(width):
                if there[at]:
                    if counts[at] == 0 or sign * value[at] > sign * sums[at] or np.isnan(sums[at]):
                        sums[at] = value[at]
                    counts[at] += 1
        elif operation in (COUNT, GROUP):
            for at in range(width):
                if there[at]:
                    counts[at] += 1
        else:  # Welford's sum of squared distances; the mean is in `rests`
            for at in range(width):
                if there[at]:
                    counts[at] += 1
                    if counts[at] == 1:
                        rests[at] = value[at]
                        sums[at] = np.nan if np.isnan(value[at]) or np.isinf(value[at]) else 0.0
                    else:
                        difference = value[at] - rests[at]
                        rests[at] += difference / counts[at]
                        sums[at] += difference * (value[at] - rests[at])
    for group in range(shape[0]):
        for at in range(width):
            number = count[group, at]
            filled[group, step_from + at] = number > 0
            result, rest = total[group, at], extra[group, at]
            if number == 0:
                result = 0.0
            elif operation == SUM:
                result += rest
            elif operation == AVERAGE:
                is_finite = not (np.isnan(result) or np.isinf(result))
                result = result / number + rest / number
                if not is_finite:
                    result = _careful_mean(values, present, groups, group, step_from + at)
            elif operation == COUNT:
                result = np.float64(number)
            elif operation == GROUP:
                result = 1.0
            elif operation == STDVAR:
                result /= number
            elif operation == STDDEV:
                result = np.sqrt(result / number)
            out[group, step_from + at] = result


@inner_kernel
def _careful_mean(values: Floats, present: Bools, groups: Ints, group: int, step: int) -> float:
    """The mean of a group whose sum overflows: a sum until it would, from there on the mean itself."""
    total, lost, mean, number = 0.0, 0.0, 0.0, 0.0
    is_carried = False
    for row in range(values.shape[0]):
        if groups[row] != group or not present[row, step]:
            continue
        value = values[row, step]
        number += 1.0
        if number == 1.0:
            total = value
            continue
        if not is_carried:
            new, new_lost = compensated(value, total, lost)
            if not np.isinf(new):
                total, lost = new, new_lost
                continue
            is_carried = True
            mean = total / (number - 1)
            lost /= number - 1
        share = (number - 1) / number
        mean, lost = compensated(value / number, share * mean, share * lost)
    return mean + lost if is_carried else total / number + lost / number


@kernel
def group_quantiles(
    quantiles: Floats,
    values: Floats,
    present: Bools,
    order: Ints,
    bounds: Ints,
    step_from: int,
    step_to: int,
    out: Floats,
    filled: Bools,
) -> None:
    """The quantile of each group; rows `order[bounds[g]:bounds[g + 1]]` are those of group g."""
    scratch = np.empty(max(values.shape[0], 1))
    for group in range(bounds.shape[0] - 1):
        for step in range(step_from, step_to):
            found = 0
            for place in range(bounds[group], bounds[group + 1]):
                if present[order[place], step]:
                    scratch[found] = values[order[place], step]
                    found += 1
            filled[group, step] = found > 0
            out[group, step] = 0.0
            if found > 0:
                sort_nan_first(scratch, found)
                out[group, step] = sorted_quantile(scratch, found, quantiles[step])


@kernel
def top_rows(
    sign: float,
    limits: Ints,
    values: Floats,
    present: Bools,
    groups: Ints,
    sizes: Ints,
    step_from: int,
    step_to: int,
    heaps: Ints,
    kept: Bools,
) -> None:
    """Marks the k largest of each group at each step (smallest for sign -1); NaN ranks below everything.

    `heaps` has room for the k rows of each group of the last step: its order is that of upstream's heap, so that
    equal values win or lose as they do there.
    """
    width = step_to - step_from
    offsets = np.zeros(sizes.shape[0] + 1, np.int64)
    for group in range(sizes.shape[0]):
        offsets[group + 1] = offsets[group] + sizes[group]
    heap = np.empty(max(offsets[-1] * width, 1), np.int64)
    used = np.zeros((sizes.shape[0], width), np.int64)
    for row in range(values.shape[0]):
        group = groups[row]
        for at in range(width):
            step = step_from + at
            limit = min(limits[step], sizes[group])
            if limit < 1 or not present[row, step]:
                continue
            base = offsets[group] * width + at * sizes[group]
            count = used[group, at]
            if count < limit:
                heap[base + count] = row
                used[group, at] = count + 1
                _sift_up(heap, base, count, values, step, sign)
            else:
                lowest, value = values[heap[base], step], values[row, step]
                if sign * value > sign * lowest or (np.isnan(lowest) and not np.isnan(value)):
                    heap[base] = row
                    _sift_down(heap, base, count, values, step, sign)
    for group in range(sizes.shape[0]):
        for at in range(width):
            base = offsets[group] * width + at * sizes[group]
            for place in range(used[group, at]):
                kept[heap[base + place], step_from + at] = True
                if step_from + at == limits.shape[0] - 1:
                    heaps[offsets[group] + place] = heap[base + place]


@inner_kernel
def _is_less(left: int, right: int, values: Floats, step: int, sign: float) -> bool:
    first = values[left, step]
    return bool(np.isnan(first) or sign * first < sign * values[right, step])


@inner_kernel
def _sift_up(heap: Ints, base: int, place: int, values: Floats, step: int, sign: float) -> None:
    while place > 0:
        parent = (place - 1) // 2
        if not _is_less(heap[base + place], heap[base + parent], values, step, sign):
            break
        heap[base + place], heap[base + parent] = heap[base + parent], heap[base + place]
        place = parent


@inner_kernel
def _sift_down(heap: Ints, base: int, count: int, values: Floats, step: int, sign: float) -> None:
    place = 0
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        if child + 1 < count and _is_less(heap[base + child + 1], heap[base + child], values, step, sign):
            child += 1
        if not _is_less(heap[base + child], heap[base + place], values, step, sign):
            break
        heap[base + place], heap[base + child] = heap[base + child], heap[base + place]
        place = child


@kernel
def first_rows(limits: Ints, present: Bools, groups: Ints, group_count: int, kept: Bools) -> None:
    """Marks the first k series of each group at each step."""
    used = np.zeros((group_count, present.shape[1]), np.int64)
    for row in range(present.shape[0]):
        for step in range(present.shape[1]):
            if present[row, step] and used[groups[row], step] < limits[step]:
                used[groups[row], step] += 1
                kept[row, step] = True

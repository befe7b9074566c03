"""What would stay unused if the learned work came to this node? The innermost kernel: most of a decision's time."""

from __future__ import annotations

from harch.placement.policy.compiled import inner_kernel
from harch.placement.policy.lessons import Lessons
from harch.placement.policy.shapes import GPU_MILLI, Ints


@inner_kernel
def rollout_left(
    cpu_milli: int,
    memory_mib: int,
    idle: int,
    partial: Ints,
    partials: int,
    model: int,
    lessons: Lessons,
    scratch: Ints,
) -> tuple[float, int]:
    """V: mean milli-GPU left after each learned sequence was best-fitted onto the node; misfits are skipped.

    And the memory that was needed for it: with as much or more V is the same; -1 when memory refused an item.
    """
    free = idle * GPU_MILLI
    for index in range(partials):
        free += partial[index]
    sequences = lessons.lengths.shape[1]
    if free == 0 or sequences == 0:
        return 0.0, 0
    most_free = GPU_MILLI if idle > 0 else _largest(partial, partials)
    left_sum = 0
    memory_least = memory_mib
    memory_refused = False
    for sequence in range(sequences):
        cpu_left = cpu_milli
        memory_left = memory_mib
        idle_left = idle
        left = free
        largest = most_free
        count = partials
        for index in range(partials):
            scratch[index] = partial[index]
        items = lessons.items[model, sequence]
        length = lessons.lengths[model, sequence]
        position = -1
        while position + 1 < length:
            position += 1
            if idle_left == 0:
                position = items[position, 6]
                if position >= length:
                    break
            if largest < items[position, 4] or cpu_left < items[position, 5]:
                break  # neither this nor any later item can take GPU here
            item_gpus = items[position, 2]
            item_milli = items[position, 3]
            if item_milli > largest or (item_milli == GPU_MILLI and item_gpus > idle_left):
                continue
            item_cpu = items[position, 0]
            item_memory = items[position, 1]
            if item_cpu > cpu_left:
                continue
            if item_memory > memory_left:
                memory_refused = True
                continue
            if item_gpus > 0:
                if item_milli == GPU_MILLI:
                    idle_left -= item_gpus
                else:
                    tightest = -1
                    tightest_free = GPU_MILLI
                    for index in range(count):
                        if item_milli <= scratch[index] < tightest_free:
                            tightest = index
                            tightest_free = scratch[index]
                    if tightest >= 0:
                        scratch[tightest] -= item_milli
                    else:  # no device in use has room, so an idle one has
                        idle_left -= 1
                        scratch[count] = GPU_MILLI - item_milli
                        count += 1
                left -= item_gpus * item_milli
                if idle_left == 0:
                    largest = _largest(scratch, count)
            cpu_left -= item_cpu
            memory_left -= item_memory
        left_sum += left
        memory_least = min(memory_least, memory_left)
    return float(left_sum / sequences), -1 if memory_refused else memory_mib - memory_least


@inner_kernel
def _largest(amounts: Ints, count: int) -> int:
    largest = 0
    for index in range(count):
        largest = max(largest, amounts[index])
    return largest

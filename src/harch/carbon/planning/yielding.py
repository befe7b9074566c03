"""Who gives way when work that cannot wait finds no room? Deferrable work with slack left, and as little of it as does.

A stop takes seconds and costs the work since the last checkpoint; a queue can take hours. Task slots are made node by
node, because a task's GPUs must be on one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

# Stopping far more than is needed is worse than waiting.
GPUS_STOPPED_PER_GPU_MAX = 3.0


@dataclass(frozen=True, slots=True)
class Holder:
    """Running work that could give way: the GPUs that it holds on each node, and for how long it could wait."""

    id: str
    gpus_on: Mapping[int, int]
    wait_h_left: float

    @property
    def gpus(self) -> int:
        return sum(self.gpus_on.values())


def who_yields(
    tasks: int,
    gpus_per_task: int,
    gpus_free: Sequence[int],
    holders: Iterable[Holder],
    *,
    closed: Collection[int] = (),
) -> tuple[str, ...] | None:
    """Ids of those to stop so that all tasks fit, () if they fit already, None if nobody's leaving is enough.

    `closed` are nodes that are kept for somebody else: what is free there, or comes free, is not to be had.
    """
    free = [0 if node in closed else gpus for node, gpus in enumerate(gpus_free)]
    here: dict[int, list[Holder]] = {}
    for holder in sorted(holders, key=lambda one: (-one.wait_h_left, one.id)):
        for node in sorted(holder.gpus_on.keys() - set(closed)):
            here.setdefault(node, []).append(holder)
    stopped: dict[str, Holder] = {}
    while sum(gpus // gpus_per_task for gpus in free) < tasks:
        ways = [way for node in here if (way := _one_more(node, gpus_per_task, free, here[node], stopped))]
        if not ways:
            return None
        for holder in min(ways, key=lambda way: (sum(one.gpus for one in way), way[0].id)):
            stopped[holder.id] = holder
            for node, gpus in holder.gpus_on.items():
                free[node] += 0 if node in closed else gpus
        if sum(one.gpus for one in stopped.values()) > GPUS_STOPPED_PER_GPU_MAX * tasks * gpus_per_task:
            return None
    return tuple(stopped)


def _one_more(
    node: int, gpus_per_task: int, free: list[int], holders: list[Holder], stopped: Mapping[str, Holder]
) -> list[Holder]:
    """The first of the node's holders, those with most slack, that together make place for one more task."""
    missing = gpus_per_task - free[node] % gpus_per_task
    leaving: list[Holder] = []
    for holder in holders:
        if missing > 0 and holder.id not in stopped:
            leaving.append(holder)
            missing -= holder.gpus_on[node]
    return leaving if missing <= 0 else []

"""Who may wait no longer, and who gives way?

Least slack first, no more than must, with a margin where GPUs of a kind are few.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harch.carbon.planning.outlook import Floats, Pool
from harch.carbon.planning.work import ExpectedWork, FlexibleWork, WorkDemand, expected_gpu_hours

# Who may wait no longer, because what waits would not fit in later? Least slack first, and no more than must.
#
# Work that waits has to be done before its slack ends by what running work and work to come leave free. Hubs are looked
# at together where work may choose between them: a set of hubs must be able to do all work that can run nowhere else.


SetKey = tuple[frozenset[str], str]  # allowed hubs and model

# Whole gangs leave gaps: a share of all GPUs, and a node's worth in every pool, which hurts small ones most.
SHARE_LOST, GPUS_LOST = 0.05, 8
TIGHT = 0.95  # of what can be done at all: where so much comes, nothing waits
FULL = 0.8  # of what can be done in time: from here on nothing that runs is put off


@dataclass(frozen=True, slots=True)
class Crowd:
    """What may not wait for clean hours any longer, and where."""

    due: frozenset[str] = frozenset()  # waiting work that should start now
    tight: frozenset[SetKey] = field(default_factory=frozenset)  # where so much comes that nothing should wait
    full: frozenset[SetKey] = field(default_factory=frozenset)  # where nothing that runs should be suspended


def crowd_of(pools: Iterable[Pool], demand: WorkDemand, running: Iterable[FlexibleWork]) -> Crowd:
    """Everything that waits must be done by the end of its slack, whatever comes meanwhile that cannot wait."""
    pools, running = tuple(pools), tuple(running)
    waiting: dict[SetKey, list[FlexibleWork]] = {}
    for work in demand.waiting:
        waiting.setdefault((work.hubs, work.model), []).append(work)
    sets = waiting.keys() | {(key.hubs, key.model) for key in demand.expected}
    due: set[str] = set()
    tight: set[SetKey] = set()
    full: set[SetKey] = set()
    for hubs, model in sets:
        inside = [key for key in sets if key[1] == model and key[0] <= hubs]
        jobs = sorted(
            (work for key in inside for work in waiting.get(key, ())), key=lambda work: (work.wait_h_max, work.id)
        )
        here = [pool for pool in pools if pool.model == model and pool.hub in hubs]
        to_come = [one for key, one in demand.expected.items() if key.model == model and key.hubs <= hubs]
        if sum(one.gpu_hours_per_hour for one in to_come) >= TIGHT * _gpus(here):
            tight.update(inside)
        if not jobs:
            continue
        held = [work for work in running if work.model == model and work.running_at in hubs]
        each = np.array([work.gpus * work.hours_left for work in jobs])
        requested = np.cumsum(each)
        can_do = _gpu_hours(here, held, to_come, np.array([work.wait_h_max + work.hours_left for work in jobs]))
        if (requested > FULL * can_do).any():
            full.update(inside)
        excess = float((requested - can_do).max())
        due.update(work.id for work, before in zip(jobs, requested - each, strict=True) if before < excess)
    return Crowd(frozenset(due), frozenset(tight), frozenset(full | tight))


def _gpu_hours(pools: list[Pool], held: list[FlexibleWork], to_come: list[ExpectedWork], until_h: Floats) -> Floats:
    """What can be done of waiting work within so many hours."""
    left: Floats = _gpus(pools) * until_h
    if held:
        sizes = np.array([work.gpus for work in held])
        left = left - np.minimum(np.array([work.hours_left for work in held]), until_h[:, None]) @ sizes
    for one in to_come:
        left = left - expected_gpu_hours(until_h - one.wait_h_max, one)
    return left


def _gpus(pools: Iterable[Pool]) -> float:
    return sum(max(pool.gpus * (1 - SHARE_LOST) - GPUS_LOST, 0.0) for pool in pools)


# Who gives way when work that cannot wait finds no room? Deferrable work with slack left, and as little of it as does.
#
# A stop takes seconds and costs the work since the last checkpoint; a queue can take hours. Task slots are made node by
# node, because a task's GPUs must be on one.


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


# How much earlier than its promise must work join a queue because GPUs of its kind are few? Nodes are rarely empty at
# once in small pools: a gang that needs much of all GPUs that it may use needs far more time to get them than another.


SCARCE_SHARE, SCARCE_MARGIN_S = 0.25, 14 * 3600.0


def scarcity(gpus: float, gpus_in_reach: float) -> float:
    """From 0 to 1: the share of all GPUs in reach that it needs, over that which is hard to get. One GPU is not."""
    if gpus <= 1:
        return 0.0
    return min(gpus / gpus_in_reach / SCARCE_SHARE, 1.0) if gpus_in_reach > 0 else 1.0

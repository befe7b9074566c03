"""Who may wait no longer, because what waits would not fit in later? Least slack first, and no more than must.

Work that waits has to be done before its slack ends by what running work and work to come leave free. Hubs are looked
at together where work may choose between them: a set of hubs must be able to do all work that can run nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from harch.carbon.planning.outlook import Floats, Pool
from harch.carbon.planning.work import Demand, Expected, FlexibleWork, expected_gpu_hours

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


def crowd_of(pools: Iterable[Pool], demand: Demand, running: Iterable[FlexibleWork]) -> Crowd:
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
        works = sorted(
            (work for key in inside for work in waiting.get(key, ())), key=lambda work: (work.wait_h_max, work.id)
        )
        here = [pool for pool in pools if pool.model == model and pool.hub in hubs]
        to_come = [one for key, one in demand.expected.items() if key.model == model and key.hubs <= hubs]
        if sum(one.gpu_hours_per_hour for one in to_come) >= TIGHT * _gpus(here):
            tight.update(inside)
        if not works:
            continue
        held = [work for work in running if work.model == model and work.running_at in hubs]
        each = np.array([work.gpus * work.hours_left for work in works])
        asked = np.cumsum(each)
        can_do = _gpu_hours(here, held, to_come, np.array([work.wait_h_max + work.hours_left for work in works]))
        if (asked > FULL * can_do).any():
            full.update(inside)
        excess = float((asked - can_do).max())
        due.update(work.id for work, before in zip(works, asked - each, strict=True) if before < excess)
    return Crowd(frozenset(due), frozenset(tight), frozenset(full | tight))


def _gpu_hours(pools: list[Pool], held: list[FlexibleWork], to_come: list[Expected], until_h: Floats) -> Floats:
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

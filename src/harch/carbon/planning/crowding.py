"""How much of its slack may work use? Less where GPUs are scarce: what waits now must still fit in later.

Work that waits has to be done within its slack by what new work leaves free. Hubs are looked at together where work may
choose between them: a set of hubs must be able to do all work that can run nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable

from harch.carbon.planning.outlook import Pool
from harch.carbon.planning.work import Demand

# Waiting work over what can be worked off within the slack: all of the slack up to the first, none from the second on.
PRESSURE_FREE, PRESSURE_FULL = 1.0, 1.5
# Whole gangs leave gaps: a share of all GPUs, and a node's worth in every pool, which hurts small ones most.
SHARE_LOST, GPUS_LOST = 0.05, 8


def slack_shares(pools: Iterable[Pool], demand: Demand, *, slack_h: float) -> dict[tuple[frozenset[str], str], float]:
    """For each set of allowed hubs and model: the share of its slack, 0 to 1, that work may plan with."""
    waiting: dict[tuple[frozenset[str], str], float] = {}
    coming: dict[tuple[frozenset[str], str], float] = {}
    for work in demand.waiting:
        key = (work.hubs, work.model)
        waiting[key] = waiting.get(key, 0.0) + work.gpus * work.hours_left
    for one, expected in demand.expected.items():
        key = (one.hubs, one.model)
        coming[key] = coming.get(key, 0.0) + expected.gpu_hours_per_hour
    sets = waiting.keys() | coming.keys()
    pools = tuple(pools)
    alone = {}
    for hubs, model in sets:
        here = [pool for pool in pools if pool.model == model and pool.hub in hubs]
        gpus = sum(max(pool.gpus * (1 - SHARE_LOST) - GPUS_LOST, 0.0) for pool in here)
        inside = [key for key in sets if key[1] == model and key[0] <= hubs]
        spare = gpus - sum(coming.get(key, 0.0) for key in inside)
        held_back = sum(waiting.get(key, 0.0) for key in inside)
        alone[hubs, model] = _share(held_back, spare * slack_h)
    return {
        (hubs, model): min(share for (wider, other), share in alone.items() if other == model and hubs <= wider)
        for hubs, model in sets
    }


def _share(held_back: float, can_do: float) -> float:
    if can_do <= 0:
        return 0.0
    return min(max((PRESSURE_FULL - held_back / can_do) / (PRESSURE_FULL - PRESSURE_FREE), 0.0), 1.0)

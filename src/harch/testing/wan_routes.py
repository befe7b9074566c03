"""How far apart are the hubs of an emulated WAN?"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence

from harch.fleet.model import Fleet

Pair = tuple[str, str]


def rtt_ms_of_fleet(fleet: Fleet) -> dict[Pair, float]:
    """The round trip between any two hubs: their link's, else the sum over the quickest way through others."""
    names = [hub.id for hub in fleet.hubs]
    linked = {pair: link.rtt_ms for link in fleet.links for pair in (link.ends, link.ends[::-1])}
    quickest = {pair: linked.get(pair, math.inf) for pair in itertools.permutations(names, 2)}
    for via, a, b in itertools.product(names, repeat=3):
        if len({via, a, b}) == 3:
            quickest[a, b] = min(quickest[a, b], quickest[a, via] + quickest[via, b])
    quickest.update(linked)  # traffic takes the link where there is one, even if a detour were quicker
    return both_ways_once(names, quickest)


def spread_rtt_ms(
    names: Sequence[str], *, rtt_ms_min: float = 8.0, rtt_ms_max: float = 45.0, seed: int = 1
) -> dict[Pair, float]:
    """Round trips drawn evenly between two bounds, both of which occur: a federation of any size at these distances."""
    pairs = list(itertools.combinations(names, 2))
    draw = random.Random(seed)  # noqa: S311 - an experiment, not a secret
    drawn = [rtt_ms_min, rtt_ms_max] + [draw.uniform(rtt_ms_min, rtt_ms_max) for _ in pairs[2:]]
    draw.shuffle(drawn)
    return {pair: round(rtt_ms, 1) for pair, rtt_ms in zip(pairs, drawn, strict=False)}


def both_ways_once(names: Sequence[str], rtt_ms: Mapping[Pair, float] | float) -> dict[Pair, float]:
    """Every pair once, in the order of the names. Raises ValueError for a pair without a finite round trip."""
    pairs = list(itertools.combinations(names, 2))
    if not isinstance(rtt_ms, Mapping):
        return dict.fromkeys(pairs, float(rtt_ms))
    if strangers := {name for pair in rtt_ms for name in pair} - set(names):
        raise ValueError(f"no such hub: {', '.join(sorted(strangers))}")
    found = {(a, b): float(rtt_ms.get((a, b), rtt_ms.get((b, a), math.inf))) for a, b in pairs}
    if apart := [f"{a} - {b}" for (a, b), value in found.items() if not 0 <= value < math.inf]:
        raise ValueError(f"no round trip is known for {', '.join(apart)}")
    return found

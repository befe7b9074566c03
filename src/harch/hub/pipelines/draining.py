"""In which order does a pipeline come to rest? Sources first; each stage once nothing is left before it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from harch.hub.pipelines.roster import Roster, StageWish
from harch.hub.pipelines.values import ALL_STAGES


def draining_wishes(
    wanted: Mapping[str, StageWish], roster: Roster, waiting: Mapping[str, int | None]
) -> dict[str, StageWish]:
    """`waiting`: messages in the lane into a stage; None if nobody knows, and then it is not empty."""
    found: dict[str, StageWish] = {}
    upstream_gone = True
    for stage in ALL_STAGES:
        if stage not in wanted:
            continue
        may_stop = upstream_gone and waiting.get(stage, 0) == 0
        wish = wanted[stage]
        found[stage] = StageWish(workers=0 if may_stop else wish.workers, generation=wish.generation)
        upstream_gone = upstream_gone and not roster.of(stage)
    return found


def is_at_rest(roster: Roster) -> bool:
    return not roster.members

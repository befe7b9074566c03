"""What do the models of pipelines do? Rows, rows without an answer and how long they took, by pipeline."""

from __future__ import annotations

from collections.abc import Iterable

from harch.hub.pipelines.views import InferenceFigures
from harch.pipelines.think.counters import LATENCY_BOUNDS_MS
from harch.pipelines.workers.status import WorkerStatus

_MODEL, _DROPPED = "model.", "rows_dropped_"


def inference_of(pipeline: str, statuses: Iterable[WorkerStatus]) -> InferenceFigures | None:
    """None for a pipeline without a stage that thinks."""
    said = [status for status in statuses if status.stage == "think"]
    if not said:
        return None
    named = sorted({key.removeprefix(_MODEL).partition("@")[0] for one in said for key in one.details if _MODEL in key})
    return InferenceFigures(
        pipeline=pipeline,
        model=",".join(named),
        rows=sum(one.counters.get("rows", 0) for one in said),
        failed=sum(count for one in said for key, count in one.counters.items() if key.startswith(_DROPPED)),
        within=_within([one.latency_counts for one in said if one.latency_counts]),
    )


def _within(counts: list[tuple[int, ...]]) -> tuple[tuple[str, int], ...]:
    if not counts:
        return ()
    bounds = [*(f"{bound / 1000:g}" for bound in LATENCY_BOUNDS_MS), "+Inf"]
    found, total = [], 0
    for place, bound in enumerate(bounds):
        total += sum(one[place] for one in counts if place < len(one))
        found.append((bound, total))
    return tuple(found)

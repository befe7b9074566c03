"""How many workers should each stage have now? What workers say, against the limits of the file. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from harch.hub.pipelines.values import SCALED
from harch.pipelines.spec.settings import PipelineSpec, StageName
from harch.pipelines.workers.scaling import ScalingRules, ScalingState, StageLoad, decide
from harch.pipelines.workers.status import WorkerStatus


class StageScale(Struct, frozen=True, kw_only=True):
    """`changed_why` is empty while the number stays."""

    workers: int
    state: ScalingState
    changed_why: str = ""


def first_scale(spec: PipelineSpec) -> dict[str, StageScale]:
    return {
        stage.value: StageScale(workers=spec.scaling.of(stage).workers_min, state=ScalingState())
        for stage in spec.stages
        if stage.value in SCALED
    }


def next_scale(
    spec: PipelineSpec,
    before: Mapping[str, StageScale],
    fixed: Mapping[str, int],
    statuses: Collection[WorkerStatus],
    now_s: float,
) -> dict[str, StageScale]:
    """A number that a person has set stands. Without a word of any worker of a stage, nothing changes there."""
    after = {}
    for name, first in first_scale(spec).items():
        old = before.get(name, first)
        if name in fixed:
            after[name] = StageScale(workers=fixed[name], state=old.state)
            continue
        settings = spec.scaling.of(StageName(name))
        rules = ScalingRules(
            workers_min=settings.workers_min,
            workers_max=settings.workers_max,
            lag_s_max=settings.lag_s_target,
            latency_p99_ms_max=spec.latency.p99_ms_target,
            grow_cooldown_s=settings.grow_cooldown_s,
            shrink_cooldown_s=settings.shrink_cooldown_s,
        )
        said = [status for status in statuses if status.stage == name]
        within = min(max(old.workers, settings.workers_min), settings.workers_max)
        if not said or len(said) < old.workers:  # some are starting, and say nothing of the load yet
            after[name] = StageScale(workers=within, state=old.state)
            continue
        decision = decide(rules, load_of(name, old.workers, said), old.state, now_s)
        why = decision.reason if decision.workers != old.workers else ""
        after[name] = StageScale(workers=decision.workers, state=decision.state, changed_why=why)
    return after


def load_of(stage: str, workers: int, statuses: Iterable[WorkerStatus]) -> StageLoad:
    """How a stage does, from what its workers say. Each sees the whole backlog of its lane, so the largest counts."""
    own = [one for one in statuses if one.stage == stage]
    return StageLoad(
        workers=workers,
        busy=sum(one.busy for one in own) / len(own) if own else 0.0,
        lag=max((one.lag for one in own), default=0.0),
        rate=sum(one.drain_rate for one in own),
        latency_p99_ms=max((one.latency_ms.get("p99", 0.0) for one in own), default=0.0),
    )

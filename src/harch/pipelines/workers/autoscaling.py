"""Who changes the number of workers? A loop around the pure decision: look at all statuses, decide, scale, tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.pipelines.workers.config import StageName
from harch.pipelines.workers.local import LocalPipeline
from harch.pipelines.workers.scaling import ScalingDecision, ScalingState, StageLoad, decide
from harch.pipelines.workers.status import WorkerStatus

EVERY_S = 2.0


class Scaled(Struct, frozen=True, kw_only=True):
    """A stage got more or fewer workers, and why."""

    stage: StageName
    before: int
    after: int
    reason: str


def load_of(stage: StageName, workers: int, statuses: Iterable[WorkerStatus]) -> StageLoad:
    """How a stage does, from what its workers say. Each sees the whole backlog of its lane, so the largest counts."""
    own = [one for one in statuses if one.stage == stage]
    return StageLoad(
        workers=workers,
        busy=sum(one.busy for one in own) / len(own) if own else 0.0,
        lag=max((one.lag for one in own), default=0.0),
        rate=sum(one.drain_rate for one in own),
        latency_p99_ms=max((one.latency_ms.get("p99", 0.0) for one in own), default=0.0),
    )


class Autoscaler:
    """Of one pipeline. Stages without rules are left alone; SENSE never gets more workers than there are partitions."""

    def __init__(
        self, pipeline: LocalPipeline, clock: Clock, told: Callable[[Scaled], None] = lambda scaled: None
    ) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._told = told
        self._states: dict[StageName, ScalingState] = {}
        self.last: dict[StageName, ScalingDecision] = {}

    async def run(self) -> None:
        """Until cancelled. An engine that is away is asked again."""
        while True:
            await self._clock.sleep(EVERY_S)
            try:
                await self.look()
            except HarchError:
                continue

    async def look(self) -> None:
        """One look at all stages. Raises E0701 while the engine is away."""
        statuses = await self._pipeline.statuses()
        for stage, rules in self._pipeline.parts.scaling.items():
            workers = sum(worker.stage == stage for worker in self._pipeline.workers.values())
            state = self._states.get(stage, ScalingState())
            decided = decide(rules, load_of(stage, workers, statuses), state, self._clock.monotonic_s())
            self._states[stage], self.last[stage] = decided.state, decided
            wanted = decided.workers
            if stage == self._pipeline.parts.sensing_stage:
                wanted = min(wanted, self._pipeline.parts.sense.partitions)
            if wanted != workers:
                await self._pipeline.scale(stage, wanted)
                self._told(Scaled(stage=stage, before=workers, after=wanted, reason=decided.reason))

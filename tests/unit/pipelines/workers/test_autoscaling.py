"""The autoscaler reads statuses, scales the stages that have rules, and leaves the others alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from harch.pipelines.workers.autoscaling import Autoscaler, Scaled, load_of
from harch.pipelines.workers.local import LocalPipeline
from harch.pipelines.workers.scaling import ScalingRules
from harch.pipelines.workers.status import WorkerStatus
from harch.testing.clock import SimClock


def _status(worker: str, **more: Any) -> WorkerStatus:
    stage = worker.split("-")[0]
    plain: dict[str, Any] = {"pipeline": "p", "at_ms": 0, "incarnation": "", "pid": 1, "health": "ok"}
    return WorkerStatus(worker=worker, stage=stage, **{**plain, **more})


class _Pipeline:
    def __init__(self, rules: dict[str, ScalingRules], statuses: list[WorkerStatus], partitions: int = 2) -> None:
        sense = SimpleNamespace(partitions=partitions)
        self.parts = SimpleNamespace(scaling=rules, sensing_stage="sense", sense=sense)
        self.found = statuses
        self.workers = {one.worker: SimpleNamespace(stage=one.stage) for one in statuses}
        self.scaled: list[tuple[str, int]] = []

    async def statuses(self) -> list[WorkerStatus]:
        return self.found

    async def scale(self, stage: str, count: int) -> None:
        self.scaled.append((stage, count))


def test_the_backlog_of_a_lane_is_counted_once_and_its_workers_together() -> None:
    statuses = [
        _status("think-0", lag=100, drain_rate=10, busy=0.2, latency_ms={"p99": 5.0}),
        _status("think-1", lag=90, drain_rate=30, busy=0.6, latency_ms={"p99": 9.0}),
        _status("act-0", lag=5000),
    ]
    load = load_of("think", 2, statuses)
    assert (load.lag, load.rate, load.busy, load.latency_p99_ms) == (100, 40, 0.4, 9.0)


async def test_a_busy_stage_grows_and_sense_only_up_to_its_partitions() -> None:
    statuses = [_status(f"sense-{number}", busy=1.0) for number in range(2)] + [_status("think-0", busy=0.95)]
    rules = {"sense": ScalingRules(workers_max=8), "think": ScalingRules(workers_max=8)}
    pipeline, told = _Pipeline(rules, statuses), list[Scaled]()
    await Autoscaler(cast(LocalPipeline, pipeline), SimClock(), told.append).look()
    assert pipeline.scaled == [("think", 2)]
    assert "busy" in told[0].reason


async def test_stages_without_rules_keep_their_workers() -> None:
    pipeline = _Pipeline({}, [_status("act-0", busy=1.0, lag=1e9)])
    await Autoscaler(cast(LocalPipeline, pipeline), SimClock()).look()
    assert pipeline.scaled == []

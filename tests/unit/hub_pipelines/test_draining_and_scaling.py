"""A pipeline comes to rest in order, and stages get the workers that their load asks for, within their limits."""

from __future__ import annotations

from typing import Any

from harch.hub.pipelines.pipeline import first_scale, load_of, next_scale
from harch.hub.pipelines.roster import RosterMember, StageTarget, WorkerRoster, draining_targets, is_at_rest
from harch.pipelines.workers.telemetry import WorkerStatus
from harch.testing.clock import SimClock
from unit.hub_pipelines.pipeline_samples import spec

WANTED = {stage: StageTarget(workers=1, generation=1) for stage in ("source", "sense", "think", "act")}


def roster(*stages: str) -> WorkerRoster:
    return WorkerRoster(members=tuple(RosterMember(name=f"{stage}-0", stage=stage, generation=1) for stage in stages))


def stopped(there: WorkerRoster, **waiting: int | None) -> list[str]:
    found = draining_targets(WANTED, there, waiting)
    return [stage for stage, wish in found.items() if wish.workers == 0]


def test_sources_stop_first_and_each_stage_when_nothing_is_left_before_it() -> None:
    assert stopped(roster("source", "sense", "think", "act"), think=5, act=2) == ["source"]
    assert stopped(roster("sense", "think", "act"), think=5, act=2) == ["source", "sense"]
    assert stopped(roster("think", "act"), think=5, act=2) == ["source", "sense"]
    assert stopped(roster("think", "act"), think=0, act=2) == ["source", "sense", "think"]
    assert stopped(roster("act"), think=0, act=2) == ["source", "sense", "think"]
    assert stopped(roster("act"), think=0, act=0) == ["source", "sense", "think", "act"]
    assert is_at_rest(roster())


def test_a_lane_of_which_nobody_knows_is_not_empty() -> None:
    assert stopped(roster("think", "act"), think=None, act=0) == ["source", "sense"]


def status(worker: str, **more: Any) -> WorkerStatus:
    plain: dict[str, Any] = {"pipeline": "fields", "at_ms": 0, "incarnation": "", "pid": 1, "health": "ok"}
    return WorkerStatus(worker=worker, stage=worker.partition("-")[0], **{**plain, **more})


def test_a_stage_grows_with_its_load_up_to_its_limit_and_shrinks_after_a_while() -> None:
    clock, wanted = SimClock(), spec()
    scale = first_scale(wanted)
    assert {stage: one.workers for stage, one in scale.items()} == {"sense": 1, "think": 1, "act": 1}
    reasons = []
    for _ in range(10):
        said = [status(f"think-{n}", busy=1.0) for n in range(scale["think"].workers)]
        scale = next_scale(wanted, scale, {}, said, clock.monotonic_s())
        reasons += [scale["think"].changed_why] if scale["think"].changed_why else []
        clock.jump(5)
    assert scale["think"].workers == 3
    assert reasons
    assert scale["sense"].workers == 1
    for _ in range(100):
        said = [status(f"think-{n}", busy=0.01) for n in range(scale["think"].workers)]
        scale = next_scale(wanted, scale, {}, said, clock.monotonic_s())
        clock.jump(5)
    assert scale["think"].workers == 1


def test_a_number_that_a_person_has_set_stands_and_silence_changes_nothing() -> None:
    wanted = spec()
    scale = next_scale(wanted, first_scale(wanted), {"think": 2}, [status("think-0", busy=1.0)], 0.0)
    assert scale["think"].workers == 2
    assert next_scale(wanted, scale, {"think": 2}, [], 100.0)["think"].workers == 2
    back = next_scale(wanted, scale, {}, [], 200.0)
    assert back["think"].workers == 2


def test_the_backlog_of_a_lane_is_counted_once_and_its_workers_together() -> None:
    statuses = [
        status("think-0", lag=100, drain_rate=10, busy=0.2, latency_ms={"p99": 5.0}),
        status("think-1", lag=90, drain_rate=30, busy=0.6, latency_ms={"p99": 9.0}),
        status("act-0", lag=5000),
    ]
    load = load_of("think", 2, statuses)
    assert (load.lag, load.rate, load.busy, load.latency_p99_ms) == (100, 40, 0.4, 9.0)

"""How does a running pipeline look to people?

Its roster, what its workers report summed by stage, and the numbers of its models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from harch.hub.pipelines.pipeline import RunningPipeline
from harch.hub.pipelines.planning import PlannedPipeline
from harch.hub.pipelines.values import ALL_STAGES, DesiredState, PipelineRecord
from harch.hub.pipelines.views import InferenceStats
from harch.pipelines.act.review import DeadLetter, PendingApproval
from harch.pipelines.spec.deployment import Deployment
from harch.pipelines.think.counters import LATENCY_BOUNDS_MS
from harch.pipelines.workers.telemetry import WorkerStatus
from harch.wire.pipelines import ActionView, ApplyView, EdgeView, PipelineView, StageStep, StageView, WorkerView

_UNSENT = "aside_failed"  # counts messages that could not be sent, not events
OFTEN = 3  # starts of a worker that never came to say anything
_DROPPED = ("events_shed", "rows_dropped", "messages_dead", "commands_dropped")


def worker_views(running: RunningPipeline) -> tuple[WorkerView, ...]:
    reported = {status.worker: status for status in running.statuses}
    found = []
    for member in running.roster.members:
        kept = running.kept.get(f"{running.record.name}/{member.name}")
        status = reported.get(member.name)
        health = "starting" if status is None else status.health
        if member.leaving:
            health = "leaving"
        view = WorkerView(
            worker=member.name,
            stage=member.stage,
            health=health,
            pid=kept.pid if kept else None,
            starts=kept.starts if kept else 0,
            trouble=status.trouble if status else (kept.reported if kept else ""),
            sandbox=kept.sandbox if kept else "",
        )
        found.append(view if status is None else _with_status(view, status))
    return tuple(found)


def _with_status(view: WorkerView, status: WorkerStatus) -> WorkerView:
    return msgspec.structs.replace(
        view,
        partitions=status.partitions,
        rate=status.rate,
        lag=status.lag,
        busy=status.busy,
        memory_bytes=status.memory_bytes,
        latency_ms=status.latency_ms,
        counters=status.counters,
    )


def pipeline_view(
    record: PipelineRecord,
    running: RunningPipeline | None,
    *,
    hub: str,
    country: str,
    now: datetime,
    waiting: Mapping[str, int | None] | None = None,
    trouble: str = "",
) -> PipelineView:
    stages = () if running is None else _stages(running, waiting or {})
    words = trouble or (running.trouble if running is not None else "") or _worst(running)
    return PipelineView(
        name=record.name,
        tenant=record.tenant,
        hub=hub,
        country=country,
        version=record.version,
        state=_state(record, running, stages, words),
        trouble=words,
        halted=record.halted,
        created_at=record.created_at,
        applied_at=record.applied_at,
        applied_by=record.applied_by,
        at=now,
        stages=stages,
        sources={} if running is None else _sources(running),
        models={} if running is None else _models(running),
    )


def _state(record: PipelineRecord, running: RunningPipeline | None, stages: tuple[StageView, ...], trouble: str) -> str:
    if record.desired is DesiredState.REMOVE:
        return "removing"
    if record.desired is DesiredState.DRAIN:
        return "drained" if running is not None and running.is_at_rest else "draining"
    if trouble:
        return "trouble"
    well = bool(stages) and all(stage.ready >= stage.wanted for stage in stages)
    return "running" if well else "starting"


def _worst(running: RunningPipeline | None) -> str:
    if running is None:
        return ""
    reported = {one.worker for one in running.statuses}
    for name, kept in running.kept.items():
        worker = name.partition("/")[2]
        if kept.starts > OFTEN and not kept.stopping and worker not in reported:
            return f"{worker} keeps exiting: `harch pipeline logs {running.record.name} {worker}` shows why"
    troubled = [one for one in running.statuses if one.health == "trouble" and one.trouble]
    return f"{troubled[0].worker}: {troubled[0].trouble}" if troubled and running.was_well else ""


def _stages(running: RunningPipeline, waiting: Mapping[str, int | None]) -> tuple[StageView, ...]:
    found = []
    for stage in ALL_STAGES:
        reported = [status for status in running.statuses if status.stage == stage]
        members = [member for member in running.roster.of(stage) if not member.leaving]
        wanted = 1 if stage == "source" else running.scale[stage].workers if stage in running.scale else 0
        if not wanted and not members:
            continue
        counters: dict[str, int] = {}
        for status in reported:
            for name, count in status.counters.items():
                counters[name] = counters.get(name, 0) + count
        staying = {member.name for member in members}
        found.append(
            StageView(
                stage=stage,
                workers=len(members),
                wanted=wanted if running.record.desired is DesiredState.RUN else 0,
                ready=sum(status.health == "ok" and status.worker in staying for status in reported),
                fixed=stage in running.record.fixed,
                rate=sum(status.rate for status in reported),
                lag=max((status.lag for status in reported), default=0.0),
                waiting=waiting.get(stage),
                p50_ms=max((status.latency_ms.get("p50", 0.0) for status in reported), default=0.0),
                p99_ms=max((status.latency_ms.get("p99", 0.0) for status in reported), default=0.0),
                busy=sum(status.busy for status in reported) / len(reported) if reported else 0.0,
                dropped=_dropped(counters),
                quarantined=_quarantined(counters),
                counters=counters,
            )
        )
    return tuple(found)


def _dropped(counters: Mapping[str, int]) -> int:
    return sum(counters.get(name, 0) for name in _DROPPED)


def _quarantined(counters: Mapping[str, int]) -> int:
    return sum(count for name, count in counters.items() if name.startswith("aside_") and name != _UNSENT)


def worker_counts_of(running: RunningPipeline) -> dict[tuple[str, str, str, str], dict[str, int]]:
    """For metrics, by pipeline, stage, tenant and worker; the names are those of `WORKER_COUNTERS`."""
    record = running.record
    return {
        (record.name, one.stage, record.tenant, one.worker): {
            "dropped": _dropped(one.counters),
            "quarantined": _quarantined(one.counters),
        }
        for one in running.statuses
    }


def metrics_of(running: RunningPipeline) -> dict[tuple[str, str, str], dict[str, float]]:
    """For metrics, by pipeline, stage and tenant; the names are those of `PIPELINE_GAUGES`."""
    return {
        (running.record.name, stage.stage, running.record.tenant): {
            "workers_ready": stage.ready,
            "workers_wanted": stage.wanted,
            "rate": stage.rate,
            "lag": stage.lag,
            "latency_p99_ms": stage.p99_ms,
            "busy": stage.busy,
            "dropped": stage.dropped,
            "quarantined": stage.quarantined,
        }
        for stage in _stages(running, {})
    }


def _sources(running: RunningPipeline) -> dict[str, str]:
    reported = [status for status in running.statuses if status.stage == "source"]
    return {name: url for status in reported for name, url in status.endpoints.items()}


def _models(running: RunningPipeline) -> dict[str, str]:
    """What the newest THINK worker serves, as it says it itself."""
    reported = [status for status in running.statuses if status.stage == "think"]
    return dict(reported[-1].details) if reported else {}


def streams_of(deployment: Deployment) -> dict[str, tuple[str, ...]]:
    return {share.domain: tuple(stream.name for stream in share.wanted.streams) for share in deployment.domains}


def apply_view(
    planned: PlannedPipeline, *, result: str, version: int, hub: str, dry_run: bool, files_missing: tuple[str, ...]
) -> ApplyView:
    steps = {one.stage: one for one in planned.update.stages} if planned.update is not None else {}
    return ApplyView(
        name=planned.spec.name,
        result=result,
        dry_run=dry_run,
        version=version,
        hub=hub,
        country=planned.deployment.country,
        stages=tuple(
            StageStep(
                stage=placement.stage.value,
                step=steps[placement.stage].step.value if placement.stage in steps else "start",
                because=steps[placement.stage].because if placement.stage in steps else (),
                hub=placement.hub,
                workers=placement.workers,
            )
            for placement in planned.deployment.placements
        ),
        edges=tuple(
            EdgeView(kind=edge.kind.value, name=edge.name, hubs=edge.hubs, countries=edge.countries)
            for edge in planned.proof.edges
        ),
        streams=streams_of(planned.deployment),
        files_missing=files_missing,
    )


def waiting_view(one: PendingApproval) -> ActionView:
    return ActionView(
        cmd_id=one.cmd_id,
        pipeline=one.pipeline,
        device=one.device,
        action=one.action,
        digest=one.digest,
        steps=tuple(msgspec.to_builtins(step) for step in one.steps),
        issued_ms=one.issued_ms,
        expires_ms=one.expires_ms,
        priority=one.priority,
        model=one.model,
        dry_run=one.dry_run,
        state="await_confirm",
    )


def letter_view(one: DeadLetter) -> ActionView:
    command = one.command
    return ActionView(
        cmd_id=one.cmd_id,
        pipeline=command.pipeline,
        device=command.device,
        action=command.action,
        digest="",
        steps=tuple(msgspec.to_builtins(step) for step in command.steps),
        issued_ms=command.issued_ms,
        expires_ms=one.expires_ms,
        priority=command.priority,
        model=command.model,
        dry_run=command.dry_run,
        state="dead",
        reason=one.reason,
        attempts=one.attempts,
        maybe_sent=one.maybe_sent,
    )


# What do the models of pipelines do? Rows, rows without an answer and how long they took, by pipeline.


_MODEL, _ROWS_DROPPED = "model.", "rows_dropped_"


def inference_of(pipeline: str, statuses: Iterable[WorkerStatus]) -> InferenceStats | None:
    """None for a pipeline without a stage that thinks."""
    reported = [status for status in statuses if status.stage == "think"]
    if not reported:
        return None
    named = sorted(
        {key.removeprefix(_MODEL).partition("@")[0] for one in reported for key in one.details if _MODEL in key}
    )
    return InferenceStats(
        pipeline=pipeline,
        model=",".join(named),
        rows=sum(one.counters.get("rows", 0) for one in reported),
        failed=sum(count for one in reported for key, count in one.counters.items() if key.startswith(_ROWS_DROPPED)),
        within=_within([one.latency_counts for one in reported if one.latency_counts]),
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

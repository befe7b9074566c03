"""What does one look at the federation show? Values of one moment; each figure with how it was found."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from harch.cli.follow import elapsed_s, state_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harch.sdk import Event, Hub, Workload
    from harch.sdk.carbon_types import PowerView
    from harch.sdk.pipeline_types import Pipeline
    from harch.sdk.types import HubSummary

GRID, FACILITY = "grid-average-lifecycle", "facility-power"
RUNNING, WAITING = ("running", "scheduled"), ("pending",)


class HubLine(Struct, frozen=True, kw_only=True):
    """One hub. What is None is not known; `age_s` is the age of the figures that it reported of itself."""

    id: str
    name: str
    country: str
    state: str
    own: bool
    age_s: float | None
    gpus_total: int
    gpus_free: int
    gpus_are: str  # modelled or real
    running: int
    waiting: int
    power_kw: float | None
    power_is: str
    g_per_kwh: float | None
    carbon_is: str
    telemetry_lag_s: float | None = None
    note: str = ""

    @property
    def gpus_used(self) -> int:
        return max(0, self.gpus_total - self.gpus_free)


class WorkLine(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    tenant: str
    owner: str
    runner: str
    status: str
    gpus: float
    modelled: bool
    ran_s: float | None


class PipelineLine(Struct, frozen=True, kw_only=True):
    """`rate` is what its first stage takes each second; `lag` and `p99_ms` are the worst of its stages."""

    name: str
    hub: str
    state: str
    workers: str
    rate: float
    lag: float
    p99_ms: float | None


class AlertLine(Struct, frozen=True, kw_only=True):
    hub: str
    name: str
    severity: str
    since: str
    summary: str


class EventLine(Struct, frozen=True, kw_only=True):
    hub: str
    at: datetime
    kind: str
    subject: str
    message: str


class Missing(Struct, frozen=True, kw_only=True):
    """What could not be read, where, and why."""

    hub: str
    what: str
    why: str


class FederationSnapshot(Struct, frozen=True, kw_only=True):
    """All of it at `at`, as the hub `seen_from` and the SENTINELs reported it."""

    at: datetime
    seen_from: str
    hubs: tuple[HubLine, ...] = ()
    workloads: tuple[WorkLine, ...] = ()
    workloads_total: int = 0
    pipelines: tuple[PipelineLine, ...] = ()
    alerts: tuple[AlertLine, ...] = ()
    events: tuple[EventLine, ...] = ()
    missing: tuple[Missing, ...] = ()


def _at_hub(summary: HubSummary) -> Mapping[str, int]:
    """Its own work and that of others, without what others run for it."""
    here = Counter(summary.workloads)
    here.subtract(summary.lent)
    here.update(summary.borrowed)
    return here


def hub_line(hub: Hub, power: PowerView | None, telemetry_lag_s: float | None) -> HubLine:
    by_state = _at_hub(hub.summary) if hub.summary is not None else {}
    known = power.power if power is not None else None
    grid = known.figure(GRID) if known is not None else None
    measured = known is not None and known.figure(FACILITY).evidence == "measured"
    return HubLine(
        id=hub.id,
        name=hub.name,
        country=hub.country,
        state=hub.standing or hub.status,
        own=hub.own,
        age_s=hub.age_s,
        gpus_total=hub.capacity.total_gpus,
        gpus_free=hub.capacity.available_gpus,
        gpus_are=hub.provenance,
        running=sum(by_state.get(state, 0) for state in RUNNING),
        waiting=sum(by_state.get(state, 0) for state in WAITING),
        power_kw=known.load_kw if known is not None else None,
        power_is="" if known is None else "measured" if measured else hub.provenance or "estimated",
        g_per_kwh=grid.value if grid is not None else None,
        carbon_is=grid.evidence if grid is not None and grid.value is not None else "",
        telemetry_lag_s=telemetry_lag_s,
        note=hub.error or (hub.summary.status_detail if hub.summary is not None else ""),
    )


def work_line(workload: Workload) -> WorkLine:
    resources: Any = workload.spec.get("resources")
    resources = resources if isinstance(resources, dict) else {}
    tasks: Any = workload.spec.get("tasks", 1)
    each = resources.get("gpu_fraction") or resources.get("gpus", 0)
    return WorkLine(
        id=workload.id,
        name=workload.name,
        tenant=workload.tenant,
        owner=workload.hub_id or "",
        runner=workload.runner_hub,
        status=state_of(workload),
        gpus=float(each) * int(tasks),
        modelled=workload.modelled,
        ran_s=elapsed_s(workload),
    )


def pipeline_line(pipeline: Pipeline) -> PipelineLine:
    stages = pipeline.stages
    slowest = max((stage.p99_ms for stage in stages), default=0.0)
    return PipelineLine(
        name=pipeline.name,
        hub=pipeline.hub,
        state=pipeline.state,
        workers=f"{sum(stage.ready for stage in stages)}/{sum(stage.wanted for stage in stages)}",
        rate=stages[0].rate if stages else 0.0,
        lag=max((stage.lag for stage in stages), default=0.0),
        p99_ms=slowest if slowest > 0 else None,
    )


def alert_lines(hub: str, found: Sequence[Mapping[str, Any]]) -> list[AlertLine]:
    """Without those of severity `none`: a watchdog fires always, to show that alerting works."""
    return [
        AlertLine(
            hub=hub,
            name=str(one["labels"].get("alertname", "")),
            severity=str(one["labels"].get("severity", "")),
            since=str(one.get("startsAt", "")),
            summary=str(one["annotations"].get("summary") or one["annotations"].get("description") or ""),
        )
        for one in found
        if one["labels"].get("severity") != "none"
    ]


def event_line(hub: str, event: Event) -> EventLine:
    return EventLine(hub=hub, at=event.at, kind=event.kind, subject=event.subject, message=event.message)

"""How is a workload shown?

One superset that every SDK decodes, the flat form of the Terraform client, and the shorter rows of all hubs' work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from harch.api.dialects.fields import CLIENT_SPEC, client_fields
from harch.api.dialects.pages import page_of
from harch.base.tracing.spans import read_header
from harch.hub.federation.messages import WorkRow
from harch.hub.views import LiveStatus
from harch.sovereignty.jurisdictions import COUNTRIES, region_word
from harch.wire import workloads
from harch.wire.pages import Metadata
from harch.wire.workloads import SilentHub
from harch.workloads.lifecycle import State, TaskEnd, Workload
from harch.workloads.spec import RestartPolicy, SchedulingClass, WorkloadType

_NO_LIVE_STATUS = LiveStatus()


class WorkloadView(workloads.Workload, frozen=True, kw_only=True):
    """What goes over the wire, with words that are ours; `scheduling_class` is as requested, else by its type."""

    type: WorkloadType
    status: State
    created_at: datetime
    updated_at: datetime
    hub_id: str
    scheduling_class: SchedulingClass
    task_ends: tuple[TaskEnd, ...]


class TerraformWorkload(Struct, frozen=True, kw_only=True):
    """What the Go client decodes: flat, no nulls."""

    id: str
    name: str
    image: str
    replicas: int
    region: str
    sovereignty: str
    env: dict[str, str]
    tags: dict[str, str]
    status: State
    created_at: datetime
    updated_at: datetime


def workload_view(workload: Workload, here: str = "", live: LiveStatus = _NO_LIVE_STATUS) -> WorkloadView:
    """`here`: the hub that shows it, which matters for guests only."""
    spec = workload.spec
    placement = workload.runner_placement if workload.runner_hub else workload.placement
    home = here if workload.borrowed else workload.owner_hub
    trace = read_header(workload.trace) if workload.trace else None
    return WorkloadView(
        id=workload.id,
        name=spec.name,
        type=spec.type,
        status=workload.state,
        created_at=workload.created_at,
        updated_at=workload.updated_at,
        metadata=Metadata(
            id=workload.id,
            name=spec.name,
            created_at=workload.created_at,
            updated_at=workload.updated_at,
            labels=spec.labels,
            annotations=_own_annotations(workload),
        ),
        spec=spec_view(workload),
        hub_id=workload.owner_hub,
        runner_hub=workload.runner_hub or (home if placement else ""),
        epoch=workload.epoch,
        borrowed=workload.borrowed,
        tenant=workload.tenant,
        scheduling_class=spec.turn_class,
        attempt=workload.attempt,
        gpus_total=spec.gpus_total,
        modelled=spec.modelled_duration_s is not None,
        placement=placement,
        nodes=tuple(sorted({task.node_id for task in placement})) if placement else (),
        placement_why=workload.placement_why,
        task_ends=workload.task_ends,
        stopping=bool(workload.stop_as) and not workload.state.is_final,
        stop_reason=workload.stop_reason,
        started_at=workload.started_at,
        completed_at=workload.completed_at,
        error_message=workload.error_message or None,
        retry_count=workload.restarts,
        carbon=workload.carbon,
        trace_id=trace.trace_id.hex() if trace is not None else "",
        unheard_s=live.unheard_s,
        pending_reason=live.pending_reason,
        preparing=live.preparing,
        artifacts_lost=workload.artifacts_lost,
    )


def _own_annotations(workload: Workload) -> dict[str, str]:
    if CLIENT_SPEC not in workload.annotations:
        return workload.annotations
    return {name: text for name, text in workload.annotations.items() if name != CLIENT_SPEC}


def spec_view(workload: Workload) -> dict[str, object]:
    spec = workload.spec
    resources = spec.resources
    models = resources.models_wanted
    theirs = client_fields(workload.annotations)
    compute: dict[str, object] = {
        "gpu_count": spec.gpus_total,
        "gpu_type": models[0] if models else None,
        "cpu_cores": max(1, math.ceil(resources.cpus * spec.tasks)),
        "memory_gb": resources.memory_gb * spec.tasks,
        "storage_gb": resources.storage_gb * spec.tasks or 1.0,
    }
    if isinstance(stated := theirs.get("compute"), dict):
        compute |= {name: value for name, value in stated.items() if value is not None}
    view: dict[str, object] = {
        "name": spec.name,
        "type": spec.type,
        "priority": spec.priority,
        "command": spec.command,
        "env": spec.env,
        "labels": spec.labels,
        "image": spec.image,
        # our own words
        "tasks": spec.tasks,
        "resources": resources,
        "secrets": spec.secrets,
        "working_dir": spec.working_dir,
        "data": spec.data,
        "outputs": spec.outputs,
        "code": spec.code,
        "environment": spec.environment,
        "artifacts": spec.artifacts,
        "query": spec.query,
        "topology": spec.topology,
        "gang": spec.gang,
        "scheduling_class": spec.scheduling_class,
        "preemptible": spec.preemptible,
        "countries_allowed": spec.countries_allowed,
        "stay_home": spec.stay_home,
        "carbon": spec.carbon,
        "max_duration_s": spec.max_duration_s,
        "stop_grace_s": spec.stop_grace_s,
        "restart": spec.restart,
        "restarts_max": spec.restarts_max,
        "modelled_duration_s": spec.modelled_duration_s,
        # the same in the public clients' words
        "auto_restart": spec.restart is RestartPolicy.ON_FAILURE,
        "max_duration_seconds": None if spec.max_duration_s is None else math.ceil(spec.max_duration_s),
    }
    if spec.countries_allowed and len(spec.countries_allowed) < len(COUNTRIES) // 2:
        view["data_residency"] = {"allowed_regions": [region_word(code) for code in spec.countries_allowed]}
    view |= theirs
    view["compute"] = compute
    return view


def terraform_workload(workload: Workload) -> TerraformWorkload:
    spec = workload.spec
    theirs = client_fields(workload.annotations)
    region = region_word(spec.countries_allowed[0]) if spec.countries_allowed else ""
    return TerraformWorkload(
        id=workload.id,
        name=spec.name,
        image=spec.image or "",
        replicas=spec.tasks,
        region=str(theirs.get("region") or region),
        sovereignty=str(theirs.get("sovereignty") or theirs.get("sovereignty_level") or "strict"),
        env=spec.env,
        tags=spec.labels,
        status=workload.state,
        created_at=workload.created_at,
        updated_at=workload.updated_at,
    )


# How is the work of all hubs shown? In the shape of a hub's own list, with less in it, and who did not answer.


class FederationPage(workloads.FederatedPage[WorkloadView], frozen=True, kw_only=True):
    """A page of the work of all hubs."""


class FederationFilter(Struct, frozen=True, kw_only=True):
    """What a caller wants to see of it; None: whatever it is."""

    hub_id: str | None
    state: State | None
    type: WorkloadType | None
    name: str | None

    def admits(self, row: WorkRow) -> bool:
        return (
            self.hub_id in {None, row.owner_hub}
            and self.state in {None, row.state}
            and self.type in {None, row.type}
            and self.name in {None, row.name}
        )


def federation_page(
    rows: Sequence[WorkRow], *, total: int, silent: list[SilentHub], page: int, per_page: int
) -> FederationPage:
    first = (page - 1) * per_page
    listed = page_of(
        [row_view(row) for row in rows[first : first + per_page]], total=total, page=page, per_page=per_page
    )
    return FederationPage(
        items=listed.items,
        total=total,
        pagination=listed.pagination,
        silent_hubs=silent,
        complete=not silent and total == len(rows),
    )


def row_view(row: WorkRow) -> WorkloadView:
    """What only its owner knows (command, environment, GPUs one by one) is not there."""
    resources: dict[str, object] = {"gpus": row.gpus}
    if row.gpu_fraction is not None:
        resources["gpu_fraction"] = row.gpu_fraction
    return WorkloadView(
        id=row.id,
        name=row.name,
        type=row.type,
        status=row.state,
        created_at=row.created_at,
        updated_at=row.updated_at,
        metadata=Metadata(
            id=row.id, name=row.name, created_at=row.created_at, updated_at=row.updated_at, labels={}, annotations={}
        ),
        spec={"name": row.name, "type": row.type, "tasks": row.tasks, "resources": resources},
        hub_id=row.owner_hub,
        runner_hub=row.runner_hub,
        epoch=row.epoch,
        borrowed=row.borrowed,
        tenant=row.tenant,
        scheduling_class=row.turn_class,
        attempt=row.attempt,
        gpus_total=row.gpus * row.tasks,
        modelled=row.modelled,
        placement=(),
        nodes=row.nodes,
        placement_why="",
        task_ends=(),
        stopping=row.stopping,
        stop_reason="",
        started_at=row.started_at,
        completed_at=None,
        error_message=row.note or None,
        retry_count=0,
        unheard_s=row.unheard_s,
        pending_reason=row.pending_reason,
    )

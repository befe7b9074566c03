"""How is a workload shown? One superset that every SDK decodes, and the flat form of the Terraform client."""

from __future__ import annotations

import math
from datetime import datetime

from msgspec import Struct

from harch.api.dialects.fields import CLIENT_SPEC, client_fields
from harch.base.tracing.context import read_header
from harch.sovereignty.countries import COUNTRIES, region_word
from harch.workloads.carbon import CarbonChoice
from harch.workloads.lifecycle import State, TaskEnd, TaskPlacement, Workload
from harch.workloads.spec import RestartPolicy, SchedulingClass, WorkloadType


class Metadata(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    created_at: datetime
    updated_at: datetime | None
    labels: dict[str, str]
    annotations: dict[str, str]


class WorkloadView(Struct, frozen=True, kw_only=True):
    """`spec` holds our fields and the public clients' side by side; theirs as they wrote them.

    `hub_id` owns it for life; `runner_hub` runs it, or ran it last: another one if it was lent, under lease `epoch`.
    `guest`: it is here for its owner, and this hub is the runner. `placement` and `nodes` are at the runner.
    """

    id: str
    name: str
    type: WorkloadType
    status: State
    created_at: datetime
    updated_at: datetime
    metadata: Metadata
    spec: dict[str, object]
    hub_id: str
    runner_hub: str
    epoch: int
    guest: bool
    tenant: str
    scheduling_class: SchedulingClass  # whose turn it is: as asked for, else by its type
    attempt: int
    gpus_total: int
    modelled: bool
    placement: tuple[TaskPlacement, ...]
    nodes: tuple[str, ...]
    placement_why: str
    task_ends: tuple[TaskEnd, ...]
    stopping: bool
    stop_reason: str
    started_at: datetime | None
    completed_at: datetime | None
    error_message: str | None
    retry_count: int
    carbon: CarbonChoice | None = None  # what was decided about its power, and promised; see `spec.carbon` for wishes
    carbon_metrics: None = None
    trace_id: str = ""  # of its trace in SENTINEL; empty if it is not traced
    unheard_s: float | None = None  # how long nothing was heard of it at its runner, if that is long


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


def workload_view(workload: Workload, here: str = "", *, unheard_s: float | None = None) -> WorkloadView:
    """`here`: the hub that shows it, which matters for guests only."""
    spec = workload.spec
    placement = workload.runner_placement if workload.runner_hub else workload.placement
    home = here if workload.guest else workload.owner_hub
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
            annotations={name: text for name, text in workload.annotations.items() if name != CLIENT_SPEC},
        ),
        spec=spec_view(workload),
        hub_id=workload.owner_hub,
        runner_hub=workload.runner_hub or (home if placement else ""),
        epoch=workload.epoch,
        guest=workload.guest,
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
        unheard_s=unheard_s,
    )


def spec_view(workload: Workload) -> dict[str, object]:
    spec = workload.spec
    resources = spec.resources
    theirs = client_fields(workload.annotations)
    compute: dict[str, object] = {
        "gpu_count": spec.gpus_total,
        "gpu_type": resources.models_wanted[0] if resources.models_wanted else None,
        "cpu_cores": max(1, math.ceil(resources.cpus * spec.tasks)),
        "memory_gb": resources.memory_gb * spec.tasks,
        "storage_gb": resources.storage_gb * spec.tasks or 1.0,
    }
    if isinstance(said := theirs.get("compute"), dict):
        compute |= {name: value for name, value in said.items() if value is not None}
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

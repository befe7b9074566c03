"""Which fields may a workload have in a request? All dialects in one struct; anything else is refused by name."""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from harch.base.integers import Int64, Natural32, Positive32
from harch.workloads.spec import (
    ARTIFACTS_MAX,
    DATA_MAX,
    DURATION_S_MAX,
    Artifact,
    CarbonPreferences,
    DataRef,
    Environment,
    EnvName,
    Gang,
    Name,
    Priority,
    Resources,
    RestartPolicy,
    SchedulingClass,
    Seconds,
    Topology,
)

CLIENT_SPEC = "harch.dev/client-spec"  # the annotation that keeps what a client wrote in its own words

Word = Annotated[str, Meta(max_length=256)]
Gpus = Natural32
Cores = Positive32
Positive = Annotated[float, Meta(gt=0)]
# Closed sets where the published SDK has an enum: one value outside would make it refuse a whole list of workloads.
SovereigntyLevel = Literal["strict", "moderate", "minimal"]
DataClass = Literal["public", "internal", "confidential", "restricted"]
Regions = Annotated[list[Word], Meta(max_length=250)]


class Compute(Struct, kw_only=True, forbid_unknown_fields=True):
    """SDK 0.2: what the **whole** workload needs; `gpu_count` is the total over all tasks."""

    gpu_count: Gpus | UnsetType = UNSET
    gpu_type: Word | UnsetType | None = UNSET
    cpu_cores: Cores | UnsetType = UNSET
    memory_gb: Positive | UnsetType = UNSET
    storage_gb: Positive | UnsetType = UNSET
    ephemeral_storage_gb: Positive | UnsetType | None = UNSET


class DataResidency(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where data may be. The regions become a hard rule; the rest is kept and given back."""

    allowed_regions: Annotated[list[Word], Meta(min_length=1, max_length=250)]
    restricted_regions: Regions | UnsetType = UNSET
    data_classification: DataClass | UnsetType = UNSET
    encryption_at_rest: bool | UnsetType = UNSET
    encryption_in_transit: bool | UnsetType = UNSET
    key_management_region: Word | UnsetType | None = UNSET


class ClientFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """What our own specification has no field for. Kept as written, and read back as written."""

    compute: Compute | UnsetType | None = UNSET
    gpu_count: Gpus | UnsetType | None = UNSET
    gpu_type: Word | UnsetType | None = UNSET
    cpu_cores: Cores | UnsetType | None = UNSET
    memory_gb: Positive | UnsetType | None = UNSET
    storage_gb: Positive | UnsetType | None = UNSET
    workload_type: Word | UnsetType | None = UNSET
    model_id: Word | UnsetType | None = UNSET
    hub_id: Word | UnsetType | None = UNSET
    sovereignty_level: SovereigntyLevel | UnsetType | None = UNSET
    sovereignty: Word | UnsetType | None = UNSET
    data_residency: DataResidency | UnsetType | None = UNSET
    region: Word | UnsetType | None = UNSET
    carbon_budget_grams: Positive | UnsetType | None = UNSET
    carbon_aware: bool | UnsetType | None = UNSET
    carbon_max_gco2: Positive | UnsetType | None = UNSET
    max_duration_seconds: Annotated[int, Meta(gt=0, le=DURATION_S_MAX)] | UnsetType | None = UNSET
    auto_restart: bool | UnsetType | None = UNSET
    replicas: Positive32 | UnsetType | None = UNSET


class WorkloadBody(ClientFields, kw_only=True, forbid_unknown_fields=True):
    """The body of POST and PUT /workloads."""

    name: Name
    type: Word | None = None
    command: Annotated[list[str], Meta(max_length=1024)] | None = None
    tasks: Int64 | UnsetType = UNSET
    resources: Resources | UnsetType = UNSET
    env: dict[EnvName, str] | None = None
    secrets: list[EnvName] | UnsetType = UNSET
    working_dir: str | None = None
    data: Annotated[list[DataRef], Meta(max_length=DATA_MAX)] | UnsetType = UNSET
    outputs: Annotated[list[DataRef], Meta(max_length=DATA_MAX)] | UnsetType = UNSET
    code: DataRef | None = None
    environment: Environment | None = None
    artifacts: Annotated[list[Artifact], Meta(max_length=ARTIFACTS_MAX)] | UnsetType = UNSET
    query: str | None = None
    topology: Topology | UnsetType = UNSET
    gang: Gang | UnsetType = UNSET
    scheduling_class: SchedulingClass | None = None
    preemptible: bool | UnsetType = UNSET
    priority: Priority | None = None
    countries_allowed: Regions | UnsetType = UNSET
    max_duration_s: Seconds | None = None
    stop_grace_s: float | UnsetType = UNSET
    restart: RestartPolicy | UnsetType = UNSET
    restarts_max: Int64 | UnsetType = UNSET
    modelled_duration_s: Seconds | None = None
    stay_home: bool | UnsetType = UNSET
    carbon: CarbonPreferences | UnsetType = UNSET
    image: str | None = None
    labels: dict[str, str] | None = None
    tags: dict[str, str] | None = None  # what the Terraform client calls labels


_CLIENT_FIELDS = ClientFields.__struct_fields__
_client_values = attrgetter(*_CLIENT_FIELDS)
_NO_VALUES = (UNSET,) * len(_CLIENT_FIELDS)
_encode = msgspec.json.Encoder().encode


def client_annotation(body: WorkloadBody) -> dict[str, str]:
    """The client's own fields as the annotation that keeps them; nothing if it spoke natively."""
    values = _client_values(body)
    if values == _NO_VALUES:
        return {}
    return {CLIENT_SPEC: _encode(ClientFields(**dict(zip(_CLIENT_FIELDS, values, strict=True)))).decode()}


def client_fields(annotations: dict[str, str]) -> dict[str, object]:
    """What the client wrote in its own words, as it wrote it; a null it wrote is as good as nothing."""
    kept = annotations.get(CLIENT_SPEC)
    if not kept:
        return {}
    fields: dict[str, object] = msgspec.json.decode(kept)
    return {name: value for name, value in fields.items() if value is not None}

"""What does a request mean in our words? From any dialect, whole or as a partial change, to `WorkloadSpec`."""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter

import msgspec
from msgspec import UNSET
from msgspec.structs import force_setattr

from harch.api.dialects.fields import Compute, WorkloadBody, client_annotation, client_fields
from harch.api.errors import input_error
from harch.api.hub_port import HubPort
from harch.base.errors import HarchError
from harch.placement.query import QUERY_FIELDS, apply_query, split_gpus, without_query
from harch.placement.query_parser import GPU_MODEL_WORDS
from harch.sovereignty.jurisdictions import COUNTRIES, countries_of, country_of
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import CarbonPreferences, Resources, RestartPolicy, WorkloadSpec, WorkloadType

CPUS_PER_TASK_MIN, MEMORY_GB_PER_TASK_MIN = 1.0, 1.0

_TYPES: dict[str, WorkloadType] = {word.value: word for word in WorkloadType} | {"serving": WorkloadType.INFERENCE}

_MAY_BE_NULL = (
    "command",
    "env",
    "working_dir",
    "query",
    "scheduling_class",
    "priority",
    "modelled_duration_s",
    "image",
    "code",
    "environment",
)
_MAY_BE_ABSENT = (
    "secrets",
    "data",
    "outputs",
    "artifacts",
    "topology",
    "gang",
    "preemptible",
    "stop_grace_s",
    "restarts_max",
    "stay_home",
)

_FLAT_COMPUTE = ("gpu_count", "gpu_type", "cpu_cores", "memory_gb", "storage_gb")
# Many fields in one call, and mostly all of them are absent: one look instead of twenty.
_nullable, _absentable, _flat_compute = (attrgetter(*names) for names in (_MAY_BE_NULL, _MAY_BE_ABSENT, _FLAT_COMPUTE))
_ALL_ABSENT, _NO_FLAT_COMPUTE = (UNSET,) * len(_MAY_BE_ABSENT), (UNSET,) * len(_FLAT_COMPUTE)
_NO_PREFERENCES, _NO_CARBON = CarbonPreferences(), (UNSET, UNSET, UNSET)

_decode = msgspec.json.Decoder(WorkloadBody).decode
_decode_native = msgspec.json.Decoder(WorkloadSpec).decode


@lru_cache(maxsize=4096)
def _shared(resources: Resources) -> Resources:
    """One object for equal needs: whoever compares or hashes them later is done at once. Bursts repeat few."""
    return resources


def read_workload(raw: bytes, hub: HubPort) -> tuple[WorkloadSpec, dict[str, str]]:
    """The specification and the annotations that keep the client's own words. Raises E0201, E0202, E0303 or E0901."""
    if (native := _read_native(raw)) is not None:
        return apply_query(native), {}
    try:
        body = _decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise input_error(error) from None
    return translate(body, hub)


def _read_native(raw: bytes) -> WorkloadSpec | None:
    """A body in our own words is a specification as it stands, and most are. None: it has to be translated.

    Also for what is wrong: the translation finds out what, and says it better.
    """
    try:
        spec = _decode_native(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if spec.countries_allowed:
        return None  # it may name regions in words, and each country once is enough
    force_setattr(spec, "resources", _shared(spec.resources))  # nobody else has seen it yet
    return spec


def translate(body: WorkloadBody, hub: HubPort) -> tuple[WorkloadSpec, dict[str, str]]:
    """The order is that of blame: a call to the wrong hub is refused before its fields are judged."""
    if body.hub_id:
        check_hub(body.hub_id, hub)
    fields: dict[str, object] = {"name": body.name, "type": workload_type(body.type or body.workload_type or None)}
    fields["tasks"], resources = _size(body)
    fields["resources"] = _shared(resources)
    fields["countries_allowed"] = _countries(body)
    fields["labels"] = {**(body.tags or {}), **(body.labels or {})}
    if (carbon := _carbon(body)) is not _NO_PREFERENCES and carbon != _NO_PREFERENCES:
        fields["carbon"] = carbon
    _set_duration(body, fields)
    if body.restart is not UNSET:
        fields["restart"] = body.restart
    elif body.auto_restart:
        fields["restart"] = RestartPolicy.ON_FAILURE
    given = zip(_MAY_BE_NULL, _nullable(body), strict=True)
    fields |= {name: value for name, value in given if value is not None}
    if (values := _absentable(body)) != _ALL_ABSENT:
        given = zip(_MAY_BE_ABSENT, values, strict=True)
        fields |= {name: value for name, value in given if value is not UNSET}
    try:
        spec = msgspec.convert(fields, WorkloadSpec)
    except (msgspec.ValidationError, ValueError) as error:
        raise input_error(error) from None
    # Every way in leads through here: submission, plan and change all see what the query means.
    return apply_query(spec), client_annotation(body)


def workload_type(word: str | None) -> WorkloadType:
    if word is None:
        return WorkloadType.BATCH
    if (found := _TYPES.get(word)) is None:
        raise HarchError(
            "E0201", f"`{word[:64]}` is not a workload type", hint=f"use one of {', '.join(_TYPES)}", field="type"
        )
    return found


def gpu_model(word: str | None) -> str | None:
    """The SDKs say `H100` for what the fleet calls `h100-80gb`; whether a hub has it is the hub's to say."""
    if not word:
        return None
    lowered = word.lower()
    return GPU_MODEL_WORDS.get(lowered, lowered)


def check_hub(named: str, hub: HubPort) -> None:
    """A workload belongs for life to the hub that received it, wherever it runs: other hubs are pointed at."""
    wanted = named.lower()
    if wanted == hub.hub_id.lower():
        return
    for peer in hub.peers():
        if wanted in {peer.hub_id.lower(), peer.summary.name.lower() if peer.summary else ""}:
            if peer.own:
                return
            raise HarchError(
                "E0303",
                f"this is hub `{hub.hub_id}`, and the workload names hub `{peer.hub_id}`",
                hint=f"send it to {peer.url}, or leave `hub_id` out",
                field="hub_id",
                meta={"hub_id": peer.hub_id, "url": peer.url},
            )
    raise HarchError("E0305", f"no hub named `{named[:64]}`", hint="GET /v1/hubs lists them", field="hub_id")


def _size(body: WorkloadBody) -> tuple[int, Resources]:
    native = body.tasks is not UNSET or body.resources is not UNSET
    tasks = 1 if body.tasks is UNSET else body.tasks
    resources = Resources() if body.resources is UNSET else body.resources
    compute = _compute(body)
    if compute is None:
        return (tasks if native else body.replicas or 1), resources
    stated = _split(compute, body.replicas or 1)
    first_model = resources.models_wanted[0] if resources.models_wanted else None  # the one that the view shows them
    if native and (stated[0] * stated[1].gpus, stated[1].gpu_model) != (tasks * resources.gpus, first_model):
        raise HarchError(
            "E0201",
            "`resources` and the GPU fields of the public clients contradict each other",
            hint="give either `tasks` and `resources`, or `compute`",
            field="resources",
        )
    return (tasks, resources) if native else stated


def _compute(body: WorkloadBody) -> Compute | None:
    """`compute`, or the same fields in flat form; None if the client gave neither."""
    if body.compute:
        return body.compute
    values = _flat_compute(body)
    if values == _NO_FLAT_COMPUTE:
        return None
    named = zip(_FLAT_COMPUTE, values, strict=True)
    flat = {name: value for name, value in named if value is not UNSET and value is not None}
    return Compute(**flat) if flat else None


def _split(compute: Compute, replicas: int) -> tuple[int, Resources]:
    """Equal tasks of at most eight GPUs each; the total is kept exactly, so 12 becomes 2 x 6 and 11 becomes 11 x 1."""
    tasks, per_task = split_gpus(compute.gpu_count or 0)
    tasks = tasks if per_task else replicas
    return tasks, Resources(
        gpus=per_task,
        gpu_model=gpu_model(compute.gpu_type or None),
        cpus=_share(compute.cpu_cores or 1.0, tasks, CPUS_PER_TASK_MIN),
        memory_gb=_share(compute.memory_gb or 1.0, tasks, MEMORY_GB_PER_TASK_MIN),
        storage_gb=(compute.storage_gb or 0.0) / tasks,
    )


def _share(total: float, tasks: int, least: float) -> float:
    """A task's part; never below what a process needs, because the SDKs send `1` where nobody chose anything."""
    return max(total / tasks, min(total, least))


def _countries(body: WorkloadBody) -> tuple[str, ...]:
    """Every rule that is given must hold, so their countries are intersected. No rule: anywhere."""
    rules: list[tuple[str, ...]] = []
    if body.countries_allowed:
        rules.append(countries_of(body.countries_allowed))
    if body.region:
        rules.append((country_of(body.region),))
    if body.data_residency:
        allowed, restricted = body.data_residency.allowed_regions, body.data_residency.restricted_regions
        rules.append(countries_of(allowed))
        if restricted:
            forbidden = set(countries_of(restricted))
            rules.append(tuple(code for code in COUNTRIES if code not in forbidden))
    if not rules:
        return ()
    left = tuple(code for code in rules[0] if all(code in rule for rule in rules[1:]))
    if not left:
        raise HarchError(
            "E0201",
            "the residency rules leave no country to run in",
            hint="a country must be allowed by every rule that the request gives, and restricted by none",
            field="data_residency",
        )
    return left


def _carbon(body: WorkloadBody) -> CarbonPreferences:
    """Our own preferences, or what the public clients say: a budget of grams, a ceiling, and whether to plan at all."""
    if body.carbon is UNSET and (body.carbon_aware, body.carbon_budget_grams, body.carbon_max_gco2) == _NO_CARBON:
        return _NO_PREFERENCES
    stated = CarbonPreferences(
        aware=body.carbon_aware if isinstance(body.carbon_aware, bool) else None,
        g_max=body.carbon_budget_grams or None,
        g_per_kwh_max=body.carbon_max_gco2 or None,
    )
    if body.carbon is UNSET:
        return stated
    both = ((getattr(stated, name), getattr(body.carbon, name)) for name in ("aware", "g_max", "g_per_kwh_max"))
    if any(theirs is not None and theirs != ours for theirs, ours in both):
        raise HarchError(
            "E0201",
            "`carbon` and the carbon fields of the public clients contradict each other",
            hint="give either `carbon`, or `carbon_aware`, `carbon_budget_grams` and `carbon_max_gco2`",
            field="carbon",
        )
    return body.carbon


def _set_duration(body: WorkloadBody, fields: dict[str, object]) -> None:
    ours, theirs = body.max_duration_s, body.max_duration_seconds or None
    if ours is not None and theirs is not None and ours != theirs:
        raise HarchError(
            "E0201",
            "`max_duration_s` and `max_duration_seconds` differ",
            hint="give one of them",
            field="max_duration_s",
        )
    if ours is not None or theirs is not None:
        fields["max_duration_s"] = ours if ours is not None else theirs


# What does a partial change make of a workload? The old specification and the new fields, as one request.


# Different words for one thing: whoever changes one of them means all of them.
_SYNONYMS: tuple[frozenset[str], ...] = (
    frozenset(
        {
            "tasks",
            "resources",
            "compute",
            "gpu_count",
            "gpu_type",
            "cpu_cores",
            "memory_gb",
            "storage_gb",
            "replicas",
        }
    ),
    frozenset({"countries_allowed", "data_residency", "region"}),
    frozenset({"max_duration_s", "max_duration_seconds"}),
    frozenset({"restart", "auto_restart"}),
    frozenset({"type", "workload_type"}),
    frozenset({"labels", "tags"}),
)


def changed_body(workload: Workload, changes: dict[str, object]) -> WorkloadBody:
    """The whole request that `changes` amount to. Raises E0201."""
    spec = workload.spec
    if "query" in changes:
        spec = without_query(spec)
    elif QUERY_FIELDS & _changed_fields(changes):
        spec = msgspec.structs.replace(spec, query=None)  # what it said stands in the fields, one of which changes now
    current: dict[str, object] = msgspec.to_builtins(spec) | client_fields(workload.annotations)
    compute = current.get("compute")
    for words in _SYNONYMS:
        if words & changes.keys():
            current = {name: value for name, value in current.items() if name not in words}
    if isinstance(changed := changes.get("compute"), dict) and isinstance(compute, dict):
        changes = {**changes, "compute": {**compute, **changed}}
    try:
        return msgspec.convert({**current, **changes}, WorkloadBody)
    except (msgspec.ValidationError, RecursionError) as error:
        raise input_error(error) from None


def _changed_fields(changes: dict[str, object]) -> set[str]:
    """The fields that change, and all other words for them."""
    return set(changes).union(*(words for words in _SYNONYMS if words & changes.keys()))

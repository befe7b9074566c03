"""What does a partial change make of a workload? The old specification and the new fields, told as one request."""

from __future__ import annotations

import msgspec

from harch.api.dialects.fields import WorkloadBody, client_fields
from harch.api.errors import input_error
from harch.placement.query import QUERY_FIELDS, without_query
from harch.workloads.lifecycle import Workload

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
    elif QUERY_FIELDS & _meant(changes):
        spec = msgspec.structs.replace(spec, query=None)  # what it said stands in the fields, one of which changes now
    current: dict[str, object] = msgspec.to_builtins(spec) | client_fields(workload.annotations)
    compute = current.get("compute")
    for words in _SYNONYMS:
        if words & changes.keys():
            current = {name: value for name, value in current.items() if name not in words}
    if isinstance(said := changes.get("compute"), dict) and isinstance(compute, dict):
        changes = {**changes, "compute": {**compute, **said}}
    try:
        return msgspec.convert({**current, **changes}, WorkloadBody)
    except (msgspec.ValidationError, RecursionError) as error:
        raise input_error(error) from None


def _meant(changes: dict[str, object]) -> set[str]:
    """The fields that change, and all other words for them."""
    return set(changes).union(*(words for words in _SYNONYMS if words & changes.keys()))

"""What of a hub's doings belongs into the audit chain? Decisions about work and data, keys, secrets' names, agents."""

# harch: pure

from __future__ import annotations

from harch.base.errors import EXIT_REFUSED, HarchError
from harch.sovereignty.audit import chain as audit
from harch.sovereignty.audit.chain import Detail, Draft
from harch.workloads.lifecycle import Workload

_SOVEREIGNTY = "E09"
REASON_LENGTH_MAX = 500


def admitted(workload: Workload, country: str, *, actor: str, policy_version: str) -> Draft:
    details: dict[str, Detail] = {"countries_allowed": workload.spec.countries_allowed}
    return _of(workload, audit.ADMITTED, "allowed", country, details, policy_version, actor)


def placed(workload: Workload, country: str, *, policy_version: str) -> Draft:
    details: dict[str, Detail] = {
        "attempt": workload.attempt,
        "gpus": sum(len(task.gpu_ids) for task in workload.placement),
        "nodes": len({task.node_id for task in workload.placement}),
    }
    return _of(workload, audit.PLACED, "allowed", country, details, policy_version)


def lent(workload: Workload, country: str, *, policy_version: str) -> Draft:
    """To a hub in this country."""
    details: dict[str, Detail] = {"epoch": workload.epoch, "hub": workload.runner_hub}
    return _of(workload, audit.LENT, "allowed", country, details, policy_version)


def borrowed(workload: Workload, country: str, *, policy_version: str) -> Draft:
    details: dict[str, Detail] = {"epoch": workload.epoch, "hub": workload.owner_hub}
    return _of(workload, audit.BORROWED, "allowed", country, details, policy_version)


def requeued(workload: Workload, country: str, *, policy_version: str) -> Draft:
    return _of(workload, audit.REQUEUED, "done", country, {"attempt": workload.attempt}, policy_version)


def ended(workload: Workload, country: str, *, policy_version: str) -> Draft:
    details: dict[str, Detail] = {"attempt": workload.attempt, "state": workload.state.value}
    return _of(workload, audit.ENDED, "done", country, details, policy_version)


def is_refusal(error: HarchError) -> bool:
    """Whether a policy said no; work that merely does not fit is nobody's decision."""
    return error.code.startswith(_SOVEREIGNTY) and error.kind.exit_code == EXIT_REFUSED


def refused(name: str, error: HarchError, *, country: str, tenant: str, actor: str, policy_version: str) -> Draft:
    return Draft(
        audit.REFUSED,
        name,
        "refused",
        actor=actor,
        authority=tenant_of(tenant),
        policy_version=policy_version,
        data=_data_named(error),
        countries=(country,),
        details={"code": error.code, "reason": error.message[:REASON_LENGTH_MAX]},
    )


def _data_named(error: HarchError) -> tuple[str, ...]:
    """The data that a refusal is about, so that its story tells of it."""
    found = error.meta.get("data", ())
    return tuple(str(data_id) for data_id in found) if isinstance(found, list) else ()


def key_changed(kind: str, key_id: str, *, name: str, tenant: str, role: str, actor: str) -> Draft:
    details: dict[str, Detail] = {"name": name, "role": role}
    return Draft(kind, key_id, "done", actor=actor, authority=tenant_of(tenant), details=details)


def key_bound(key_id: str, agent_id: str, *, nodes: int) -> Draft:
    return Draft(audit.KEY_BOUND, key_id, "done", details={"agent": agent_id, "nodes": nodes})


def secret_changed(kind: str, name: str, *, tenant: str, actor: str) -> Draft:
    return Draft(kind, name, "done", actor=actor, authority=tenant_of(tenant))


def agent_joined(agent_id: str, country: str, *, nodes: int) -> Draft:
    return Draft(audit.AGENT_JOINED, agent_id, "allowed", countries=(country,), details={"nodes": nodes})


def agent_refused(agent_id: str, country: str, error: HarchError) -> Draft:
    details: dict[str, Detail] = {"code": error.code, "reason": error.message[:REASON_LENGTH_MAX]}
    return Draft(audit.AGENT_REFUSED, agent_id, "refused", countries=(country,), details=details)


def _of(
    workload: Workload,
    kind: str,
    verdict: str,
    country: str,
    details: dict[str, Detail],
    policy_version: str,
    actor: str = "hub",
) -> Draft:
    """Every entry about a workload is made here."""
    return Draft(
        kind,
        workload.id,
        verdict,
        actor=actor,
        authority=tenant_of(workload.tenant),
        policy_version=policy_version,
        data=workload.data_ids,
        countries=(country,),
        details=details,
    )


def tenant_of(name: str) -> str:
    return f"tenant:{name}"

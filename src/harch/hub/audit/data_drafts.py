"""What of the life of data belongs into the audit chain? Registered, tagged, loosened, produced, offered, misplaced."""

# harch: pure

from __future__ import annotations

from harch.base.errors import HarchError
from harch.hub.audit.drafts import REASON_LENGTH_MAX, tenant_of
from harch.sovereignty.audit import chain as audit
from harch.sovereignty.audit.chain import POLICY_BUILTIN, Detail, Draft
from harch.sovereignty.declassification import Declassification
from harch.sovereignty.gates import OfferVerdict, Violation
from harch.sovereignty.tags import DataObject
from harch.workloads.lifecycle import Workload


def added(data: DataObject, countries: tuple[str, ...], *, actor: str) -> Draft:
    return _of(data, audit.DATA_ADDED, "done", countries, {**_facts(data), "hubs": data.hubs}, actor)


def removed(data: DataObject, countries: tuple[str, ...], *, actor: str, why: str) -> Draft:
    details: dict[str, Detail] = {**_facts(data), "hubs": data.hubs, "reason": why[:REASON_LENGTH_MAX]}
    return _of(data, audit.DATA_REMOVED, "done", countries, details, actor)


def tagged(
    data: DataObject, countries: tuple[str, ...], *, actor: str, declassification: Declassification | None
) -> Draft:
    if declassification is None:
        return _of(data, audit.DATA_TAGGED, "done", countries, _facts(data), actor)
    signed: dict[str, Detail] = {"reason": declassification.reason[:REASON_LENGTH_MAX]}
    authority = f"authority:{declassification.authority}"
    return _of(data, audit.DECLASSIFIED, "allowed", countries, {**_facts(data), **signed}, actor, authority)


def derived(data: DataObject, workload: Workload, country: str) -> Draft:
    """Names the parents too, so that the story of each of them goes on here."""
    details = {**_facts(data), "workload": workload.id, "parents": data.parents}
    return _of(data, audit.DATA_DERIVED, "done", (country,), details, data=(data.id, *data.parents))


def refused(
    ref: str,
    error: HarchError,
    *,
    country: str,
    tenant: str,
    actor: str,
    policy_version: str,
    data: tuple[str, ...] = (),
) -> Draft:
    """Somebody asked for something that the rules forbid; `data` is empty for what was never registered."""
    return Draft(
        audit.DATA_REFUSED,
        ref,
        "refused",
        actor=actor,
        authority=tenant_of(tenant),
        policy_version=policy_version,
        data=data,
        countries=(country,),
        details={"code": error.code, "reason": error.message[:REASON_LENGTH_MAX]},
    )


def violated(data: DataObject, violation: Violation, countries: tuple[str, ...]) -> Draft:
    return _of(data, audit.VIOLATION, "refused", countries, {"hub": violation.hub, "rules": _rules(violation)})


def work_violated(workload: Workload, violation: Violation, country: str) -> Draft:
    return Draft(
        audit.VIOLATION,
        workload.id,
        "refused",
        authority=tenant_of(workload.tenant),
        data=workload.data_ids,
        countries=(country,),
        details={"hub": violation.hub, "rules": _rules(violation)},
    )


def scrubbed(workload: Workload, country: str, *, rank: int) -> Draft:
    return Draft(
        audit.SCRUBBED,
        workload.id,
        "done",
        actor="agent",
        authority=tenant_of(workload.tenant),
        data=workload.data_ids,
        countries=(country,),
        details={"attempt": workload.attempt, "rank": rank},
    )


def load_refused(workload: Workload, country: str, *, reason: str) -> Draft:
    """The agent's own no, after the hub had said yes."""
    return Draft(
        audit.LOAD_REFUSED,
        workload.id,
        "refused",
        actor="agent",
        authority=tenant_of(workload.tenant),
        data=workload.data_ids,
        countries=(country,),
        details={"attempt": workload.attempt, "reason": reason[:REASON_LENGTH_MAX]},
    )


def offered(workload: Workload, verdict: OfferVerdict, country: str, *, policy_version: str) -> Draft:
    return Draft(
        audit.OFFERED,
        workload.id,
        "allowed" if verdict.eligible else "refused",
        authority=tenant_of(workload.tenant),
        policy_version=policy_version,
        data=workload.data_ids,
        countries=(country,),
        details={
            "eligible": verdict.eligible,
            "rules": tuple(f"{reason.subject}: {reason.rule}" for reason in verdict.rejections),
        },
    )


def authority_changed(name: str, public_key: str, *, actor: str) -> Draft:
    """An empty key: it is an authority no more."""
    kind = audit.AUTHORITY_ADDED if public_key else audit.AUTHORITY_REMOVED
    return Draft(kind, name, "done", actor=actor, details={"public_key": public_key} if public_key else {})


def _facts(data: DataObject) -> dict[str, Detail]:
    tag = data.tag
    if tag is None:
        return {"kind": data.kind.value, "tag_revision": data.tag_revision, "tagged": False}
    return {
        "kind": data.kind.value,
        "tag_revision": data.tag_revision,
        "process_in": tag.process_in,
        "rest_in": tag.rest_in,
        "frameworks": tag.frameworks,
        "classification": tag.classification.value,
    }


def _rules(violation: Violation) -> tuple[str, ...]:
    return tuple(f"{reason.subject}: {reason.rule}" for reason in violation.rejections)


def _of(
    data_object: DataObject,
    kind: str,
    verdict: str,
    countries: tuple[str, ...],
    details: dict[str, Detail],
    actor: str = "hub",
    authority: str = "",
    data: tuple[str, ...] = (),
) -> Draft:
    return Draft(
        kind,
        data_object.id,
        verdict,
        actor=actor,
        authority=authority or tenant_of(data_object.tenant),
        policy_version=POLICY_BUILTIN,
        data=data or (data_object.id,),
        countries=countries,
        details=details,
    )

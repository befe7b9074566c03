"""What can be asked of a hub? One operation per question; see `exchange` for how they are driven."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

import msgspec
from msgspec import Struct

from harch.sdk.exchange import ApiRequest, Operation, RetryPolicy, Sleep, decoded, exchange, new_idempotency_key
from harch.sdk.types import (
    AuditLoss,
    EventPage,
    Explanation,
    FederationPage,
    Gpu,
    Health,
    Identity,
    Page,
    SignedCheckpoint,
    SigningKey,
    TenantQuota,
    Workload,
)
from harch.wire.policies import PolicyStatus

PER_PAGE_MAX = 100
EVENTS_PER_PAGE = 100
CHECKPOINTS_PER_PAGE = 1000
WAIT_POLL_S_FIRST, WAIT_POLL_S_MAX = 0.1, 2.0
WAIT_RETRIES_MAX = 30  # about a minute of pauses, in which a hub that was killed is back

Spec = Mapping[str, object] | Struct
Checkpoints = list[SignedCheckpoint]


class _SecretName(Struct):
    name: str


@dataclass(frozen=True, slots=True)
class Operations:
    """All questions, with the retry policy and the clock that they need."""

    policy: RetryPolicy
    monotonic_s: Callable[[], float]

    def submit(self, spec: Spec, idempotency_key: str | None) -> Operation[Workload]:
        headers = {"idempotency-key": idempotency_key or new_idempotency_key()}
        reply = yield from exchange(_with_body("POST", "/workloads", spec, headers), self.policy)
        return decoded(reply, Workload)

    def plan(self, spec: Spec) -> Operation[Explanation]:
        reply = yield from exchange(_with_body("POST", "/workloads/plan", spec), self.policy)
        return decoded(reply, Explanation)

    def workload(self, ref: str) -> Operation[Workload]:
        reply = yield from exchange(ApiRequest("GET", _workload(ref)), self.policy)
        return decoded(reply, Workload)

    def workloads(
        self,
        *,
        page: int,
        per_page: int,
        status: str | None,
        type_: str | None,
        name: str | None,
        active: bool,
        tenant: str | None,
        labels: Mapping[str, str],
        borrowed: bool,
    ) -> Operation[Page[Workload]]:
        params = _params(page=page, per_page=per_page, status=status, type=type_, name=name, tenant=tenant)
        if active:
            params["active"] = "true"
        if borrowed:
            params["guests"] = "true"
        params |= {f"label.{key}": value for key, value in labels.items()}
        reply = yield from exchange(ApiRequest("GET", "/workloads", params), self.policy)
        return decoded(reply, Page[Workload])

    def everywhere(
        self, *, page: int, per_page: int, status: str | None, tenant: str | None
    ) -> Operation[FederationPage]:
        params = _params(scope="federation", page=page, per_page=per_page, status=status, tenant=tenant)
        reply = yield from exchange(ApiRequest("GET", "/workloads", params), self.policy)
        return decoded(reply, FederationPage)

    def set_status(self, ref: str, status: str) -> Operation[Workload]:
        reply = yield from exchange(_with_body("PATCH", _workload(ref), {"status": status}), self.policy)
        return decoded(reply, Workload)

    def restart(self, ref: str) -> Operation[Workload]:
        workload = yield from self.workload(ref)  # repeated by its name, the request could mean the one it has made
        headers = {"idempotency-key": new_idempotency_key()}
        request = ApiRequest("POST", f"{_workload(workload.id)}/restart", headers=headers)
        reply = yield from exchange(request, self.policy)
        return decoded(reply, Workload)

    def why(self, ref: str) -> Operation[Explanation]:
        reply = yield from exchange(ApiRequest("GET", f"{_workload(ref)}/why"), self.policy)
        return decoded(reply, Explanation)

    def wait(self, ref: str, *, until: Callable[[Workload], bool], timeout_s: float | None) -> Operation[Workload]:
        """Asks again, ever more slowly, until it is so. Raises `TimeoutError` after `timeout_s`."""
        deadline_s = None if timeout_s is None else self.monotonic_s() + timeout_s
        pause_s = WAIT_POLL_S_FIRST
        workload = yield from self.workload(ref)
        # Its hub may be started again meanwhile, and nobody else knows it.
        retries_max = WAIT_RETRIES_MAX if timeout_s is None else self.policy.retries_max
        patient = replace(self, policy=replace(self.policy, retries_max=retries_max))
        while True:
            if until(workload):
                return workload
            if deadline_s is not None and self.monotonic_s() + pause_s > deadline_s:
                raise TimeoutError(f"{workload.name} is still {workload.status} after {timeout_s:g} s")
            yield Sleep(pause_s)
            pause_s = min(WAIT_POLL_S_MAX, pause_s * 1.5)
            workload = yield from patient.workload(ref)

    def gpus(
        self, *, page: int, per_page: int, hub: str | None, model: str | None, status: str | None
    ) -> Operation[Page[Gpu]]:
        params = _params(page=page, per_page=per_page, hub=hub, model=model, status=status)
        reply = yield from exchange(ApiRequest("GET", "/gpus", params), self.policy)
        return decoded(reply, Page[Gpu])

    def quotas(self) -> Operation[list[TenantQuota]]:
        quotas: list[TenantQuota] = []
        page = 0
        while True:
            page += 1
            params = _params(page=page, per_page=PER_PAGE_MAX)
            found = decoded((yield from exchange(ApiRequest("GET", "/quotas", params), self.policy)), Page[TenantQuota])
            quotas += found.items
            if not found.items or len(quotas) >= found.total:
                return quotas

    def events(self, after: int | None, limit: int, subject: str | None = None) -> Operation[EventPage]:
        headers = {"accept": "application/json"}
        request = ApiRequest("GET", "/events", _params(after=after, limit=limit, subject=subject), headers)
        return decoded((yield from exchange(request, self.policy)), EventPage)

    def health(self) -> Operation[Health]:
        reply = yield from exchange(ApiRequest("GET", "/health"), self.policy)
        return decoded(reply, Health)

    def me(self) -> Operation[Identity]:
        reply = yield from exchange(ApiRequest("GET", "/auth/me"), self.policy)
        return decoded(reply, Identity)

    def secret_names(self) -> Operation[list[str]]:
        names: list[str] = []
        page = 0
        while True:
            page += 1
            params = _params(page=page, per_page=PER_PAGE_MAX)
            reply = yield from exchange(ApiRequest("GET", "/secrets", params), self.policy)
            found = decoded(reply, Page[_SecretName])
            names += [item.name for item in found.items]
            if not found.items or len(names) >= found.total:
                return names

    def set_secret(self, name: str, value: str) -> Operation[None]:
        yield from exchange(_with_body("PUT", _secret(name), {"value": value}), self.policy)

    def remove_secret(self, name: str) -> Operation[None]:
        yield from exchange(ApiRequest("DELETE", _secret(name)), self.policy)

    def audit_head(self) -> Operation[SignedCheckpoint]:
        reply = yield from exchange(ApiRequest("GET", "/audit/head"), self.policy)
        return decoded(reply, SignedCheckpoint)

    def audit_checkpoints(self, hub: str | None) -> Operation[Checkpoints]:
        """Of other hubs, kept by the asked one."""
        found: Checkpoints = []
        page = 0
        while True:
            page += 1
            params = _params(page=page, per_page=CHECKPOINTS_PER_PAGE, hub=hub)
            reply = yield from exchange(ApiRequest("GET", "/audit/checkpoints", params), self.policy)
            part = decoded(reply, Page[SignedCheckpoint])
            found += part.items
            if not part.items or len(found) >= part.total:
                return found

    def audit_loss(self) -> Operation[AuditLoss]:
        reply = yield from exchange(ApiRequest("GET", "/audit/loss"), self.policy)
        return decoded(reply, AuditLoss)

    def accept_audit_loss(self, lost_seq: int, why: str) -> Operation[AuditLoss]:
        reply = yield from exchange(_with_body("POST", "/audit/loss", {"lost_seq": lost_seq, "why": why}), self.policy)
        return decoded(reply, AuditLoss)

    def rotate_audit_key(self) -> Operation[SigningKey]:
        """Asked twice, it replaces the key twice, which is harmless."""
        reply = yield from exchange(ApiRequest("POST", "/audit/key"), self.policy)
        return decoded(reply, SigningKey)


def _with_body(method: str, path: str, value: Spec, headers: Mapping[str, str] | None = None) -> ApiRequest:
    all_headers = {"content-type": "application/json", **(headers or {})}
    return ApiRequest(method, path, headers=all_headers, body=msgspec.json.encode(value))


def log_path(ref: str) -> str:
    return f"{_workload(ref)}/logs"


def _workload(ref: str) -> str:
    return f"/workloads/{quote(ref, safe='')}"


def _secret(name: str) -> str:
    return f"/secrets/{quote(name, safe='')}"


def _params(**values: str | int | None) -> dict[str, str]:
    return {key: str(value) for key, value in values.items() if value is not None}


# What can be asked about a hub's policy? Operations for `Client.run`, like those of `operations`.


class _Decisions(Struct, frozen=True, kw_only=True):
    items: list[dict[str, object]]


class _World(Struct, frozen=True, kw_only=True):
    world: dict[str, object]


def policy_status(retry: RetryPolicy) -> Operation[PolicyStatus]:
    return decoded((yield from exchange(ApiRequest("GET", "/policies/active"), retry)), PolicyStatus)


def activate_policy(files: Mapping[str, str], retry: RetryPolicy) -> Operation[PolicyStatus]:
    body = msgspec.json.encode({"files": dict(files)})
    request = ApiRequest("PUT", "/policies/active", headers={"content-type": "application/json"}, body=body)
    return decoded((yield from exchange(request, retry)), PolicyStatus)


def deactivate_policy(retry: RetryPolicy) -> Operation[PolicyStatus]:
    return decoded((yield from exchange(ApiRequest("DELETE", "/policies/active"), retry)), PolicyStatus)


def past_decisions(limit: int, retry: RetryPolicy) -> Operation[list[dict[str, object]]]:
    request = ApiRequest("GET", "/policies/decisions", {"limit": str(limit)})
    return decoded((yield from exchange(request, retry)), _Decisions).items


def policy_world(retry: RetryPolicy) -> Operation[dict[str, object]]:
    return decoded((yield from exchange(ApiRequest("GET", "/policies/world"), retry)), _World).world

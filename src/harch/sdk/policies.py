"""What can be asked about a hub's policy? Operations for `Client.run`, like those of `operations`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from harch.sdk.exchange import Operation, Request, RetryPolicy, decoded, exchange


class PolicyStatus(Struct, frozen=True, kw_only=True):
    """The policy in force at a hub. `digest` is the version that its audit chain names."""

    active: bool
    digest: str
    name: str = ""
    version: str = ""
    activated_at: str = ""
    actor: str = ""
    problem: str = ""
    worker_starts: int = 0


class _Decisions(Struct, frozen=True, kw_only=True):
    items: list[dict[str, object]]


class _World(Struct, frozen=True, kw_only=True):
    world: dict[str, object]


def policy_status(retry: RetryPolicy) -> Operation[PolicyStatus]:
    return decoded((yield from exchange(Request("GET", "/policies/active"), retry)), PolicyStatus)


def activate_policy(files: Mapping[str, str], retry: RetryPolicy) -> Operation[PolicyStatus]:
    body = msgspec.json.encode({"files": dict(files)})
    request = Request("PUT", "/policies/active", headers={"content-type": "application/json"}, body=body)
    return decoded((yield from exchange(request, retry)), PolicyStatus)


def deactivate_policy(retry: RetryPolicy) -> Operation[PolicyStatus]:
    return decoded((yield from exchange(Request("DELETE", "/policies/active"), retry)), PolicyStatus)


def past_decisions(limit: int, retry: RetryPolicy) -> Operation[list[dict[str, object]]]:
    request = Request("GET", "/policies/decisions", {"limit": str(limit)})
    return decoded((yield from exchange(request, retry)), _Decisions).items


def policy_world(retry: RetryPolicy) -> Operation[dict[str, object]]:
    return decoded((yield from exchange(Request("GET", "/policies/world"), retry)), _World).world

"""How is work taken in, fast? `POST /v1/workloads` without a framework: one hub must take thousands per second.

Each step is there once: headers, who, body, translation, hub, answer. FastAPI documents this route but never sees it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from harch.api.access import identify, require
from harch.api.dialects.workload_in import read_workload
from harch.api.dialects.workload_out import terraform_workload, workload_view
from harch.api.hub_port import HubPort
from harch.api.limits import IDEMPOTENCY_KEY_LENGTH_MAX
from harch.base.errors import HarchError
from harch.base.listen.direct_route import Headers
from harch.hub.views import Principal, Role

TERRAFORM_AGENT = b"harchos-terraform-provider/"

_encode = msgspec.json.Encoder().encode


class Caller(NamedTuple):
    """Who submits, as its headers say."""

    principal: Principal
    idempotency_key: bytes
    is_terraform: bool


class Submission:
    """Takes workloads in. Raises `HarchError` for the caller to answer."""

    def __init__(self, hub: HubPort) -> None:
        self._hub = hub

    def admit(self, headers: Headers) -> Caller:
        """Before the body is read: whoever may not submit need not send it."""
        find = headers.get
        token = find(b"x-api-key")
        if not token:
            bearer = find(b"authorization", b"")
            token = bearer[7:] if bearer[:7].lower() == b"bearer " else b""
        principal = require(identify(self._hub, token.decode("latin-1").strip()), Role.USER)
        is_terraform = find(b"user-agent", b"").startswith(TERRAFORM_AGENT)
        return Caller(principal, find(b"idempotency-key", b""), is_terraform)

    async def take(self, caller: Caller, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer: 201 for a new workload, 200 for a repeated request."""
        principal, key, is_terraform = caller
        spec, annotations = read_workload(body, self._hub)
        workload, created = await self._hub.submit(
            spec,
            tenant=principal.tenant,
            annotations=annotations,
            idempotency_key=checked_idempotency_key(key),
            actor=principal.key_id,
        )
        view = terraform_workload(workload) if is_terraform else workload_view(workload)
        return (201 if created else 200), _encode(view)


def checked_idempotency_key(value: bytes) -> str | None:
    if not value:
        return None
    if len(value) > IDEMPOTENCY_KEY_LENGTH_MAX or not value.isascii():
        raise HarchError(
            "E0201",
            f"the Idempotency-Key is not ASCII or longer than {IDEMPOTENCY_KEY_LENGTH_MAX} characters",
            hint="a UUID is a good key",
            field="Idempotency-Key",
        )
    return value.decode()

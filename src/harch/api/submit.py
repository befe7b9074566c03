"""How is work taken in, fast? `POST /v1/workloads` as plain ASGI: one hub must take thousands of them per second.

Each step is there once: headers, who, body, translation, hub, answer. FastAPI documents this route but never sees it.
"""

from __future__ import annotations

import msgspec
from starlette.types import Receive, Scope

from harch.api.access import identify, require
from harch.api.dialects.workload_in import read_workload
from harch.api.dialects.workload_out import terraform_workload, workload_view
from harch.api.hub_port import HubPort
from harch.api.limits import IDEMPOTENCY_KEY_LENGTH_MAX
from harch.base.errors import HarchError
from harch.base.http.limits import HttpLimits
from harch.base.http.messages import bytes_of, read_body, too_large
from harch.hub.views import Role

TERRAFORM_AGENT = b"harchos-terraform-provider/"

_encode = msgspec.json.Encoder().encode


class Submission:
    """Takes workloads in. Raises `HarchError` for the caller to answer."""

    def __init__(self, hub: HubPort, limits: HttpLimits) -> None:
        self._hub = hub
        self._limits = limits

    async def handle(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        """Status and body of the answer: 201 for a new workload, 200 for a repeated request."""
        token = bearer = agent = key = b""
        for name, value in scope["headers"]:
            if name == b"x-api-key":
                token = value
            elif name == b"authorization":
                bearer = value[7:] if value[:7].lower() == b"bearer " else b""
            elif name == b"user-agent":
                agent = value
            elif name == b"idempotency-key":
                key = value
            elif name == b"content-length" and bytes_of(value) > self._limits.body_bytes_max:
                raise too_large(self._limits)
        principal = require(identify(self._hub, (token or bearer).decode("latin-1").strip()), Role.USER)
        spec, annotations = read_workload(await read_body(receive, self._limits), self._hub)
        workload, created = await self._hub.submit(
            spec,
            tenant=principal.tenant,
            annotations=annotations,
            idempotency_key=_idempotency_key(key),
            actor=principal.key_id,
        )
        in_dialect = terraform_workload if agent.startswith(TERRAFORM_AGENT) else workload_view
        return (201 if created else 200), _encode(in_dialect(workload))


def _idempotency_key(value: bytes) -> str | None:
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

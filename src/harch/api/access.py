"""Who is calling, and may they? Keys from headers, roles against calls. Whatever is not allowed is refused."""

from __future__ import annotations

from harch.api.hub_port import HubPort
from harch.base.errors import HarchError
from harch.hub.views import Principal, Role

# `agent` is absent on purpose: its keys open the agents' connection and nothing else.
_RANK = {Role.VIEWER: 1, Role.USER: 2, Role.OPERATOR: 3, Role.ADMIN: 4}


def identify(hub: HubPort, token: str) -> Principal:
    if not token:
        raise HarchError("E0101", "this call needs an API key", hint="send it as `X-API-Key: hsk_…`")
    principal = hub.authenticate(token)
    if principal is None:
        raise HarchError("E0102", "unknown API key", hint="each hub has its own keys; was it revoked?")
    return principal


def require(principal: Principal, least: Role) -> Principal:
    """The caller again, if its role is at least `least`."""
    if _RANK.get(principal.role, 0) < _RANK[least]:
        raise HarchError(
            "E0103",
            f"role `{principal.role}` may not do this; it requires `{least}`",
            hint=f"use a key with the role `{least}` or a higher one",
        )
    return principal


def require_agent(principal: Principal) -> Principal:
    if principal.role is not Role.AGENT:
        raise HarchError(
            "E0103", f"role `{principal.role}` may not connect as a node agent", hint="use a key with the role `agent`"
        )
    return principal


def tenant_scope(principal: Principal) -> str | None:
    """Whose work the caller may touch: None (all tenants) for operators and admins, else its own."""
    return None if _RANK.get(principal.role, 0) >= _RANK[Role.OPERATOR] else principal.tenant

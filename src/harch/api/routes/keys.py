"""Whose key is this, and who gets one? `/auth`, in the two spellings of the public clients."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Request
from msgspec import Meta, Struct
from starlette.responses import Response

from harch.api.dialects.pages import cut
from harch.api.routes.context import PER_PAGE, Admin, Here, PageNumber, PerPage, RouteContext, Viewer, read_json, reply
from harch.api.schema import accepts, answers
from harch.base.errors import HarchError
from harch.hub.views import KeyInfo, Role
from harch.wire import keys
from harch.wire.pages import Page

router = APIRouter(tags=["auth"])

NODES_MAX = 1000  # of one agent

# Scopes are the JavaScript client's word for what we call a role.
_ROLE_OF_SCOPE = {"read": Role.VIEWER, "write": Role.USER, "operate": Role.OPERATOR, "admin": Role.ADMIN}
_SCOPES_OF_ROLE = {
    Role.VIEWER: ["read"],
    Role.USER: ["read", "write"],
    Role.OPERATOR: ["read", "write", "operate"],
    Role.ADMIN: ["read", "write", "operate", "admin"],
    Role.AGENT: ["agent"],
}


class KeyRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`role`, or `scopes` from which it follows; `user` if neither is given.

    A key with the role `agent` belongs to the agent `agent_id`, and with `node_ids` for these nodes only; without it to
    the agent that uses it first.
    """

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    tenant: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    role: Role | None = None
    scopes: list[str] | None = None
    expires_in_days: float | None = None
    agent_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    node_ids: Annotated[list[Annotated[str, Meta(min_length=1, max_length=128)]], Meta(max_length=NODES_MAX)] = []


class KeyView(keys.KeyView, frozen=True, kw_only=True):
    """What goes over the wire, with a role that is one of ours. `key` is there only in the answer that creates it."""

    role: Role


class RevokedKey(Struct, frozen=True, kw_only=True):
    success: bool = True
    id: str
    revoked: bool


class Identity(keys.Identity, frozen=True, kw_only=True):
    """What goes over the wire, with roles that are ours."""

    role: Role
    created_at: datetime
    api_keys: tuple[KeyView, ...]


class Verified(Struct, frozen=True, kw_only=True):
    valid: bool = True
    key_id: str
    name: str
    tenant: str
    role: Role
    scopes: list[str]


@router.get("/auth/me", responses=answers(Identity), summary="Shows the identity of a key")
async def whoami(caller: Viewer, here: Here) -> Response:
    """Admins see the keys of their tenant, others their own."""
    infos = await here.hub.credentials.keys(caller.tenant)
    own = next((info for info in infos if info.id == caller.key_id), None)
    visible = infos if caller.role is Role.ADMIN else [own] if own else []
    return reply(
        Identity(
            id=caller.key_id,
            name=caller.name,
            tenant=caller.tenant,
            role=caller.role,
            scopes=_SCOPES_OF_ROLE[caller.role],
            email="",
            plan="self-hosted",
            created_at=own.created_at if own else here.hub.started_at,
            api_keys=tuple(_view(here, info) for info in visible),
        )
    )


@router.get("/auth/verify", responses=answers(Verified), summary="Verifies a key and shows what it permits")
async def verify(caller: Viewer) -> Response:
    return reply(
        Verified(
            key_id=caller.key_id,
            name=caller.name,
            tenant=caller.tenant,
            role=caller.role,
            scopes=_SCOPES_OF_ROLE[caller.role],
        )
    )


@router.get("/auth/api-keys", responses=answers(Page[KeyView]), summary="Lists the keys of all tenants")
async def list_keys(_: Admin, here: Here, page: PageNumber = 1, per_page: PerPage = PER_PAGE) -> Response:
    return reply(
        cut([_view(here, info) for info in await here.hub.credentials.keys(None)], page=page, per_page=per_page)
    )


@router.get("/auth/keys", responses=answers(list[KeyView]), summary="The same as a plain array")
async def list_keys_plain(_: Admin, here: Here) -> Response:
    return reply([_view(here, info) for info in await here.hub.credentials.keys(None)])


@router.post(
    "/auth/api-keys", responses=answers(KeyView, status=201), openapi_extra=accepts(KeyRequest), summary="Creates a key"
)
@router.post(
    "/auth/keys", responses=answers(KeyView, status=201), openapi_extra=accepts(KeyRequest), summary="Creates a key"
)
async def create_key(request: Request, caller: Admin, here: Here) -> Response:
    body = await read_json(request, here, KeyRequest)
    if body.expires_in_days is not None:
        raise HarchError(
            "E0201",
            "keys of this hub do not expire",
            hint="leave `expires_in_days` out, and revoke the key when it is no longer needed",
            field="expires_in_days",
        )
    role = _role(body)
    if (body.agent_id or body.node_ids) and (role is not Role.AGENT or not body.agent_id):
        hint = "leave them out, or give role `agent` and the agent's id"
        raise HarchError("E0201", "`agent_id` and `node_ids` are for keys of agents", hint=hint, field="agent_id")
    info, key = await here.hub.credentials.create_key(
        name=body.name,
        tenant=body.tenant or caller.tenant,
        role=role,
        actor=caller.key_id,
        agent_id=body.agent_id or "",
        node_ids=tuple(body.node_ids),
    )
    return reply(_view(here, info, key), status=201)


@router.delete("/auth/api-keys/{key_id}", responses=answers(RevokedKey), summary="Revokes a key")
@router.delete("/auth/keys/{key_id}", responses=answers(RevokedKey), summary="Revokes a key")
async def revoke_key(key_id: str, caller: Admin, here: Here) -> Response:
    info = await here.hub.credentials.revoke_key(key_id, tenant=None, actor=caller.key_id)
    return reply(RevokedKey(id=info.id, revoked=info.revoked))


@router.delete("/auth/api-keys/{key_id}/agents", responses=answers(KeyView), summary="Releases an agent's key")
@router.delete("/auth/keys/{key_id}/agents", responses=answers(KeyView), summary="Releases an agent's key")
async def release_key(key_id: str, caller: Admin, here: Here) -> Response:
    """It belongs to the next agent that uses it; agents that are connected with it reconnect."""
    info = await here.hub.credentials.release_key(key_id, tenant=None, actor=caller.key_id)
    return reply(_view(here, info))


def _role(body: KeyRequest) -> Role:
    if body.role is not None:
        return body.role
    if not body.scopes:
        return Role.USER
    for scope in body.scopes:
        if scope not in _ROLE_OF_SCOPE:
            raise HarchError(
                "E0201",
                f"`{scope[:64]}` is not a scope",
                hint=f"use {', '.join(_ROLE_OF_SCOPE)}, or give a `role`",
                field="scopes",
            )
    ranks = list(_ROLE_OF_SCOPE.values())
    return max((_ROLE_OF_SCOPE[scope] for scope in body.scopes), key=ranks.index)


def _view(here: RouteContext, info: KeyInfo, key: str | None = None) -> KeyView:
    return KeyView(
        id=info.id,
        name=info.name,
        prefix=info.prefix,
        tenant=info.tenant,
        role=info.role,
        scopes=_SCOPES_OF_ROLE[info.role],
        created_at=info.created_at,
        last_used_at=info.last_used_at,
        revoked=info.revoked,
        agents=[one.agent_id for one in here.hub.credentials.agents_of(info.id)],
        key=key,
    )

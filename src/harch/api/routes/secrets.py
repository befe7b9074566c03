"""A tenant's secrets: stored and named, never shown."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from msgspec import Meta, Struct
from starlette.responses import Response

from harch.api.dialects.pages import cut
from harch.api.errors import input_error
from harch.api.limits import SECRET_BYTES_MAX
from harch.api.routes.context import PER_PAGE, Here, PageNumber, PerPage, User, Viewer, read_json, reply
from harch.api.schema import accepts, answers
from harch.wire.pages import Page
from harch.workloads.spec import EnvName

router = APIRouter(tags=["secrets"])


class SecretValue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    value: Annotated[str, Meta(max_length=SECRET_BYTES_MAX)]


class SecretName(Struct, frozen=True, kw_only=True):
    name: str


class SecretDone(Struct, frozen=True, kw_only=True):
    success: bool = True
    name: str


@router.get("/secrets", responses=answers(Page[SecretName]), summary="Names of the tenant's secrets")
async def list_secrets(caller: Viewer, here: Here, page: PageNumber = 1, per_page: PerPage = PER_PAGE) -> Response:
    names = await here.hub.credentials.secret_names(tenant=caller.tenant)
    return reply(cut([SecretName(name=name) for name in names], page=page, per_page=per_page))


@router.put(
    "/secrets/{name}",
    responses=answers(SecretDone),
    openapi_extra=accepts(SecretValue),
    summary="Stores a secret; tasks find it as a file",
)
async def put_secret(request: Request, name: str, caller: User, here: Here) -> Response:
    _check_name(name)
    secret = await read_json(request, here, SecretValue)
    await here.hub.credentials.put_secret(name, secret.value, tenant=caller.tenant, actor=caller.key_id)
    return reply(SecretDone(name=name))


@router.delete("/secrets/{name}", responses=answers(SecretDone), summary="Deletes a secret")
async def delete_secret(name: str, caller: User, here: Here) -> Response:
    _check_name(name)
    await here.hub.credentials.delete_secret(name, tenant=caller.tenant, actor=caller.key_id)
    return reply(SecretDone(name=name))


def _check_name(name: str) -> None:
    try:
        msgspec.convert(name, EnvName)
    except msgspec.ValidationError as error:
        raise input_error(error) from None

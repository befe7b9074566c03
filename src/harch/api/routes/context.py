"""What does every route need? The hub, who is calling, pages, and JSON in and out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, Query, Request
from starlette.responses import Response

from harch.api.access import identify, require
from harch.api.errors import input_error
from harch.api.hub_port import HubPort
from harch.api.limits import PER_PAGE_DEFAULT, PER_PAGE_MAX
from harch.api.submit import TERRAFORM_AGENT
from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.http.limits import HttpLimits
from harch.base.http.messages import read_body, token_from
from harch.base.http.streams import Streams
from harch.base.integers import INT64_MAX, INT64_MIN
from harch.hub.views import PeerView, Principal, Role
from harch.placement.query_parser import GPU_MODEL_WORDS

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode

HUBS_NAMED_MAX = 20


@dataclass(frozen=True, slots=True)
class RouteContext:
    hub: HubPort
    limits: HttpLimits
    streams: Streams
    clock: Clock


async def context_of(request: Request) -> RouteContext:
    context: RouteContext = request.app.state.context
    return context


def _caller(request: Request, least: Role) -> Principal:
    context: RouteContext = request.app.state.context
    return require(identify(context.hub, token_from(request.scope["headers"])), least)


async def _viewer(request: Request) -> Principal:
    return _caller(request, Role.VIEWER)


async def _user(request: Request) -> Principal:
    return _caller(request, Role.USER)


async def _operator(request: Request) -> Principal:
    return _caller(request, Role.OPERATOR)


async def _admin(request: Request) -> Principal:
    return _caller(request, Role.ADMIN)


Here = Annotated[RouteContext, Depends(context_of)]
Viewer = Annotated[Principal, Depends(_viewer)]
User = Annotated[Principal, Depends(_user)]
Operator = Annotated[Principal, Depends(_operator)]
Admin = Annotated[Principal, Depends(_admin)]

PageNumber = Annotated[int, Query(ge=1, le=10**9, description="1 is the first page.")]
PerPage = Annotated[int, Query(ge=1, le=PER_PAGE_MAX, description="Items per page.")]
PER_PAGE: int = PER_PAGE_DEFAULT
Offset = Annotated[int, Query(ge=INT64_MIN, le=INT64_MAX, description="Bytes from the start; negative: from the end.")]


def reply(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status_code=status, media_type="application/json")


async def read_json(request: Request, context: RouteContext, type_: type[T]) -> T:
    """The body as `type_`. Raises E0201 or E0202."""
    raw = await read_body(request.receive, context.limits)
    try:
        return msgspec.json.decode(raw, type=type_)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise input_error(error) from None


def speaks_terraform(request: Request) -> bool:
    return request.headers.get("user-agent", "").encode("latin-1", "ignore").startswith(TERRAFORM_AGENT)


def requested_labels(request: Request) -> dict[str, str]:
    """The filters `label.<key>=<value>`."""
    return {
        name.removeprefix("label."): value for name, value in request.query_params.items() if name.startswith("label.")
    }


def find_hub(context: RouteContext, ref: str) -> PeerView:
    wanted = ref.lower()
    for peer in context.hub.peers():
        if wanted in {peer.hub_id.lower(), peer.summary.name.lower() if peer.summary else ""}:
            return peer
    known = ", ".join(peer.hub_id for peer in context.hub.peers()[:HUBS_NAMED_MAX])
    raise HarchError("E0305", f"no hub named `{ref[:64]}`", hint=f"use one of: {known}")


def check_word(name: str, word: str | None, known: Iterable[str]) -> None:
    """A filter by a word that cannot occur would find nothing, as if there were nothing. Raises E0201."""
    words = sorted(known)
    if word is not None and word not in words:
        raise HarchError("E0201", f"`{word[:64]}` is not a {name}", hint=f"use one of {', '.join(words)}", field=name)


def check_model(context: RouteContext, model: str | None) -> None:
    """Raises E0311 for GPUs that no hub has, as far as this one has heard, and that no client has a word for."""
    if model is None or model in GPU_MODEL_WORDS.values():
        return
    known = {gpu.model for peer in context.hub.peers() if peer.summary is not None for gpu in peer.summary.models}
    if model not in known:
        hint = f"use one of {', '.join(sorted(known))}"
        raise HarchError("E0311", f"no hub has GPUs of model `{model[:64]}`", hint=hint, field="model")

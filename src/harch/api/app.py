"""What does one hub serve over HTTP? The application, put together from its routes."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from harch.api import openapi
from harch.api.errors import error_body, error_headers, internal_fault
from harch.api.front import PREFIX, Front, Traffic
from harch.api.hub_port import HubPort
from harch.api.routes import (
    audit,
    carbon,
    carbon_clients,
    carbon_schedules,
    closing,
    data,
    emissions,
    energy,
    energy_clients,
    events,
    hardware,
    health,
    hubs,
    keys,
    logs,
    pipeline_data,
    pipelines,
    policies,
    quotas,
    secrets,
    sentinel,
    series,
    workloads,
)
from harch.api.routes.content import agents as content_of_agents
from harch.api.routes.content import people as content_of_people
from harch.api.routes.context import RouteContext
from harch.base.clock import Clock, SystemClock
from harch.base.errors import HarchError
from harch.base.http.limits import HttpLimits
from harch.base.http.messages import answer_then_drain
from harch.base.http.streams import Streams
from harch.base.tracing.tracer import Tracing

# Named by the public clients, and not served yet.
_LATER = frozenset(
    {
        "carbon",
        "datasets",
        "fine-tuning",
        "inference",
        "inference-endpoints",
        "models",
        "network-policies",
        "pricing",
        "storage-volumes",
    }
)


class ErrorResponse(Response):
    """An error as an answer; a body that was too large is drained first, or the client would not see it."""

    def __init__(self, error: HarchError, limits: HttpLimits, headers: dict[str, str] | None = None) -> None:
        super().__init__(status_code=error.kind.status)
        self._error = error
        self._limits = limits
        self._more = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = error_body(self._error, scope["harch.request_id"])
        headers = [*error_headers(self._error), *self._more]
        if self._error.code == "E0204":
            await answer_then_drain(scope, receive, send, headers=headers, body=body, limits=self._limits)
            return
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": self._error.kind.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def install_refusals(app: FastAPI, limits: HttpLimits) -> None:
    async def harch_error(_: Request, error: Exception) -> Response:
        if not isinstance(error, HarchError):
            raise error
        return ErrorResponse(error, limits)

    async def http_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        headers = {"allow": _allowed(request.scope["path"], error)} if error.status_code == 405 else {}
        return ErrorResponse(_routing_error(request, error), limits, headers=headers)

    async def validation_error(_: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            raise error
        return ErrorResponse(_parameter_error(error), limits)

    async def internal_error(request: Request, _: Exception) -> Response:
        return ErrorResponse(internal_fault(request.scope["harch.request_id"]), limits)

    app.add_exception_handler(HarchError, harch_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(Exception, internal_error)


def _routing_error(request: Request, error: HTTPException) -> HarchError:
    path = request.scope["path"]
    if error.status_code == 405:
        allowed = _allowed(path, error)
        return HarchError(
            "E0208",
            f"{request.method} is not allowed on {path}",
            hint=f"allowed: {allowed}" if allowed else "see /docs",
        )
    if error.status_code == 404:
        noun = path.removeprefix("/v1/").partition("/")[0]
        hint = f"this version does not serve `/{noun}` yet" if noun in _LATER else "/docs lists all paths"
        return HarchError("E0207", f"no such path: {path[:256]}", hint=hint)
    return HarchError("E0201", str(error.detail))


def _allowed(path: str, error: HTTPException) -> str:
    """What the router says, and the one route that it does not know because it is served in front of it."""
    allowed = (error.headers or {}).get("Allow", "")
    return f"{allowed}, POST" if path == "/v1/workloads" else allowed


def _parameter_error(error: RequestValidationError) -> HarchError:
    """The first parameter that is wrong; its value is not repeated."""
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return HarchError(
        "E0201", f"parameter `{name}`: {first['msg'].lower()}", hint="/docs lists the parameters", field=name
    )


DESCRIPTION = (
    "One hub of a HarchOS federation. Every path is also served without the prefix /v1. "
    "Send the API key as `X-API-Key: hsk_…` or `Authorization: Bearer hsk_…`."
)


def create_app(
    hub: HubPort, *, limits: HttpLimits | None = None, clock: Clock | None = None, tracing: Tracing | None = None
) -> Front:
    """The ASGI application of `hub`."""
    limits, clock = limits or HttpLimits(), clock or SystemClock()
    streams = Streams(limits)
    inner = FastAPI(
        title="HarchOS",
        version=hub.version,
        description=DESCRIPTION,
        # FastAPI's own pages load scripts from other hosts; ours do not.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Telemetry goes through HarchOS alone; an environment variable must not make FastAPI send any.
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    inner.state.traffic = traffic = Traffic()
    inner.state.books = series.MonthUse()
    inner.state.context = RouteContext(hub, limits, streams, clock)
    for module in (
        workloads,
        logs,
        hubs,
        closing,
        hardware,
        events,
        health,
        keys,
        quotas,
        secrets,
        audit,
        content_of_people,
        content_of_agents,
        data,
        policies,
        carbon,
        carbon_clients,
        carbon_schedules,
        emissions,
        energy,
        energy_clients,
        pipelines,
        pipeline_data,
        series,
        sentinel,
        openapi,
    ):
        inner.include_router(module.router, prefix=PREFIX)
    inner.openapi = lambda: openapi.describe(inner)  # type: ignore[method-assign]
    install_refusals(inner, limits)
    return Front(hub, inner, limits, streams, traffic, clock, tracing)

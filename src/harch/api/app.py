"""What does one hub serve over HTTP? The application, put together from its routes."""

from __future__ import annotations

from fastapi import FastAPI

from harch.api import openapi
from harch.api.front import PREFIX, Front
from harch.api.hub_port import HubPort
from harch.api.limits import Limits
from harch.api.refusals import install_refusals
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
    secrets,
    sentinel,
    series,
    workloads,
)
from harch.api.routes.context import Context
from harch.api.streams import Streams
from harch.api.traffic import Traffic
from harch.base.clock import Clock, SystemClock
from harch.base.tracing.tracer import Tracing

DESCRIPTION = (
    "One hub of a HarchOS federation. Every path is also served without the prefix /v1. "
    "Send the API key as `X-API-Key: hsk_…` or `Authorization: Bearer hsk_…`."
)


def create_app(
    hub: HubPort, *, limits: Limits | None = None, clock: Clock | None = None, tracing: Tracing | None = None
) -> Front:
    """The ASGI application of `hub`."""
    limits, clock = limits or Limits(), clock or SystemClock()
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
    inner.state.books = series.Books()
    inner.state.context = Context(hub, limits, streams, clock)
    for module in (
        workloads,
        logs,
        hubs,
        closing,
        hardware,
        events,
        health,
        keys,
        secrets,
        audit,
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

"""Is it alive, ready, and how full? The public answers about this hub, and the figures of the whole fleet."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter, Request
from msgspec import Struct
from starlette.responses import PlainTextResponse, Response

from harch.api.access import identify, tenant_scope
from harch.api.dialects.hubs import active_workloads
from harch.api.routes.context import Here, RouteContext, Viewer, reply
from harch.api.schema import answers
from harch.base.errors import HarchError
from harch.base.http.messages import token_from
from harch.base.metrics import OPENMETRICS, OPENMETRICS_TYPE, TEXT_TYPE
from harch.hub.views import WorkloadQuery
from harch.sovereignty.jurisdictions import region_word
from harch.wire import hubs as wire
from harch.wire.hubs import HubSummary

router = APIRouter(tags=["health"])


class Health(wire.Health, frozen=True, kw_only=True):
    """What goes over the wire, with the time."""

    timestamp: datetime


class DetailedHealth(Struct, frozen=True, kw_only=True):
    status: str
    database_status: str  # `connected` is the word that the published SDK tests for
    detail: str
    api_version: str
    uptime_seconds: float
    total_endpoints: int
    active_connections: int


class PlatformMetrics(Struct, frozen=True, kw_only=True):
    """Sums over the hubs that have answered. Utilisation in the SDKs' sense: GPUs given to work, busy or not."""

    total_hubs: int
    total_gpus: int
    available_gpus: int
    gpu_utilization_percent: float
    total_workloads: int
    active_workloads: int
    avg_pue: float


@router.get("", include_in_schema=False)
async def index(here: Here) -> Response:
    return reply({"name": "HarchOS", "hub_id": here.hub.hub_id, "version": here.hub.version, "docs": "/docs"})


@router.get("/health", responses=answers(Health), summary="Health of this hub")
async def health(here: Here) -> Response:
    not_ready = here.hub.ready()
    return reply(
        Health(
            status="degraded" if not_ready else "healthy",
            detail=not_ready,
            version=here.hub.version,
            uptime_seconds=_uptime_s(here),
            region=region_word(here.hub.country),
            country=here.hub.country,
            hub_id=here.hub.hub_id,
            timestamp=here.clock.now(),
        )
    )


@router.get("/healthz", response_class=PlainTextResponse, summary="200 while the process answers")
async def healthz() -> Response:
    return PlainTextResponse("ok\n")


@router.get("/readyz", response_class=PlainTextResponse, summary="200 when ready for work, else 503")
async def readyz(here: Here) -> Response:
    if not_ready := here.hub.ready():
        raise HarchError("E0801", not_ready, hint="it accepts work again when this is over", retry_after_s=1)
    return PlainTextResponse("ready\n")


@router.get("/metrics", response_class=PlainTextResponse, summary="Prometheus exposition")
async def metrics(request: Request, here: Here) -> Response:
    """OpenMetrics with exemplars for readers that accept it. Pipeline metrics need an operator's key: they name
    what tenants run."""
    openmetrics = OPENMETRICS in request.headers.get("accept", "")
    token = token_from(request.scope["headers"])
    of_tenants = bool(token) and tenant_scope(identify(here.hub, token)) is None
    text = here.hub.metrics_text(openmetrics=openmetrics, of_tenants=of_tenants)
    return Response(text, headers={"content-type": OPENMETRICS_TYPE if openmetrics else TEXT_TYPE})


@router.get("/summary", responses=answers(HubSummary), summary="Public summary of this hub")
async def summary(here: Here) -> Response:
    return reply(here.hub.summary())


@router.get("/monitoring/metrics", responses=answers(PlatformMetrics), summary="Metrics of the whole fleet")
async def platform_metrics(_: Viewer, here: Here) -> Response:
    """`total_workloads` counts everything that this hub remembers and what is unfinished at the others."""
    peers = here.hub.peers()
    seen = [peer.summary for peer in peers if peer.summary]
    total, allocated = sum(hub.gpus_total for hub in seen), sum(hub.gpus_allocated for hub in seen)
    own = (await here.hub.workloads(WorkloadQuery(tenant=None, per_page=1))).total
    elsewhere = sum(active_workloads(peer.summary) for peer in peers if not peer.own)
    return reply(
        PlatformMetrics(
            total_hubs=len(peers),
            total_gpus=total,
            available_gpus=sum(hub.gpus_free for hub in seen),
            gpu_utilization_percent=100.0 * allocated / total if total else 0.0,
            total_workloads=own + elsewhere,
            active_workloads=sum(hub.workloads.get("running", 0) for hub in seen),
            avg_pue=sum(hub.pue for hub in seen) / len(seen) if seen else 1.0,
        )
    )


@router.get("/monitoring/health/detailed", responses=answers(DetailedHealth), summary="Detailed health of this hub")
async def detailed_health(request: Request, _: Viewer, here: Here) -> Response:
    not_ready = here.hub.ready()
    return reply(
        DetailedHealth(
            status="degraded" if not_ready else "healthy",
            database_status="degraded" if not_ready else "connected",
            detail=not_ready,
            api_version=here.hub.version,
            uptime_seconds=_uptime_s(here),
            total_endpoints=sum(len(path) for path in request.app.openapi()["paths"].values()),
            active_connections=here.streams.active,
        )
    )


def _uptime_s(here: RouteContext) -> float:
    return max(0.0, (here.clock.now() - here.hub.started_at).total_seconds())

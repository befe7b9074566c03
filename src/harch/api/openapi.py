"""How is the API described to machines and people? `/openapi.json` and `/docs`, hot route included."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import HTMLResponse, Response

from harch.api.dialects.carbon import (
    CarbonAwareSchedule,
    OptimalHub,
    OptimizeResult,
    ScheduleBody,
    ZoneForecast,
    ZoneList,
    ZoneView,
)
from harch.api.dialects.energy import Consumption, EnergyReport, EnergySummary, EnergyWindow
from harch.api.dialects.fields import WorkloadBody
from harch.api.dialects.hubs import HubView, RegionView
from harch.api.dialects.workload_out import FederationPage, WorkloadView
from harch.api.errors import ErrorBody
from harch.api.routes.audit import AuditPage, CheckpointKept, CheckpointOffer, LossAccepted
from harch.api.routes.carbon_clients import CarbonDashboard, CarbonMetrics, CleanestHubRequest, OptimizeRequest
from harch.api.routes.closing import ClosureRequest, HubAction
from harch.api.routes.content.agents import ImageNamed
from harch.api.routes.content.people import FilesArePlaced
from harch.api.routes.context import reply
from harch.api.routes.data import AuthorityKey, AuthorityRemoved, DataRemovedReply, NewTag
from harch.api.routes.emissions import (
    EmissionsData,
    EmissionsForecast,
    LocationView,
    MeanIntensity,
    MeanIntensityRequest,
)
from harch.api.routes.hardware import DefragmentationRequest, GpuPatch, NodeDrain, NodePatch, RackPatch, ZonePatch
from harch.api.routes.health import DetailedHealth, Health, PlatformMetrics
from harch.api.routes.hubs import RegionList
from harch.api.routes.keys import Identity, KeyRequest, KeyView, RevokedKey, Verified
from harch.api.routes.pipeline_data import NewEventReplay
from harch.api.routes.pipelines import (
    Approval,
    Done,
    LetterReplay,
    NewHalt,
    NewPipeline,
    NewReplay,
    NewScale,
    NewVersion,
    Rejected,
)
from harch.api.routes.policies import BundleFiles, DecisionList, World
from harch.api.routes.secrets import SecretDone, SecretName, SecretValue
from harch.api.routes.sentinel import (
    AlertRecordsReceived,
    AlertRecordsSent,
    HubsAround,
    KeyKnown,
    KeysRemembered,
    KeysValid,
    PresentedKey,
    QuestionFor,
)
from harch.api.routes.workloads import Deleted, WorkloadPatch
from harch.api.schema import accepts, answers, components
from harch.base.errors import REGISTRY, ErrorKind, HarchError
from harch.hub.data import NewData
from harch.hub.pipelines.views import FileView
from harch.placement.explanation import Explanation
from harch.sovereignty.audit.checkpoints import SignedCheckpoint
from harch.wire.audit import AuditLoss, SigningKey
from harch.wire.carbon import CarbonPlanView, GridForecast, HubReport, JobCarbon, PowerList
from harch.wire.content import (
    ArtifactView,
    ChunksStored,
    Collected,
    ContentCheck,
    ContentStatus,
    FilesPlaced,
    FilesRequest,
    TransferView,
    TreeView,
)
from harch.wire.data import AuthorityView, DataLineage, DataView, DataWhere
from harch.wire.energy import BidList, BookView, PlanView, PricesView
from harch.wire.events import EventPage
from harch.wire.hardware import Defragmentation, GpuView, NodeState, RackState, TopologyView, ZoneState
from harch.wire.hubs import HubCapacity, HubClosure, HubSummary
from harch.wire.pages import Page
from harch.wire.pipelines import (
    ActionList,
    ApplyView,
    PipelineDetails,
    PipelineList,
    PipelineView,
    ReplayRun,
    ReplayView,
    ResultsView,
    SourceKeyView,
)
from harch.wire.policies import PolicyStatus
from harch.wire.quotas import TenantQuota

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #8884; }
code { font: 14px/1.5 ui-monospace, monospace; }
:root { color-scheme: light dark; }
"""


def routes_page(openapi: dict[str, Any]) -> str:
    """Every route of the OpenAPI document, in a table."""
    rows = []
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            parameters = " ".join(
                f"<code>{escape(parameter['name'])}</code>"
                for parameter in operation.get("parameters", ())
                if parameter["in"] == "query"
            )
            rows.append(
                f"<tr><td><code>{method.upper()}</code></td><td><code>{escape(path)}</code></td>"
                f"<td>{escape(operation.get('summary', ''))}<br>{parameters}</td></tr>"
            )
    info = openapi["info"]
    return _page(
        f"{info['title']} {info['version']}",
        f"<p>{escape(info['description'])}</p>"
        '<p>In full: <a href="/openapi.json">openapi.json</a>. Error codes: <a href="/docs/errors">list</a>.</p>'
        f"<table><tr><th>Method</th><th>Path</th><th>What it does</th></tr>{''.join(rows)}</table>",
    )


def errors_page() -> str:
    rows = "".join(
        f'<tr><td><a href="/docs/errors/{kind.code}"><code>{kind.code}</code></a></td><td>{kind.status}</td>'
        f"<td>{escape(kind.title)}</td></tr>"
        for kind in REGISTRY.values()
    )
    return _page("Error codes", f"<table><tr><th>Code</th><th>HTTP</th><th>Meaning</th></tr>{rows}</table>")


def error_page(kind: ErrorKind) -> str:
    body = f"<p>HTTP {kind.status}</p><p>{escape(kind.explanation)}</p>"
    return _page(f"{kind.code}: {kind.title}", f'{body}<p><a href="/docs/errors">All codes</a></p>')


def _page(title: str, body: str) -> str:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{escape(title)}</h1>{body}</body></html>'


router = APIRouter(include_in_schema=False)

_SCHEMAS: tuple[Any, ...] = (
    HubsAround,
    KeyKnown,
    PresentedKey,
    KeysRemembered,
    KeysValid,
    QuestionFor,
    AlertRecordsReceived,
    AlertRecordsSent,
    ErrorBody,
    WorkloadBody,
    WorkloadPatch,
    WorkloadView,
    Page[WorkloadView],
    FederationPage,
    Deleted,
    Explanation,
    HubView,
    Page[HubView],
    HubCapacity,
    HubClosure,
    ClosureRequest,
    HubAction,
    HubSummary,
    GpuView,
    Page[GpuView],
    NodeState,
    Page[NodeState],
    NodePatch,
    NodeDrain,
    GpuPatch,
    ZoneState,
    Page[ZoneState],
    ZonePatch,
    RackState,
    Page[RackState],
    RackPatch,
    TopologyView,
    Defragmentation,
    DefragmentationRequest,
    RegionView,
    RegionList,
    EventPage,
    Health,
    DetailedHealth,
    PlatformMetrics,
    Identity,
    Verified,
    KeyRequest,
    KeyView,
    Page[KeyView],
    RevokedKey,
    SecretValue,
    Page[SecretName],
    Page[TenantQuota],
    SecretDone,
    AuditLoss,
    AuditPage,
    LossAccepted,
    SignedCheckpoint,
    Page[SignedCheckpoint],
    CheckpointOffer,
    CheckpointKept,
    SigningKey,
    BundleFiles,
    NewData,
    DataView,
    Page[DataView],
    NewTag,
    DataLineage,
    DataWhere,
    AuthorityView,
    Page[AuthorityView],
    AuthorityKey,
    AuthorityRemoved,
    DataRemovedReply,
    TreeView,
    TransferView,
    ChunksStored,
    ContentStatus,
    Collected,
    ContentCheck,
    FilesRequest,
    FilesPlaced,
    FilesArePlaced,
    Page[ArtifactView],
    ImageNamed,
    PolicyStatus,
    DecisionList,
    World,
    PowerList,
    GridForecast,
    HubReport,
    CarbonAwareSchedule,
    CarbonPlanView,
    JobCarbon,
    ScheduleBody,
    PlanView,
    PricesView,
    BidList,
    BookView,
    EnergySummary,
    EnergyReport,
    EnergyWindow,
    Consumption,
    ZoneView,
    ZoneList,
    ZoneForecast,
    CleanestHubRequest,
    OptimalHub,
    OptimizeRequest,
    OptimizeResult,
    CarbonMetrics,
    CarbonDashboard,
    EmissionsData,
    EmissionsForecast,
    MeanIntensityRequest,
    MeanIntensity,
    LocationView,
    NewHalt,
    NewPipeline,
    NewScale,
    NewVersion,
    NewEventReplay,
    NewReplay,
    Approval,
    Rejected,
    LetterReplay,
    Done,
    ApplyView,
    FileView,
    PipelineView,
    PipelineList,
    PipelineDetails,
    ActionList,
    ReplayRun,
    ReplayView,
    ResultsView,
    SourceKeyView,
)

_SUBMIT: dict[str, Any] = {
    "tags": ["workloads"],
    "summary": "Submits a workload; durable once answered",
    "description": "200 instead of 201 if it is a repeated request: same Idempotency-Key, or same name and fields "
    "within 10 minutes.",
    "operationId": "submit_workload",
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "schema": {"type": "string"},
            "description": "Identifies this request for 24 hours, so that it can be retried safely.",
        }
    ],
    **accepts(WorkloadBody),
    "responses": {
        str(status): answer
        for status, answer in {
            **answers(WorkloadView, "Created.", 201),
            **answers(WorkloadView, "Created before.", 200),
            **answers(ErrorBody, "Refused.", 400),
        }.items()
    },
}


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, built once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
        )
        paths = document["paths"]
        paths["/v1/workloads"] = {**paths.get("/v1/workloads", {}), "post": _SUBMIT}
        for operations in paths.values():
            for operation in operations.values():
                # FastAPI announces its own validation answer, which this API never gives.
                operation["responses"].pop("422", None)
        document["components"] = {
            "schemas": components(_SCHEMAS),
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        }
        document["security"] = [{"key": []}, {"bearer": []}]
        app.openapi_schema = document
    return app.openapi_schema


@router.get("/openapi.json")
async def openapi_json(request: Request) -> Response:
    return reply(request.app.openapi())


@router.get("/docs")
async def docs(request: Request) -> Response:
    return HTMLResponse(routes_page(request.app.openapi()))


@router.get("/docs/errors")
async def docs_errors() -> Response:
    return HTMLResponse(errors_page())


@router.get("/docs/errors/{code}")
async def docs_error(code: str) -> Response:
    kind = REGISTRY.get(code.upper())
    if kind is None:
        raise HarchError("E0207", f"no error has the code `{code[:16]}`", hint="/docs/errors lists them")
    return HTMLResponse(error_page(kind))

"""How is the API described to machines and people? `/openapi.json` and `/docs`, hot route included."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import HTMLResponse, Response

from harch.api.dialects.carbon import OptimalHub, OptimizeResult, ZoneForecast, ZoneList, ZoneView
from harch.api.dialects.carbon_schedule import CarbonAwareSchedule, ScheduleBody
from harch.api.dialects.energy import Consumption, EnergyReport, EnergySummary, EnergyWindow
from harch.api.dialects.federation_work import FederationPage
from harch.api.dialects.fields import WorkloadBody
from harch.api.dialects.hubs import HubCapacity, HubView, RegionView
from harch.api.dialects.pages import Page
from harch.api.dialects.workload_out import WorkloadView
from harch.api.docs_page import error_page, errors_page, routes_page
from harch.api.errors import ErrorBody
from harch.api.routes.audit import AuditLoss, AuditPage, CheckpointKept, CheckpointOffer, LossAccepted, SigningKey
from harch.api.routes.carbon import PowerList
from harch.api.routes.carbon_clients import CarbonDashboard, CarbonMetrics, HubAsk, OptimizeAsk
from harch.api.routes.closing import ClosureAsk, HubAction
from harch.api.routes.context import reply
from harch.api.routes.data import AuthorityKey, AuthorityRemoved, NewTag
from harch.api.routes.emissions import EmissionsData, EmissionsForecast, LocationView, MeanAsk, MeanIntensity
from harch.api.routes.events import EventPage
from harch.api.routes.hardware import DefragmentationAsk, GpuPatch, NodeDrain, NodePatch, RackPatch, ZonePatch
from harch.api.routes.health import DetailedHealth, Health, PlatformMetrics
from harch.api.routes.hubs import RegionList
from harch.api.routes.keys import Identity, KeyRequest, KeyView, RevokedKey, Verified
from harch.api.routes.pipeline_data import NewEventReplay
from harch.api.routes.pipelines import (
    Approval,
    Done,
    LetterReplay,
    NewPipeline,
    NewReplay,
    NewScale,
    NewVersion,
    Rejected,
)
from harch.api.routes.policies import BundleFiles, DecisionList, World
from harch.api.routes.secrets import SecretDone, SecretName, SecretValue
from harch.api.routes.sentinel import (
    HubsAround,
    KeyKnown,
    KeyShown,
    KeysRemembered,
    KeysValid,
    QuestionFor,
    RecordsHeard,
    RecordsTold,
)
from harch.api.routes.workloads import Deleted, WorkloadPatch
from harch.api.schema import accepts, answers, components
from harch.base.errors import REGISTRY, HarchError
from harch.hub.carbon.plan_view import CarbonPlanView
from harch.hub.carbon.reports import HubReport, JobCarbon
from harch.hub.carbon.views import GridForecast
from harch.hub.closing import HubClosure
from harch.hub.data import AuthorityView, DataLineage, DataView, DataWhere, NewData
from harch.hub.energy.views import BidList, BookView, PlanView, PricesView
from harch.hub.hardware_views import NodeState, RackState, ZoneState
from harch.hub.operations import Defragmentation
from harch.hub.pipelines.views import (
    ActionList,
    ApplyView,
    FileView,
    PipelineDetails,
    PipelineList,
    PipelineView,
    ReplayRun,
    ReplayView,
    ResultsView,
    SourceKeyView,
)
from harch.hub.policy.service import PolicyStatus
from harch.hub.views import GpuView, HubSummary
from harch.placement.explanation import Explanation
from harch.placement.topology_view import TopologyView
from harch.sovereignty.audit.checkpoints import SignedCheckpoint

router = APIRouter(include_in_schema=False)

_SCHEMAS: tuple[Any, ...] = (
    HubsAround,
    KeyKnown,
    KeyShown,
    KeysRemembered,
    KeysValid,
    QuestionFor,
    RecordsHeard,
    RecordsTold,
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
    ClosureAsk,
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
    DefragmentationAsk,
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
    HubAsk,
    OptimalHub,
    OptimizeAsk,
    OptimizeResult,
    CarbonMetrics,
    CarbonDashboard,
    EmissionsData,
    EmissionsForecast,
    MeanAsk,
    MeanIntensity,
    LocationView,
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
    "summary": "Submits a workload; it is on disk when the answer comes",
    "description": "200 instead of 201 if it is a repeated request: same Idempotency-Key, or same name and fields "
    "within 10 minutes.",
    "operationId": "submit_workload",
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "schema": {"type": "string"},
            "description": "Names this request for 24 hours, so that it can be repeated safely.",
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

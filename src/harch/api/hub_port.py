"""What does the API need of a hub?

Protocols of the control plane, the other hubs, carbon and energy; nothing else of the hub is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from harch.api.pipeline_port import PipelinePort
from harch.carbon.ledger.chain import LedgerHead
from harch.hub.agent_gateway import AgentLink
from harch.hub.audit.table import AuditQuery, AuditRecord
from harch.hub.carbon.views import PastHour, ReportQuery
from harch.hub.data import NewData
from harch.hub.federation.alerts import AlertExchange
from harch.hub.federation.answers import FederationWork
from harch.hub.jobs.state import Closed
from harch.hub.store.records import AgentKey
from harch.hub.views import KeyInfo, LiveStatus, LogPage, PeerView, Principal, Role, WorkloadPage, WorkloadQuery
from harch.placement.explanation import Explanation
from harch.sovereignty.audit.checkpoints import KeyStatement, SignedCheckpoint
from harch.sovereignty.audit.verification import Loss
from harch.sovereignty.declassification import Declassification
from harch.sovereignty.policy.document import Document
from harch.sovereignty.policy.evaluation import PastDecision
from harch.sovereignty.tags import DataKind
from harch.wire.audit import AcceptedLoss
from harch.wire.carbon import CarbonPlanView, GridForecast, HubReport, JobCarbon, PowerView
from harch.wire.content import (
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
from harch.wire.events import EventRecord
from harch.wire.hardware import Defragmentation, GpuView, NodeState, RackState, TopologyView, ZoneState
from harch.wire.hubs import HubClosure, HubSummary
from harch.wire.policies import PolicyStatus
from harch.wire.quotas import TenantQuota
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import CarbonPreferences, WorkloadSpec


class FederationPort(Protocol):
    """The other hubs, asked now."""

    async def work(self, *, tenant: str | None) -> FederationWork:
        """The unfinished work of all hubs that answer within two seconds; those that do not are named."""
        ...

    def exchange_alerts(self, records: bytes) -> AlertExchange:
        """What this hub's SENTINEL has to tell, against what it has to know."""
        ...

    def has_alert_news(self, position: int) -> bool:
        """Whether an exchange would tell this hub's SENTINEL, at this position, anything new."""
        ...

    async def query_telemetry(self, hub_id: str, question: bytes, *, within_s: float) -> bytes:
        """Another hub's answer about its telemetry, as it came."""
        ...


# What does the API need of a hub about power? The doors to its carbon figures and to its purchases of energy.


class CarbonPort(Protocol):
    """On what power this hub and the others run, what it will be, and what the work here used."""

    def now(self) -> list[PowerView]:
        """Every hub, this one first."""
        ...

    def forecast(self, hub_id: str, hours: int) -> GridForecast:
        """E0305 for a hub that is not there, E0801 while nothing can be said."""
        ...

    async def past(self, start: datetime, end: datetime) -> list[PastHour]:
        """The grid of this hub, hour by hour."""
        ...

    def plan(self, *, tenant: str | None) -> CarbonPlanView:
        """The newest plan; budgets of this tenant only, or of all."""
        ...

    async def report(self, query: ReportQuery) -> HubReport: ...

    async def ledger_head(self) -> LedgerHead:
        """Where the ledger on disk ends."""
        ...

    async def ledger_lines(self, *, after: int, upto: int, limit: int) -> list[tuple[int, bytes]]:
        """Lines of an export of the ledger with their numbers."""
        ...

    async def why(self, workload_id: str, *, tenant: str | None) -> JobCarbon: ...


class EnergyPort(Protocol):
    """What power this hub plans to buy, and what it has bought."""

    def plan(self) -> PlanView:
        """E0801 before the first plan, E0340 if nothing can supply the load."""
        ...

    def prices(self) -> PricesView: ...

    def bids(self) -> BidList: ...

    async def book(self, days: int) -> BookView:
        """Of bids that were delivered in the last days, or will be."""
        ...


# What does the API need of a hub? The one door between HTTP and the control plane.


class AuditPort(Protocol):
    """One hub's audit chain, and the checkpoints of others that it keeps."""

    async def records(self, query: AuditQuery) -> list[AuditRecord]: ...

    async def lines(self, *, after: int, upto: int, limit: int) -> list[tuple[int, bytes]]:
        """Lines of an export with their numbers."""
        ...

    async def head(self) -> SignedCheckpoint: ...

    async def checkpoints(self, hub: str | None) -> list[SignedCheckpoint]: ...

    async def keep(self, signed: SignedCheckpoint, statements: Iterable[KeyStatement]) -> None: ...

    async def rotate_key(self, *, actor: str) -> str:
        """Answers the public half of the new key."""
        ...

    @property
    def loss(self) -> Loss | None:
        """What the chain is known to lack: then the hub writes nothing."""
        ...

    async def losses(self) -> list[AcceptedLoss]: ...

    async def accept_loss(self, *, lost_seq: int, actor: str, why: str) -> AcceptedLoss:
        """Lets the hub go on without it. Raises E0304 if that is not what is lost."""
        ...


class PolicyPort(Protocol):
    """The policy in force at one hub, and what was decided."""

    def status(self) -> PolicyStatus: ...

    def world(self) -> Document: ...

    async def activate(self, files: dict[str, str], *, actor: str) -> PolicyStatus: ...

    async def deactivate(self, *, actor: str) -> PolicyStatus: ...

    async def decisions(self, limit: int) -> list[PastDecision]: ...


class DataPort(Protocol):
    """One hub's catalog of data."""

    async def add(self, new: NewData, *, tenant: str, actor: str) -> DataView: ...

    def find(self, ref: str, *, tenant: str | None) -> DataView: ...

    def listed(self, *, tenant: str | None, kind: DataKind | None, name: str | None) -> list[DataView]: ...

    async def retag(
        self,
        ref: str,
        raw_tag: dict[str, object],
        declassification: Declassification | None,
        *,
        tenant: str | None,
        actor: str,
    ) -> DataView: ...

    def lineage(self, ref: str, *, tenant: str | None) -> DataLineage: ...

    def where(self, ref: str, *, tenant: str | None) -> DataWhere: ...

    async def remove(self, ref: str, *, tenant: str | None, actor: str) -> DataView: ...

    def authorities(self) -> list[AuthorityView]: ...

    async def add_authority(self, name: str, public_key: str, *, actor: str) -> AuthorityView: ...

    async def remove_authority(self, name: str, *, actor: str) -> None: ...


class ContentPort(Protocol):
    """One hub's content: chunks in, trees out, files of work; see `hub.content.service`."""

    @property
    def upload_room(self) -> asyncio.Semaphore:
        """To be taken before the body of an upload is read."""
        ...

    async def missing(self, raw_ids: bytes, *, tenant: str) -> bytes: ...

    async def put(self, body: bytes, *, tenant: str) -> ChunksStored: ...

    async def tree(self, ref: str, *, tenant: str | None) -> TreeView | TransferView: ...

    async def fetch(self, ref: str, raw_ids: bytes, *, tenant: str | None) -> bytes: ...

    async def snapshot(self, workload: Workload, request: FilesRequest) -> TreeView: ...

    async def place(self, workload: Workload, request: FilesPlaced) -> None: ...

    async def status(self, *, tenant: str | None) -> ContentStatus: ...

    async def collect(self, *, grace_s: float | None) -> Collected: ...

    async def check(self) -> ContentCheck: ...

    def workload_of_agent(self, caller: Principal, workload_id: str) -> Workload: ...

    async def tree_for(self, workload: Workload, ref: str) -> TreeView | TransferView: ...

    async def fetch_for(self, workload: Workload, ref: str, raw_ids: bytes) -> bytes: ...

    async def image(self, workload: Workload, reference: str) -> TreeView: ...

    async def put_image(self, workload: Workload, reference: str, digest: str) -> TreeView: ...


class OperationsPort(Protocol):
    """One hub's hardware as it is now, and what an operator may change of it. Unknown ids: E0311."""

    async def nodes(self) -> list[NodeState]: ...

    async def racks(self) -> list[RackState]: ...

    async def zones(self) -> list[ZoneState]: ...

    def topology(self) -> TopologyView: ...

    async def change_node(
        self, node_id: str, *, cordoned: bool | None, nvlink: tuple[float | None] | None, why: str
    ) -> NodeState:
        """None leaves it as it is; `nvlink` (None,) is as in the fleet file again."""
        ...

    async def drain_node(self, node_id: str, *, why: str) -> NodeState: ...

    async def change_gpu(self, gpu_id: str, *, healthy: bool, why: str) -> None: ...

    async def change_zone(self, zone_id: str, *, heat_kw_max: float | None, why: str) -> ZoneState: ...

    async def change_rack(self, rack_id: str, *, uplink_factor: float | None, why: str) -> RackState: ...

    async def closure(self) -> HubClosure: ...

    async def close_hub(self, closed: Closed, *, why: str) -> HubClosure:
        """Cordons, drains, retires or opens the hub; E0304 for a change that cannot be made."""
        ...

    async def defragment(self, ref: str, *, apply: bool) -> Defragmentation:
        """The plan for a waiting workload; E0304 if `apply` and nothing can be done."""
        ...


class CredentialsPort(Protocol):
    """API keys, and the secrets of tenants. Neither is ever shown again."""

    async def create_key(
        self, *, name: str, tenant: str, role: Role, actor: str, agent_id: str = "", node_ids: tuple[str, ...] = ()
    ) -> tuple[KeyInfo, str]:
        """`agent_id`: the agent that a key of that role is for, with its nodes; else the first one that uses it."""
        ...

    def agents_of(self, key_id: str) -> tuple[AgentKey, ...]: ...

    async def release_key(self, key_id: str, *, tenant: str | None, actor: str) -> KeyInfo:
        """Forgets whose key it is: the next agent that shows it has it."""
        ...

    async def keys(self, tenant: str | None) -> list[KeyInfo]: ...

    async def revoke_key(self, key_id: str, *, tenant: str | None, actor: str) -> KeyInfo: ...

    def revoked_count(self) -> int:
        """How many keys have been revoked so far."""
        ...

    async def put_secret(self, name: str, value: str, *, tenant: str, actor: str) -> None: ...

    async def secret_names(self, *, tenant: str) -> list[str]: ...

    async def delete_secret(self, name: str, *, tenant: str, actor: str) -> None: ...


class ReferencesPort(Protocol):
    """Names become ids; what the hub has never heard of is an error, because an empty answer reads as an all-clear."""

    async def workload(self, ref: str, *, tenant: str | None) -> str:
        """Raises E0301."""
        ...

    async def data(self, ref: str, *, tenant: str | None) -> str:
        """Raises E0906."""
        ...

    async def subject(self, ref: str, *, tenant: str | None) -> str:
        """Of events and audit entries. Raises E0351."""
        ...

    async def tenant(self, name: str) -> str:
        """Raises E0350."""
        ...


class HubPort(Protocol):
    """One hub's control plane. Every method may raise `HarchError`; `tenant` None means all tenants.

    `actor` is who asks, for the audit chain: the id of the API key.
    """

    @property
    def audit(self) -> AuditPort: ...

    @property
    def policies(self) -> PolicyPort: ...

    @property
    def operations(self) -> OperationsPort: ...

    @property
    def data(self) -> DataPort: ...

    @property
    def content(self) -> ContentPort: ...

    @property
    def credentials(self) -> CredentialsPort: ...

    @property
    def references(self) -> ReferencesPort: ...

    @property
    def federation(self) -> FederationPort: ...

    @property
    def carbon(self) -> CarbonPort: ...

    @property
    def energy(self) -> EnergyPort: ...

    @property
    def pipelines(self) -> PipelinePort: ...

    @property
    def hub_id(self) -> str: ...

    @property
    def country(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def started_at(self) -> datetime: ...

    def ready(self) -> str:
        """Empty when ready, else the reason."""
        ...

    def authenticate(self, token: str) -> Principal | None: ...

    def is_sentinel(self, token: str) -> bool:
        """Whether this is the key of the hub's own SENTINEL."""
        ...

    async def submit(
        self, spec: WorkloadSpec, *, tenant: str, annotations: dict[str, str], idempotency_key: str | None, actor: str
    ) -> tuple[Workload, bool]:
        """The workload, and whether this call created it. It is on disk when this returns."""
        ...

    async def workload(self, ref: str, *, tenant: str | None) -> Workload:
        """By id, or the newest of that name."""
        ...

    async def workloads(self, query: WorkloadQuery) -> WorkloadPage: ...

    def live_status(self, workload: Workload) -> LiveStatus: ...

    async def replace_spec(
        self, ref: str, spec: WorkloadSpec, *, tenant: str | None, annotations: dict[str, str], actor: str
    ) -> Workload:
        """Only before the first start; E0304 afterwards."""
        ...

    async def set_carbon_preferences(
        self, ref: str, preferences: CarbonPreferences, *, tenant: str | None, annotations: dict[str, str]
    ) -> Workload:
        """What it wants of its power from now on; E0402 if a limit leaves no hub and hour."""
        ...

    async def relabel(self, ref: str, labels: dict[str, str], *, tenant: str | None) -> Workload: ...

    async def pause(self, ref: str, *, tenant: str | None) -> Workload: ...

    async def resume(self, ref: str, *, tenant: str | None) -> Workload: ...

    async def restart(
        self, ref: str, *, tenant: str | None, reason: str, idempotency_key: str | None, actor: str
    ) -> Workload:
        """Running work starts again as its next attempt; ended work is submitted again; E0304 for what waits."""
        ...

    async def stop(self, ref: str, *, tenant: str | None, reason: str) -> Workload: ...

    async def delete(self, ref: str, *, tenant: str | None) -> Workload:
        """Stops it if it runs, and hides it from lists."""
        ...

    def quotas(self, *, tenant: str | None) -> list[TenantQuota]: ...

    def plan(self, spec: WorkloadSpec, *, tenant: str) -> Explanation:
        """A dry run: nothing is stored."""
        ...

    async def why(self, ref: str, *, tenant: str | None) -> Explanation: ...

    def summary(self) -> HubSummary: ...

    def peers(self) -> list[PeerView]:
        """Every hub of the fleet, this one included (`own`)."""
        ...

    def gpus(self, *, tenant: str | None) -> list[GpuView]: ...

    async def events(
        self, *, after: int, limit: int, tenant: str | None, subject: str | None, kind: str | None
    ) -> list[EventRecord]: ...

    async def wait_for_event(self, after: int, timeout_s: float) -> None:
        """Returns when an event with `seq > after` exists, or at the timeout."""
        ...

    def last_event(self) -> int: ...

    async def read_log(
        self,
        ref: str,
        *,
        tenant: str | None,
        rank: int,
        attempt: int | None,
        offset: int,
        bytes_max: int,
        since_s: float | None = None,
        preparation: bool = False,
    ) -> LogPage: ...

    async def attach_agent(self, link: AgentLink, *, key_id: str) -> None:
        """Runs until the connection ends. `key_id` is the key that it was opened with."""
        ...

    def metrics_text(self, *, openmetrics: bool = False, of_tenants: bool = False) -> bytes:
        """Prometheus exposition; `of_tenants`: with what names somebody's pipelines."""
        ...

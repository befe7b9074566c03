"""What can be asked of a hub, and what does it answer? The values between the control plane and the API."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from harch.workloads.lifecycle import State, Workload


class Role(StrEnum):
    """What a key may do; each role may do what the ones before it may, `agent` aside."""

    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"
    AGENT = "agent"


class Principal(Struct, frozen=True, kw_only=True):
    """Who is calling."""

    key_id: str
    name: str
    tenant: str
    role: Role


class KeyInfo(Struct, frozen=True, kw_only=True):
    """An API key without its secret; `prefix` is what people recognise it by."""

    id: str
    name: str
    tenant: str
    role: Role
    prefix: str
    created_at: datetime
    last_used_at: datetime | None = None
    revoked: bool = False


class WorkloadQuery(Struct, frozen=True, kw_only=True):
    """A page of workloads, newest first. `tenant` None: all tenants (operators only)."""

    tenant: str | None
    page: int = 1
    per_page: int = 20
    state: State | None = None
    type: str | None = None
    name: str | None = None
    active: bool = False  # only those that are not in a final state
    guests: bool = False  # the work of other hubs that is here under a lease, instead of the hub's own
    labels: dict[str, str] = {}


class WorkloadPage(Struct, frozen=True, kw_only=True):
    items: list[Workload]
    total: int


class EventRecord(Struct, frozen=True, kw_only=True):
    """One line of the hub's history. `seq` grows without gaps and is the SSE event id."""

    seq: int
    at: datetime
    kind: str  # e.g. workload.submitted, workload.running, agent.lost, store.failed
    subject: str
    tenant: str
    message: str
    data: dict[str, object] = {}


class ModelCapacity(Struct, frozen=True, kw_only=True):
    """GPUs of one model at one hub. `free_shapes[k]` counts nodes with exactly k+1 free GPUs."""

    model: str
    memory_gb: int
    total: int
    free: int
    gpus_per_node_max: int
    free_shapes: list[int]


class NodeMaxima(Struct, frozen=True, kw_only=True):
    """The largest node of a hub: what one task can have at most."""

    cpus: float
    memory_gb: float
    storage_gb: float | None = None  # None: a hub of an earlier version, which does not say


class HubSummary(Struct, frozen=True, kw_only=True):
    """What a hub tells anybody who asks: numbers about itself, never about its tenants."""

    hub_id: str
    name: str
    country: str
    grid_zone: str
    latitude: float
    longitude: float
    pue: float
    provenance: str
    status: str  # ready, cordoned, draining, retired, error
    status_detail: str
    version: str
    started_at: datetime
    at: datetime
    url: str
    gpus_total: int
    gpus_free: int  # on nodes that an agent serves
    gpus_allocated: int
    models: list[ModelCapacity]
    node_max: NodeMaxima
    nodes_total: int
    nodes_up: int
    cpus_total: float
    cpus_free: float
    memory_gb_total: float
    memory_gb_free: float
    storage_gb_total: float
    process_slots_total: int
    process_slots_free: int
    workloads: dict[str, int]  # unfinished work that it owns, by state, wherever it runs: over hubs each counts once
    agents: int
    storage_gb_free: float | None = None  # as above
    lent: dict[str, int] = {}  # of `workloads`, what other hubs run
    guests: dict[str, int] = {}  # of other hubs, here for them: each is among the `workloads` of its owner
    counts_gpu_memory: bool = False  # of shares; False: a hub of an earlier version, which cannot read such work


class Sight(StrEnum):
    """How well another hub is seen. Only of one that is `linked`, its own status says more."""

    LINKED = "linked"
    CUT_OFF = "cut off"  # alive, as others say, but there is no link to it: a part of the network is down
    SUSPECTED = "suspected"  # it was heard, and is silent now: dead, or behind a cut
    UNHEARD = "unheard"  # not heard since this hub started
    RETIRED = "retired"  # gone for good
    STRANGER = "no member"  # the fleet has it, the federation does not


class PeerView(Struct, frozen=True, kw_only=True):
    """A hub as seen from here. `summary` is the last one received; `reachable`: it is alive, and there is a link.

    `age_s` is the time since its last sign of life: until then its figures were true.
    """

    hub_id: str
    url: str
    reachable: bool
    age_s: float | None
    summary: HubSummary | None
    own: bool = False
    error: str = ""
    rtt_ms: float | None = None  # of the link to it, measured
    sight: Sight = Sight.LINKED
    via: str = ""  # the hub that relayed its last sign of life; empty if it came directly


class GpuView(Struct, frozen=True, kw_only=True):
    """One GPU with who holds it. `workload_id` is empty for free ones and for other tenants' work."""

    id: str
    hub_id: str
    node_id: str
    rack_id: str
    index: int
    model: str
    memory_gb: int
    island: int
    pcie_switch: int
    numa: int
    provenance: str
    status: str  # free, allocated (at least a part of it), unavailable
    free_milli: int = 1000  # thousandths that may be given
    held_milli: int = 0  # thousandths that work holds; an unhealthy GPU gives nothing, whatever is held of it
    healthy: bool = True
    power_w: int = 0  # rated
    workload_id: str = ""


class LogPage(Struct, frozen=True, kw_only=True):
    """A piece of a task's output. Ask again from `next_offset`; `eof`: nothing more will come."""

    offset: int
    next_offset: int
    data: bytes
    eof: bool

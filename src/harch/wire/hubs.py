"""What does a hub answer about itself and the others? Capacity in numbers, standing, health, and what it still has."""

# harch: pure

from __future__ import annotations

from datetime import datetime

from msgspec import UNSET, Struct, UnsetType, field

from harch.wire.pages import Metadata


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
    gpus_allocated: int = 0
    models: list[ModelCapacity]
    node_max: NodeMaxima = NodeMaxima(cpus=0.0, memory_gb=0.0)  # fits nothing: a hub that does not say
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
    # Of other hubs, here for them: each is among the `workloads` of its owner.
    borrowed: dict[str, int] = field(default_factory=dict, name="guests")
    counts_gpu_memory: bool = False  # of shares; False: a hub of an earlier version, which cannot read such work
    # What its nodes can prepare: `content` (code and data that travel), `environments`, `images`.
    capabilities: tuple[str, ...] = ()


class HubCapacity(Struct, frozen=True, kw_only=True):
    """Whole cores, rounded down."""

    total_gpus: int = 0
    available_gpus: int = 0
    total_cpu_cores: int = 0
    available_cpu_cores: int = 0
    total_memory_gb: float = 0
    available_memory_gb: float = 0
    total_storage_gb: float = 0
    available_storage_gb: float = 0


class HubSpec(Struct, frozen=True, kw_only=True):
    name: str
    region: str
    tier: str
    sovereignty_level: str
    gpu_types: list[str]
    auto_scale: bool
    min_gpu_count: int
    max_gpu_count: int
    carbon_aware_scheduling: bool
    labels: dict[str, str]


class Hub(Struct, frozen=True, kw_only=True):
    """A hub as seen from the one that was asked; `age_s` is the age of every figure.

    `status` uses the public clients' words, `standing` ours: what the hub says of itself (`ready`, `cordoned`,
    `draining`, `retired`, `error`) as long as it is heard, else how it is seen (`suspected`, `cut off`, `unheard`, …).
    """

    id: str
    name: str
    region: str = ""
    country: str = ""
    tier: str = ""
    status: str = ""
    standing: str = ""
    created_at: datetime | None = None
    metadata: Metadata | None = None
    spec: HubSpec | None = None
    capacity: HubCapacity | UnsetType = UNSET  # left out where nobody knows it
    endpoint: str | None = None
    active_workloads: int = 0
    provenance: str = ""
    reachable: bool = True
    own: bool = False
    age_s: float | None = None
    error: str = ""
    rtt_ms: float | None = None  # of the link from the asked hub
    via: str = ""  # who relayed its last sign of life; empty if it came directly
    summary: HubSummary | None = None
    carbon_metrics: None = None


class Remaining(Struct, frozen=True, kw_only=True):
    """Unfinished work that this hub answers for."""

    running: int = 0  # own work on its GPUs
    waiting: int = 0  # own work that waits or is held back
    lent: int = 0  # own work that other hubs run: its owner is here, for life
    # Of other hubs: running, held for a bid, or ended and not yet on its owner's disk.
    borrowed: int = field(default=0, name="guests")

    @property
    def total(self) -> int:
        return self.running + self.waiting + self.lent + self.borrowed

    @property
    def sentence(self) -> str:
        counts = ((self.running, "running"), (self.waiting, "waiting"), (self.lent, "lent"))
        parts = [f"{count} {word}" for count, word in (*counts, (self.borrowed, "borrowed")) if count]
        return f"work left: {', '.join(parts)}" if parts else "no work left"


class HubClosure(Struct, frozen=True, kw_only=True):
    """Whether a hub takes work: `open`, `cordoned`, `draining` or `retired`; and how far a drain has come."""

    hub_id: str
    state: str
    why: str = ""
    remaining: Remaining = Remaining()
    remaining_total: int = 0


class Health(Struct, frozen=True, kw_only=True):
    status: str  # healthy, degraded
    detail: str = ""
    version: str = ""
    uptime_seconds: float = 0.0
    region: str = ""
    country: str = ""
    hub_id: str = ""
    timestamp: datetime | None = None

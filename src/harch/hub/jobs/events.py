"""What can happen to a hub's work? Events into the job machine."""

# harch: pure

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from msgspec import Struct

from harch.base.elapsed import Adopted, elapsed
from harch.carbon.planning.settings import PlanSettings
from harch.execution.protocol import AgentHello, TaskEnded, TaskKey
from harch.federation.offers import BidRequest, LendingMessage
from harch.hub.jobs.carbon_plan import HubPlan
from harch.hub.store.records import CatalogEntry
from harch.hub.views import PeerView
from harch.sovereignty.audit.chain import POLICY_BUILTIN, Draft
from harch.sovereignty.declassification import Declassification
from harch.sovereignty.tags import DataObject, Tag
from harch.workloads.spec import CarbonPreferences, WorkloadSpec

PENDING_MAX = 100_000
PLACED_PER_ROUND_MAX = 256  # keeps one round in the low milliseconds; the runtime asks for another


class JobLimits(Struct, frozen=True, kw_only=True):
    """What bounds the decisions of a hub. `carbon` is what the operator set about power: budgets, moves, who waits."""

    pending_max: int = PENDING_MAX
    placed_per_round_max: int = PLACED_PER_ROUND_MAX
    carbon: PlanSettings = PlanSettings()


class BidPower(Struct, frozen=True):
    """Of one more kWh of computing here, if known: its carbon, and its price in USD."""

    carbon_g_per_kwh: float | None = None
    price_per_kwh: float | None = None


_LIMITS, _POWER_UNKNOWN = JobLimits(), BidPower()


class PolicyInForce(Protocol):
    """Which policy decides now? The audit chain names its version."""

    @property
    def version(self) -> str: ...


class EventContext(Struct, frozen=True, kw_only=True, gc=False):
    """When an event is decided, and under what: it comes with each event, and every audited decision names its policy.

    `boot_s` says how long, whatever the time; `adopted` are the times that the clock was set and stayed so: durations
    are counted without them.
    """

    now: datetime
    boot_s: float = 0.0
    policy_version: str = POLICY_BUILTIN
    adopted: tuple[Adopted, ...] = ()
    limits: JobLimits = _LIMITS
    power: BidPower = _POWER_UNKNOWN

    @property
    def now_s(self) -> float:
        return self.now.timestamp()

    def elapsed_s(self, since: datetime) -> float:
        """How long ago that really was."""
        return elapsed(since, self.now, self.adopted).total_seconds()


class Submitted(Struct, frozen=True, gc=False):
    workload_id: str
    tenant: str
    spec: WorkloadSpec
    annotations: dict[str, str] = {}
    idempotency_key: str | None = None
    actor: str = "hub"  # who asks, for the audit chain
    trace: str = ""


class SpecReplaced(Struct, frozen=True, gc=False):
    workload_id: str
    spec: WorkloadSpec
    annotations: dict[str, str]
    actor: str = "hub"


class Relabelled(Struct, frozen=True, gc=False):
    workload_id: str
    labels: dict[str, str]


class StopRequested(Struct, frozen=True, gc=False):
    workload_id: str
    reason: str
    hide: bool = False  # DELETE: also disappears from lists


class PauseRequested(Struct, frozen=True, gc=False):
    workload_id: str


class ResumeRequested(Struct, frozen=True, gc=False):
    workload_id: str


class RestartRequested(Struct, frozen=True, gc=False):
    """What runs shall start again, from its beginning."""

    workload_id: str
    reason: str


class DataAdded(Struct, frozen=True, gc=False):
    entry: CatalogEntry
    actor: str = "hub"


class DataRetagged(Struct, frozen=True, gc=False):
    object_id: str
    tag: Tag
    declassification: Declassification | None = None
    authorities: dict[str, bytes] = {}  # names to public keys, as the hub knows them now
    actor: str = "hub"


class DataRemoved(Struct, frozen=True, gc=False):
    """Somebody wants it forgotten, or its time is over."""

    object_id: str
    actor: str = "hub"
    why: str = "its owner removed it"


class CopiesReported(Struct, frozen=True, gc=False):
    """What the home of borrowed data says of it: tags that have changed, and what was removed."""

    home: str
    changed: tuple[DataObject, ...] = ()
    removed: tuple[str, ...] = ()


class DataKept(Struct, frozen=True, gc=False):
    """It is used again and stays until then at least; None: until somebody removes it."""

    object_id: str
    until: datetime | None


class DataMoved(Struct, frozen=True, gc=False):
    """A copy of it has come to a hub, or is gone from there."""

    object_id: str
    hub: str
    present: bool


class TagsDue(Struct, frozen=True, gc=False):
    """Time to ask again whether what runs still obeys the tags of its data."""


class AgentJoined(Struct, frozen=True, gc=False):
    hello: AgentHello
    session: int  # tells a new connection of an agent from an old one that has not yet been noticed to be dead


class AgentBarred(Struct, frozen=True, gc=False):
    """Somebody came with a key that is not this agent's."""

    agent_id: str
    draft: Draft


class AgentLeft(Struct, frozen=True, gc=False):
    agent_id: str
    session: int
    why: str


class TaskStartSeen(Struct, frozen=True, gc=False):
    key: TaskKey
    agent_id: str = ""  # who says so


class TaskEndSeen(Struct, frozen=True, gc=False):
    agent_id: str
    end: TaskEnded


class HardwareChanged(Struct, frozen=True, gc=False):
    """`value` None: as the fleet file says again."""

    kind: str
    subject: str
    value: float | None
    why: str = ""


class NodeDrained(Struct, frozen=True, gc=False):
    node_id: str
    why: str = ""


class HubClosed(Struct, frozen=True, gc=False):
    """Somebody cordons, drains, retires or opens (0) this hub."""

    closed: int
    why: str = ""


class DefragmentationRequested(Struct, frozen=True, gc=False):
    """Others shall move so that this waiting workload can start."""

    workload_id: str


class Noted(Struct, frozen=True, gc=False):
    """Something about the hub itself that belongs into its history."""

    kind: str
    subject: str
    message: str


class FaultSeen(Struct, frozen=True, gc=False):
    """The hub failed at an event and was restored from disk. `workload_id`: the work that it was at, if known."""

    what: str
    error: str
    workload_id: str = ""


class PeersSeen(Struct, frozen=True, gc=False):
    """What is known of the other hubs now."""

    peers: tuple[PeerView, ...]


class PeerMessageReceived(Struct, frozen=True, gc=False):
    """About work: an offer, a lease, a report."""

    hub_id: str
    message: LendingMessage


class PeerBack(Struct, frozen=True, gc=False):
    """The link to a peer is up: what was not answered is said again."""

    hub_id: str


class LendingDue(Struct, frozen=True, gc=False):
    """A moment has passed: who waits may be offered to others, leases and bids may have ended."""


class CarbonPreferencesChanged(Struct, frozen=True, gc=False):
    """Somebody changes what a workload wants of its power."""

    workload_id: str
    preferences: CarbonPreferences
    annotations: dict[str, str] = {}


class CarbonPlanned(Struct, frozen=True, gc=False):
    """A new plan of where and when work should run, for its power."""

    plan: HubPlan


class CarbonDue(Struct, frozen=True, gc=False):
    """Work that was held back for its power, or offered elsewhere for it, has waited long enough."""


class PlacementDue(Struct, frozen=True, gc=False):
    """Somebody waits, or something came free."""


Event = (
    Submitted
    | SpecReplaced
    | Relabelled
    | StopRequested
    | PauseRequested
    | ResumeRequested
    | RestartRequested
    | DataAdded
    | DataRetagged
    | DataRemoved
    | DataKept
    | DataMoved
    | CopiesReported
    | TagsDue
    | AgentJoined
    | AgentBarred
    | AgentLeft
    | TaskStartSeen
    | TaskEndSeen
    | PlacementDue
    | PeersSeen
    | PeerMessageReceived
    | PeerBack
    | LendingDue
    | CarbonPreferencesChanged
    | CarbonPlanned
    | CarbonDue
    | HardwareChanged
    | NodeDrained
    | HubClosed
    | DefragmentationRequested
    | Noted
    | FaultSeen
)

# What is taken while the disk is full: what ends work or makes it known that it has ended, and rules about data. It
# costs little, and a reserve is kept for it.
ON_A_FULL_DISK = (
    StopRequested,
    PauseRequested,
    TaskStartSeen,
    TaskEndSeen,
    AgentJoined,
    AgentLeft,
    PeersSeen,
    PeerMessageReceived,
    PeerBack,
    LendingDue,
    TagsDue,
    DataRetagged,
    CopiesReported,
    HardwareChanged,
    NodeDrained,
    HubClosed,
    FaultSeen,
)


def is_taken_on_a_full_disk(event: Event) -> bool:
    requests_room = isinstance(event, PeerMessageReceived) and isinstance(event.message, BidRequest)
    return isinstance(event, ON_A_FULL_DISK) and not requests_room

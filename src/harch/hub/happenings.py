"""What can happen to a hub, and what does it do about it? Events into the job machine, effects out of it."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from harch.execution.protocol import Hello, HubMessage, TaskEnded, TaskKey
from harch.federation.offers import SpillMessage
from harch.hub.catalog import CatalogEntry
from harch.hub.routing.memory import HubPlan
from harch.hub.views import PeerView
from harch.sovereignty.audit.entry import Draft
from harch.sovereignty.declassification import Declassification
from harch.sovereignty.tags import Tag
from harch.workloads.carbon import CarbonWishes
from harch.workloads.lifecycle import Workload
from harch.workloads.spec import WorkloadSpec


class IdempotencyEntry(Struct, frozen=True, kw_only=True):
    """A day's memory of a submission that carried an Idempotency-Key."""

    tenant: str
    key: str
    workload_id: str
    digest: str
    created_at: datetime


# Events in


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


class StopAsked(Struct, frozen=True, gc=False):
    workload_id: str
    reason: str
    hide: bool = False  # DELETE: also disappears from lists


class PauseAsked(Struct, frozen=True, gc=False):
    workload_id: str


class ResumeAsked(Struct, frozen=True, gc=False):
    workload_id: str


class DataAdded(Struct, frozen=True, gc=False):
    entry: CatalogEntry
    actor: str = "hub"


class DataRetagged(Struct, frozen=True, gc=False):
    object_id: str
    tag: Tag
    declassification: Declassification | None = None
    authorities: dict[str, bytes] = {}  # names to public keys, as the hub knows them now
    actor: str = "hub"


class TagsDue(Struct, frozen=True, gc=False):
    """Time to ask again whether what runs still obeys the tags of its data."""


class AgentJoined(Struct, frozen=True, gc=False):
    hello: Hello
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


class DefragmentationAsked(Struct, frozen=True, gc=False):
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


class PeerSaid(Struct, frozen=True, gc=False):
    """About work: an offer, a lease, a report."""

    hub_id: str
    message: SpillMessage


class PeerBack(Struct, frozen=True, gc=False):
    """The link to a peer is up: what was not answered is said again."""

    hub_id: str


class SpillDue(Struct, frozen=True, gc=False):
    """A moment has passed: who waits may be offered to others, leases and bids may have ended."""


class CarbonWished(Struct, frozen=True, gc=False):
    """Somebody changes what a workload wants of its power."""

    workload_id: str
    wishes: CarbonWishes
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
    | StopAsked
    | PauseAsked
    | ResumeAsked
    | DataAdded
    | DataRetagged
    | TagsDue
    | AgentJoined
    | AgentBarred
    | AgentLeft
    | TaskStartSeen
    | TaskEndSeen
    | PlacementDue
    | PeersSeen
    | PeerSaid
    | PeerBack
    | SpillDue
    | CarbonWished
    | CarbonPlanned
    | CarbonDue
    | HardwareChanged
    | NodeDrained
    | HubClosed
    | DefragmentationAsked
    | Noted
    | FaultSeen
)

# Effects out. All but `Send` and `SendPeer` of one event go to disk together; only then may those leave the hub.


class Save(Struct, frozen=True, gc=False):
    workload: Workload


class SaveLabels(Struct, frozen=True, gc=False):
    """Labels have a table of their own, written only when they change."""

    workload: Workload


class SaveCondition(Struct, frozen=True, gc=False):
    """What is known of a piece of hardware; `value` None: nothing special any more."""

    kind: str
    subject: str
    value: float | None
    why: str


class SaveData(Struct, frozen=True, gc=False):
    entry: CatalogEntry


class SaveIdempotencyKey(Struct, frozen=True, gc=False):
    entry: IdempotencyEntry


class Record(Struct, frozen=True, gc=False):
    """A line of the hub's history."""

    kind: str
    subject: str
    tenant: str
    message: str
    data: dict[str, object] = {}


class Audit(Struct, frozen=True, gc=False):
    """A line of the audit chain. It gets its place and its hash when it is written, in the order of the effects."""

    draft: Draft


class Send(Struct, frozen=True, gc=False):
    agent_id: str
    message: HubMessage


class SendPeer(Struct, frozen=True, gc=False):
    hub_id: str
    message: SpillMessage


Effect = Save | SaveLabels | SaveCondition | SaveData | SaveIdempotencyKey | Record | Audit | Send | SendPeer

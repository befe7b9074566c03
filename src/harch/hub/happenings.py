"""What can happen to a hub, and what does it do about it? Events into the job machine, effects out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from msgspec import Struct

from harch.execution.protocol import Hello, HubMessage, TaskEnded, TaskKey
from harch.hub.catalog import CatalogEntry
from harch.sovereignty.audit.entry import Draft
from harch.sovereignty.declassification import Declassification
from harch.sovereignty.tags import Tag
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


@dataclass(frozen=True, slots=True)
class Submitted:
    workload_id: str
    tenant: str
    spec: WorkloadSpec
    annotations: dict[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None
    actor: str = "hub"  # who asks, for the audit chain


@dataclass(frozen=True, slots=True)
class SpecReplaced:
    workload_id: str
    spec: WorkloadSpec
    annotations: dict[str, str]
    actor: str = "hub"


@dataclass(frozen=True, slots=True)
class Relabelled:
    workload_id: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class StopAsked:
    workload_id: str
    reason: str
    hide: bool = False  # DELETE: also disappears from lists


@dataclass(frozen=True, slots=True)
class PauseAsked:
    workload_id: str


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    workload_id: str


@dataclass(frozen=True, slots=True)
class DataAdded:
    entry: CatalogEntry
    actor: str = "hub"


@dataclass(frozen=True, slots=True)
class DataRetagged:
    object_id: str
    tag: Tag
    declassification: Declassification | None = None
    authorities: dict[str, bytes] = field(default_factory=dict)  # names to public keys, as the hub knows them now
    actor: str = "hub"


@dataclass(frozen=True, slots=True)
class TagsDue:
    """Time to ask again whether what runs still obeys the tags of its data."""


@dataclass(frozen=True, slots=True)
class AgentJoined:
    hello: Hello
    session: int  # tells a new connection of an agent from an old one that has not yet been noticed to be dead


@dataclass(frozen=True, slots=True)
class AgentLeft:
    agent_id: str
    session: int
    why: str


@dataclass(frozen=True, slots=True)
class TaskStartSeen:
    key: TaskKey


@dataclass(frozen=True, slots=True)
class TaskEndSeen:
    agent_id: str
    end: TaskEnded


@dataclass(frozen=True, slots=True)
class HardwareChanged:
    """`value` None: as the fleet file says again."""

    kind: str
    subject: str
    value: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class NodeDrained:
    node_id: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class DefragmentationAsked:
    """Others shall move so that this waiting workload can start."""

    workload_id: str


@dataclass(frozen=True, slots=True)
class Noted:
    """Something about the hub itself that belongs into its history."""

    kind: str
    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class PlacementDue:
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
    | AgentLeft
    | TaskStartSeen
    | TaskEndSeen
    | PlacementDue
    | HardwareChanged
    | NodeDrained
    | DefragmentationAsked
    | Noted
)

# Effects out. All but `Send` of one event go to disk together; only then may `Send` leave the hub.


@dataclass(frozen=True, slots=True)
class Save:
    workload: Workload


@dataclass(frozen=True, slots=True)
class SaveLabels:
    """Labels have a table of their own, written only when they change."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class SaveCondition:
    """What is known of a piece of hardware; `value` None: nothing special any more."""

    kind: str
    subject: str
    value: float | None
    why: str


@dataclass(frozen=True, slots=True)
class SaveData:
    entry: CatalogEntry


@dataclass(frozen=True, slots=True)
class SaveIdempotencyKey:
    entry: IdempotencyEntry


@dataclass(frozen=True, slots=True)
class Record:
    """A line of the hub's history."""

    kind: str
    subject: str
    tenant: str
    message: str
    data: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Audit:
    """A line of the audit chain. It gets its place and its hash when it is written, in the order of the effects."""

    draft: Draft


@dataclass(frozen=True, slots=True)
class Send:
    agent_id: str
    message: HubMessage


Effect = Save | SaveLabels | SaveCondition | SaveData | SaveIdempotencyKey | Record | Audit | Send

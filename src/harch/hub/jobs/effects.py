"""What does the job machine do about an event? Effects out of it.

All but `Send` and `SendPeer` of one event go to disk together; only then may those leave the hub.
"""

# harch: pure

from __future__ import annotations

from msgspec import Struct

from harch.execution.protocol import HubMessage
from harch.federation.offers import LendingMessage
from harch.hub.store.records import CatalogEntry, IdempotencyEntry
from harch.sovereignty.audit.chain import Draft
from harch.workloads.lifecycle import Workload


class Save(Struct, frozen=True, gc=False):
    workload: Workload


class SaveLabels(Struct, frozen=True, gc=False):
    """Labels have a table of their own, written only when they change."""

    workload: Workload


class SaveName(Struct, frozen=True, gc=False):
    """Name and type are columns that a change of state leaves alone, written again only with a new specification."""

    workload: Workload


class SaveCondition(Struct, frozen=True, gc=False):
    """What is known of a piece of hardware; `value` None: nothing special any more."""

    kind: str
    subject: str
    value: float | None
    why: str


class SaveData(Struct, frozen=True, gc=False):
    entry: CatalogEntry


class DropData(Struct, frozen=True, gc=False):
    data_id: str


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
    message: LendingMessage


Effect = (
    Save
    | SaveLabels
    | SaveName
    | SaveCondition
    | SaveData
    | DropData
    | SaveIdempotencyKey
    | Record
    | Audit
    | Send
    | SendPeer
)

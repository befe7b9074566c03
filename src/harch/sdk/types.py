"""What does a hub answer? The values that the client returns: structs of `harch.wire` under the names of this client.

Fields that a newer hub adds are ignored; fields that an older one lacks have defaults: their versions may differ.
"""

from __future__ import annotations

from harch.base.rejection import RuleOutcome
from harch.wire import hubs
from harch.wire.audit import AcceptedLoss, AuditLoss, Checkpoint, SignedCheckpoint, SigningKey
from harch.wire.carbon import CarbonChoice
from harch.wire.events import EventPage
from harch.wire.events import EventRecord as Event
from harch.wire.explanations import Candidate, Explanation, HubExplanation
from harch.wire.hardware import GpuView as Gpu
from harch.wire.hubs import Health, HubCapacity, HubClosure, HubSummary, ModelCapacity, Remaining
from harch.wire.keys import Identity
from harch.wire.pages import Metadata, Page, Pagination
from harch.wire.quotas import TenantQuota
from harch.wire.workloads import FINAL_STATUSES, FederatedPage, SilentHub, TaskEnd, TaskPlacement, Workload

__all__ = [
    "FINAL_STATUSES",
    "AcceptedLoss",
    "AuditLoss",
    "Candidate",
    "CarbonChoice",
    "Checkpoint",
    "Event",
    "EventPage",
    "Explanation",
    "FederationPage",
    "Gpu",
    "Health",
    "Hub",
    "HubCapacity",
    "HubClosure",
    "HubExplanation",
    "HubSummary",
    "Identity",
    "Metadata",
    "ModelCapacity",
    "Page",
    "Pagination",
    "Remaining",
    "RuleOutcome",
    "SignedCheckpoint",
    "SigningKey",
    "SilentHub",
    "TaskEnd",
    "TaskPlacement",
    "TenantQuota",
    "Workload",
]


class FederationPage(FederatedPage[Workload], frozen=True, kw_only=True):
    """A page of the work of all hubs, without commands and environments. `complete`: nothing is missing."""


class Hub(hubs.Hub, frozen=True, kw_only=True):
    """A hub as seen from the one that was asked; where nobody knows its capacity, all of it is zero."""

    capacity: HubCapacity = HubCapacity()

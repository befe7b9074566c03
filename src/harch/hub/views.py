"""What can be asked of a hub, and what does it answer? The values between the control plane and the API."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from harch.wire.hubs import HubSummary
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
    borrowed: bool = False  # the work of other hubs that is here under a lease, instead of the hub's own
    labels: dict[str, str] = {}


class LiveStatus(Struct, frozen=True, kw_only=True):
    """What is known of work at this moment, and stored nowhere."""

    pending_reason: str = ""  # in a few words; empty if it does not wait
    unheard_s: float | None = None  # how long nothing was heard of it at another hub, if that is long
    preparing: str = ""  # what a node fetches or builds for it, before it starts


class WorkloadPage(Struct, frozen=True, kw_only=True):
    items: list[Workload]
    total: int


class PeerReach(StrEnum):
    """How well another hub is seen. Only of one that is `linked`, its own status says more."""

    LINKED = "linked"
    CUT_OFF = "cut off"  # alive, as others say, but there is no link to it: a part of the network is down
    SUSPECTED = "suspected"  # it was heard, and is silent now: dead, or behind a cut
    UNHEARD = "unheard"  # not heard since this hub started
    RETIRED = "retired"  # gone for good
    NOT_MEMBER = "no member"  # the fleet has it, the federation does not


class PeerView(Struct, frozen=True, kw_only=True, rename={"reach": "sight"}):
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
    reach: PeerReach = PeerReach.LINKED
    via: str = ""  # the hub that relayed its last sign of life; empty if it came directly


class LogPage(Struct, frozen=True, kw_only=True):
    """A piece of a task's output. Ask again from `next_offset`; `eof`: nothing more will come."""

    offset: int
    next_offset: int
    data: bytes
    eof: bool


class BulkTraffic(Struct, frozen=True, kw_only=True):
    """Content exchanged with one other hub. Bytes are those of payloads, as they travel."""

    bytes_sent: int
    bytes_received: int
    bytes_repeated: int  # received and thrown away
    cuts: int
    refused: int

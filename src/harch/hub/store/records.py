"""What does a hub keep on disk besides its work? Values that have a row each, without any rule about them."""

# harch: pure

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from harch.sovereignty.tags import DataObject


class IdempotencyEntry(Struct, frozen=True, kw_only=True):
    """A day's memory of a submission that carried an Idempotency-Key."""

    tenant: str
    key: str
    workload_id: str
    digest: str
    created_at: datetime


class ConditionKind(StrEnum):
    """What is wrong, and of what. The value's meaning is beside each."""

    CORDONED = "cordoned"  # node; 1
    UNHEALTHY = "unhealthy"  # GPU; 1
    COOLING_KW = "cooling_kw"  # cooling zone; what the plant removes now
    NVLINK = "nvlink"  # node; factor of its NVLink bandwidth, 0 to 1
    UPLINK = "uplink"  # rack; factor of its uplink bandwidth, above 0 to 1
    CLOSED = "closed"  # this hub; a value of `Closed`


class Condition(Struct, frozen=True, kw_only=True):
    """`value` None: as the fleet file says again."""

    kind: ConditionKind
    subject: str
    value: float | None
    why: str = ""


class CatalogEntry(Struct, frozen=True, kw_only=True):
    """A data object with what the rules need not know of it."""

    object: DataObject
    created_at: datetime
    updated_at: datetime
    sha256: str = ""
    made_by: str = ""  # the workload that produced it; empty if somebody registered it
    home: str = ""  # the hub whose catalog has it; empty if this one has. Kept here for work of that hub only.
    content: str = ""  # the digest of its tree, if HarchOS holds its bytes
    expires_at: datetime | None = None  # from then on it may be forgotten, with its content; None: kept until removed
    removed_at: datetime | None = None  # only its tag and its place in the lineage of others are left


class AgentKey(Struct, frozen=True, kw_only=True):
    """This key is that agent's. `node_ids` empty: for whatever nodes it serves."""

    key_id: str
    agent_id: str
    node_ids: tuple[str, ...] = ()

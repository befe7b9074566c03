"""What does a hub answer about data? Objects with their tags, lineage, copies, and who may loosen a tag.

Tags are plain mappings, as docs/reference/tags.md describes them: their rules are the hub's.
"""

# harch: pure

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from harch.base.rejection import RuleOutcome


class DataView(Struct, frozen=True, kw_only=True):
    """A data object as people and clients see it. `made_by` is the workload that produced it, if one did."""

    id: str
    name: str
    kind: str
    tenant: str = ""
    tag: dict[str, object] | None = None  # None: nobody may use it
    tag_revision: int = 1
    hubs: tuple[str, ...] = ()
    size_bytes: int = 0
    sha256: str = ""
    parents: tuple[str, ...] = ()
    made_by: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    content: str = ""  # the digest of its files, if HarchOS holds them
    expires_at: datetime | None = None


class DataLineage(Struct, frozen=True, kw_only=True):
    """`missing`: ancestors that the catalog no longer has. `too_loose`: permits more than its sources."""

    subject: DataView
    ancestors: list[DataView] = []
    descendants: list[DataView] = []
    missing: list[str] = []
    too_loose: list[str] = []


class Copy(Struct, frozen=True, kw_only=True):
    """One copy of an object, or of something derived from it."""

    object_id: str
    name: str
    kind: str
    hub: str
    is_derived: bool = False


class HubRules(Struct, frozen=True, kw_only=True):
    """What one hub may do with the data, by every rule."""

    hub: str
    country: str = ""
    may_process: bool = False
    may_rest: bool = False
    process: tuple[RuleOutcome, ...] = ()
    rest: tuple[RuleOutcome, ...] = ()


class DataWhere(Struct, frozen=True, kw_only=True):
    """Where it and what came of it is, who reads it now, and what each hub of the fleet may do with it."""

    subject: DataView
    copies: list[Copy] = []
    readers: list[str] = []
    hubs: list[HubRules] = []


class AuthorityView(Struct, frozen=True, kw_only=True):
    """Who may loosen tags here; `public_key` is Ed25519, in hexadecimal."""

    name: str
    public_key: str = ""

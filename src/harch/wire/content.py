"""What do a hub and its clients say to each other about content? Trees, usage, and the files of running work.

Chunks travel as frames (`harch.content.frames`), names of chunks as plain bytes, 32 each; all else is JSON.
"""

# harch: pure

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from harch.base.integers import Natural32


class TreeView(Struct, frozen=True, kw_only=True):
    """A tree that can be read here: of a data object, or of a snapshot of the files of work.

    `ref` is what chunks are fetched by; of a snapshot it holds until `expires_at`.
    """

    ref: str
    digest: str
    size_bytes: int = 0
    files: int = 0
    name: str = ""
    expires_at: datetime | None = None


class TransferView(Struct, frozen=True, kw_only=True):
    """How far content has come that this hub is fetching from another one."""

    digest: str
    source_hub: str = ""
    bytes_done: int = 0
    bytes_total: int = 0
    error: str = ""


class ChunksStored(Struct, frozen=True, kw_only=True):
    """What became of an upload: chunks that are on disk now, of which so many were known before."""

    stored: int
    known: int
    bytes: int = 0


class TenantUsage(Struct, frozen=True, kw_only=True):
    """What one tenant keeps at a hub. `bytes_stored` is after compression; `bytes_max` None: no limit."""

    tenant: str
    trees: int
    chunks: int
    bytes_raw: int
    bytes_stored: int
    bytes_max: int | None = None


class ContentStatus(Struct, frozen=True, kw_only=True):
    """The content store of one hub."""

    hub: str
    location: str
    tenants: list[TenantUsage] = []
    bytes_stored: int = 0
    bytes_garbage: int = 0
    bytes_free: int | None = None  # of the disk that holds it; None: not known
    transfers: list[TransferView] = []


class Collected(Struct, frozen=True, kw_only=True):
    """What a collection has removed."""

    chunks: int
    bytes: int


class ContentCheck(Struct, frozen=True, kw_only=True):
    """What a check of every stored chunk has found; names are those of chunks, in hexadecimal."""

    chunks: int
    bytes: int
    damaged: list[str] = []
    missing: list[str] = []


class FilesRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read `path` below the working folder of one task, as a tree."""

    path: str = "."
    rank: Natural32 = 0
    attempt: Natural32 | None = None


class FilesPlaced(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Put a tree that was uploaded before at `path` below the working folder of one task that runs."""

    path: str
    digest: str
    rank: Natural32 = 0


class ArtifactView(Struct, frozen=True, kw_only=True):
    """A kept result of work: a data object with content."""

    id: str
    name: str
    workload_id: str
    digest: str
    size_bytes: int = 0
    hubs: tuple[str, ...] = ()
    created_at: datetime | None = None
    expires_at: datetime | None = None
    parents: tuple[str, ...] = ()

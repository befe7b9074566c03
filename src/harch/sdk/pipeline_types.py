"""What does a hub answer about pipelines? The values that `client.pipelines` returns; see `types` on versions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct


class PipelineStage(Struct, frozen=True, kw_only=True):
    """One stage: sums over its workers. `waiting` is what its stored lane holds; None where it has none."""

    stage: str
    workers: int = 0
    wanted: int = 0
    ready: int = 0
    fixed: bool = False
    rate: float = 0.0
    lag: float = 0.0
    waiting: int | None = None
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    busy: float = 0.0
    dropped: int = 0
    quarantined: int = 0
    counters: dict[str, int] = {}


class Pipeline(Struct, frozen=True, kw_only=True):
    """`state`: starting, running, trouble, draining, drained, removing."""

    name: str
    hub: str
    version: int
    state: str
    tenant: str = ""
    country: str = ""
    trouble: str = ""
    created_at: str = ""
    applied_at: str = ""
    applied_by: str = ""
    at: datetime | None = None
    stages: tuple[PipelineStage, ...] = ()
    sources: dict[str, str] = {}
    models: dict[str, str] = {}


class PipelineWorker(Struct, frozen=True, kw_only=True):
    worker: str
    stage: str
    health: str
    pid: int | None = None
    starts: int = 0
    trouble: str = ""
    sandbox: str = ""
    partitions: tuple[int, ...] = ()
    rate: float = 0.0
    lag: float = 0.0
    busy: float = 0.0
    memory_bytes: int = 0
    latency_ms: dict[str, float] = {}
    counters: dict[str, int] = {}


class PipelineVersion(Struct, frozen=True, kw_only=True):
    version: int
    applied_at: str = ""
    applied_by: str = ""


class PipelineBorder(Struct, frozen=True, kw_only=True):
    """An export (`direction` out) or import (in) with the other hub; counts since this hub started."""

    direction: str
    export: str
    hub: str = ""
    state: str = ""
    windows: int = 0
    rows: int = 0
    left_out: dict[str, int] = {}
    detail: str = ""


class PipelineDetails(Struct, frozen=True, kw_only=True):
    pipeline: Pipeline
    workers: tuple[PipelineWorker, ...] = ()
    spec: dict[str, Any] = {}
    versions: tuple[PipelineVersion, ...] = ()
    streams: dict[str, tuple[str, ...]] = {}
    borders: tuple[PipelineBorder, ...] = ()


class PipelineEdge(Struct, frozen=True, kw_only=True):
    """One way that data takes, as it was proved: between which hubs, touching which countries."""

    kind: str
    name: str
    hubs: tuple[tuple[str, str], ...] = ()
    countries: tuple[str, ...] = ()


class PipelineStep(Struct, frozen=True, kw_only=True):
    stage: str
    step: str
    because: tuple[str, ...] = ()
    hub: str = ""
    workers: int = 0


class PipelineApplied(Struct, frozen=True, kw_only=True):
    """`result`: created, updated or unchanged; with `dry_run`, what it would be."""

    name: str
    result: str
    version: int
    hub: str
    dry_run: bool = False
    country: str = ""
    stages: tuple[PipelineStep, ...] = ()
    edges: tuple[PipelineEdge, ...] = ()
    streams: dict[str, tuple[str, ...]] = {}
    files_missing: tuple[str, ...] = ()


class PipelineAction(Struct, frozen=True, kw_only=True):
    """A command that waits for a person, or that was given up."""

    cmd_id: str
    device: str
    action: str
    state: str
    pipeline: str = ""
    digest: str = ""
    steps: tuple[dict[str, Any], ...] = ()
    issued_ms: int = 0
    expires_ms: int = 0
    priority: int = 0
    model: str = ""
    dry_run: bool = False
    reason: str = ""
    attempts: int = 0
    maybe_sent: bool = False


class PipelineResult(Struct, frozen=True, kw_only=True):
    """One row that the last stage made: features, or outputs of a model. None: nothing was there to count."""

    seq: int
    window_end: datetime
    device: str
    metric: str = ""
    model: str = ""
    values: dict[str, float | None] = {}


class PipelineResults(Struct, frozen=True, kw_only=True):
    """A page; ask again with `after=next_after`."""

    pipeline: str
    items: tuple[PipelineResult, ...] = ()
    next_after: int = 0
    subject: str = ""


class PipelineSourceKey(Struct, frozen=True, kw_only=True):
    """What senders of a source show, as `X-API-Key`. `address` is empty until the source is served."""

    pipeline: str
    source: str
    key: str
    address: str = ""

    def __repr__(self) -> str:
        return f"PipelineSourceKey({self.pipeline}/{self.source})"


class PipelineReplayRun(Struct, frozen=True, kw_only=True):
    """A replay of events. `state`: running, done, stopped or failed. `new`: commands that the ledger did not know."""

    pipeline: str
    run: str
    state: str
    dry_run: bool = True
    again: bool = False
    counts: dict[str, int] = {}
    new: tuple[dict[str, Any], ...] = ()
    trouble: str = ""


class PipelineReplay(Struct, frozen=True, kw_only=True):
    """Messages of the dead lanes that went into the pipeline again, by lane."""

    pipeline: str
    replayed: dict[str, int] = {}
    last_seq: dict[str, int] = {}
    dry_run: bool = False


class PipelinePage(Struct, frozen=True, kw_only=True):
    items: tuple[Pipeline, ...] = ()
    total: int = 0


class ActionPage(Struct, frozen=True, kw_only=True):
    items: tuple[PipelineAction, ...] = ()
    total: int = 0


class LogPiece(Struct, frozen=True, kw_only=True):
    """A piece of what a worker printed. Ask again from `next_offset`."""

    data: bytes
    offset: int
    next_offset: int

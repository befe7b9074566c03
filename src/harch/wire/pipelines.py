"""What does a hub answer about its pipelines? Stages, workers, actions, results and replays; all plain data."""

# harch: pure

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct


class WorkerView(Struct, frozen=True, kw_only=True):
    """One worker. Counters count since its process started; `health` is `starting` until it has said something."""

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


class StageView(Struct, frozen=True, kw_only=True):
    """One stage: sums over its workers; `waiting` is what its stored lane holds, None where it has none."""

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


class PipelineView(Struct, frozen=True, kw_only=True):
    """`state`: starting, running, trouble, draining, drained, removing. `sources`: where events are taken, by name.
    `halted`: why ACT sends nothing; empty while it acts."""

    name: str
    tenant: str = ""
    hub: str
    country: str = ""
    version: int
    state: str
    trouble: str = ""
    halted: str = ""
    created_at: str = ""
    applied_at: str = ""
    applied_by: str = ""
    at: datetime | None = None
    stages: tuple[StageView, ...] = ()
    sources: dict[str, str] = {}
    models: dict[str, str] = {}


class PipelineList(Struct, frozen=True, kw_only=True):
    items: tuple[PipelineView, ...] = ()
    total: int = 0


class VersionView(Struct, frozen=True, kw_only=True):
    version: int
    applied_at: str = ""
    applied_by: str = ""


class BorderView(Struct, frozen=True, kw_only=True):
    """An export or import: `direction` is out or in, `hub` the other one, `state` open, waiting or refused.

    Counts are since the hub started; `left_out` by reason."""

    direction: str
    export: str
    hub: str = ""
    state: str = ""
    windows: int = 0
    rows: int = 0
    left_out: dict[str, int] = {}
    detail: str = ""


class PipelineDetails(Struct, frozen=True, kw_only=True):
    pipeline: PipelineView
    workers: tuple[WorkerView, ...] = ()
    spec: dict[str, Any] = {}
    versions: tuple[VersionView, ...] = ()
    streams: dict[str, tuple[str, ...]] = {}  # by domain of the message engine
    borders: tuple[BorderView, ...] = ()


class EdgeView(Struct, frozen=True, kw_only=True):
    """One way that data takes, as it was proved."""

    kind: str
    name: str
    hubs: tuple[tuple[str, str], ...] = ()
    countries: tuple[str, ...] = ()


class StageStep(Struct, frozen=True, kw_only=True):
    stage: str
    step: str
    because: tuple[str, ...] = ()
    hub: str = ""
    workers: int = 0


class ApplyView(Struct, frozen=True, kw_only=True):
    """What was done, or would be: `result` is created, updated or unchanged. `edges` is the proof of residency."""

    name: str
    result: str
    dry_run: bool = False
    version: int
    hub: str
    country: str = ""
    stages: tuple[StageStep, ...] = ()
    edges: tuple[EdgeView, ...] = ()
    streams: dict[str, tuple[str, ...]] = {}
    files_missing: tuple[str, ...] = ()


class SourceKeyView(Struct, frozen=True, kw_only=True):
    """What senders of a source show. `address` is empty until the source is served."""

    pipeline: str
    source: str
    key: str
    address: str = ""

    def __repr__(self) -> str:
        return f"SourceKeyView({self.pipeline}/{self.source})"


class ResultRow(Struct, frozen=True, kw_only=True):
    """One row: features of a device in a window, or outputs of a model for them. Null: nothing was there to count."""

    seq: int  # of its message in the lane
    window_end: datetime
    device: str
    metric: str = ""  # where each metric has a row of its own
    model: str = ""  # name@version; empty for features
    values: dict[str, float | None] = {}


class ResultsView(Struct, frozen=True, kw_only=True):
    """A page; ask again with `after` = `next_after`. `subject` is where the message engine carries them."""

    pipeline: str
    subject: str = ""
    items: tuple[ResultRow, ...] = ()
    next_after: int = 0


class ReplayRun(Struct, frozen=True, kw_only=True):
    """A replay of events. `state`: running, done, stopped or failed. `new`: the first commands that the ledger did not
    know; `counts.told` is 0 in a dry run."""

    pipeline: str
    run: str
    state: str
    dry_run: bool = True
    again: bool = False
    counts: dict[str, int] = {}
    new: tuple[dict[str, Any], ...] = ()
    trouble: str = ""


class ActionView(Struct, frozen=True, kw_only=True):
    """A command that waits for a person, or that was given up. `digest` is what a person approves."""

    cmd_id: str
    pipeline: str = ""
    device: str
    action: str
    digest: str = ""
    steps: tuple[dict[str, Any], ...] = ()
    issued_ms: int = 0
    expires_ms: int = 0
    priority: int = 0
    model: str = ""
    dry_run: bool = False
    state: str
    reason: str = ""
    attempts: int = 0
    maybe_sent: bool = False


class ActionList(Struct, frozen=True, kw_only=True):
    items: tuple[ActionView, ...] = ()
    total: int = 0


class ReplayView(Struct, frozen=True, kw_only=True):
    """Messages of dead lanes that went into the pipeline again, by lane."""

    pipeline: str
    replayed: dict[str, int] = {}
    last_seq: dict[str, int] = {}
    dry_run: bool = False

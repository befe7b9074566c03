"""Small values for tests of ACT: a ledger in memory, a sink that writes down what it did, settings and batches."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harch.pipelines.act.decisions import DecisionBatch
from harch.pipelines.act.ledger import ActionCommand, CommandState, CommandStep, LedgerEntry, make_command
from harch.pipelines.act.settings import ActSettings, Mode, read_act
from harch.pipelines.act.sinks.base import Effect, PreparedRequest, SendGate, SinkOutcome, SinkRequest
from harch.pipelines.act.store import LedgerConflict, StoredEntry
from harch.sovereignty.audit.chain import Draft

MA, SN = 1, 2


class MemoryLedger:
    """A LedgerStore in memory, with the promises of the real ones."""

    def __init__(self) -> None:
        self.rows: dict[str, StoredEntry] = {}
        self.history: list[tuple[str, CommandState]] = []
        self.stop = ""

    async def put(self, entry: LedgerEntry, *, revision: int, durable: bool = True) -> StoredEntry:
        current = self.rows.get(entry.cmd_id)
        if (current.revision if current else 0) != revision:
            raise LedgerConflict(entry.cmd_id)
        self.rows[entry.cmd_id] = StoredEntry(entry, revision + 1)
        self.history.append((entry.cmd_id, entry.state))
        return self.rows[entry.cmd_id]

    async def get(self, cmd_id: str) -> StoredEntry | None:
        return self.rows.get(cmd_id)

    async def scan(self, states: Collection[CommandState], limit: int = 1000) -> list[StoredEntry]:
        found = [row for row in self.rows.values() if row.entry.state in states]
        found = [row for row in found if not row.entry.closed or row.entry.letter]
        return sorted(found, key=lambda row: row.entry.changed_ms)[:limit]

    async def last_done(self, limit: int = 1000) -> list[StoredEntry]:
        return [row for row in self.rows.values() if row.entry.state is CommandState.DONE][:limit]

    async def prune(self, *, closed_before_ms: int, letters_max: int) -> int:
        return 0

    async def set_stop(self, reason: str) -> None:
        self.stop = reason

    def stopped(self) -> str:
        return self.stop

    async def close(self) -> None: ...


@dataclass
class RecordingSink:
    """Does what it is told to say: outcomes are taken from `answers`, then YES."""

    keeps_keys: bool = True
    reads_back: bool = False
    timeout_s: float = 1.0
    answers: list[SinkOutcome] = field(default_factory=list)
    probes: list[SinkOutcome] = field(default_factory=list)
    prepared: PreparedRequest = field(default_factory=PreparedRequest)
    orders: list[SinkRequest] = field(default_factory=list)
    probed: list[SinkRequest] = field(default_factory=list)

    async def prepare(self, order: SinkRequest) -> PreparedRequest:
        return self.prepared

    async def execute(self, order: SinkRequest, gate: SendGate) -> SinkOutcome:
        if reason := gate():
            return SinkOutcome(Effect.NO, reason)
        self.orders.append(order)
        return self.answers.pop(0) if self.answers else SinkOutcome(Effect.YES)

    async def probe(self, order: SinkRequest) -> SinkOutcome:
        self.probed.append(order)
        return self.probes.pop(0) if self.probes else SinkOutcome(Effect.YES)

    async def close(self) -> None: ...


@dataclass
class Chain:
    """The audit callback of a test."""

    drafts: list[Draft] = field(default_factory=list)

    async def __call__(self, draft: Draft) -> None:
        self.drafts.append(draft)

    def kinds(self, cmd_id: str) -> list[str]:
        return [f"{draft.kind} {draft.verdict}" for draft in self.drafts if draft.subject == cmd_id]


def act(**action: Any) -> ActSettings:
    """Settings with one action `open` on sink `valve`, an HTTP sink that keeps keys."""
    top = {name: action.pop(name) for name in ("stop_file", "queue_max", "dry_run", "settle_s") if name in action}
    sinks = action.pop("sinks", {"valve": {"kind": "http", "url": "http://127.0.0.1:1/act", "honours_key": True}})
    one = {"name": "open", "when": "score > 0.5", "ttl_s": 30, "sink": "valve", "args": {"value": "{score * 100}"}}
    if "steps" in action:
        del one["sink"], one["args"]
    return read_act({"sinks": sinks, "actions": [{**one, **action}], **top})


def batch(
    *scores: float, window: int = 1, at_ms: int, mask: int = MA, devices: list[str] | None = None
) -> DecisionBatch:
    return DecisionBatch(
        pipeline="irrigation",
        devices=devices or [f"d{index}" for index in range(len(scores))],
        columns={"score": np.array(scores)},
        windows=window,
        at_ms=at_ms,
        juris_mask=mask,
        model="soil",
        model_hash="m" * 64,
        trace="t",
    )


def command(number: int = 0, *, mode: Mode = Mode.TRANSACTIONAL, issued_ms: int = 0, **changes: Any) -> ActionCommand:
    fields: dict[str, Any] = {
        "pipeline": "irrigation",
        "device": f"d{number}",
        "action": "open",
        "steps": (CommandStep("valve", {"value": 80.0}),),
        "window": 1,
        "mode": mode,
        "issued_ms": issued_ms,
        "ttl_s": 30,
    }
    return make_command(**{**fields, **changes})

"""Which commands wait for a person, and what did the person say? For the CLI, the console and the API of a hub."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from harch.pipelines.act import audit, ledger
from harch.pipelines.act.attempt import AuditCallback
from harch.pipelines.act.command import Step
from harch.pipelines.act.ledger import Entry, State
from harch.pipelines.act.store import SCAN_MAX, LedgerStore, find, replace


class Waiting(Struct, frozen=True, kw_only=True):
    """What a person sees before they decide. `digest` is what they approve: exactly this, nothing else."""

    cmd_id: str
    digest: str
    pipeline: str
    device: str
    action: str
    steps: tuple[Step, ...]
    issued_ms: int
    expires_ms: int
    priority: int
    model: str
    juris_mask: int
    dry_run: bool


async def waiting(store: LedgerStore, *, now: datetime, limit: int = 100) -> list[Waiting]:
    """What can still be approved, most urgent first, then what expires first."""
    now_ms = _ms(now)
    found = await store.scan([State.AWAIT_CONFIRM], limit=SCAN_MAX)  # the most urgent may be the newest
    shown = [view(one.entry) for one in found if not one.entry.command.expired(now_ms)]
    return sorted(shown, key=lambda one: (one.priority, one.expires_ms, one.cmd_id))[:limit]


def view(entry: Entry) -> Waiting:
    command = entry.command
    return Waiting(
        cmd_id=command.cmd_id,
        digest=entry.digest,
        pipeline=command.pipeline,
        device=command.device,
        action=command.action,
        steps=command.steps,
        issued_ms=command.issued_ms,
        expires_ms=command.expires_ms,
        priority=command.priority,
        model=command.model,
        juris_mask=command.juris_mask,
        dry_run=command.dry_run,
    )


async def approve(
    store: LedgerStore, cmd_id: str, digest: str, *, by: str, now: datetime, audit_to: AuditCallback
) -> Entry:
    """Raises E0771, E0772, E0773. The audit hears of it before it counts; the worker checks everything again."""
    stored = await find(store, cmd_id)
    entry = ledger.approved(stored.entry, digest, by, now_ms=_ms(now))
    await audit_to(audit.person(entry, by=by))
    return await replace(store, stored, entry)


async def reject(
    store: LedgerStore, cmd_id: str, *, by: str, reason: str = "", now: datetime, audit_to: AuditCallback
) -> Entry:
    """Raises E0771 or E0772."""
    stored = await find(store, cmd_id)
    if stored.entry.state is not State.AWAIT_CONFIRM:
        raise ledger.not_possible(stored.entry, "rejected")
    entry = ledger.rejected(stored.entry, reason or "a person said no", now_ms=_ms(now), by=by)
    await audit_to(audit.person(entry, by=by))
    return await replace(store, stored, entry)


def _ms(now: datetime) -> int:
    return round(now.timestamp() * 1000)

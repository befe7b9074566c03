"""What does a person have to decide?

Commands that wait for approval, and dead letters, which are entries of the ledger and rest where their data may.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from harch.pipelines.act import attempt, ledger
from harch.pipelines.act.attempt import AuditCallback
from harch.pipelines.act.ledger import ActionCommand, CommandState, CommandStep, LedgerEntry
from harch.pipelines.act.store import SCAN_MAX, LedgerStore, find, replace


class PendingApproval(Struct, frozen=True, kw_only=True):
    """What a person sees before they decide. `digest` is what they approve: exactly this, nothing else."""

    cmd_id: str
    digest: str
    pipeline: str
    device: str
    action: str
    steps: tuple[CommandStep, ...]
    issued_ms: int
    expires_ms: int
    priority: int
    model: str
    juris_mask: int
    dry_run: bool


async def waiting(store: LedgerStore, *, now: datetime, limit: int = 100) -> list[PendingApproval]:
    """What can still be approved, most urgent first, then what expires first."""
    now_ms = _ms(now)
    found = await store.scan([CommandState.AWAIT_CONFIRM], limit=SCAN_MAX)  # the most urgent may be the newest
    pending = [approval_view(one.entry) for one in found if not one.entry.command.expired(now_ms)]
    return sorted(pending, key=lambda one: (one.priority, one.expires_ms, one.cmd_id))[:limit]


def approval_view(entry: LedgerEntry) -> PendingApproval:
    command = entry.command
    return PendingApproval(
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
) -> LedgerEntry:
    """Raises E0771, E0772, E0773. The audit hears of it before it counts; the worker checks everything again."""
    stored = await find(store, cmd_id)
    entry = ledger.approved(stored.entry, digest, by, now_ms=_ms(now))
    await audit_to(attempt.person_draft(entry, by=by))
    return await replace(store, stored, entry)


async def reject(
    store: LedgerStore, cmd_id: str, *, by: str, reason: str = "", now: datetime, audit_to: AuditCallback
) -> LedgerEntry:
    """Raises E0771 or E0772."""
    stored = await find(store, cmd_id)
    if stored.entry.state is not CommandState.AWAIT_CONFIRM:
        raise ledger.not_possible(stored.entry, "rejected")
    entry = ledger.rejected(stored.entry, reason or "rejected by a person", now_ms=_ms(now), by=by)
    await audit_to(attempt.person_draft(entry, by=by))
    return await replace(store, stored, entry)


def _ms(now: datetime) -> int:
    return round(now.timestamp() * 1000)


# What could not be done, and what now? Dead letters are entries of the ledger, so they rest where their data may.


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A command that was given up, with the reason, everything it carried, and where it may be kept."""

    cmd_id: str
    reason: str
    at_ms: int
    attempts: int
    maybe_sent: bool
    command: ActionCommand
    juris_mask: int
    expires_ms: int


async def letters(store: LedgerStore, *, limit: int = 100) -> list[DeadLetter]:
    """Oldest first."""
    return [
        DeadLetter(
            cmd_id=one.entry.cmd_id,
            reason=one.entry.reason,
            at_ms=one.entry.changed_ms,
            attempts=one.entry.attempts,
            maybe_sent=one.entry.maybe_sent,
            command=one.entry.command,
            juris_mask=one.entry.command.juris_mask,
            expires_ms=one.entry.command.expires_ms,
        )
        for one in await store.scan([CommandState.DEAD], limit=limit)
        if one.entry.letter
    ]


async def replay(store: LedgerStore, cmd_id: str, *, now: datetime, not_carried_out: bool = False) -> LedgerEntry:
    """A new set of attempts under the same id; time and interlocks are checked as if it were new.

    `not_carried_out`: a person looked at the device and says so. Raises E0771, E0772, E0774.
    """
    stored = await find(store, cmd_id)
    entry = ledger.replayed(stored.entry, now_ms=round(now.timestamp() * 1000), not_carried_out=not_carried_out)
    return await replace(store, stored, entry)


async def drop(store: LedgerStore, cmd_id: str, *, now: datetime) -> LedgerEntry:
    """Forgets the letter; the ledger keeps the end of the command. Raises E0771 or E0772."""
    stored = await find(store, cmd_id)
    return await replace(store, stored, ledger.dropped(stored.entry, now_ms=round(now.timestamp() * 1000)))

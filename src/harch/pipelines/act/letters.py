"""What could not be done, and what now? Dead letters are entries of the ledger, so they rest where their data may."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from harch.pipelines.act import ledger
from harch.pipelines.act.command import Command
from harch.pipelines.act.ledger import Entry, State
from harch.pipelines.act.store import LedgerStore, find, replace


class Letter(Struct, frozen=True, kw_only=True):
    """A command that was given up, with the reason, everything it carried, and where it may be kept."""

    cmd_id: str
    reason: str
    at_ms: int
    attempts: int
    maybe_sent: bool
    command: Command
    juris_mask: int
    expires_ms: int


async def letters(store: LedgerStore, *, limit: int = 100) -> list[Letter]:
    """Oldest first."""
    return [
        Letter(
            cmd_id=one.entry.cmd_id,
            reason=one.entry.reason,
            at_ms=one.entry.changed_ms,
            attempts=one.entry.attempts,
            maybe_sent=one.entry.maybe_sent,
            command=one.entry.command,
            juris_mask=one.entry.command.juris_mask,
            expires_ms=one.entry.command.expires_ms,
        )
        for one in await store.scan([State.DEAD], limit=limit)
        if one.entry.letter
    ]


async def replay(store: LedgerStore, cmd_id: str, *, now: datetime, not_carried_out: bool = False) -> Entry:
    """A new set of attempts under the same id; time and interlocks are checked as if it were new.

    `not_carried_out`: a person looked at the device and says so. Raises E0771, E0772, E0774.
    """
    stored = await find(store, cmd_id)
    entry = ledger.replayed(stored.entry, now_ms=round(now.timestamp() * 1000), not_carried_out=not_carried_out)
    return await replace(store, stored, entry)


async def drop(store: LedgerStore, cmd_id: str, *, now: datetime) -> Entry:
    """Forgets the letter; the ledger keeps the end of the command. Raises E0771 or E0772."""
    stored = await find(store, cmd_id)
    return await replace(store, stored, ledger.dropped(stored.entry, now_ms=round(now.timestamp() * 1000)))

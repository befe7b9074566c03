"""Where is the ledger kept, and what must that place promise? Compare-and-set on one entry, durable when asked."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from msgspec import Struct

from harch.base.errors import HarchError
from harch.pipelines.act.ledger import CommandState, LedgerEntry

SCAN_MAX = 10_000  # rows that one scan may give

# The states in which a device may be in the middle of it.
UNRESOLVED = (CommandState.INTENT, CommandState.SENT, CommandState.UNKNOWN, CommandState.FAILED)


class StoredEntry(Struct, frozen=True):
    """An entry as the store has it. `revision` changes with every write and is what the next write must name."""

    entry: LedgerEntry
    revision: int


class LedgerConflict(Exception):
    """Somebody else wrote first: read again, and decide again. Nothing was written."""


class LedgerStore(Protocol):
    """A place for entries. Failures other than Conflict are HarchError E0775, and then a write may or may not be there.

    Two promises hold everything up: of two writes that name the same revision one is refused, and a durable write that
    returned is there after a power cut.
    """

    async def put(self, entry: LedgerEntry, *, revision: int, durable: bool = True) -> StoredEntry:
        """Writes where `revision` is still the current one; 0: where there is no entry yet. Raises Conflict."""
        ...

    async def get(self, cmd_id: str) -> StoredEntry | None: ...

    async def scan(self, states: Collection[CommandState], limit: int = 1000) -> list[StoredEntry]:
        """Entries in these states that are not closed, or have a letter; oldest change first."""
        ...

    async def last_done(self, limit: int = 1000) -> list[StoredEntry]:
        """Commands that were done lately, newest first, for interlocks that look back."""
        ...

    async def prune(self, *, closed_before_ms: int, letters_max: int) -> int:
        """Forgets closed entries of before, and the oldest letters above the limit; how many letters were dropped."""
        ...

    async def set_stop(self, reason: str) -> None:
        """With a reason, nothing is sent by anybody who shares this ledger. Empty: go on."""
        ...

    def stopped(self) -> str:
        """The reason, as last heard. Asked right before each request, so it must not wait. Raises E0775 where a stop
        could not be heard."""
        ...

    async def close(self) -> None: ...


async def find(store: LedgerStore, cmd_id: str) -> StoredEntry:
    """For people: raises E0771 where there is none."""
    stored = await store.get(cmd_id)
    if stored is None:
        raise HarchError("E0771", f"the ledger has no command `{cmd_id[:64]}`", hint="list the commands again")
    return stored


async def replace(store: LedgerStore, stored: StoredEntry, entry: LedgerEntry) -> LedgerEntry:
    """For people: raises E0772 where somebody else was faster."""
    try:
        return (await store.put(entry, revision=stored.revision)).entry
    except LedgerConflict as error:
        raise HarchError("E0772", "the command was changed concurrently", hint="list it again") from error

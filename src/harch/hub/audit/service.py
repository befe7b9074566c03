"""What can be asked about a hub's audit chain? Pages, exports, its signed head, and the checkpoints of peers."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harch.base.clock import Clock, iso
from harch.hub.audit import table
from harch.hub.audit.keyfile import KeyFile
from harch.hub.audit.table import AuditQuery, AuditRecord
from harch.hub.audit.trail import AuditTrail
from harch.hub.store.database import Database, storage_error
from harch.hub.store.rows import Statement
from harch.sovereignty.audit.checkpoints import SignedCheckpoint, check_offer, sign
from harch.sovereignty.audit.entry import Draft
from harch.sovereignty.audit.keys import KeyStatement, draft_of, introduce, public_hex, statement_in

KEYS_SHOWN_MAX = 50
KEPT_PER_HUB_MAX = 1000  # a checkpoint covers everything before it, so the newest prove as much as all

Write = Callable[[list[Statement], list[Draft]], asyncio.Future[None]]

_log = logging.getLogger("harch.hub")


def open_signing_key(file: KeyFile, trail: AuditTrail, database: Database) -> Ed25519PrivateKey:
    """The key of the file. A chain that does not know it learns of it first: at its start, or after a loss."""
    entry = table.signing_key_entry(database)
    in_force = statement_in(entry).key if entry else ""
    key = file.open(in_force)
    if public_hex(key) != in_force:
        if in_force:
            _log.error("the audit key is not the one that the chain names: the chain goes on, its proof begins anew")
        statements = trail.link([draft_of(introduce(trail.hub_id, key, by=key))])
        try:
            database.write(statements)
        except sqlite3.Error as error:
            raise storage_error(error, database.path) from error
    return key


class HubAudit:
    """One hub's chain, for readers and peers. `write` stores statements and drafts in one transaction."""

    def __init__(
        self, *, hub_id: str, database: Database, clock: Clock, file: KeyFile, key: Ed25519PrivateKey, write: Write
    ) -> None:
        self._hub_id, self._database, self._clock, self._write = hub_id, database, clock, write
        self._file, self._key = file, key
        self._changing = asyncio.Lock()

    async def records(self, query: AuditQuery) -> list[AuditRecord]:
        return await asyncio.to_thread(table.records, self._database, query)

    async def lines(self, *, after: int, upto: int, limit: int) -> list[tuple[int, bytes]]:
        return await asyncio.to_thread(table.lines, self._database, after=after, upto=upto, limit=limit)

    async def head(self) -> SignedCheckpoint:
        """Signs what is on disk now."""
        async with self._changing:  # a key that is being replaced must not sign behind its successor
            stored = await asyncio.to_thread(table.head, self._database)
            return sign(stored, hub=self._hub_id, at=iso(self._clock.now()), key=self._key)

    async def checkpoints(self, hub: str | None) -> list[SignedCheckpoint]:
        """Copies of other hubs' checkpoints that this one keeps."""
        return await asyncio.to_thread(table.checkpoints, self._database, hub)

    async def key_statements(self) -> list[KeyStatement]:
        """How the keys of this chain were introduced; a peer needs them after a change of the key."""
        entries = await asyncio.to_thread(table.signing_key_entries, self._database, KEYS_SHOWN_MAX)
        return [statement_in(entry) for entry in entries]

    async def keep(self, signed: SignedCheckpoint, statements: Iterable[KeyStatement]) -> None:
        """Raises E0201 if it proves nothing, E0920 if it contradicts what is kept already."""
        async with self._changing:
            check_offer(signed, await self.checkpoints(signed.checkpoint.hub), statements)
            await self._write(
                [table.save_checkpoint(signed), table.drop_old_checkpoints(signed.checkpoint.hub, KEPT_PER_HUB_MAX)], []
            )

    async def rotate_key(self, *, actor: str) -> str:
        """A new signing key, introduced by the old one; answers its public half."""
        async with self._changing:
            new = await asyncio.to_thread(self._file.prepare)
            statement = introduce(self._hub_id, new, by=self._key)
            await self._write([], [draft_of(statement, actor=actor)])
            await asyncio.to_thread(self._file.put_in_force)
            self._key = new
            return statement.key

"""What can be asked about a hub's audit chain? Pages, exports, its signed head, peers' checkpoints, and its losses."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from harch.base.clock import Clock, iso
from harch.base.errors import HarchError
from harch.hub.audit import table
from harch.hub.audit.files import HeadFile, KeyFile
from harch.hub.audit.table import AuditQuery, AuditRecord, AuditTrail
from harch.hub.store import rows
from harch.hub.store.database import Database, storage_error
from harch.hub.store.rows import Statement
from harch.sovereignty.audit.chain import ChainHead, Draft
from harch.sovereignty.audit.checkpoints import (
    KeyStatement,
    SignedCheckpoint,
    check_offer,
    draft_of,
    introduce,
    public_hex,
    sign,
    statement_in,
)
from harch.sovereignty.audit.verification import WAY_OUT, Loss, acceptance, find_loss
from harch.wire.audit import AcceptedLoss
from harch.wire.events import EventRecord

KEYS_LISTED_MAX = 50
KEPT_PER_HUB_MAX = 1000  # a checkpoint covers everything before it, so the newest prove as much as all

Write = Callable[[list[Statement], list[Draft]], asyncio.Future[None]]

_log = logging.getLogger("harch.hub")


def loss_at_start(file: HeadFile, database: Database, path: str) -> Loss | None:
    """Whether the database is behind what its head file says. Tells the log what there is to tell."""
    record, stored = file.found, table.head(database)
    if record is None:
        if file.damaged:
            _log.error("%s is damaged: only checkpoints at other hubs can show whether the database lost its end", path)
        elif stored.seq:
            _log.warning("there was no %s: only checkpoints at other hubs can show a loss before this start", path)
        return None
    loss = find_loss(
        record.head,
        stored=stored,
        hash_there=table.hash_at(database, record.seq),
        accepted=table.accepted_losses(database),
        source=record.source,
        known_events=record.events,
        stored_events=database.last_event(),
    )
    if loss is not None:
        _log.critical("%s: nothing is written until that is resolved", loss.sentence)
    return loss


def loss_error(loss: Loss) -> HarchError:
    return HarchError(
        "E1020",
        f"the hub takes no work and writes nothing: {loss.sentence}",
        hint="restore the database that has it (hub.db with hub.db-wal) and restart the hub, or let an admin run "
        f"`{WAY_OUT}`",
        meta={"found_seq": loss.found.seq, "lost_seq": loss.lost.seq},
    )


def open_signing_key(file: KeyFile, trail: AuditTrail, database: Database) -> Ed25519PrivateKey:
    """The key of the file. A chain that does not know it learns of it first: at its start, or after a loss."""
    entry = table.signing_key_entry(database)
    in_force = statement_in(entry).key if entry else ""
    key = file.open(in_force)
    if public_hex(key) != in_force:
        if in_force:
            _log.error("the audit key is not the one that the chain names: the chain goes on, its proof starts over")
        statements = trail.link([draft_of(introduce(trail.hub_id, key, by=key))])
        try:
            database.write(statements)
        except sqlite3.Error as error:
            raise storage_error(error, database.path) from error
    return key


class HubAudit:
    """One hub's chain, for readers and peers. `write` stores statements and drafts in one transaction.

    `loss` is what the chain is known to lack. While there is one nothing is written; `hold` stops the hub when one is
    found later, `release` lets it go on.
    """

    def __init__(
        self,
        *,
        trail: AuditTrail,
        database: Database,
        clock: Clock,
        file: KeyFile,
        head_file: HeadFile,
        write: Write,
        hold: Callable[[HarchError], None],
        release: Callable[[], None],
        loss: Loss | None = None,
    ) -> None:
        self._hub_id, self._database, self._clock, self._write = trail.hub_id, database, clock, write
        self._trail, self._file, self._head_file = trail, file, head_file
        self._hold, self._release = hold, release
        # A database that is not the right one may name another key than the file: that is settled with the loss.
        self._key = file.peek() if loss is not None else open_signing_key(file, trail, database)
        self._changing = asyncio.Lock()
        self.loss = loss

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
        entries = await asyncio.to_thread(table.signing_key_entries, self._database, KEYS_LISTED_MAX)
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

    # Losses

    async def losses(self) -> list[AcceptedLoss]:
        """What was lost once and accepted."""
        return await asyncio.to_thread(table.accepted_losses, self._database)

    async def newest_kept(self, hub: str) -> SignedCheckpoint | None:
        """The newest copy that this hub keeps of another one's checkpoints."""
        return await asyncio.to_thread(table.newest_checkpoint, self._database, hub)

    async def confront(self, signed: SignedCheckpoint, source: str) -> None:
        """A peer shows what this hub once signed. If the chain does not have it, the hub stops."""
        checkpoint = signed.checkpoint
        if checkpoint.hub != self._hub_id or not signed.holds:
            return
        if checkpoint.key not in await asyncio.to_thread(self._own_keys):
            _log.error(
                "%s keeps a checkpoint of this hub by a key that its chain does not name: "
                "its history was lost, or %s keeps that of another hub of this name",
                source,
                source,
            )
            return
        async with self._changing:  # what is accepted meanwhile must not be found again
            loss = await asyncio.to_thread(self._compare, ChainHead(checkpoint.seq, checkpoint.hash), source)
            if loss is None or (self.loss is not None and self.loss.lost.seq >= loss.lost.seq):
                return
            self.loss = loss
            _log.critical("%s: nothing is written until that is resolved", loss.sentence)
            self._head_file.expect(loss.lost, loss.lost_events, source)
            self._hold(loss_error(loss))

    async def accept_loss(self, *, lost_seq: int, actor: str, why: str) -> AcceptedLoss:
        """The chain goes on without what it lost, and says so. Raises E0304 if that is not what is lost."""
        async with self._changing:
            loss = self.loss
            if loss is None:
                raise HarchError("E0304", "nothing is lost", hint="`harch audit verify` checks the chain")
            if loss.lost.seq != lost_seq:
                raise HarchError(
                    "E0304", f"what is lost goes up to entry {loss.lost.seq}, not {lost_seq}", hint="check again first"
                )
            if not table.head(self._database).seq:  # nothing is left: a chain begins with its key
                self._trail.reload()
                self._key = open_signing_key(self._file, self._trail, self._database)
            stored, events = table.head(self._database), max(self._database.last_event(), loss.lost_events) + 1
            loss = Loss(found=stored, lost=loss.lost, source=loss.source, lost_events=loss.lost_events)
            self._trail.head = ChainHead(loss.next_seq - 1, stored.hash)
            event = EventRecord(
                seq=events,
                at=self._clock.now(),
                kind="audit.loss",
                subject=self._hub_id,
                tenant="",
                message=f"{loss.sentence}: accepted by {actor}",
            )
            statements = self._trail.link([acceptance(loss, actor=actor, why=why)])
            try:
                self._database.write([*statements, rows.save_event(event)])
            except sqlite3.Error as error:
                self._trail.reload()
                raise storage_error(error, self._database.path) from error
            self._key = open_signing_key(self._file, self._trail, self._database)
            self._head_file.reset(self._trail.head, events)
            self.loss = None
            self._release()
        return (await self.losses())[-1]

    def _compare(self, known: ChainHead, source: str) -> Loss | None:
        return find_loss(
            known,
            stored=table.head(self._database),
            hash_there=table.hash_at(self._database, known.seq),
            accepted=table.accepted_losses(self._database),
            source=source,
        )

    def _own_keys(self) -> set[str]:
        entries = table.signing_key_entries(self._database, KEYS_LISTED_MAX)
        return {public_hex(self._key), *(statement_in(entry).key for entry in entries)}

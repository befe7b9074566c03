"""Where does the chain lie on disk? Its rows in the hub's database, written with the decision that they describe."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct

from harch.base.clock import Clock, iso
from harch.hub.audit import table
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement
from harch.sovereignty.audit.chain import (
    KEY_SUBJECT,
    LOSS_ACCEPTED,
    LOSS_SUBJECT,
    SIGNING_KEY,
    AuditEntry,
    ChainHead,
    Draft,
    Linked,
    decode_entry,
    line_of,
    link,
)
from harch.sovereignty.audit.checkpoints import SignedCheckpoint
from harch.sovereignty.audit.verification import loss_in
from harch.wire.audit import AcceptedLoss


class AuditQuery(Struct, frozen=True, kw_only=True):
    """Entries after `after`, oldest first. `kind` also finds what begins with it and a dot."""

    after: int = 0
    limit: int = 100
    subject: str | None = None
    kind: str | None = None
    data: str | None = None


class AuditRecord(Struct, frozen=True, kw_only=True):
    """An entry with its hash."""

    entry: AuditEntry
    hash: str


SAVE_ENTRY = "INSERT INTO audit (seq, kind, subject, hash, entry) VALUES (?, ?, ?, ?, ?)"
SAVE_DATA = "INSERT INTO audit_data (data_id, seq) VALUES (?, ?)"


def save(linked: Linked) -> list[Statement]:
    entry = linked.entry
    statements: list[Statement] = [(SAVE_ENTRY, (entry.seq, entry.kind, entry.subject, linked.hash, linked.body))]
    if entry.data:
        statements += [(SAVE_DATA, (data_id, entry.seq)) for data_id in dict.fromkeys(entry.data)]
    return statements


def save_checkpoint(signed: SignedCheckpoint) -> Statement:
    checkpoint = signed.checkpoint
    return (
        "INSERT INTO audit_checkpoints (hub, seq, hash, line) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (hub, seq, hash) DO NOTHING",
        (checkpoint.hub, checkpoint.seq, checkpoint.hash, signed.line),
    )


def drop_old_checkpoints(hub: str, kept: int) -> Statement:
    return (
        "DELETE FROM audit_checkpoints WHERE hub = ? AND seq < COALESCE("
        "(SELECT seq FROM audit_checkpoints WHERE hub = ? ORDER BY seq DESC LIMIT 1 OFFSET ?), -1)",
        (hub, hub, kept - 1),
    )


def head(database: Database) -> ChainHead:
    found = database.query("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1")
    return ChainHead(int(found[0][0]), str(found[0][1])) if found else ChainHead()


def hash_at(database: Database, seq: int) -> str | None:
    found = database.query("SELECT hash FROM audit WHERE seq = ?", (seq,))
    return str(found[0][0]) if found else None


def accepted_losses(database: Database) -> list[AcceptedLoss]:
    found = database.query(
        "SELECT entry FROM audit WHERE subject = ? AND kind = ? ORDER BY seq", (LOSS_SUBJECT, LOSS_ACCEPTED)
    )
    return [loss_in(decode_entry(body)) for (body,) in found]


def signing_key_entry(database: Database) -> AuditEntry | None:
    """The entry that introduced the key in force."""
    found = database.query(
        "SELECT entry FROM audit WHERE subject = ? AND kind = ? ORDER BY seq DESC LIMIT 1", (KEY_SUBJECT, SIGNING_KEY)
    )
    return decode_entry(found[0][0]) if found else None


def signing_key_entries(database: Database, limit: int) -> list[AuditEntry]:
    """The entries that introduced the last keys, oldest first."""
    found = database.query(
        "SELECT entry FROM audit WHERE subject = ? AND kind = ? ORDER BY seq DESC LIMIT ?",
        (KEY_SUBJECT, SIGNING_KEY, limit),
    )
    return [decode_entry(body) for (body,) in reversed(found)]


def records(database: Database, query: AuditQuery) -> list[AuditRecord]:
    where, parameters = ["seq > ?"], [query.after]  # type: list[str], list[object]
    if query.subject is not None:
        where.append("subject = ?")
        parameters.append(query.subject)
    if query.kind is not None:
        where.append("(kind = ? OR kind LIKE ?)")
        parameters += [query.kind, f"{query.kind}.%"]
    if query.data is not None:
        where.append("seq IN (SELECT seq FROM audit_data WHERE data_id = ?)")
        parameters.append(query.data)
    found = database.query(
        f"SELECT entry, hash FROM audit WHERE {' AND '.join(where)} ORDER BY seq LIMIT ?",  # noqa: S608
        (*parameters, query.limit),
    )
    return [AuditRecord(entry=decode_entry(body), hash=str(hash_)) for body, hash_ in found]


def lines(database: Database, *, after: int, upto: int, limit: int) -> list[tuple[int, bytes]]:
    """A piece of an export, exactly as it is stored: whether it is sound is for the reader to find out."""
    found = database.query(
        "SELECT seq, entry, hash FROM audit WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?", (after, upto, limit)
    )
    return [(int(seq), line_of(bytes(body), str(hash_))) for seq, body, hash_ in found]


def newest_checkpoint(database: Database, hub: str) -> SignedCheckpoint | None:
    found = database.query("SELECT line FROM audit_checkpoints WHERE hub = ? ORDER BY seq DESC LIMIT 1", (hub,))
    return _decode_checkpoint(found[0][0]) if found else None


def checkpoints(database: Database, hub: str | None) -> list[SignedCheckpoint]:
    condition, parameters = ("", ()) if hub is None else (" WHERE hub = ?", (hub,))
    found = database.query(f"SELECT line FROM audit_checkpoints{condition} ORDER BY hub, seq", parameters)  # noqa: S608
    return [_decode_checkpoint(line) for (line,) in found]


_decode_checkpoint = msgspec.json.Decoder(SignedCheckpoint).decode


# Where does the chain go on? Its growing end: gives each draft its place and its hash, in the order of the disk.


class AuditTrail:
    """Statements that continue the chain. Whoever cannot store them must set `head` back, or the chain has a hole."""

    def __init__(self, hub_id: str, database: Database, clock: Clock) -> None:
        self.hub_id = hub_id
        self._database, self._clock = database, clock
        self.head = table.head(database)

    def link(self, drafts: list[Draft], now: datetime | None = None) -> list[Statement]:
        """They happened together, so they share their time; their order is the order of the chain.

        `now`: when they were decided, if the caller has read the clock already.
        """
        statements: list[Statement] = []
        if drafts:
            at = iso(now or self._clock.now())
            for draft in drafts:
                linked = link(self.head, draft, hub=self.hub_id, at=at)
                self.head = linked.head
                statements += table.save(linked)
        return statements

    def reload(self) -> None:
        """Goes back to what is on disk."""
        self.head = table.head(self._database)

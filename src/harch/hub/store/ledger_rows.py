"""How does the carbon ledger become rows? Statements to run in one transaction, and what to read back.

The columns beside `entry` repeat what it says, to find it; only `entry` is hashed and exported. There is no statement
that changes or deletes a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from harch.base.clock import iso
from harch.carbon.ledger.chain import BookedCharges, LedgerHead, LedgerRow, LinkedRow, decode_row
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement
from harch.sovereignty.audit.chain import line_of

PAGE_ROWS = 1000  # read at a time

_SAVE = (
    "INSERT INTO carbon_ledger (seq, job, tenant, starts_at, ends_at, corrects, hash, entry)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
# `corrects > 0` lets the small index of corrections answer.
_COUNTS = (
    "NOT EXISTS (SELECT 1 FROM carbon_ledger later WHERE later.corrects > 0 AND later.corrects = carbon_ledger.seq)"
)
_BEGIN, _NEVER = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


def save_booked(booked: BookedCharges) -> list[Statement]:
    """All rows of one interval. A second writer at the same head fails on the primary key: a chain never forks."""
    return [_save(linked) for linked in booked.rows]


def head(database: Database) -> LedgerHead:
    """Where the ledger ends, and up to when everything is booked."""
    last = database.query("SELECT seq, hash FROM carbon_ledger ORDER BY seq DESC LIMIT 1")
    if not last:
        return LedgerHead()
    ((until,),) = database.query("SELECT MAX(ends_at) FROM carbon_ledger")
    seq, hash_ = last[0]
    return LedgerHead(int(seq), str(hash_), datetime.fromisoformat(str(until)))


def last_row(database: Database) -> LedgerRow | None:
    found = database.query("SELECT entry FROM carbon_ledger ORDER BY seq DESC LIMIT 1")
    return decode_row(found[0][0]) if found else None


def current_rows(
    database: Database,
    start: datetime = _BEGIN,
    end: datetime = _NEVER,
    *,
    tenant: str | None = None,
    job: str | None = None,
) -> Iterator[LedgerRow]:
    """The rows that count (no later one corrects them) of intervals that begin from `start` to before `end`."""
    where = f"starts_at >= ? AND starts_at < ? AND {_COUNTS}"
    values = [iso(start), iso(end)]
    for column, wanted in (("tenant", tenant), ("job", job)):
        if wanted is not None:
            where += f" AND {column} = ?"
            values.append(wanted)
    for _, _, entry in _pages(database, where, tuple(values)):
        yield decode_row(entry)


def interval_rows(database: Database, start: datetime) -> list[LedgerRow]:
    """All rows of the interval that begins then, with those that were corrected: its whole history."""
    return [decode_row(entry) for _, _, entry in _pages(database, "starts_at = ?", (iso(start),))]


def lines(database: Database, *, after: int, upto: int, limit: int) -> list[tuple[int, bytes]]:
    """Lines of an export with their numbers, whatever stands there: the verifier names a row that was edited."""
    found = database.query(
        "SELECT seq, hash, CAST(entry AS BLOB) FROM carbon_ledger WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
        (after, upto, limit),
    )
    return [(int(seq), line_of(bytes(entry), str(hash_))) for seq, hash_, entry in found]


def _save(linked: LinkedRow) -> Statement:
    row = linked.row
    charge = row.charge
    return (
        _SAVE,
        (
            row.seq,
            charge.job,
            charge.tenant,
            iso(charge.interval.start),
            iso(charge.interval.end),
            row.corrects,
            linked.hash,
            linked.body,
        ),
    )


def _pages(database: Database, where: str, values: tuple[object, ...]) -> Iterator[tuple[int, str, bytes]]:
    after = 0
    while True:
        page = database.query(
            f"SELECT seq, hash, entry FROM carbon_ledger WHERE {where} AND seq > ? ORDER BY seq LIMIT ?",  # noqa: S608
            (*values, after, PAGE_ROWS),
        )
        for seq, hash_, entry in page:
            after = int(seq)
            yield after, str(hash_), bytes(entry)
        if len(page) < PAGE_ROWS:
            return

"""What is kept of steps and bids? Statements to run in somebody's transaction, and what to read back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from harch.base.clock import iso
from harch.energy.market.book import Row, row_from_plain
from harch.hub.energy.step import StepRecord
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement

KEEP = timedelta(days=400)  # on disk: more than a year, so that a month can be compared with the one before it
ROWS_READ_MAX = 50_000

_encode = msgspec.json.Encoder().encode


def save_step(record: StepRecord) -> list[Statement]:
    """Written once: a second record of one step, after a clock that was set back, is none."""
    return [
        ("INSERT INTO energy_steps (at, body) VALUES (?, ?) ON CONFLICT DO NOTHING", (iso(record.at), _encode(record))),
        ("DELETE FROM energy_steps WHERE at < ?", (iso(record.at - KEEP),)),
    ]


def steps_since(database: Database, since: datetime) -> list[StepRecord]:
    found = database.query("SELECT body FROM energy_steps WHERE at >= ? ORDER BY at", (iso(since),))
    return [msgspec.json.decode(body, type=StepRecord) for (body,) in found]


def save_rows(rows: Sequence[Row], counts: dict[str, int]) -> list[Statement]:
    """Rows of the book. `counts`: how many rows each bid has before these; a row that is there already stays."""
    statements: list[Statement] = []
    numbers = dict(counts)
    for row in rows:
        number = numbers[row.bid_id] = numbers.get(row.bid_id, 0) + 1
        values = (row.bid_id, number, iso(row.delivery), iso(row.at), _encode(row.as_plain()))
        statements.append(
            (
                "INSERT INTO energy_book (bid_id, number, delivery, at, body) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                values,
            )
        )
    return statements


def forget_rows(now: datetime) -> Statement:
    """Whole bids of long ago; what is younger stays whatever became of it."""
    return "DELETE FROM energy_book WHERE delivery < ?", (iso(now - KEEP),)


def rows_since(database: Database, delivered_since: datetime) -> list[Row]:
    """Of bids whose delivery begins from then on; the rows of each bid in the order in which they were written."""
    found = database.query(
        "SELECT body FROM energy_book WHERE delivery >= ? ORDER BY delivery, bid_id, number LIMIT ?",
        (iso(delivered_since), ROWS_READ_MAX),
    )
    return [row_from_plain(msgspec.json.decode(body)) for (body,) in found]

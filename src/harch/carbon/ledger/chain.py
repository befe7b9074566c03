"""How does a charge get its place, and how is a cut tail noticed?

One chain per hub; its head is written into the audit chain, whose checkpoints peers keep.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import sha256

import msgspec
from msgspec import Raw, Struct

from harch.base.errors import InvariantBroken
from harch.carbon.ledger.accounting import check_balance
from harch.carbon.ledger.charge import Activity, Charge
from harch.sovereignty.audit.chain import NO_HASH, AuditEntry, Draft, line_of

# How does a charge get its place? One chain per hub; each row carries the hash of the row before it.
#
# A line of an export is `{"entry":ROW,"hash":"HASH"}` with HASH = SHA-256 of exactly the bytes ROW. An interval is
# booked
# once and whole. What turns out wrong is never changed: the interval is booked again, whole, by rows that name the rows
# they correct.


NOT_A_CORRECTION = 0  # rows count from 1


class LedgerRow(Struct, frozen=True, kw_only=True, gc=False):
    """A charge in its place. `corrects` is the row that it replaces."""

    seq: int
    prev: str
    booked_at: datetime
    charge: Charge
    corrects: int = NOT_A_CORRECTION
    reason: str = ""  # of a correction


class LedgerHead(Struct, frozen=True, gc=False):
    """The end of a hub's ledger: the last row, and the moment up to which every kWh is booked."""

    seq: int = 0
    hash: str = NO_HASH
    until: datetime | None = None


class LinkedRow(Struct, frozen=True, gc=False):
    """A row with its exact bytes and their hash."""

    row: LedgerRow
    body: bytes
    hash: str

    @property
    def line(self) -> bytes:
        return line_of(self.body, self.hash)


class BookedCharges(Struct, frozen=True):
    """Rows to store, all or none, and the head after them."""

    rows: tuple[LinkedRow, ...]
    head: LedgerHead


def book(head: LedgerHead, charges: Sequence[Charge], *, booked_at: datetime) -> BookedCharges:
    """The rows of one interval that follow `head`. Raises InvariantBroken for anything that would count twice."""
    _check_interval(charges)
    interval = charges[0].interval
    if head.until is not None and interval.start < head.until:
        raise InvariantBroken("an interval is booked once", charges[0].hub, interval.start, head.until)
    links = [(charge, NOT_A_CORRECTION) for charge in charges]
    return _append(head, links, booked_at=booked_at, reason="", until=interval.end)


def correct(
    head: LedgerHead, wrong: Iterable[LedgerRow], charges: Sequence[Charge], *, booked_at: datetime, reason: str
) -> BookedCharges:
    """Books an interval again. `wrong` are all its rows that count now (`current`); each is named by a new one.

    A job that had no row yet takes its kWh from what nobody held, and names that row. A job that should have had none
    must be among the charges with 0 kWh.
    """
    _check_interval(charges)
    if not reason:
        raise ValueError("a correction needs a reason")
    replaced = {row.charge.job: row for row in wrong}
    first = charges[0]
    for row in replaced.values():
        if row.charge.hub != first.hub or row.charge.interval != first.interval:
            raise InvariantBroken("a correction is about the same hub and interval", row.seq)
    missing = replaced.keys() - {charge.job for charge in charges}
    if missing or "" not in replaced:
        raise InvariantBroken("a correction replaces every row of its interval", first.hub, first.interval.start)
    links = [(charge, replaced.get(charge.job, replaced[""]).seq) for charge in charges]
    return _append(head, links, booked_at=booked_at, reason=reason, until=head.until)


def current(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """The rows of one hub that no later row corrects. Give whole intervals: a row and its correction share theirs."""
    found = list(rows)
    replaced = {row.corrects for row in found}
    return [row for row in found if row.seq not in replaced]


def read_row_line(line: bytes) -> LinkedRow | None:
    """The row of a line of an export, or None if the line is not exactly what a hub once wrote."""
    try:
        framed = _decode_line(line)
        body = bytes(framed.entry)
        linked = LinkedRow(decode_row(body), body, sha256(body).hexdigest())
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return linked if linked.line == line else None


class _Line(Struct):
    entry: Raw
    hash: str


_decode_line = msgspec.json.Decoder(_Line).decode
encode_row = msgspec.json.Encoder(order="deterministic").encode
decode_row = msgspec.json.Decoder(LedgerRow).decode


def _append(
    head: LedgerHead,
    links: Iterable[tuple[Charge, int]],
    *,
    booked_at: datetime,
    reason: str,
    until: datetime | None,
) -> BookedCharges:
    rows: list[LinkedRow] = []
    seq, prev = head.seq, head.hash
    for charge, corrects in links:
        seq += 1
        row = LedgerRow(seq=seq, prev=prev, booked_at=booked_at, charge=charge, corrects=corrects, reason=reason)
        body = encode_row(row)
        prev = sha256(body).hexdigest()
        rows.append(LinkedRow(row, body, prev))
    return BookedCharges(tuple(rows), LedgerHead(seq, prev, until))


def _check_interval(charges: Sequence[Charge]) -> None:
    """Checked again although `account` made them: what is booked twice or not at all can never be mended unseen."""
    if len({(charge.hub, charge.interval, charge.hub_kwh) for charge in charges}) != 1:
        raise InvariantBroken("charges of one interval are booked together", len(charges))
    if len({charge.job for charge in charges}) != len(charges):
        raise InvariantBroken("one charge per job, hub and interval", charges[0].hub, charges[0].interval.start)
    # Last, so that a reader of the chain knows where an interval ends.
    if charges[-1].activity is not Activity.UNALLOCATED or charges[-1].job:
        raise InvariantBroken("the unallocated remainder closes an interval", charges[0].hub, charges[0].interval.start)
    check_balance(charges)


# How is a cut tail of the ledger noticed? Its head is written into the audit chain, whose checkpoints peers keep.
#
# So one signature and one set of kept copies cover both chains, and nobody can shorten the ledger without also
# rewriting
# an audit chain that other hubs have signed copies of.


LEDGER_HEAD = "carbon.ledger"  # the kind of entry


class LedgerCheckpoint(Struct, frozen=True, kw_only=True):
    """At that moment the ledger of that hub was so long, and ended in this hash."""

    hub: str
    seq: int
    hash: str
    at: str


def checkpoint_draft(hub: str, head: LedgerHead) -> Draft:
    """What the hub writes into its audit chain, e.g. once an hour."""
    return Draft(LEDGER_HEAD, hub, "done", details={"hash": head.hash, "rows": head.seq})


def checkpoint_in(entry: AuditEntry) -> LedgerCheckpoint | None:
    """The checkpoint that an audit entry holds, if it is one."""
    seq, hash_ = entry.details.get("rows"), entry.details.get("hash")
    if entry.kind != LEDGER_HEAD or not isinstance(seq, int) or not isinstance(hash_, str) or seq < 1:
        return None
    return LedgerCheckpoint(hub=entry.hub, seq=seq, hash=hash_, at=entry.at)


def checkpoints_in(entries: Iterable[AuditEntry]) -> list[LedgerCheckpoint]:
    return [found for entry in entries if (found := checkpoint_in(entry)) is not None]

"""Is this ledger what the hub once booked, and does it add up? Reads an export line by line, tells the first bad row.

Hashes and links show an edit, a removal or a new order. Somebody who recomputed all hashes, or cut whole intervals off
the end, is shown by checkpoints that the audit chain holds. Besides, every interval is added up again and compared with
its meter, grams are recomputed from kWh and factors, and nothing may be counted twice.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from math import fsum, isclose

from msgspec import Struct

from harch.carbon.ledger.accounting import BALANCE_REL_MAX
from harch.carbon.ledger.chain import (
    NOT_A_CORRECTION,
    LedgerCheckpoint,
    LedgerHead,
    LedgerRow,
    LinkedRow,
    read_row_line,
)
from harch.carbon.ledger.charge import Charge, grams_of
from harch.sovereignty.audit.verification import AuditFinding, Tampering


class LedgerOutcome(Struct, frozen=True, kw_only=True):
    """`rows` counts those that are proven good; `checkpoints` those that agree with the chain."""

    hub: str
    rows: int
    head: str
    checkpoints: int
    finding: AuditFinding | None = None

    @property
    def is_sound(self) -> bool:
        return self.finding is None


class LedgerVerifier:
    """Takes the lines of an export in order (`take`), then tells (`finish`). Knows nothing of files and sockets."""

    def __init__(self, checkpoints: Iterable[LedgerCheckpoint] = ()) -> None:
        self._offered = list(checkpoints)
        self._kept: dict[int, list[LedgerCheckpoint]] = {}
        self._head = LedgerHead()
        self._hub = ""
        self._agreed = 0
        self._agreed_at = 0  # the last row that a checkpoint has confirmed
        self._batch: list[LedgerRow] = []  # rows of an interval whose last row has not come yet
        self._current: dict[datetime, set[int]] = {}  # by the start of the interval: the rows that count
        self._gap: AuditFinding | None = None  # a row is missing: removed, unless it turns up later
        self._finding: AuditFinding | None = None

    def take(self, line: bytes) -> LedgerRow | None:
        """The row if it is good so far; None for a bad one and for all that follow."""
        if self._finding is not None:
            return None
        linked = read_row_line(line)
        if self._gap is not None:
            if linked is not None and linked.row.seq == self._gap.seq:
                self._found(linked.row.seq, Tampering.REORDERED, "found further down")
            return None
        if linked is None:
            whole = line.endswith(b"\n")
            kind = Tampering.EDITED if whole else Tampering.TRUNCATED
            detail = "the line does not match its hash" if whole else "the last line is cut off"
            self._found(self._head.seq + 1, kind, detail)
            return None
        for check in (self._check_place, self._check_values, self._check_interval, self._check_kept):
            check(linked)
            if not self._is_good_so_far():
                return None
        return linked.row

    def finish(self) -> LedgerOutcome:
        if self._finding is None:
            self._finding = self._gap or self._missing_end()
        return LedgerOutcome(
            hub=self._hub,
            rows=self._head.seq,
            head=self._head.hash,
            checkpoints=self._agreed,
            finding=self._finding,
        )

    def _check_place(self, linked: LinkedRow) -> None:
        row, expected = linked.row, self._head.seq + 1
        if row.seq < expected:
            self._found(row.seq, Tampering.INSERTED, f"row {row.seq} is duplicated here")
        elif row.seq > expected:
            self._gap = AuditFinding(seq=expected, kind=Tampering.REMOVED, detail=f"row {row.seq} is in its place")
        elif row.prev != self._head.hash:
            # The line is whole and says what came before it; so what came before it was changed.
            self._found(max(1, expected - 1), Tampering.EDITED, f"row {expected} was linked to a different row")
        elif expected == 1:
            self._hub = row.charge.hub
            for kept in self._offered:
                if kept.hub == self._hub:
                    self._kept.setdefault(kept.seq, []).append(kept)
        elif row.charge.hub != self._hub:
            self._found(row.seq, Tampering.INSERTED, f"belongs to hub {row.charge.hub}, the ledger to {self._hub}")

    def _check_values(self, linked: LinkedRow) -> None:
        charge = linked.row.charge
        if not _grams_agree(charge):
            self._found(linked.row.seq, Tampering.REWRITTEN, "grams do not match kWh and factors")

    def _check_interval(self, linked: LinkedRow) -> None:
        """The rows of an interval stand together, what nobody held at their end."""
        row = linked.row
        self._batch.append(row)
        if problem := _disagreement(self._batch[0], row):
            self._found(row.seq, Tampering.REWRITTEN, problem)
        elif not row.charge.job:
            if problem := self._problem_of_interval():
                self._found(self._batch[0].seq, Tampering.REWRITTEN, problem)
            self._batch = []

    def _problem_of_interval(self) -> str:
        first, rows = self._batch[0], {row.seq for row in self._batch}
        start = first.charge.interval.start
        charged_kwh = fsum(row.charge.supply.kwh for row in self._batch)
        if abs(charged_kwh - first.charge.hub_kwh) > BALANCE_REL_MAX * first.charge.hub_kwh:
            return f"the charges from {start} add up to {charged_kwh:.6g} kWh, the meter to {first.charge.hub_kwh:.6g}"
        if len({row.charge.job for row in self._batch}) != len(self._batch):
            return f"job charged twice from {start}"
        if first.corrects != NOT_A_CORRECTION:
            if {row.corrects for row in self._batch} != self._current.get(start):
                return f"the correction from {start} does not replace exactly the rows in effect"
        elif self._head.until is not None and start < self._head.until:
            return f"the time from {start} is charged twice"
        else:
            self._head = LedgerHead(self._head.seq, self._head.hash, first.charge.interval.end)
        self._current[start] = rows
        return ""

    def _check_kept(self, linked: LinkedRow) -> None:
        row = linked.row
        for kept in self._kept.get(row.seq, ()):
            if kept.hash != linked.hash:
                first = self._agreed_at + 1
                detail = f"rows {first} to {row.seq} differ from those in the audit chain of {kept.at}"
                self._found(first, Tampering.REWRITTEN, detail)
                return
            self._agreed += 1
            self._agreed_at = row.seq
        self._head = LedgerHead(row.seq, linked.hash, self._head.until)

    def _is_good_so_far(self) -> bool:
        return self._finding is None and self._gap is None

    def _missing_end(self) -> AuditFinding | None:
        last = max(self._kept, default=0)
        if last > self._head.seq:
            detail = f"the audit chain has a checkpoint of row {last}"
        elif self._batch:
            detail = f"the interval from {self._batch[0].charge.interval.start} is incomplete"
        elif not self._hub and self._offered:
            detail = "the ledger is empty, but the audit chain has checkpoints of it"
        else:
            return None
        return AuditFinding(seq=self._head.seq + 1, kind=Tampering.TRUNCATED, detail=detail)

    def _found(self, seq: int, kind: Tampering, detail: str) -> None:
        if self._finding is None:
            self._finding = AuditFinding(seq=seq, kind=kind, detail=detail)


def verify_ledger(lines: Iterable[bytes], checkpoints: Iterable[LedgerCheckpoint] = ()) -> LedgerOutcome:
    """All at once, for those who do not need the rows."""
    verifier = LedgerVerifier(checkpoints)
    for line in lines:
        verifier.take(line)
    return verifier.finish()


def _grams_agree(charge: Charge) -> bool:
    stated, due = charge.grams, grams_of(charge.supply, charge.factors, charge.transmission_loss)
    return all(
        isclose(one, other, rel_tol=BALANCE_REL_MAX, abs_tol=1e-9)
        for one, other in ((stated.location, due.location), (stated.market, due.market), (stated.onsite, due.onsite))
    )


def _disagreement(first: LedgerRow, row: LedgerRow) -> str:
    if row.charge.interval != first.charge.interval or row.charge.hub_kwh != first.charge.hub_kwh:
        return "found among the rows of another interval"
    if (row.corrects == NOT_A_CORRECTION) != (first.corrects == NOT_A_CORRECTION):
        return "a charge among corrections, or a correction among charges"
    return ""

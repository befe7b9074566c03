"""An interval is booked once and whole; what was wrong is booked again, and what stood there stays."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from harch.base.errors import InvariantBroken
from harch.carbon.ledger.chain import (
    LedgerCheckpoint,
    LedgerHead,
    book,
    checkpoint_draft,
    checkpoints_in,
    correct,
    current,
    read_row_line,
)
from harch.carbon.ledger.report import totals
from harch.carbon.ledger.verification import verify_ledger
from harch.hub.store import ledger_rows
from harch.hub.store.database import Database
from harch.sovereignty.audit.chain import ChainHead, link
from harch.sovereignty.audit.verification import Tampering
from unit.carbon.ledger.charges import HOUR, START, booked_hours, charges_of, energy, hour, job, ledger_lines


def test_a_row_is_read_back_from_its_line() -> None:
    rows, head = booked_hours(2, [job(data=("d1", "d2"))])
    assert [read_row_line(linked.line) for linked in rows] == rows
    assert head == LedgerHead(4, rows[-1].hash, START + 2 * HOUR)


def test_an_interval_is_booked_once() -> None:
    _, head = booked_hours(2)
    for number in (0, 1):
        with pytest.raises(InvariantBroken, match="booked once"):
            book(head, charges_of([job()], number=number), booked_at=START + 3 * HOUR)


def test_charges_that_do_not_add_up_are_not_booked() -> None:
    charges = charges_of([job("one"), job("two")])
    with pytest.raises(InvariantBroken, match="add up"):
        book(LedgerHead(), charges[1:], booked_at=START)
    with pytest.raises(InvariantBroken, match="closes an interval"):
        book(LedgerHead(), charges[:2], booked_at=START)
    with pytest.raises(InvariantBroken, match="together"):
        book(LedgerHead(), charges + charges_of([], number=1), booked_at=START)


def test_a_correction_names_what_it_corrects_and_keeps_it() -> None:
    rows, head = booked_hours(2, [job("one", 10)])
    wrong = current(linked.row for linked in rows if linked.row.charge.interval == hour(0))
    restated = charges_of([job("one", 20), job("late", 4)], of=energy(200))
    booked = correct(head, wrong, restated, booked_at=START + 9 * HOUR, reason="the meter was read wrongly")
    history = [linked.row for linked in (*rows, *booked.rows)]
    assert [row.corrects for row in history] == [0, 0, 0, 0, 1, 2, 2]  # the late job takes from what nobody held
    assert [row.seq for row in current(history)] == [3, 4, 5, 6, 7]
    assert totals(current(history)).energy.kwh == pytest.approx(300)
    assert totals(history[:4]).energy.kwh == pytest.approx(200)  # what was said before is still there
    assert booked.head.until == head.until
    assert verify_ledger(linked.line for linked in (*rows, *booked.rows)).is_sound


def test_a_correction_can_be_corrected() -> None:
    rows, head = booked_hours(1)
    for kwh in (150.0, 120.0):
        wrong = current(linked.row for linked in rows)
        booked = correct(head, wrong, charges_of([job()], of=energy(kwh)), booked_at=START + HOUR, reason="again")
        rows, head = [*rows, *booked.rows], booked.head
    assert totals(current(linked.row for linked in rows)).energy.kwh == pytest.approx(120)
    assert verify_ledger(linked.line for linked in rows).is_sound


def test_a_correction_replaces_the_whole_interval_and_says_why() -> None:
    rows, head = booked_hours(2, [job("one"), job("two")])
    first = [linked.row for linked in rows[:3]]
    with pytest.raises(InvariantBroken, match="every row"):
        correct(head, first, charges_of([job("one")]), booked_at=START, reason="two vanishes")
    with pytest.raises(InvariantBroken, match="same hub and interval"):
        correct(head, first, charges_of([job("one"), job("two")], number=1), booked_at=START, reason="elsewhere")
    with pytest.raises(ValueError, match="needs a reason"):
        correct(head, first, charges_of([job("one"), job("two")]), booked_at=START, reason="")


def test_a_correction_of_rows_that_no_longer_count_is_found() -> None:
    rows, head = booked_hours(1)
    wrong = [linked.row for linked in rows]
    once = correct(head, wrong, charges_of([job()], of=energy(90)), booked_at=START, reason="one")
    twice = correct(once.head, wrong, charges_of([job()], of=energy(80)), booked_at=START, reason="two")
    outcome = verify_ledger(linked.line for linked in (*rows, *once.rows, *twice.rows))
    assert outcome.finding is not None
    assert "does not replace exactly" in outcome.finding.detail


def test_the_head_stands_in_the_audit_chain_and_shows_a_cut() -> None:
    rows, head = booked_hours(3)
    entry = link(ChainHead(), checkpoint_draft("dakhla", head), hub="dakhla", at="2026-03-01T03:00:00.000Z").entry
    kept = checkpoints_in([entry])
    assert kept == [LedgerCheckpoint(hub="dakhla", seq=6, hash=head.hash, at="2026-03-01T03:00:00.000Z")]
    lines = [linked.line for linked in rows]
    assert verify_ledger(lines, kept).checkpoints == 1
    cut = verify_ledger(lines[:4], kept)
    assert cut.finding is not None
    assert (cut.finding.kind, cut.finding.seq) == (Tampering.TRUNCATED, 5)
    assert verify_ledger([], kept).finding is not None


def test_a_ledger_written_anew_is_shown_by_a_checkpoint() -> None:
    _, head = booked_hours(2)
    kept = LedgerCheckpoint(hub="dakhla", seq=head.seq, hash=head.hash, at="then")
    other, _ = booked_hours(2, [job(it_kwh=5)])
    lines = [linked.line for linked in other]
    assert verify_ledger(lines).is_sound
    finding = verify_ledger(lines, [kept]).finding
    assert finding is not None
    assert finding.kind is Tampering.REWRITTEN


def test_the_store_gives_back_what_was_booked(tmp_path: Path) -> None:
    database = Database(tmp_path / "hub.db")
    assert ledger_rows.head(database) == LedgerHead()
    head = LedgerHead()
    booked = []
    for number in range(3):
        one = book(head, charges_of([job("a"), job("b", tenant="rif")], number=number), booked_at=START + 4 * HOUR)
        database.write(ledger_rows.save_booked(one))
        booked += one.rows
        head = one.head
        assert ledger_rows.head(database) == head
    wrong = current(ledger_rows.interval_rows(database, START + HOUR))
    restated = charges_of([job("a", 1, tenant="rif"), job("b", tenant="rif")], number=1)
    one = correct(head, wrong, restated, booked_at=START + 5 * HOUR, reason="it was rif's")
    database.write(ledger_rows.save_booked(one))
    booked += one.rows
    assert list(ledger_lines(database)) == [linked.line for linked in booked]
    assert ledger_rows.head(database) == one.head
    assert [row.seq for row in ledger_rows.current_rows(database)] == [1, 2, 3, 7, 8, 9, 10, 11, 12]
    assert [row.seq for row in ledger_rows.current_rows(database, tenant="atlas")] == [1, 7]
    assert [row.seq for row in ledger_rows.current_rows(database, job="b")] == [2, 8, 11]
    second = ledger_rows.current_rows(database, START + HOUR, START + 2 * HOUR)
    assert [row.seq for row in second] == [10, 11, 12]
    assert verify_ledger(ledger_lines(database)).is_sound


def test_two_writers_at_one_head_cannot_fork_the_chain(tmp_path: Path) -> None:
    database = Database(tmp_path / "hub.db")
    booked = book(LedgerHead(), charges_of([job()]), booked_at=START + timedelta(hours=1))
    database.write(ledger_rows.save_booked(booked))
    with pytest.raises(Exception, match=r"(?i)unique|refused"):
        database.write(ledger_rows.save_booked(booked))
    assert verify_ledger(ledger_lines(database)).rows == 2

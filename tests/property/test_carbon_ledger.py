"""Whatever the allocation, the meter is charged exactly once; whatever is done to the chain is found."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from hashlib import sha256
from itertools import pairwise
from math import fsum

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harch.base.errors import InvariantBroken
from harch.carbon.ledger.accounting import Allocation, HubEnergyUse, account
from harch.carbon.ledger.chain import LedgerCheckpoint, LedgerHead, LinkedRow, book, correct, current, encode_row
from harch.carbon.ledger.charge import Charge, Interval, grams_of
from harch.carbon.ledger.report import GroupBy, report, totals
from harch.carbon.ledger.verification import verify_ledger
from harch.carbon.values import Emissions, Evidence, KindsMixed, Method
from harch.sovereignty.audit.chain import line_of
from unit.carbon.ledger.charges import HOUR, START, booked_hours, energy, factors, hour, job

kilowatthours = st.just(0.0) | st.floats(1e-9, 1e9)
shares = st.floats(0, 1)


@st.composite
def hub_energies(draw: st.DrawFn) -> HubEnergyUse:
    kwh = draw(kilowatthours)
    onsite = kwh * draw(shares)
    return HubEnergyUse(
        kwh=kwh,
        onsite_kwh=onsite,
        onsite_available_kwh=onsite + draw(kilowatthours),
        ppa_kwh=(kwh - onsite) * draw(shares),
        pue=draw(st.floats(1, 3)),
        transmission_loss=draw(st.floats(0, 0.5)),
        evidence=draw(st.sampled_from(Evidence)),
        method="meter",
    )


@st.composite
def allocations(draw: st.DrawFn) -> list[Allocation]:
    found = []
    for number in range(draw(st.integers(0, 12))):
        it_kwh = draw(kilowatthours)
        found.append(
            job(
                f"job-{number}",
                it_kwh,
                tenant=draw(st.sampled_from(("atlas", "rif"))),
                home=draw(st.sampled_from(("dakhla", "dakar"))),
                submitted_at=START - draw(st.integers(0, 48)) * HOUR,
                holding=it_kwh * draw(st.sampled_from((0.0, 0.5, 1.0))),
                data=draw(st.sampled_from(((), ("d1",), ("d1", "d2"), ("d3", "d1", "d2")))),
                evidence=draw(st.sampled_from(Evidence)),
            )
        )
    return found


def charged(charges: Sequence[Charge], source: str) -> float:
    return fsum(float(getattr(charge.supply, source)) for charge in charges)


@given(hub_energies(), allocations())
def test_allocated_over_metered_is_one(meter: HubEnergyUse, jobs: list[Allocation]) -> None:
    charges = account(hour(), "dakhla", meter, jobs, factors())
    assert fsum(charge.energy.kwh for charge in charges) == pytest.approx(meter.kwh, rel=1e-6, abs=0)
    for source in ("grid_kwh", "onsite_kwh", "ppa_kwh"):
        assert charged(charges, source) == pytest.approx(getattr(meter.supply, source), rel=1e-6, abs=meter.kwh * 1e-9)
    assert charged(charges, "onsite_kwh") <= meter.onsite_available_kwh * (1 + 1e-9)  # no export credit
    assert [charge.job for charge in charges] == [one.job for one in jobs] + [""]


@given(hub_energies(), allocations())
def test_nobody_is_charged_more_than_was_found_for_them(meter: HubEnergyUse, jobs: list[Allocation]) -> None:
    charges = account(hour(), "dakhla", meter, jobs, factors())
    for one, charge in zip(jobs, charges, strict=False):
        assert charge.energy.kwh <= one.it_kwh * meter.pue * (1 + 1e-9)


@given(hub_energies(), allocations())
def test_own_power_is_the_same_share_of_everybody(meter: HubEnergyUse, jobs: list[Allocation]) -> None:
    assume(meter.kwh > 0)
    for charge in account(hour(), "dakhla", meter, jobs, factors()):
        due = charge.energy.kwh * meter.onsite_kwh / meter.kwh
        assert charge.supply.onsite_kwh == pytest.approx(due, rel=1e-6, abs=meter.kwh * 1e-9)


@given(hub_energies(), allocations(), st.sampled_from(GroupBy))
def test_no_grouping_counts_anything_twice_or_not_at_all(
    meter: HubEnergyUse, jobs: list[Allocation], group_by: GroupBy
) -> None:
    charges = account(hour(), "dakhla", meter, jobs, factors())
    rows = [linked.row for linked in book(LedgerHead(), charges, booked_at=START).rows]
    found = report(rows, group_by)
    assert fsum(line.energy.kwh for line in found.lines.values()) == pytest.approx(meter.kwh, rel=1e-6, abs=0)
    for method in (Method.LOCATION, Method.MARKET):
        lines = fsum(line.footprint.total(method).g for line in found.lines.values())
        assert lines == pytest.approx(found.total.footprint.total(method).g, rel=1e-6, abs=0)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60)), min_size=1, max_size=12))
def test_no_minute_is_ever_booked_twice(asked: list[tuple[int, int]]) -> None:
    """Intervals come in any order and overlap at will; those that are booked never do."""
    head, booked = LedgerHead(), []
    for minute, length in asked:
        start = START + timedelta(minutes=minute)
        stop = min(start + timedelta(minutes=length), start.replace(minute=0) + HOUR)
        charges = account(Interval(start, stop), "dakhla", energy(), [job()], factors())
        try:
            head = book(head, charges, booked_at=START).head
        except InvariantBroken:
            continue
        booked.append((start, stop))
    assert all(one[1] <= other[0] for one, other in pairwise(booked))


@given(st.floats(0, 1e12), st.floats(0, 1e12))
def test_location_and_market_never_have_a_sum(one: float, other: float) -> None:
    footprint = totals(linked.row for linked in ROWS).footprint
    location, market = Emissions(one, footprint.location.of), Emissions(other, footprint.market.of)
    for mix in (Emissions.__add__, Emissions.__sub__, Emissions.__lt__, Emissions.__ge__):
        with pytest.raises(KindsMixed):
            mix(location, market)
        with pytest.raises(KindsMixed):
            mix(market, location)


ROWS, HEAD = booked_hours(4, [job("one", data=("d1",)), job("two", home="dakar")])
LINES = [linked.line for linked in ROWS]
KEPT = [LedgerCheckpoint(hub="dakhla", seq=HEAD.seq, hash=HEAD.hash, at="then")]


def test_the_ledger_itself_is_sound() -> None:
    outcome = verify_ledger(LINES, KEPT)
    assert outcome.is_sound
    assert (outcome.rows, outcome.checkpoints, outcome.head) == (12, 1, HEAD.hash)


@given(st.integers(0, sum(map(len, LINES)) - 1), st.integers(1, 255))
@settings(max_examples=300)
def test_any_changed_byte_is_found(at: int, change: int) -> None:
    text = bytearray(b"".join(LINES))
    text[at] ^= change
    assert not verify_ledger(bytes(text).splitlines(keepends=True), KEPT).is_sound


@given(st.integers(0, 11), st.integers(1, 12))
def test_any_removed_rows_are_found(first: int, count: int) -> None:
    assert not verify_ledger(LINES[:first] + LINES[first + count :], KEPT).is_sound


@given(st.permutations(range(12)))
def test_any_other_order_is_found(order: list[int]) -> None:
    assume(order != sorted(order))
    assert not verify_ledger([LINES[at] for at in order], KEPT).is_sound


@given(st.integers(0, 11))
def test_any_cut_is_found_with_a_checkpoint_and_inside_an_interval_without(length: int) -> None:
    assert not verify_ledger(LINES[:length], KEPT).is_sound
    assert verify_ledger(LINES[:length]).is_sound == (length % 3 == 0)


@given(st.integers(0, 11), st.integers(0, 12))
def test_a_row_that_is_there_twice_is_found(row: int, at: int) -> None:
    assert not verify_ledger([*LINES[:at], LINES[row], *LINES[at:]], KEPT).is_sound


def forged(change_at: int, change: float) -> list[bytes]:
    """Somebody changes the energy of a row, makes its grams fit, and recomputes every hash after it."""
    lines, prev = [], ""
    for number, linked in enumerate(ROWS):
        row = linked.row
        if number == change_at:
            supply = msgspec.structs.replace(row.charge.supply, grid_kwh=row.charge.supply.grid_kwh * change)
            grams = grams_of(supply, row.charge.factors, row.charge.transmission_loss)
            row = msgspec.structs.replace(row, charge=msgspec.structs.replace(row.charge, supply=supply, grams=grams))
        row = msgspec.structs.replace(row, prev=prev or row.prev)
        body = encode_row(row)
        prev = sha256(body).hexdigest()
        lines.append(line_of(body, prev))
    return lines


@given(st.integers(0, 11), st.floats(0, 0.999))
def test_a_forger_who_recomputes_all_hashes_still_has_to_make_it_add_up(at: int, change: float) -> None:
    assert not verify_ledger(forged(at, change)).is_sound
    assert not verify_ledger(forged(at, change), KEPT).is_sound


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(50, 500), allocations()), max_size=6))
@settings(max_examples=50)
def test_corrections_keep_history_and_the_sums(changes: list[tuple[int, float, list[Allocation]]]) -> None:
    rows: list[LinkedRow] = list(ROWS)
    head = HEAD
    metered = dict.fromkeys(range(4), 100.0)
    for number, kwh, jobs in changes:
        wrong = [row for row in current(linked.row for linked in rows) if row.charge.interval == hour(number)]
        known = {one.job for one in jobs}
        gone = [job(row.charge.job, 0) for row in wrong if row.charge.job and row.charge.job not in known]
        charges = account(hour(number), "dakhla", energy(kwh), [*jobs, *gone], factors())
        booked = correct(head, wrong, charges, booked_at=START, reason="a better reading")
        rows, head, metered[number] = [*rows, *booked.rows], booked.head, kwh
    assert rows[: len(ROWS)] == ROWS
    assert verify_ledger((linked.line for linked in rows), KEPT).is_sound
    counting = current(linked.row for linked in rows)
    assert totals(counting).energy.kwh == pytest.approx(sum(metered.values()), rel=1e-6)

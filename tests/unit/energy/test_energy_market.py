"""Do bids follow from plans, are limits kept, is nothing sent twice, and does the book add up?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest

from harch.base.errors import HarchError
from harch.energy.market.adapter import PAPER, Fill, PaperMarket
from harch.energy.market.bids import Bid, BidPart, bids_from
from harch.energy.market.ledger import BidEvent, BidLedger, Row, row_from_plain
from harch.energy.market.trading import Switch, TradingLimits, TradingService, admit
from harch.energy.procurement.planner import plan_by_rule
from harch.energy.procurement.problem import Battery, FlexibleLoad
from harch.energy.tariffs.prices import SpotSeries
from harch.energy.tariffs.terms import SpotPrice
from unit.energy.energy_fixtures import START, hours, planned, problem, spot_tariff

NOW = START + timedelta(hours=9)  # 10:00 in Madrid: prices are known up to 23:00 UTC
TOMORROW = START + timedelta(hours=23)
LIMITS = TradingLimits(
    kwh_per_bid_max=500, kwh_per_day_max=2000, amount_per_day_max=1000, per_mwh_max=300, currency="EUR"
)
ON = Switch()


def terms() -> SpotPrice:
    found = spot_tariff().energy
    assert isinstance(found, SpotPrice)
    return found


def bid(hour: int = 0, kwh: float = 100.0, limit: float = 80.0, **changes: object) -> Bid:
    delivery = TOMORROW + timedelta(hours=hour)
    plain = Bid(
        hub="dakhla",
        zone="ES",
        delivery=delivery,
        step_s=3600,
        part=BidPart.FIRM,
        kwh=kwh,
        limit_per_mwh=limit,
        currency="EUR",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def paper(price: float = 50.0, **options: float) -> PaperMarket:
    steps = hours(72, START)
    return PaperMarket(SpotSeries("ES", "EUR", steps, np.full(72, price)), terms(), **options)


def desk(adapter: object = None) -> tuple[TradingService, list[Row]]:
    kept: list[Row] = []
    return TradingService(adapter or paper(), terms(), LIMITS, kept.extend, BidLedger()), kept  # type: ignore[arg-type]


def test_bids_are_made_for_hours_whose_price_is_not_published_yet() -> None:
    plan = planned(problem([50] * 30, load_kwh=[100] * 30, import_kw_max=500.0))
    plan = replace(plan, steps=hours(30, NOW))
    bids = bids_from(plan, terms(), hub="dakhla", now=NOW, firm_limit_per_mwh=250)
    assert [found.delivery for found in bids] == [TOMORROW + timedelta(hours=hour) for hour in range(16)]
    assert {found.part for found in bids} == {BidPart.FIRM}
    assert {found.limit_per_mwh for found in bids} == {250}


def test_what_can_wait_is_bid_at_what_it_is_worth() -> None:
    battery = Battery(energy_kwh=50, power_kw=50, charge_efficiency=1, discharge_efficiency=1, wear_per_mwh=0)
    later = FlexibleLoad(name="train", energy_kwh=20, power_kw=20, first=0, last=2)
    plan = planned(problem([30, 90], load_kwh=[10, 60], battery=battery, flexible=(later,)))
    plan = replace(plan, steps=hours(2, TOMORROW))
    found = bids_from(plan, terms(), hub="dakhla", now=NOW, firm_limit_per_mwh=250, fee_per_mwh=5)
    first = {each.part: each for each in found if each.delivery == TOMORROW}
    assert first[BidPart.FIRM].kwh == 10
    assert first[BidPart.FLEXIBLE].kwh == 70
    assert 25 <= first[BidPart.FLEXIBLE].limit_per_mwh <= 85
    assert sum(each.kwh for each in found) == pytest.approx(plan.import_kwh.sum())


def test_a_plan_of_the_rule_bids_firmly() -> None:
    plan = plan_by_rule(problem([30, 90], load_kwh=[10, 60]))
    plan = replace(plan, steps=hours(2, TOMORROW))  # type: ignore[arg-type]
    found = bids_from(plan, terms(), hub="dakhla", now=NOW, firm_limit_per_mwh=250)  # type: ignore[arg-type]
    assert [each.part for each in found] == [BidPart.FIRM, BidPart.FIRM]


def test_the_id_of_a_bid_follows_from_hub_hour_and_part() -> None:
    assert bid().id == "bid-dakhla-ES-20260302T2300Z-firm"
    assert bid(kwh=5).id == bid().id
    assert bid(1).id != bid().id


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (bid(kwh=501), "bid-size"),
        (bid(kwh=float("nan")), "bid-size"),
        (bid(kwh=-5), "bid-size"),
        (bid(limit=301), "price"),
        (bid(limit=float("nan")), "price"),
        (bid(-1), "closed"),
        (bid(currency="MAD"), "currency"),
    ],
)
def test_a_bid_beyond_a_limit_is_refused_with_its_rule(wrong: Bid, rule: str) -> None:
    admission = admit((wrong,), BidLedger(), LIMITS, ON, terms(), now=NOW)
    assert admission.accepted == ()
    assert [no.rule for no in admission.rejected] == [rule]
    assert admission.rejected[0].nearest_fix


def test_limits_of_a_day_count_what_was_accepted_before() -> None:
    many = tuple(bid(hour, kwh=450, limit=100) for hour in range(6))
    admission = admit(many, BidLedger(), LIMITS, ON, terms(), now=NOW)
    assert len(admission.accepted) == 4
    assert {no.rule for no in admission.rejected} == {"day-size"}
    dear = tuple(bid(hour, kwh=450, limit=300) for hour in range(12))
    wide = replace(LIMITS, kwh_per_day_max=1e6)
    assert sum(each.amount_max for each in admit(dear, BidLedger(), wide, ON, terms(), now=NOW).accepted) <= 1000
    next_day = bid(24, kwh=450, limit=100)
    assert admit((*many, next_day), BidLedger(), LIMITS, ON, terms(), now=NOW).accepted[-1] == next_day


async def test_limits_of_a_day_count_what_the_book_holds() -> None:
    trading, _ = desk()
    await trading.submit(tuple(bid(hour, kwh=450, limit=100) for hour in range(4)), ON, now=NOW)
    rejected = await trading.submit((bid(9, kwh=450, limit=100),), ON, now=NOW)
    assert [no.rule for no in rejected] == ["day-size"]


async def test_the_kill_switch_stops_everything() -> None:
    sent: list[Bid] = []

    class Watched(PaperMarket):
        async def submit(self, bids: Sequence[Bid], *, now: datetime) -> None:
            sent.extend(bids)

    trading, kept = desk(Watched(paper().spot, terms()))
    rejected = await trading.submit((bid(), bid(1)), Switch("the operator said so"), now=NOW)
    assert [no.rule for no in rejected] == ["kill-switch"] * 2
    assert "the operator said so" in rejected[0].detail
    assert (sent, kept) == ([], [])
    await trading.submit((bid(),), ON, now=NOW)
    await trading.submit((bid(),), Switch("stop"), now=NOW)
    assert len(sent) == 1  # nothing is repeated either


async def test_the_same_bid_twice_is_one_bid() -> None:
    trading, kept = desk()
    for _ in range(3):
        assert await trading.submit((bid(),), ON, now=NOW) == ()
    assert [row.event for row in kept] == [BidEvent.PLANNED, BidEvent.SUBMITTED]
    rejected = await trading.submit((bid(kwh=99),), ON, now=NOW)
    assert [no.rule for no in rejected] == ["submitted"]


async def test_a_bid_is_written_down_before_it_is_sent_and_sent_again_after_a_crash() -> None:
    class Breaking(PaperMarket):
        broken = True

        async def submit(self, bids: Sequence[Bid], *, now: datetime) -> None:
            if self.broken:
                raise ConnectionError
            await PaperMarket.submit(self, bids, now=now)

    market = Breaking(paper().spot, terms())
    trading, kept = desk(market)
    with pytest.raises(ConnectionError):
        await trading.submit((bid(),), ON, now=NOW)
    assert [row.event for row in kept] == [BidEvent.PLANNED, BidEvent.SUBMITTED]
    market.broken = False
    restarted = TradingService(market, terms(), LIMITS, kept.extend, BidLedger.of(kept))
    await restarted.resume(Switch("stopped"), now=NOW)
    await restarted.collect(now=NOW + timedelta(hours=4))
    assert len(kept) == 2
    await restarted.resume(ON, now=NOW)
    await restarted.collect(now=NOW + timedelta(hours=4))
    assert [row.event for row in kept] == [BidEvent.PLANNED, BidEvent.SUBMITTED, BidEvent.FILLED]


async def test_what_cannot_be_kept_is_not_sent() -> None:
    def broken(rows: Sequence[Row]) -> None:
        raise OSError

    market = paper()
    trading = TradingService(market, terms(), LIMITS, broken, BidLedger())
    with pytest.raises(OSError):  # noqa: PT011
        await trading.submit((bid(),), ON, now=NOW)
    assert await market.fills((bid(),), now=NOW + timedelta(days=1)) == ()
    assert trading.book.rows == ()


async def test_paper_fills_at_the_published_price_if_the_limit_allows_and_not_before() -> None:
    trading, _ = desk(paper(50))
    bids = (bid(0, limit=80), bid(1, limit=40))
    await trading.submit(bids, ON, now=NOW)
    await trading.collect(now=NOW)
    assert [trading.book.state(each.id).word for each in bids] == ["submitted", "submitted"]
    await trading.collect(now=NOW + timedelta(hours=4))
    assert [trading.book.state(each.id).word for each in bids] == ["filled", "not filled"]
    assert trading.book.state(bids[0].id).filled_amount == pytest.approx(5.0)
    for _ in range(2):
        trading.settle(now=NOW + timedelta(days=2))
        await trading.collect(now=NOW + timedelta(days=2))
    settled = [trading.book.state(each.id).settled_amount for each in bids]
    assert settled == [pytest.approx(5.0), 0.0]
    assert {row.market for row in trading.book.rows} == {PAPER}


async def test_an_id_that_comes_twice_in_one_call_is_sent_once() -> None:
    trading, kept = desk()
    assert await trading.submit((bid(), bid(kwh=99), bid(1)), ON, now=NOW) == ()
    assert sorted(row.kwh for row in kept if row.event is BidEvent.SUBMITTED) == [100, 100]


async def test_a_market_that_lies_is_not_believed() -> None:
    class Lying(PaperMarket):
        async def fills(self, bids: Sequence[Bid], *, now: datetime) -> Sequence[Fill]:
            stranger = Fill("bid-of-somebody-else", 1e6, 1, final=True)
            return (stranger, Fill(bids[0].id, 40, 50, final=False), Fill(bids[1].id, 40, 999, final=True))

    trading, kept = desk(Lying(paper().spot, terms()))
    await trading.submit((bid(), bid(1)), ON, now=NOW)
    with pytest.raises(HarchError, match="above its limit"):
        await trading.collect(now=NOW)
    assert [(row.bid_id, row.kwh) for row in kept if row.event is BidEvent.FILLED] == [(bid().id, 40)]


async def test_a_shallow_market_fills_in_part() -> None:
    trading, _ = desk(paper(50, depth_kwh=30.0))
    await trading.submit((bid(),), ON, now=NOW)
    await trading.collect(now=NOW + timedelta(hours=4))
    assert trading.book.state(bid().id).word == "partially filled"
    trading.settle(now=NOW + timedelta(days=2))
    assert trading.book.state(bid().id).settled_kwh == 30


async def test_a_market_that_fills_bit_by_bit_is_followed() -> None:
    class Slow(PaperMarket):
        given = 0.0

        async def fills(self, bids: Sequence[Bid], *, now: datetime) -> Sequence[Fill]:
            self.given += 40
            return tuple(Fill(each.id, min(self.given, each.kwh), 50, final=False) for each in bids)

    trading, _ = desk(Slow(paper().spot, terms()))
    await trading.submit((bid(),), ON, now=NOW)
    words = []
    for _ in range(4):
        await trading.collect(now=NOW)
        words.append(trading.book.state(bid().id).word)
    assert words == ["partially filled", "partially filled", "filled", "filled"]
    assert [row.kwh for row in trading.book.rows if row.event is BidEvent.FILLED] == [40, 40, 20]


def row(event: BidEvent, **changes: object) -> Row:
    plain = Row(
        bid_id=bid().id,
        hub="dakhla",
        zone="ES",
        part=BidPart.FIRM,
        delivery=TOMORROW,
        step_s=3600,
        day="2026-03-03",
        event=event,
        at=NOW,
        kwh=100,
        per_mwh=80,
        currency="EUR",
        market=PAPER,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


SENT = (row(BidEvent.PLANNED), row(BidEvent.SUBMITTED))


@pytest.mark.parametrize(
    ("history", "wrong"),
    [
        ((), row(BidEvent.SUBMITTED)),
        ((), row(BidEvent.FILLED)),
        ((row(BidEvent.PLANNED),), row(BidEvent.SUBMITTED, kwh=101)),
        (SENT, row(BidEvent.PLANNED)),
        (SENT, row(BidEvent.SUBMITTED)),
        (SENT, row(BidEvent.FILLED, kwh=101)),
        (SENT, row(BidEvent.FILLED, per_mwh=81)),
        (SENT, row(BidEvent.FILLED, market="real")),
        (SENT, row(BidEvent.FILLED, kwh=-1)),
        (SENT, row(BidEvent.FILLED, kwh=float("nan"))),
        (SENT, row(BidEvent.FILLED, at=NOW - timedelta(seconds=1))),
        (SENT, row(BidEvent.FILLED, currency="MAD")),
        (SENT, row(BidEvent.FILLED, hub="dakar")),
        (SENT, row(BidEvent.SETTLED)),
        (SENT, row(BidEvent.CLOSED)),
        ((*SENT, row(BidEvent.FILLED)), row(BidEvent.SETTLED, kwh=99)),
        ((*SENT, row(BidEvent.FILLED), row(BidEvent.SETTLED)), row(BidEvent.SETTLED)),
        ((*SENT, row(BidEvent.FILLED), row(BidEvent.SETTLED)), row(BidEvent.FILLED, kwh=0)),
    ],
)
def test_the_book_refuses_what_a_bid_cannot_have(history: tuple[Row, ...], wrong: Row) -> None:
    book = BidLedger.of(history)
    with pytest.raises(HarchError, match="E0441"):
        book.append(wrong)
    assert book.rows == history


def test_a_plan_may_change_until_it_is_sent() -> None:
    book = BidLedger.of([row(BidEvent.PLANNED), row(BidEvent.PLANNED, kwh=50), row(BidEvent.SUBMITTED, kwh=50)])
    assert book.state(bid().id).submitted_kwh == 50


def test_a_book_survives_being_written_and_read() -> None:
    book = BidLedger.of([*SENT, row(BidEvent.FILLED, kwh=30, per_mwh=70)])
    assert BidLedger.of(row_from_plain(each.as_plain()) for each in book.rows).rows == book.rows

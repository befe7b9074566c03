"""A hub's bids: sent once whatever breaks in between, kept on disk, and never on the word of a market that lies."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from harch.base.errors import HarchError
from harch.energy.market.adapter import Fill
from harch.energy.market.bids import Bid
from harch.hub.energy import market as market_module
from harch.hub.service import HubService
from harch.testing.clock import START, SimClock
from unit.hub_energy.energy_samples import OBEYING, PAPER, SPOT, TestMarket, planned, running_hub, settled, until

SENDING = START + timedelta(hours=12)  # prices of tomorrow are published at 13:00, bids are sent from 11:30 on
PRICES = "time,per_mwh\n" + "".join(
    f"{START + timedelta(hours=hour):%Y-%m-%dT%H:%MZ},{60 + hour % 24}\n" for hour in range(-240, 72)
)


@pytest.fixture(autouse=True)
def market(tmp_path: Path) -> Iterator[None]:
    TestMarket.reset()
    (tmp_path / "prices.csv").write_text(PRICES)
    yield
    TestMarket.reset()


@pytest.fixture
async def clock() -> SimClock:
    return SimClock(SENDING)


def states(hub: HubService) -> Counter[str]:
    return Counter(bid.state for bid in hub.energy.bids().items)


def rows_on_disk(hub: HubService, event: str) -> int:
    found = hub._database.query("SELECT body FROM energy_book")
    return sum(f'"event":"{event}"'.encode() in bytes(body) for (body,) in found)


def filled_at(price: float, part: float = 1.0) -> object:
    return staticmethod(lambda bid: Fill(bid.id, bid.kwh * part, price, final=True))


async def test_paper_bids_are_planned_sent_filled_and_settled_and_called_paper(tmp_path: Path) -> None:
    clock = SimClock(SENDING - timedelta(minutes=40))
    async with running_hub(tmp_path, clock, PAPER) as hub:
        await until(clock, lambda: planned(hub) and states(hub) == {"planned": 24})
        early = hub.energy.bids()
        assert (early.paper, early.market, early.sends_from) == (True, "paper", SENDING - timedelta(minutes=30))
        await until(clock, lambda: states(hub) == {"submitted": 24})
        assert clock.now() >= SENDING - timedelta(minutes=30)
        await until(clock, lambda: states(hub) == {"filled": 24, "planned": 24})
        assert clock.now() >= START + timedelta(hours=13)
        book = await hub.energy.book(30)
        assert (book.paper, book.total, {one.market for one in book.sums}) == (True, 72, {"paper"})


async def test_a_hub_that_dies_between_writing_and_sending_sends_the_same_bids_once(
    tmp_path: Path, clock: SimClock
) -> None:
    def cable_cut() -> None:
        raise ConnectionError("the cable is cut")

    TestMarket.on_submit = cable_cut
    async with running_hub(tmp_path, clock, OBEYING) as hub:
        await until(clock, lambda: "cable" in hub.energy.bids().trouble)
        assert (TestMarket.taken, rows_on_disk(hub, "submitted")) == ({}, 24)
    TestMarket.on_submit = None
    async with running_hub(tmp_path, clock) as hub:
        await until(clock, lambda: len(TestMarket.taken) == 24)
        await clock.advance(900)
        await settled(lambda: planned(hub))
        assert (rows_on_disk(hub, "submitted"), hub.energy.bids().trouble) == (24, "")
        assert {bid.kwh for bid in TestMarket.taken.values()} == {bid.kwh for bid in hub.energy.bids().items}


async def test_bids_of_a_day_are_not_changed_when_the_plan_is(tmp_path: Path, clock: SimClock) -> None:
    async with running_hub(tmp_path, clock, OBEYING) as hub:
        await until(clock, lambda: len(TestMarket.taken) == 24)
        first = dict(TestMarket.taken)
        hub.energy._planned_s = -math.inf
        await clock.advance(900)
        await settled(lambda: planned(hub))
        assert (TestMarket.taken, len(TestMarket.calls)) == (first, 1)


async def test_a_hub_that_starts_again_with_another_plan_bids_nothing_more_for_that_day(
    tmp_path: Path, clock: SimClock
) -> None:
    async with running_hub(tmp_path, clock, OBEYING) as hub:
        await until(clock, lambda: len(TestMarket.taken) == 24)
        first = dict(TestMarket.taken)
    other = OBEYING.replace("energy_kwh = 100", "energy_kwh = 5000").replace("power_kw = 50", "power_kw = 900")
    flexible = '[[hubs.dakhla.flexible]]\nname = "batch"\nshare = 0.8\nwithin_h = 36\npower_kw_max = 900\n'
    async with running_hub(tmp_path, clock, other + flexible) as hub:
        await until(clock, lambda: planned(hub) and len(hub.energy.bids().items) == 24)
        await clock.advance(120)
        assert (TestMarket.taken, rows_on_disk(hub, "submitted"), hub.energy.bids().refused) == (first, 24, ())


async def test_fills_are_booked_once_also_over_a_restart_and_settled_after_delivery(
    tmp_path: Path, clock: SimClock
) -> None:
    async with running_hub(tmp_path, clock, OBEYING) as hub:
        await until(clock, lambda: len(TestMarket.taken) == 24)
        TestMarket.answer = filled_at(70.0, part=0.5)
        await until(clock, lambda: states(hub) == {"partially filled": 24})
    later = SimClock(START + timedelta(days=2, hours=2))
    async with running_hub(tmp_path, later) as hub:
        await until(later, lambda: states(hub)["settled"] == 24)
        book = await hub.energy.book(30)
        sums = {one.event: (one.kwh, one.amount) for one in book.sums}
        assert sums["settled"] == pytest.approx(sums["filled"])
        assert sums["filled"][0] == pytest.approx(sums["submitted"][0] / 2)
        assert (book.paper, {row.market for row in book.rows}) == (False, {"test-market"})


@pytest.mark.parametrize(
    "lie",
    [
        lambda bid: Fill(bid.id, 2 * bid.kwh, 50.0, final=True),
        lambda bid: Fill(bid.id, bid.kwh, bid.limit_per_mwh + 1, final=True),
        lambda bid: Fill(bid.id, math.nan, 50.0, final=True),
        lambda bid: Fill(bid.id, bid.kwh, math.nan, final=True),
    ],
    ids=["more than was bid", "above the limit", "no number", "no price"],
)
async def test_a_market_that_lies_is_not_believed_nor_traded_with_again(
    tmp_path: Path, clock: SimClock, lie: object
) -> None:
    async with running_hub(tmp_path, clock, OBEYING) as hub:
        await until(clock, lambda: len(TestMarket.taken) == 24)
        truth = min(TestMarket.taken)

        def answer(bid: Bid) -> Fill | None:
            return Fill(bid.id, bid.kwh, 50.0, final=True) if bid.id == truth else lie(bid)

        TestMarket.answer = staticmethod(answer)
        await until(clock, lambda: bool(hub.energy.bids().stopped_why))
        assert states(hub) == {"submitted": 23, "filled": 1}
        assert "impossible" in hub.energy.bids().stopped_why
        assert (rows_on_disk(hub, "filled"), hub.ready()) == (1, "")


async def test_a_market_that_hangs_costs_a_deadline_and_not_the_hub(
    tmp_path: Path, clock: SimClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(market_module, "ROUND_LIMIT_S", 0.05)
    go_on = threading.Event()
    TestMarket.on_submit = lambda: go_on.wait(30)
    async with running_hub(tmp_path, clock, OBEYING) as hub:
        # In the log, for the next round may have come before anyone looks.
        await until(clock, lambda: "did not answer within" in caplog.text)
        await until(clock, lambda: "earlier request" in hub.energy.bids().trouble)
        assert planned(hub)
        monkeypatch.setattr(market_module, "ROUND_LIMIT_S", 30.0)  # a busy machine is not a market that hangs
        go_on.set()
        TestMarket.on_submit = None
        await until(clock, lambda: len(TestMarket.taken) == 24)
        assert rows_on_disk(hub, "submitted") == 24


async def test_a_switch_stops_all_bids_and_limits_refuse_with_their_reason(tmp_path: Path, clock: SimClock) -> None:
    for line, rule in (('stopped = "audit week"', "kill-switch"), ("kwh_per_bid_max = 1", "bid-size")):
        async with running_hub(tmp_path, clock, f"{OBEYING}{line}\n") as hub:
            await until(clock, lambda hub=hub: bool(hub.energy.bids().refused))
            assert {no.rule for no in hub.energy.bids().refused} == {rule}
        assert TestMarket.taken == {}


async def test_an_adapter_that_is_not_there_is_refused_at_the_start(tmp_path: Path, clock: SimClock) -> None:
    for word in ("no-such-market", "no.such.module:open", "unit.hub_energy.energy_samples:SPOT"):
        with pytest.raises(HarchError, match="cannot be used") as refused:
            async with running_hub(tmp_path, clock, f'{SPOT}adapter = "{word}"\n'):
                pass
        assert refused.value.code == "E0243"


async def test_old_bids_leave_memory_and_very_old_ones_the_disk(tmp_path: Path, clock: SimClock) -> None:
    async with running_hub(tmp_path, clock, OBEYING) as hub:
        await until(clock, lambda: len(TestMarket.taken) == 24)
    for days, kept in ((41, 48), (402, 0)):
        later = SimClock(SENDING + timedelta(days=days))
        async with running_hub(tmp_path, later) as hub:
            await until(later, lambda hub=hub: planned(hub) and not hub.energy._book_is_stale)
            await asyncio.sleep(0)
            assert hub.energy.bids().items == ()
            assert hub._database.query("SELECT COUNT(*) FROM energy_book WHERE delivery < '2026-02-01'") == [(kept,)]

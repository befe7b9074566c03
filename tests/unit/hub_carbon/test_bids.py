"""A bid says what the work would run on, as far as the bidder knows, and another hub takes the cleaner of two."""

from __future__ import annotations

import pytest

from harch.federation import offers as o
from harch.federation.bidding import PeerOffer, best_offer
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.workloads.spec import Resources, SchedulingClass
from unit.hub.conftest import Bench

NEED = o.Need(ref=0, turn_class=SchedulingClass.TRAINING, needs=Resources(gpus=1))


@pytest.mark.parametrize(("carbon", "price"), [(24.0, 0.095), (None, None)])
def test_a_bid_carries_carbon_and_price_or_neither(carbon: float | None, price: float | None) -> None:
    bench = Bench()
    bench.join()
    bench.machine.state.lending.enabled = True
    bench.power = ev.BidPower(carbon, price)
    effects = bench.handle(ev.PeerMessageReceived("dakar", o.BidRequest(1, (NEED,))))
    (answer,) = [one.message for one in effects if isinstance(one, fx.SendPeer)]
    assert isinstance(answer, o.Bids)
    (bid,) = answer.bids
    assert (bid.carbon_g_per_kwh, bid.price_per_kwh) == (carbon, price)


def test_of_two_equal_offers_the_cleaner_is_taken_and_one_that_says_nothing_comes_last() -> None:
    said = {"dirty": 700.0, "clean": 24.0, "silent": None}
    offers = [
        PeerOffer(hub, o.CapacityBid(ref=0, bid_id=hub, carbon_g_per_kwh=carbon), has_data=False, rtt_ms=8.0)
        for hub, carbon in said.items()
    ]
    taken = best_offer(offers)
    assert taken is not None
    assert taken.hub_id == "clean"

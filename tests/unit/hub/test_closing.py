"""A hub that takes no work: what is counted as left, when it may retire, and bids that it made before."""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.federation import offers as o
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.state import Closed
from harch.hub.summary import check_change, remaining
from harch.placement.request import PlacementRequest
from harch.wire.hubs import Remaining
from harch.workloads.spec import Resources, WorkloadSpec
from unit.hub.conftest import Bench

SPEC = WorkloadSpec(name="guest", command=("true",), resources=Resources(gpus=1))


def said(effects: list[fx.Effect]) -> list[o.LendingMessage]:
    return [effect.message for effect in effects if isinstance(effect, fx.SendPeer)]


def bid_for(bench: Bench) -> o.CapacityBid:
    request = PlacementRequest.of("wl_guest", SPEC, tenant="t", submitted_s=0.0, hubs_allowed=None)
    need = o.Need.of(0, request, now_s=bench.now.timestamp(), may_queue=False)
    (answer,) = said(bench.handle(ev.PeerMessageReceived("dakar", o.BidRequest(1, (need,)))))
    assert isinstance(answer, o.Bids)
    return answer.bids[0]


def grant_of(bench: Bench, bid: o.CapacityBid) -> o.Grants:
    grant = o.Grant(
        bid_id=bid.bid_id,
        lease=o.WorkLease("wl_guest", 1),
        lease_s=600.0,
        attempt=1,
        tenant="t",
        spec=SPEC,
        created_at=bench.now,
    )
    return o.Grants((grant,))


def test_what_is_left_is_counted_by_what_it_waits_for(bench: Bench) -> None:
    bench.join()
    assert remaining(bench.machine.state).sentence == "no work left"
    bench.submit()
    bench.place()
    bench.submit(gpus=8, name="large")
    bid_for(bench)
    left = remaining(bench.machine.state)
    assert left == Remaining(running=1, waiting=1, lent=0, borrowed=1)
    assert left.sentence == "work left: 1 running, 1 waiting, 1 borrowed"


def test_a_hub_retires_only_without_work_and_never_comes_back_by_itself(bench: Bench) -> None:
    bench.submit()
    with pytest.raises(HarchError, match="1 waiting") as busy:
        check_change(bench.machine.state, Closed.RETIRED)
    assert busy.value.code == "E0304"
    for closed in (Closed.CORDONED, Closed.DRAINING, Closed.OPEN):
        check_change(bench.machine.state, closed)
    bench.machine.state.closed = Closed.RETIRED
    with pytest.raises(HarchError, match="retired"):
        check_change(bench.machine.state, Closed.OPEN)


def test_a_bid_from_before_it_closed_is_void(bench: Bench) -> None:
    bench.join()
    bid = bid_for(bench)
    bench.handle(ev.HubClosed(Closed.CORDONED, "maintenance"))
    assert bench.records[-1].message == "the hub is cordoned: maintenance"
    (answer,) = said(bench.handle(ev.PeerMessageReceived("dakar", grant_of(bench, bid))))
    assert isinstance(answer, o.Granted)
    assert [why for _, why in answer.refused] == ["Dakhla no longer accepts work"]
    assert remaining(bench.machine.state).total == 0

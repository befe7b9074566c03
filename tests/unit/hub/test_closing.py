"""A hub that takes no work: what is counted as left, when it may retire, and bids that it made before."""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.federation import offers as o
from harch.hub import happenings as h
from harch.hub.closing import Remaining, check_change, remaining
from harch.hub.desk import Closed
from harch.placement.request import Request
from harch.workloads.spec import Resources, WorkloadSpec
from unit.hub.conftest import Bench

SPEC = WorkloadSpec(name="guest", command=("true",), resources=Resources(gpus=1))


def said(effects: list[h.Effect]) -> list[o.SpillMessage]:
    return [effect.message for effect in effects if isinstance(effect, h.SendPeer)]


def bid_for(bench: Bench) -> o.Bid:
    request = Request.of("wl_guest", SPEC, tenant="t", submitted_s=0.0, hubs_allowed=None)
    need = o.Need.of(0, request, now_s=bench.now.timestamp(), may_queue=False)
    (answer,) = said(bench.handle(h.PeerSaid("dakar", o.Ask(1, (need,)))))
    assert isinstance(answer, o.Bids)
    return answer.bids[0]


def grant_of(bench: Bench, bid: o.Bid) -> o.Grants:
    grant = o.Grant(
        bid_id=bid.bid_id,
        lease=o.Lease("wl_guest", 1),
        lease_s=600.0,
        attempt=1,
        tenant="t",
        spec=SPEC,
        created_at=bench.now,
    )
    return o.Grants((grant,))


def test_what_is_left_is_counted_by_what_it_waits_for(bench: Bench) -> None:
    bench.join()
    assert remaining(bench.machine.desk).sentence == "no work left"
    bench.submit()
    bench.place()
    bench.submit(gpus=8, name="large")
    bid_for(bench)
    left = remaining(bench.machine.desk)
    assert left == Remaining(running=1, waiting=1, lent=0, guests=1)
    assert left.sentence == "work left: 1 running, 1 waiting, 1 of other hubs"


def test_a_hub_retires_only_without_work_and_never_comes_back_by_itself(bench: Bench) -> None:
    bench.submit()
    with pytest.raises(HarchError, match="1 waiting") as busy:
        check_change(bench.machine.desk, Closed.RETIRED)
    assert busy.value.code == "E0304"
    for closed in (Closed.CORDONED, Closed.DRAINING, Closed.OPEN):
        check_change(bench.machine.desk, closed)
    bench.machine.desk.closed = Closed.RETIRED
    with pytest.raises(HarchError, match="retired"):
        check_change(bench.machine.desk, Closed.OPEN)


def test_a_bid_from_before_it_closed_is_void(bench: Bench) -> None:
    bench.join()
    bid = bid_for(bench)
    bench.handle(h.HubClosed(Closed.CORDONED, "maintenance"))
    assert bench.records[-1].message == "the hub is cordoned: maintenance"
    (answer,) = said(bench.handle(h.PeerSaid("dakar", grant_of(bench, bid))))
    assert isinstance(answer, o.Granted)
    assert [why for _, why in answer.refused] == ["Dakhla takes no work any more"]
    assert remaining(bench.machine.desk).total == 0

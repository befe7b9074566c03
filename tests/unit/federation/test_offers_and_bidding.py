"""Which peers are asked and which bid is taken, and how long a lease lasts: exact values, and the order of ties."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harch.federation.bidding import PEERS_INVITED_MAX, SOON_S, PeerOffer, best_offer, peers_to_invite
from harch.federation.offers import (
    DRIFT_MAX,
    CapacityBid,
    LeaseTerms,
    Need,
    WorkLease,
    WorkReport,
    renew_at_s,
)
from harch.placement.request import PlacementRequest
from harch.workloads.lifecycle import State
from harch.workloads.spec import Gang, Resources, SchedulingClass, Topology, WorkloadSpec


def invited(*peers: tuple[str, bool, int, float], first: tuple[str, ...] = ()) -> str:
    return "".join(peers_to_invite(peers, first))


class TestInvitations:
    def test_whoever_has_the_data_comes_first_then_the_nearest_then_the_one_with_most_room(self) -> None:
        peers = [("a", False, 9, 0.0), ("b", True, 1, 100.0), ("c", False, 9, 25.0), ("d", False, 10, 19.9)]
        assert invited(*peers) == "bdac"

    def test_equal_peers_come_by_name_and_a_few_milliseconds_are_alike(self) -> None:
        assert invited(("b", True, 4, 1.0), ("a", True, 4, 19.0)) == "ab"
        assert invited(("b", True, 4, 19.0), ("a", True, 4, 20.0)) == "ba"

    def test_hubs_that_a_plan_prefers_come_before_all_others_in_its_order(self) -> None:
        peers = [("a", True, 9, 0.0), ("b", False, 1, 500.0), ("c", False, 1, 900.0)]
        assert invited(*peers, first=("c", "b")) == "cba"

    def test_no_more_than_four_are_queried(self) -> None:
        assert invited(*((name, True, 1, 0.0) for name in "fedcba")) == "abcd"
        assert PEERS_INVITED_MAX == 4


def offer(hub_id: str, *, has_data: bool = True, rtt_ms: float = 10.0, **fields: object) -> PeerOffer:
    bid = CapacityBid(ref=0, bid_id=f"bid-{hub_id}", **fields)  # type: ignore[arg-type]
    return PeerOffer(hub_id, bid, has_data, rtt_ms)


class TestTheBestBid:
    @pytest.mark.parametrize(
        ("better", "worse"),
        [
            (offer("b", start_in_s=SOON_S - 0.1, has_data=False), offer("a", start_in_s=SOON_S)),
            (offer("b", start_in_s=SOON_S - 0.1), offer("a", has_data=False)),
            (offer("b", slowdown=1.0), offer("a", slowdown=1.1)),
            (offer("b", slowdown=1.04, carbon_g_per_kwh=1.0), offer("a", slowdown=1.0, carbon_g_per_kwh=2.0)),
            (offer("b", carbon_g_per_kwh=900.0), offer("a")),
            (offer("b", carbon_g_per_kwh=1.0, price_per_kwh=9.0), offer("a", carbon_g_per_kwh=2.0, price_per_kwh=0.0)),
            (offer("b", price_per_kwh=9.0), offer("a")),
            (offer("b", price_per_kwh=1.0, rtt_ms=99.0), offer("a", price_per_kwh=2.0)),
            (offer("b", rtt_ms=9.0), offer("a")),
            (offer("a"), offer("b")),
        ],
    )
    def test_soonest_then_data_links_carbon_price_and_distance(self, better: PeerOffer, worse: PeerOffer) -> None:
        assert best_offer([better, worse]) is better
        assert best_offer([worse, better]) is better

    def test_a_plan_goes_before_links_and_what_bids_say_of_this_moment(self) -> None:
        clean = offer("b", slowdown=2.0, carbon_g_per_kwh=900.0)
        dirty = offer("a", slowdown=1.0, carbon_g_per_kwh=1.0)
        assert best_offer([clean, dirty], {"b": 50.0, "a": 60.0}) is clean
        assert best_offer([clean, dirty], {"b": 50.0}) is clean, "a hub that it did not weigh comes last"
        assert best_offer([clean, dirty], {}) is dirty

    def test_of_no_bids_none_is_best(self) -> None:
        assert best_offer([]) is None


SPEC = WorkloadSpec(
    name="job",
    command=("true",),
    tasks=3,
    resources=Resources(gpus=2),
    gang=Gang(tasks_min=2, degrade_after_s=5.0),
    max_duration_s=60.0,
)


class TestNeeds:
    def request(self, spec: WorkloadSpec = SPEC, submitted_s: float = 100.0) -> PlacementRequest:
        return PlacementRequest.of("wl_1", spec, tenant="t", submitted_s=submitted_s)

    def test_a_need_says_the_shape_and_how_long_it_has_waited_and_nothing_else(self) -> None:
        need = Need.of(7, self.request(), now_s=130.0, may_queue=True, trace="00-1")
        assert (need.ref, need.waited_s, need.may_queue, need.trace) == (7, 30.0, True, "00-1")
        there = need.request("bid_1", tenant="hub:a", now_s=1000.0)
        assert (there.id, there.tenant, there.submitted_s) == ("bid_1", "hub:a", 970.0)
        assert (there.needs, there.tasks, there.tasks_min, there.degrade_after_s) == (SPEC.resources, 3, 2, 5.0)
        assert (there.duration_s_max, there.runs_process, there.preemptible) == (60.0, True, False)
        assert there.countries_allowed == ()

    def test_a_clock_that_is_behind_makes_no_negative_wait(self) -> None:
        assert Need.of(0, self.request(), now_s=90.0, may_queue=False).waited_s == 0.0

    @pytest.mark.parametrize(
        "change",
        [
            {"resources": Resources(gpus=3)},
            {"tasks": 4},
            {"topology": Topology(exclusive=True)},
            {"command": ()},
        ],
    )
    def test_another_shape_is_not_what_was_bid_for(self, change: dict[str, object]) -> None:
        need = Need.of(0, self.request(), now_s=100.0, may_queue=False)
        assert need.is_of(self.request(replace(SPEC, name="other"), submitted_s=5.0))
        assert not need.is_of(self.request(replace(SPEC, **change)))


class TestTerms:
    TERMS = LeaseTerms(batch_s=600.0, service_s=30.0, margin_s=5.0)

    def test_a_service_has_a_shorter_lease(self) -> None:
        assert self.TERMS.length_s(SPEC) == 600.0
        assert self.TERMS.length_s(replace(SPEC, scheduling_class=SchedulingClass.INTERACTIVE)) == 600.0
        assert self.TERMS.length_s(replace(SPEC, scheduling_class=SchedulingClass.INFERENCE)) == 30.0

    @pytest.mark.parametrize(("grace_s", "covered"), [(300.0, True), (300.1, False), (0.0, True)])
    def test_a_lease_covers_a_grace_of_half_its_length(self, grace_s: float, covered: bool) -> None:
        assert self.TERMS.covers_grace(replace(SPEC, stop_grace_s=grace_s)) is covered

    def test_the_owner_waits_for_both_clocks_and_the_margin(self) -> None:
        assert self.TERMS.owner_waits_s(100.0) == pytest.approx(100.0 + 100.0 * 2 * DRIFT_MAX + 5.0)

    def test_a_lease_is_renewed_after_a_third(self) -> None:
        assert renew_at_s(10.0, 90.0) == 40.0

    def test_a_report_is_the_last_once_the_work_has_ended_or_was_given_back(self) -> None:
        lease = WorkLease("wl_1", 1)
        assert not WorkReport(lease=lease, state=State.RUNNING).is_last
        assert WorkReport(lease=lease, state=State.FAILED).is_last
        assert WorkReport(lease=lease, state=State.RUNNING, handed_back=True).is_last

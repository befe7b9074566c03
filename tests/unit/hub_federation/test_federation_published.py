"""What a hub says of itself arrives whole, in few bytes, and only when something has changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace

from harch.federation.gossip.membership import GossipView, LivenessState
from harch.federation.identity.members import Address
from harch.federation.links.mesh import LinkStatus
from harch.hub.federation.messages import FIXED, NOW, POLICY, Summaries, published_state
from harch.hub.federation.peer_view import peer_view
from harch.hub.jobs.admission import published_facts
from harch.hub.jobs.machine import JobMachine
from harch.hub.summary import summarise
from harch.hub.views import PeerReach
from harch.placement.checks import first_rejection
from harch.placement.request import PlacementRequest
from harch.testing.samples import tiny_fleet
from harch.wire.hubs import HubSummary
from harch.workloads.spec import Resources, WorkloadSpec

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def summary(at: datetime = MOMENT) -> HubSummary:
    fleet = tiny_fleet()
    state = JobMachine(fleet, fleet.hubs[1]).state
    return summarise(state, not_ready="", version="1", started_at=MOMENT, now=at, url="http://dakar")


def view(
    values: dict[str, bytes], *, standing: LivenessState = LivenessState.ALIVE, age_s: float | None = 1.0
) -> GossipView:
    return GossipView(
        hub="dakar",
        standing=standing,
        generation=1,
        version=1,
        values=values,
        complete=True,
        age_s=age_s,
        direct_age_s=None,
        via="tangier",
        phi=0.0,
        round_trip_s=None,
    )


def link(*, up: bool) -> LinkStatus:
    return LinkStatus(
        "dakar", Address("10.0.0.1", 7721), up, "refused" if not up else "", 8.04 if up else None, *((), 0, 0, 0, 0, 0)
    )


def test_a_summary_arrives_as_it_was_with_the_time_of_its_last_sign_of_life() -> None:
    told = Summaries().of(view(published_state(summary(), policy_version="p1")), MOMENT + timedelta(seconds=9))
    assert told == replace(summary(), at=MOMENT + timedelta(seconds=9))


def test_time_alone_is_nothing_new_and_what_changes_is_small() -> None:
    first, later = (published_state(summary(at), policy_version="p1") for at in (MOMENT, MOMENT + timedelta(hours=1)))
    assert first == later
    assert first[POLICY] == b"p1"
    assert len(first[NOW]) < len(msgspec.msgpack.encode(summary())) / 4


def test_what_cannot_be_read_is_not_guessed() -> None:
    said = published_state(summary(), policy_version="p1")
    summaries = Summaries()
    assert summaries.of(view({FIXED: said[FIXED]}), MOMENT) is None
    assert summaries.of(view({**said, NOW: b"\xc1"}), MOMENT) is None
    assert summaries.of(view(said), MOMENT) is not None


def test_a_hub_of_an_earlier_version_is_known_not_to_count_the_memory_of_shares() -> None:
    """Such a hub would end the link over a field that it does not know, so it must not be asked."""
    assert summary().counts_gpu_memory
    said = published_state(summary(), policy_version="p1")
    fixed = msgspec.msgpack.decode(said[FIXED])
    del fixed["counts_gpu_memory"]
    before = Summaries().of(view({**said, FIXED: msgspec.msgpack.encode(fixed)}), MOMENT)
    assert before is not None
    needs = Resources(gpus=1, gpu_fraction=0.1, gpu_memory_gb=20)
    request = PlacementRequest.of("w", WorkloadSpec(name="w", resources=needs))
    peer = peer_view(view(said), link(up=True), "", Summaries(), MOMENT)
    for told, rule in ((before, "gpu_model"), (summary(), None)):
        rejection = first_rejection(request, published_facts(told, peer, request), permanent_only=True)
        assert (rejection and rejection.rule) == rule


def test_a_hub_is_reachable_only_if_it_is_alive_and_linked() -> None:
    said = published_state(summary(), policy_version="p1")
    cases = {
        PeerReach.LINKED: (view(said), link(up=True)),
        PeerReach.CUT_OFF: (view(said), link(up=False)),
        PeerReach.SUSPECTED: (view(said, standing=LivenessState.SUSPECTED, age_s=12.0), link(up=True)),
        PeerReach.UNHEARD: (view({}, standing=LivenessState.UNHEARD, age_s=None), link(up=False)),
        PeerReach.RETIRED: (
            view(published_state(replace(summary(), status="retired"), policy_version="p1")),
            link(up=True),
        ),
    }
    seen = {reach: peer_view(*known, "http://guess", Summaries(), MOMENT) for reach, known in cases.items()}
    assert {reach: peer.reach for reach, peer in seen.items()} == {reach: reach for reach in cases}
    assert [reach for reach, peer in seen.items() if peer.reachable] == [PeerReach.LINKED]
    assert seen[PeerReach.CUT_OFF].error == "no link: refused; it is alive, as tangier relays"
    assert seen[PeerReach.SUSPECTED].error == "suspected: silent for 12 s"
    assert (seen[PeerReach.UNHEARD].age_s, seen[PeerReach.UNHEARD].url) == (None, "http://guess")
    assert (seen[PeerReach.LINKED].rtt_ms, seen[PeerReach.LINKED].url) == (8.0, "http://dakar")

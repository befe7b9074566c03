"""Does data take the quickest way that its tag allows, and no other?"""

from __future__ import annotations

import msgspec

from harch.base.rejection import Rejection
from harch.fleet.file import shipped_fleet
from harch.fleet.model import Fleet, Link
from harch.sovereignty.geography import Safeguards, SiteSafeguards, Terrain, terrain_of
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.rules import TransferPlan, explain_transfer, plan_transfer
from harch.sovereignty.tags import Tag


def test_the_quickest_way_is_taken_with_its_countries_in_order(terrain: Terrain, west_african: Tag) -> None:
    plan = plan_transfer(terrain, west_african, "tangier", "abidjan")
    assert plan == TransferPlan(
        source="tangier",
        target="abidjan",
        hubs=("tangier", "abidjan"),
        countries_crossed=("MA", "MR", "SN", "CI"),
        rtt_ms=45.0,
        encrypted=True,
    )
    back = plan_transfer(terrain, west_african, "abidjan", "tangier")
    assert isinstance(back, TransferPlan)
    assert back.countries_crossed == ("CI", "SN", "MR", "MA")


def test_a_detour_is_taken_when_the_direct_link_is_not_allowed(terrain: Terrain, west_african: Tag) -> None:
    passages = tuple(
        msgspec.structs.replace(passage, encrypted=set(passage.ends) != {"tangier", "abidjan"})
        for passage in terrain.passages
    )
    plan = plan_transfer(Terrain(terrain.sites, passages), west_african, "tangier", "abidjan")
    assert isinstance(plan, TransferPlan)
    assert plan.hubs == ("tangier", "casablanca", "abidjan")
    assert plan.rtt_ms == 50.0
    assert plan.encrypted


def test_data_of_morocco_moves_inside_morocco_only(terrain: Terrain, moroccan: Tag) -> None:
    plan = plan_transfer(terrain, moroccan, "dakhla", "tangier")
    assert isinstance(plan, TransferPlan)
    assert plan.countries_crossed == ("MA",)
    refusal = plan_transfer(terrain, moroccan, "dakhla", "dakar")
    assert isinstance(refusal, Rejection)
    rules = {reason.rule for reason in explain_transfer(terrain, moroccan, "dakhla", "dakar")}
    assert rules == {"arrive_in", "frameworks", "key_in", "route"}


def test_every_crossed_country_counts_not_only_the_ends(terrain: Terrain, west_african: Tag) -> None:
    no_mauritania = msgspec.structs.replace(west_african, transit_in=())
    reasons = explain_transfer(terrain, no_mauritania, "dakhla", "dakar")
    assert [reason.rule for reason in reasons] == ["route"]
    assert "crosses MA, MR, SN" in reasons[0].detail
    assert isinstance(plan_transfer(terrain, no_mauritania, "dakar", "abidjan"), TransferPlan)


def test_a_link_that_is_not_declared_encrypted_is_open() -> None:
    fleet = shipped_fleet("five-hubs")
    sites = {hub.id: SiteSafeguards(encrypts_at_rest=True, keys_in=("MA",)) for hub in fleet.hubs}
    terrain = terrain_of(fleet, shipped_jurisdictions(), Safeguards(sites=sites))
    assert not any(passage.encrypted for passage in terrain.passages)


def test_what_is_not_known_goes_nowhere(terrain: Terrain, west_african: Tag) -> None:
    assert isinstance(plan_transfer(terrain, None, "dakhla", "tangier"), Rejection)
    assert isinstance(plan_transfer(terrain, west_african, "atlantis", "tangier"), Rejection)
    assert isinstance(plan_transfer(terrain, west_african, "dakhla", "atlantis"), Rejection)
    assert {reason.rule for reason in explain_transfer(terrain, None, "atlantis", "mars")} == {"tag", "site"}


def test_a_link_over_a_country_that_the_registry_does_not_know_is_closed(west_african: Tag) -> None:
    fleet = shipped_fleet("five-hubs")
    links = (Link(("dakhla", "tangier"), 20.0, 100.0, ("MA", "ZZ")),)
    terrain = terrain_of(Fleet("t", fleet.gpu_models, fleet.hubs, links), shipped_jurisdictions())
    wide = msgspec.structs.replace(
        west_african, transit_in=("ZZ",), encrypt_in_transit=False, encrypt_at_rest=False, frameworks=()
    )
    assert [reason.rule for reason in explain_transfer(terrain, wide, "dakhla", "tangier")] == ["route"]


def test_data_is_already_where_it_is(terrain: Terrain, moroccan: Tag) -> None:
    plan = plan_transfer(terrain, moroccan, "dakhla", "dakhla")
    assert isinstance(plan, TransferPlan)
    assert (plan.hubs, plan.rtt_ms, plan.countries_crossed) == (("dakhla",), 0.0, ("MA",))

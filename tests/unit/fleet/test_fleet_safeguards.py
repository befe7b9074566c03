"""Do the safeguards of a fleet file reach the rules, and does everything that is not declared mean no?"""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.fleet.file import parse_blueprint, parse_fleet, shipped_fleet
from harch.fleet.model import NOTHING_DECLARED
from harch.sovereignty.geography import terrain_of
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.testing.fleet_writer import to_toml
from harch.testing.samples import TINY_FLEET_TOML

DAKHLA = "pue = 1.2\n"
DECLARED = f'{DAKHLA}[hubs.safeguards]\nencrypts_at_rest = true\nkeys_in = ["MA"]\nframeworks = ["gdpr", "no-law"]\n'


def test_a_hub_that_declares_nothing_has_nothing() -> None:
    fleet = parse_fleet(TINY_FLEET_TOML)
    assert all(hub.safeguards == NOTHING_DECLARED for hub in fleet.hubs)
    terrain = terrain_of(fleet, shipped_jurisdictions())
    assert not any(site.encrypts_at_rest or site.keys_in for site in terrain.sites)
    assert not any(passage.encrypted for passage in terrain.passages)


def test_what_is_declared_is_what_the_rules_see() -> None:
    fleet = parse_fleet(TINY_FLEET_TOML.replace(DAKHLA, DECLARED))
    site = terrain_of(fleet, shipped_jurisdictions()).by_hub["dakhla"]
    assert (site.encrypts_at_rest, site.keys_in) == (True, ("MA",))
    assert site.frameworks == ("gdpr", "ma-law-09-08")  # its own law besides; a framework that nobody knows is none


@pytest.mark.parametrize(("ends", "encrypted"), [(("dakhla",), False), (("dakhla", "dakar"), True)])
def test_a_link_is_encrypted_only_if_both_its_ends_are(ends: tuple[str, ...], encrypted: bool) -> None:
    text = TINY_FLEET_TOML
    for hub, pue in (("dakhla", "pue = 1.2\n"), ("dakar", "pue = 1.4\n")):
        if hub in ends:
            text = text.replace(pue, f"{pue}[hubs.safeguards]\nencrypts_in_transit = true\n")
    (passage,) = terrain_of(parse_fleet(text), shipped_jurisdictions()).passages
    assert passage.encrypted is encrypted


def test_mistakes_are_told_with_their_place() -> None:
    wrong = f'{DAKHLA}[hubs.safeguards]\nencrypts_at_rest = "yes"\nkeys_in = ["morocco"]\nkey = 1\n'
    with pytest.raises(HarchError) as caught:
        parse_fleet(TINY_FLEET_TOML.replace(DAKHLA, wrong))
    problems = caught.value.meta["problems"]
    assert isinstance(problems, list)
    assert [problem["where"] for problem in problems] == [
        "hubs[0].safeguards.key",
        "hubs[0].safeguards.encrypts_at_rest",
        "hubs[0].safeguards.keys_in[0]",
    ]


def test_safeguards_are_written_as_they_are_read() -> None:
    blueprint = parse_blueprint(TINY_FLEET_TOML.replace(DAKHLA, DECLARED))
    assert parse_blueprint(to_toml(blueprint)) == blueprint


@pytest.mark.parametrize("name", ["five-hubs", "twenty-hubs"])
def test_the_shipped_fleets_can_take_data_that_must_be_encrypted(name: str) -> None:
    terrain = terrain_of(shipped_fleet(name), shipped_jurisdictions())
    assert all(site.encrypts_at_rest and site.country in site.keys_in for site in terrain.sites)
    assert all(passage.encrypted for passage in terrain.passages)

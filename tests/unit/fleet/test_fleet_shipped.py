"""Are the fleets that come with HarchOS the ones it was conceived for?"""

from __future__ import annotations

from collections import Counter
from importlib import resources

import pytest

from harch.base.errors import HarchError
from harch.fleet.file import shipped_fleet, shipped_fleet_names
from harch.testing.fleet_generator import twenty_hubs_toml


def test_both_fleets_are_shipped() -> None:
    assert shipped_fleet_names() == ("five-hubs", "twenty-hubs")


def test_five_hubs_hold_1798_gpus_in_the_written_order() -> None:
    fleet = shipped_fleet("five-hubs")
    assert fleet.name == "five-hubs"
    assert [(hub.name, hub.country, hub.gpu_count) for hub in fleet.hubs] == [
        ("Dakhla", "MA", 640),
        ("Tangier", "MA", 320),
        ("Casablanca", "MA", 464),
        ("Dakar", "SN", 214),
        ("Abidjan", "CI", 160),
    ]
    assert fleet.gpu_count == 1798
    assert {model.name for model in fleet.gpu_models} == {"a100-80gb", "h100-80gb", "inference-card"}


def test_five_hubs_have_one_node_of_six_and_the_rest_of_eight() -> None:
    nodes = [node for hub in shipped_fleet("five-hubs").hubs for node in hub.nodes]
    assert Counter(len(node.gpus) for node in nodes) == {8: 224, 6: 1}
    assert len({gpu.id for node in nodes for gpu in node.gpus}) == 1798
    for node in nodes:
        islands = len({gpu.island for gpu in node.gpus})
        assert islands == (1 if node.gpu_model.nvlink_gb_per_s else len(node.gpus))


def test_five_hubs_are_all_linked_in_8_to_45_ms() -> None:
    fleet = shipped_fleet("five-hubs")
    assert {link.rtt_ms for link in fleet.links} >= {8.0, 45.0}
    assert all(8 <= link.rtt_ms <= 45 for link in fleet.links)
    assert {frozenset(link.ends) for link in fleet.links} == {
        frozenset((one.id, other.id)) for one in fleet.hubs for other in fleet.hubs if one is not other
    }


def test_twenty_hubs_hold_10000_gpus_in_twenty_countries() -> None:
    fleet = shipped_fleet("twenty-hubs")
    assert fleet.gpu_count == 10_000
    assert len({hub.country for hub in fleet.hubs}) == len(fleet.hubs) == 20


def test_the_shipped_twenty_hubs_are_what_the_generator_writes() -> None:
    shipped = resources.files("harch.fleet").joinpath("shipped", "twenty-hubs.toml").read_text("utf-8")
    assert shipped == twenty_hubs_toml(), "write it again: see docs/reference/fleet.md, Shipped fleets"


@pytest.mark.parametrize("name", ["six-hubs", "", "../five-hubs", "five-hubs.toml"])
def test_an_unknown_shipped_fleet_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(HarchError, match="no shipped fleet named") as caught:
        shipped_fleet(name)
    assert caught.value.code == "E0205"
    assert "five-hubs" in caught.value.hint

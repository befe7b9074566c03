"""Distances between the hubs of an emulated WAN."""

from __future__ import annotations

from itertools import combinations

import pytest

from harch.fleet.file import parse_fleet, shipped_fleet
from harch.testing.samples import TINY_FLEET_TOML
from harch.testing.wan import Wan, both_ways_once, rtt_ms_of_fleet, spread_rtt_ms


def test_linked_hubs_are_as_far_apart_as_their_link_says() -> None:
    fleet = shipped_fleet("five-hubs")
    distances = Wan.of_fleet(fleet).rtt_ms
    assert {frozenset(pair): rtt for pair, rtt in distances.items()} == {
        frozenset(link.ends): link.rtt_ms for link in fleet.links
    }


def test_hubs_without_a_link_are_as_far_apart_as_the_quickest_way_through_others() -> None:
    fleet = shipped_fleet("twenty-hubs")
    distances = rtt_ms_of_fleet(fleet)
    linked = {frozenset(link.ends): link.rtt_ms for link in fleet.links}
    names = [hub.id for hub in fleet.hubs]
    assert set(distances) == set(combinations(names, 2))

    def between(a: str, b: str) -> float:
        return distances[a, b] if (a, b) in distances else distances[b, a]

    unlinked = [pair for pair in distances if frozenset(pair) not in linked]
    assert unlinked
    for a, b in unlinked:
        ways = [
            linked[frozenset((a, via))] + between(via, b) for via in names if frozenset((a, via)) in linked and via != b
        ]
        assert between(a, b) == pytest.approx(min(ways))


def test_a_hub_that_no_link_reaches_is_refused_by_name() -> None:
    lonely = parse_fleet(TINY_FLEET_TOML.split("[[links]]")[0])
    with pytest.raises(ValueError, match="dakhla - dakar"):
        Wan.of_fleet(lonely)


def test_a_distance_to_an_unknown_hub_is_refused() -> None:
    with pytest.raises(ValueError, match="c"):
        both_ways_once(["a", "b"], {("a", "b"): 1.0, ("a", "c"): 1.0})


@pytest.mark.parametrize("count", [2, 3, 20])
def test_spread_distances_stay_within_their_bounds_and_repeat(count: int) -> None:
    names = [f"hub{number}" for number in range(count)]
    distances = spread_rtt_ms(names)
    assert set(distances) == set(combinations(names, 2))
    assert all(8 <= rtt_ms <= 45 for rtt_ms in distances.values())
    assert count == 2 or {8.0, 45.0} <= set(distances.values())
    assert distances == spread_rtt_ms(names)

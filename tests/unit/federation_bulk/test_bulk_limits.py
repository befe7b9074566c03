"""How much of a link may bulk transfers use, which way is preferred, and who gets which share?"""

from __future__ import annotations

import math

import pytest

from harch.base.errors import HarchError
from harch.federation.bulk.limits import (
    BYTES_PER_S_PER_GBPS,
    DEDICATED_SHARE_MAX,
    SHARE_MAX,
    UNLIMITED,
    WEIGHTS,
    BulkLimits,
    Flow,
    TransferClass,
    limits_of,
    preferred_sources,
    refusal,
    require,
    shares,
    usable_gbps,
)
from harch.fleet.file import shipped_fleet
from harch.fleet.model import Fleet, Link

STATE, CONTENT, BACKGROUND = TransferClass.STATE, TransferClass.CONTENT, TransferClass.BACKGROUND


def fleet(*links: Link) -> Fleet:
    hubs = {hub.id: hub for hub in shipped_fleet("five-hubs").hubs}
    named = dict.fromkeys(end for link in links for end in link.ends)
    return Fleet("some", (), tuple(hubs[name] for name in named), links)


def link(one: str, other: str, rtt_ms: float, gbps: float, *, dedicated: bool = False, reserved: float = 0.0) -> Link:
    return Link((one, other), rtt_ms, gbps, ("MA",), dedicated, reserved)


def test_bulk_transfers_use_what_is_reserved_or_a_share() -> None:
    assert usable_gbps(link("dakar", "abidjan", 24, 100)) == 100 * SHARE_MAX
    assert usable_gbps(link("dakar", "abidjan", 24, 100, dedicated=True)) == 100 * DEDICATED_SHARE_MAX
    assert usable_gbps(link("dakar", "abidjan", 24, 100, dedicated=True, reserved=30)) == 30


def test_a_direct_link_counts_even_where_a_detour_is_quicker_or_wider() -> None:
    found = limits_of(
        fleet(link("dakar", "abidjan", 60, 1), link("dakar", "tangier", 10, 9), link("tangier", "abidjan", 10, 9)),
        "dakar",
    )
    assert found["abidjan"] == BulkLimits(0.8 * BYTES_PER_S_PER_GBPS, 60)


def test_without_a_link_the_quickest_way_counts_with_its_narrowest_link() -> None:
    found = limits_of(
        fleet(
            link("dakar", "tangier", 10, 50, dedicated=True),
            link("tangier", "abidjan", 10, 2, dedicated=True),
            link("dakar", "dakhla", 30, 90),
            link("dakhla", "abidjan", 30, 90),
        ),
        "dakar",
    )
    way = found["abidjan"]
    assert way.bytes_per_s == pytest.approx(2 * DEDICATED_SHARE_MAX * BYTES_PER_S_PER_GBPS)
    assert (way.rtt_ms, way.dedicated) == (20, True)
    assert "dakar" not in found


def test_a_way_is_dedicated_only_if_all_of_it_is() -> None:
    found = limits_of(
        fleet(link("dakar", "tangier", 10, 50, dedicated=True), link("tangier", "abidjan", 10, 50)), "dakar"
    )
    assert found["tangier"].dedicated
    assert not found["abidjan"].dedicated


def test_every_hub_of_the_shipped_fleet_reaches_every_other() -> None:
    shipped = shipped_fleet("twenty-hubs")
    for hub in shipped.hubs:
        assert set(limits_of(shipped, hub.id)) == {other.id for other in shipped.hubs} - {hub.id}


def test_where_no_link_leads_nothing_goes() -> None:
    apart = fleet(link("dakar", "abidjan", 24, 100), link("tangier", "dakhla", 23, 100))
    found = limits_of(apart, "dakar")
    assert set(found) == {"abidjan"}
    with pytest.raises(HarchError, match="nothing of class `content` may go to tangier: no link leads there") as caught:
        require(found.get("tangier"), CONTENT, peer="tangier")
    assert caught.value.code == "E1141"


def test_a_dedicated_link_carries_no_copies_ahead_of_need() -> None:
    dedicated = BulkLimits(1e9, 10, dedicated=True)
    assert refusal(dedicated, BACKGROUND)
    assert not refusal(dedicated, STATE)
    assert not refusal(dedicated, CONTENT)
    assert not refusal(BulkLimits(1e9, 10), BACKGROUND)
    assert require(dedicated, STATE, peer="dakar") is dedicated


def test_dedicated_links_are_preferred_then_wide_then_near_ones() -> None:
    ways = {
        "far": BulkLimits(2e9, 50),
        "near": BulkLimits(2e9, 5),
        "wide": BulkLimits(9e9, 50),
        "dedicated": BulkLimits(1e9, 90, dedicated=True),
    }
    hubs = [*ways, "nowhere"]
    assert preferred_sources(hubs, ways, STATE) == ["dedicated", "wide", "near", "far"]
    assert preferred_sources(hubs, ways, BACKGROUND) == ["wide", "near", "far"]


def test_one_transfer_has_everything_however_many_connections_it_has() -> None:
    assert shares([Flow(b"a", CONTENT)], 100.0) == [100.0]
    assert shares([Flow(b"a", CONTENT)] * 4, 100.0) == [25.0] * 4


def test_transfers_share_by_class_and_not_by_connections() -> None:
    flows = [Flow(b"a", CONTENT)] * 7 + [Flow(b"b", CONTENT)]
    assert shares(flows, 140.0) == pytest.approx([10.0] * 7 + [70.0])
    mixed = shares([Flow(b"a", STATE), Flow(b"b", CONTENT), Flow(b"c", BACKGROUND)], 130.0)
    assert mixed == pytest.approx([130 * weight / 13 for weight in (8, 4, 1)])
    assert list(WEIGHTS.values()) == [8, 4, 1]  # docs/reference/fleet.md says so, too


def test_what_one_cannot_use_goes_to_the_others() -> None:
    flows = [Flow(b"a", STATE, 10.0), Flow(b"b", CONTENT), Flow(b"c", CONTENT)]
    assert shares(flows, 110.0) == pytest.approx([10.0, 50.0, 50.0])


def test_without_a_limit_everybody_gets_what_it_can_use() -> None:
    assert shares([Flow(b"a", STATE), Flow(b"b", CONTENT, 5.0)], UNLIMITED) == [math.inf, 5.0]
    assert shares([], 10.0) == []

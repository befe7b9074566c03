"""What may a fleet file say about bulk transfers over a link, and how are mistakes named?"""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.federation.bulk.limits import usable_gbps
from harch.fleet.file import parse_blueprint, parse_fleet, shipped_fleet, shipped_fleet_names
from harch.fleet.model import Link
from harch.testing.fleet_writer import to_toml
from harch.testing.samples import TINY_FLEET_TOML


def with_link_keys(keys: str) -> str:
    assert TINY_FLEET_TOML.count("bandwidth_gbps = 200\n") == 1
    return TINY_FLEET_TOML.replace("bandwidth_gbps = 200\n", f"bandwidth_gbps = 200\n{keys}\n")


def link_of(keys: str) -> Link:
    return parse_fleet(with_link_keys(keys)).links[0]


def test_a_link_is_not_dedicated_and_reserves_nothing_unless_the_file_says_so() -> None:
    link = link_of("")
    assert (link.dedicated, link.reserved_gbps) == (False, 0.0)
    link = link_of("dedicated = true\nreserved_gbps = 40")
    assert (link.dedicated, link.reserved_gbps) == (True, 40.0)
    assert usable_gbps(link) == 40.0


@pytest.mark.parametrize(
    ("keys", "where", "what"),
    [
        ('dedicated = "yes"', "links[0].dedicated", 'must be true or false, is the text "yes"'),
        ("reserved_gbps = -1", "links[0].reserved_gbps", "-1 is out of range; use 0 to 1,000,000"),
        ("reserved_gbps = nan", "links[0].reserved_gbps", "nan is out of range"),
        ("reserved_gbps = true", "links[0].reserved_gbps", "must be a number, is true"),
        ("reserved_gbps = 201", "links[0].reserved_gbps", "201 is more than the link carries; lower it"),
        ("reserved_gpbs = 20", "links[0].reserved_gpbs", "did you mean `reserved_gbps`?"),
    ],
)
def test_a_mistake_is_named_with_its_path_and_fix(keys: str, where: str, what: str) -> None:
    with pytest.raises(HarchError) as caught:
        parse_fleet(with_link_keys(keys))
    assert caught.value.code == "E0205"
    assert caught.value.field == where
    assert what in caught.value.message


def test_all_of_a_link_may_be_reserved() -> None:
    assert link_of("reserved_gbps = 200").reserved_gbps == 200


def test_what_is_written_reads_the_same() -> None:
    blueprint = parse_blueprint(with_link_keys("dedicated = true\nreserved_gbps = 12.5"))
    assert parse_blueprint(to_toml(blueprint)) == blueprint
    assert "dedicated" not in to_toml(parse_blueprint(TINY_FLEET_TOML))


@pytest.mark.parametrize("name", shipped_fleet_names())
def test_every_link_of_a_shipped_fleet_leaves_room_for_the_links_of_the_hubs(name: str) -> None:
    for link in shipped_fleet(name).links:
        assert 0 < usable_gbps(link) < link.bandwidth_gbps

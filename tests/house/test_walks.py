"""Do the walks through the code stay short, and does their count notice one that is gone?"""

from __future__ import annotations

from house.walks import FLOWS, PAGE, STATIONS_MAX, stations_of


def test_each_walk_through_the_code_has_stations_and_few_of_them() -> None:
    counted = stations_of(PAGE.read_text("utf-8"))
    assert all(stations and stations <= STATIONS_MAX for stations in counted.values()), counted


def test_a_walk_without_its_heading_is_not_counted_and_stations_link_to_modules() -> None:
    walk = "### A job\n\n1. [a](../src/harch/a.py)\n2. no link\n3. [b](../src/harch/b.py)\n"
    page = f"{walk}\n## Next\n\n1. [c](../src/harch/c.py)\n"
    assert stations_of(page) == {"a job": 2, "a sample": None, "an event": None}
    assert set(stations_of("")) == set(FLOWS)

"""A small world for the sovereignty tests: the five shipped hubs, all encrypted, with their own key stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harch.fleet.file import shipped_fleet
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import Safeguards, SiteSafeguards, Terrain, terrain_of
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.tags import DataKind, DataObject, Tag, parse_tag

MOROCCAN: dict[str, object] = {"process_in": ["MA"], "rest_in": ["MA"], "frameworks": ["09-08"]}
WEST_AFRICAN: dict[str, object] = {
    "process_in": ["MA", "SN", "CI"],
    "rest_in": ["MA", "SN", "CI"],
    "transit_in": ["MR"],
    "may_cross_borders": True,
    "classification": "internal",
}


@pytest.fixture(scope="session")
def terrain() -> Terrain:
    fleet = shipped_fleet("five-hubs")
    sites = {hub.id: SiteSafeguards(encrypts_at_rest=True, keys_in=(hub.country,)) for hub in fleet.hubs}
    links = tuple(link.ends for link in fleet.links)
    return terrain_of(fleet, shipped_jurisdictions(), Safeguards(sites=sites, links_encrypted=links))


@pytest.fixture
def rules(terrain: Terrain) -> Rules:
    return Rules(terrain)


@pytest.fixture
def moroccan() -> Tag:
    return parse_tag(MOROCCAN, shipped_jurisdictions())


@pytest.fixture
def west_african() -> Tag:
    return parse_tag(WEST_AFRICAN, shipped_jurisdictions())


@pytest.fixture
def data() -> Callable[..., DataObject]:
    def make(tag: Tag | None, *hubs: str, id: str = "d1", parents: tuple[str, ...] = ()) -> DataObject:
        return DataObject(
            id=id, kind=DataKind.DATASET, name=f"set-{id}", tenant="t", tag=tag, hubs=hubs, parents=parents
        )

    return make

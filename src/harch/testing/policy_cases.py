"""Which worlds and questions should two implementations of the rules be compared on? Random ones, from a seed.

Small alphabets on purpose: with few countries and frameworks the rules are met from both sides, and unknown hubs,
missing tags and links that name no country turn up often enough to matter.
"""

from __future__ import annotations

from random import Random
from typing import Literal

from harch.sovereignty.geography import LegalSite, Passage, Terrain
from harch.sovereignty.policy.document import DataQuestion, WorkQuestion
from harch.sovereignty.tags import Classification, DataKind, DataObject, Tag

COUNTRIES = ("MA", "SN", "CI", "MR", "FR")
FRAMEWORKS = ("ma-law-09-08", "sn-law-2008-12", "ci-law-2013-450", "gdpr", "malabo-convention")
UNKNOWN_HUB = "atlantis"  # a hub that no world has
_ACTIONS: tuple[Literal["process", "rest", "move", "see"], ...] = ("process", "rest", "move", "see")


def random_world(random: Random, *, hubs_max: int = 8) -> Terrain:
    """Two to `hubs_max` hubs and some links between them."""
    hubs = [f"h{number}" for number in range(random.randint(2, hubs_max))]
    sites = tuple(
        LegalSite(
            hub=hub,
            country=random.choice((*COUNTRIES, None)),
            frameworks=_some(random, FRAMEWORKS, 0.6),
            encrypts_at_rest=random.random() < 0.6,
            keys_in=_some(random, COUNTRIES, 0.4),
        )
        for hub in hubs
    )
    pairs = [(one, other) for index, one in enumerate(hubs) for other in hubs[index + 1 :]]
    passages = tuple(
        Passage(
            ends=pair,
            rtt_ms=float(random.randint(1, 45)),
            countries_crossed=_some(random, COUNTRIES, 0.3),
            encrypted=random.random() < 0.6,
        )
        for pair in pairs
        if random.random() < 0.5
    )
    return Terrain(sites, passages)


def random_question(random: Random, world: Terrain) -> DataQuestion | WorkQuestion:
    hubs = [*(site.hub for site in world.sites), UNKNOWN_HUB]
    if random.random() < 0.3:
        return WorkQuestion(
            hub=random.choice(hubs),
            tenant="t",
            workload={"countries_allowed": list(_some(random, COUNTRIES, 0.5)) if random.random() < 0.5 else []},
            data=tuple(_object(random, number, hubs) for number in range(random.choice((0, 1, 1, 2, 3)))),
            not_found=("lost",) if random.random() < 0.05 else (),
        )
    return DataQuestion(
        action=random.choice(_ACTIONS),
        hub=random.choice(hubs),
        source=random.choice(hubs),
        tag=random_tag(random) if random.random() < 0.95 else None,
    )


def random_tag(random: Random) -> Tag:
    """Mostly permissive: a tag that permits nothing tells little about the rules behind its first one."""
    return Tag(
        process_in=_some(random, COUNTRIES, 0.7),
        rest_in=_some(random, COUNTRIES, 0.6),
        transit_in=_some(random, COUNTRIES, 0.7),
        may_cross_borders=random.random() < 0.7,
        frameworks=_some(random, FRAMEWORKS, 0.15),
        classification=random.choice(list(Classification)),
        encrypt_at_rest=random.random() < 0.3,
        encrypt_in_transit=random.random() < 0.3,
        key_in=_some(random, COUNTRIES, 0.6),
    )


def _object(random: Random, number: int, hubs: list[str]) -> DataObject:
    return DataObject(
        id=f"ds_{number}",
        kind=DataKind.DATASET,
        name=f"data-{number}",
        tenant="t",
        tag=random_tag(random) if random.random() < 0.95 else None,
        hubs=_some(random, tuple(hubs), 0.4),
    )


def _some(random: Random, words: tuple[str, ...], share: float) -> tuple[str, ...]:
    return tuple(word for word in words if random.random() < share)

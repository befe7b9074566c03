"""Do masks and arrays answer no for whatever they do not know, and as before when there are many hubs?"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from harch.sovereignty import compiled
from harch.sovereignty.compiled import Rules
from harch.sovereignty.geography import Terrain
from harch.sovereignty.tags import Classification, Tag
from harch.testing.sovereignty import random_tag, random_terrain
from harch.testing.sovereignty_arrays import TagTable


def test_what_is_not_known_is_no(rules: Rules, moroccan: Tag) -> None:
    assert rules.may_process(moroccan, "dakhla")
    for tag, hub in ((None, "dakhla"), (moroccan, "atlantis"), (None, "atlantis")):
        assert not rules.may_process(tag, hub)
        assert not rules.may_rest(tag, hub)
        assert not rules.may_move(tag, "dakhla", hub)
        assert not rules.may_move(tag, hub, "dakhla")
        assert not rules.may_see(tag, "dakhla", hub)
        assert not rules.may_see(tag, hub, "dakhla")


def test_numbers_out_of_range_are_no(rules: Rules, moroccan: Tag) -> None:
    table = TagTable(rules, [moroccan, None])
    tags = np.array([0, 0, 0, 1, 2, -1, 0, 2**62])
    hubs = np.array([0, 5, -1, 0, 0, 0, 2**62, 0])
    for answers in (
        table.may_process(tags, hubs),
        table.may_rest(tags, hubs),
        table.may_move(tags, hubs, np.zeros(8, np.int64)),
        table.may_move(tags, np.zeros(8, np.int64), hubs),
        table.may_see(tags, hubs, np.zeros(8, np.int64)),
    ):
        assert answers.tolist() == [True] + [False] * 7


def test_a_terrain_without_hubs_permits_nothing(moroccan: Tag) -> None:
    table = TagTable(Rules(Terrain((), ())), [moroccan])
    zero = np.zeros(1, np.int64)
    assert not table.may_process(zero, zero).any()
    assert not table.may_move(zero, zero, zero).any()


def test_arrays_and_single_calls_agree_for_more_than_64_hubs() -> None:
    rng = np.random.default_rng(5)
    terrain = random_terrain(rng, 130, 200)
    rules = Rules(terrain)
    levels = (Classification.RESTRICTED, Classification.INTERNAL)
    tags = [msgspec.structs.replace(random_tag(rng, terrain), classification=levels[n % 2]) for n in range(6)]
    table = TagTable(rules, tags)
    names = list(rules.bits)
    tag, source, hub = (axis.ravel() for axis in np.mgrid[0:6, 0:130, 0:130])
    move, see = table.may_move(tag, source, hub), table.may_see(tag, source, hub)
    process, rest = table.may_process(tag, hub), table.may_rest(tag, hub)
    for case in range(0, tag.size, 97):
        one, start, end = tags[tag[case]], names[source[case]], names[hub[case]]
        assert process[case] == rules.may_process(one, end)
        assert rest[case] == rules.may_rest(one, end)
        assert move[case] == rules.may_move(one, start, end)
        assert see[case] == rules.may_see(one, start, end)
    assert all(process[tag == number].any() for number in (0, 1))
    assert move.any()
    assert not see[(source != hub) & (tag % 2 == 0)].any()  # restricted


def test_a_flood_of_tags_does_not_grow_the_cache(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "CACHE_MAX", 8)
    rng = np.random.default_rng(1)
    for _ in range(50):
        rules.compile(random_tag(rng, rules.terrain))
        assert len(rules._cache) <= 8

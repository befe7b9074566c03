"""Does each rule say yes, no and why, in exact words, and is the way that data takes the quickest that is allowed?"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harch.base.rejection import Rejection, RuleOutcome
from harch.sovereignty import rules
from harch.sovereignty.geography import LegalSite, Passage, Terrain
from harch.sovereignty.rules import (
    TransferPlan,
    explain_arrival,
    explain_passage,
    explain_process,
    explain_rest,
    explain_transfer,
    explain_view,
    may_take,
    plan_transfer,
    quickest_way,
)
from harch.sovereignty.tags import Classification, Tag

TAG = Tag(
    process_in=("MA", "SN"),
    rest_in=("MA",),
    transit_in=("MR",),
    may_cross_borders=True,
    frameworks=("gdpr",),
    classification=Classification.INTERNAL,
    encrypt_at_rest=True,
    encrypt_in_transit=True,
    key_in=("MA", "SN"),
)
PLAIN = replace(TAG, frameworks=(), encrypt_at_rest=False, encrypt_in_transit=False)
SITE = LegalSite(hub="a", country="MA", frameworks=("gdpr",), encrypts_at_rest=True, keys_in=("SN",))
NO_TAG = RuleOutcome(rule="tag", passed=False, detail="untagged data is never permitted", nearest_fix="tag the data")
NO_SITE = RuleOutcome(rule="site", passed=False, detail="unknown hub", nearest_fix="choose a hub of the fleet")
EXPLAIN = (explain_process, explain_rest, explain_arrival)


def failed(outcomes: tuple[RuleOutcome, ...]) -> dict[str, tuple[str, str]]:
    assert all(outcome.nearest_fix == "" for outcome in outcomes if outcome.passed)
    return {outcome.rule: (outcome.detail, outcome.nearest_fix) for outcome in outcomes if not outcome.passed}


def test_what_is_not_known_is_no_and_says_what_is_missing() -> None:
    for explain in EXPLAIN:
        assert explain(None, SITE) == (NO_TAG,)
        assert explain(TAG, None) == (NO_SITE,)
        assert explain(None, None) == (NO_TAG, NO_SITE)
    assert explain_view(None, SITE, at_home=True) == (NO_TAG,)
    assert explain_view(TAG, None, at_home=True) == (NO_SITE,)
    assert explain_view(None, None, at_home=True) == (NO_TAG, NO_SITE)


def test_a_site_that_keeps_every_rule_passes_each_of_them() -> None:
    for explain, rule in zip(EXPLAIN, ("process_in", "rest_in", "arrive_in"), strict=True):
        outcomes = explain(TAG, SITE)
        assert [outcome.rule for outcome in outcomes] == [rule, "frameworks", "encrypt_at_rest", "key_in"]
        assert failed(outcomes) == {}
    assert [outcome.rule for outcome in explain_process(PLAIN, SITE)] == ["process_in", "frameworks", "encrypt_at_rest"]


@pytest.mark.parametrize(
    ("country", "process", "rest", "arrive"),
    [("MA", True, True, True), ("SN", True, False, True), ("MR", False, False, False), (None, False, False, False)],
)
def test_each_rule_looks_at_its_own_countries(country: str | None, process: bool, rest: bool, arrive: bool) -> None:
    site = replace(SITE, country=country)
    assert [not failed(explain(TAG, site)) for explain in EXPLAIN] == [process, rest, arrive]


def test_a_country_that_is_not_allowed_is_reported_with_those_that_are() -> None:
    elsewhere = replace(SITE, country="FR")
    assert failed(explain_process(TAG, elsewhere)) == {
        "process_in": ("a is in FR; allowed: MA, SN", "choose a hub in MA, SN")
    }
    assert failed(explain_rest(TAG, elsewhere)) == {"rest_in": ("a is in FR; allowed: MA", "choose a hub in MA")}
    nowhere = replace(TAG, process_in=(), rest_in=())
    assert failed(explain_process(nowhere, SITE)) == {
        "process_in": ("a is in MA; allowed: no country", "not allowed anywhere")
    }
    lost = replace(SITE, country=None)
    assert failed(explain_rest(TAG, lost)) == {
        "rest_in": ("a is in an unknown country; allowed: MA", "choose a hub in MA")
    }


@pytest.mark.parametrize(("count", "listed"), [(2, "AA, AB"), (12, "AA, AB"), (13, "and 1 more"), (20, "and 8 more")])
def test_a_long_list_of_countries_is_cut(count: int, listed: str) -> None:
    codes = tuple(f"A{chr(65 + n)}" for n in range(count))
    ((detail, _),) = failed(explain_process(replace(PLAIN, process_in=codes), SITE)).values()
    assert listed in detail
    assert detail.count(", ") == min(count, 12) - 1
    assert ("more" in detail) is (count > 12)


def test_frameworks_encryption_and_keys_are_demanded_one_by_one() -> None:
    bare = LegalSite(hub="a", country="MA")
    two = replace(TAG, frameworks=("gdpr", "law"))
    assert failed(explain_process(two, replace(SITE, frameworks=("gdpr", "other")))) == {
        "frameworks": (
            "needs gdpr, law; a is under or upholds gdpr, other",
            "choose a hub under law, or declare that a upholds it",
        )
    }
    assert failed(explain_rest(TAG, bare)) == {
        "frameworks": (
            "needs gdpr; a is under or upholds none",
            "choose a hub under gdpr, or declare that a upholds it",
        ),
        "encrypt_at_rest": (
            "a is not declared to encrypt at rest",
            "encrypt storage and scratch at a, and declare it",
        ),
        "key_in": (
            "keys may be held in MA, SN; a uses key stores in no country",
            "give a a key store in MA, SN",
        ),
    }
    assert failed(explain_rest(PLAIN, bare)) == {}
    keyless = replace(TAG, key_in=())
    assert failed(explain_rest(keyless, SITE)) == {
        "key_in": (
            "keys may be held in no country; a uses key stores in SN",
            "give a a key store in an allowed country",
        )
    }


@pytest.mark.parametrize("level", Classification)
@pytest.mark.parametrize("at_home", [True, False])
def test_restricted_data_is_seen_only_where_it_is(level: Classification, at_home: bool) -> None:
    outcomes = explain_view(replace(TAG, classification=level), SITE, at_home=at_home)
    assert [outcome.rule for outcome in outcomes] == ["process_in", "frameworks", "classification"]
    if level is Classification.RESTRICTED and not at_home:
        reported = ("is restricted and would be seen at another hub", "view it at the hub where it is")
        assert failed(outcomes) == {"classification": reported}
    else:
        assert failed(outcomes) == {}
        where = "where it is" if at_home else "at another hub"
        assert outcomes[-1].detail == f"is {level} and would be seen {where}"


def test_seeing_is_processing() -> None:
    assert set(failed(explain_view(TAG, replace(SITE, country="FR", frameworks=()), at_home=True))) == {
        "process_in",
        "frameworks",
    }


# Links


def passage(one: str, other: str, *countries: str, rtt_ms: float = 1.0, encrypted: bool = True) -> Passage:
    return Passage(ends=(one, other), rtt_ms=rtt_ms, countries_crossed=countries, encrypted=encrypted)


@pytest.mark.parametrize(
    ("tag", "link", "reported"),
    [
        (TAG, passage("a", "b", "MA", "MR", "SN"), {}),
        (TAG, passage("a", "b", "MA", "MA"), {}),
        (
            TAG,
            passage("a", "b", "MA", "FR", "ES"),
            {"transit_in": ("crosses ES, FR, MA; may cross MA, MR, SN", "needs a route without ES, FR")},
        ),
        (
            replace(TAG, may_cross_borders=False),
            passage("a", "b", "MA", "SN"),
            {"may_cross_borders": ("crosses a border", "needs a route inside one country")},
        ),
        (replace(TAG, may_cross_borders=False), passage("a", "b", "MA"), {}),
        (
            TAG,
            passage("a", "b", "MA", encrypted=False),
            {
                "encrypt_in_transit": (
                    "the link is not declared encrypted",
                    "encrypt the link and declare it encrypted",
                )
            },
        ),
        (PLAIN, passage("a", "b", "MA", encrypted=False), {}),
        (TAG, passage("a", "b"), {"transit_in": ("crosses an unknown country; may cross MA, MR, SN", "")}),
        (
            replace(TAG, process_in=(), rest_in=(), transit_in=()),
            passage("a", "b", "MA"),
            {"transit_in": ("crosses MA; may cross none", "needs a route without MA")},
        ),
    ],
)
def test_a_link_is_taken_if_its_countries_borders_and_encryption_allow_it(
    tag: Tag, link: Passage, reported: dict[str, tuple[str, str]]
) -> None:
    outcomes = explain_passage(tag, link)
    assert [outcome.rule for outcome in outcomes] == ["transit_in", "may_cross_borders", "encrypt_in_transit"]
    assert failed(outcomes) == reported
    assert may_take(tag, link) is (not reported)


def test_the_details_of_a_link_that_may_be_taken_are_reported_too() -> None:
    inside, elsewhere = (
        explain_passage(TAG, passage("a", "b", "MA")),
        explain_passage(TAG, passage("a", "b", "MA", "SN")),
    )
    assert [one.detail for one in inside[1:]] == ["stays inside one country", "the link is encrypted"]
    assert elsewhere[1].detail == "crosses a border"


# Ways


def terrain(*passages: Passage, hubs: str = "abcd") -> Terrain:
    countries = {"a": "MA", "b": "MA", "c": "SN", "d": "MA"}
    sites = tuple(replace(SITE, hub=hub, country=countries[hub]) for hub in hubs)
    return Terrain(sites, passages)


def test_the_quickest_way_is_taken_then_the_one_with_fewer_hops_then_the_first_by_name() -> None:
    direct = passage("a", "d", "MA", rtt_ms=9.0)
    over_b = (passage("b", "a", "MA", rtt_ms=4.0), passage("b", "d", "MA", rtt_ms=4.0))
    over_c = (passage("a", "c", "MA", "MR", "SN", rtt_ms=4.0), passage("d", "c", "MA", "SN", rtt_ms=4.0))
    world = terrain(*over_c, direct, *over_b)
    assert quickest_way(world, TAG, "a", "d") == over_b
    assert plan_transfer(world, TAG, "a", "d") == TransferPlan(
        source="a", target="d", hubs=("a", "b", "d"), countries_crossed=("MA",), rtt_ms=8.0, encrypted=True
    )
    equal = terrain(*over_b, replace(direct, rtt_ms=8.0))
    assert quickest_way(equal, TAG, "a", "d") == (replace(direct, rtt_ms=8.0),)
    assert quickest_way(terrain(*over_c, direct), TAG, "a", "d") == over_c
    longer = terrain(direct, over_b[0], replace(over_b[1], rtt_ms=5.1))
    assert quickest_way(longer, TAG, "a", "d") == (direct,)


def test_a_plan_tells_the_countries_in_the_order_of_travel() -> None:
    there, on = passage("a", "c", "MA", "MR", "SN"), passage("d", "c", "MA", "ML", "SN", encrypted=False)
    wide = replace(PLAIN, transit_in=("ML", "MR"), process_in=("MA", "SN"))
    world = terrain(there, on)
    assert plan_transfer(world, wide, "a", "d") == TransferPlan(
        source="a",
        target="d",
        hubs=("a", "c", "d"),
        countries_crossed=("MA", "MR", "SN", "ML"),
        rtt_ms=2.0,
        encrypted=False,
    )
    back = plan_transfer(world, wide, "d", "c")
    assert isinstance(back, TransferPlan)
    assert back.countries_crossed == ("MA", "ML", "SN")
    forth = plan_transfer(world, wide, "c", "a")
    assert isinstance(forth, TransferPlan)
    assert (forth.hubs, forth.countries_crossed, forth.encrypted) == (("c", "a"), ("SN", "MR", "MA"), True)


def test_what_is_there_already_takes_no_link() -> None:
    assert quickest_way(terrain(), TAG, "a", "a") == ()
    assert plan_transfer(terrain(), TAG, "a", "a") == TransferPlan(
        source="a", target="a", hubs=("a",), countries_crossed=("MA",), rtt_ms=0, encrypted=True
    )


def test_no_way_leads_over_what_is_not_known() -> None:
    ghostly = terrain(passage("a", "ghost", "MA"), passage("ghost", "d", "MA"))
    assert quickest_way(ghostly, TAG, "a", "d") is None
    straight = terrain(passage("a", "d", "MA"), passage("a", "ghost", "MA"))
    assert quickest_way(straight, None, "a", "d") is None
    assert quickest_way(straight, TAG, "ghost", "d") is None
    assert quickest_way(straight, TAG, "a", "ghost") is None
    assert quickest_way(straight, TAG, "ghost", "ghost") is None
    assert quickest_way(straight, TAG, "a", "d") == (straight.passages[0],)


def test_every_reason_against_a_transfer_is_reported_and_the_first_one_is_its_refusal() -> None:
    world = terrain(passage("a", "b", "MA", "FR"), passage("b", "d", "MA"))
    wall = "no allowed route: a-b: crosses FR, MA; may cross MA, MR, SN"
    route = Rejection("a -> d", "route", wall, "needs a link allowed by its tag")
    assert explain_transfer(world, TAG, "a", "d") == (route,)
    assert plan_transfer(world, TAG, "a", "d") == route
    assert explain_transfer(world, TAG, "b", "d") == ()
    moroccan = replace(TAG, process_in=("MA",), rest_in=("MA",))
    refused = explain_transfer(world, moroccan, "a", "c")
    assert [one.rule for one in refused] == ["arrive_in", "route"]
    assert plan_transfer(world, moroccan, "a", "c") == refused[0]
    assert explain_transfer(world, TAG, "ghost", "d") == (
        Rejection("ghost -> d", "site", "the hub `ghost` is not known", "choose a hub of the fleet"),
    )
    assert [one.rule for one in explain_transfer(world, TAG, "a", "ghost")] == ["site"]
    assert [one.rule for one in explain_transfer(world, None, "a", "d")] == ["tag"]
    assert [one.rule for one in explain_transfer(world, None, "ghost", "ghost")] == ["tag", "site", "site"]


def test_the_links_at_which_every_way_ends_are_listed_and_not_too_many() -> None:
    lonely = explain_transfer(terrain(), TAG, "a", "d")
    assert [one.detail for one in lonely] == ["no link to it"]
    walls = [passage("a" if n % 2 else "b", "d", "FR", encrypted=False) for n in range(6)]
    inner = passage("a", "b", "MA")
    (four,) = explain_transfer(terrain(inner, *walls[:4]), TAG, "a", "d")
    assert four.detail.count("crosses FR; may cross MA, MR, SN, the link is not declared encrypted") == 4
    assert "more links" not in four.detail
    (six,) = explain_transfer(terrain(inner, *walls), TAG, "a", "d")
    assert six.detail.count("crosses FR") == 4
    assert six.detail.endswith("; and 2 more links")
    (far,) = explain_transfer(terrain(inner, passage("b", "c", "MA", "SN"), passage("c", "d", "FR")), TAG, "a", "d")
    assert far.detail == "no allowed route: c-d: crosses FR; may cross MA, MR, SN"


def test_two_checks_of_one_route_that_disagree_are_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "explain_transfer", lambda *_: ())
    assert plan_transfer(terrain(), TAG, "a", "d") == Rejection(
        "a -> d", "disagreement", "two checks of the same route disagree", "report this as a bug"
    )

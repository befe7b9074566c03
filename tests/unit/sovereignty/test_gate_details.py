"""What exactly do the gates answer, and do they refuse where their two checks differ?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.fleet.file import shipped_fleet
from harch.sovereignty import compiled
from harch.sovereignty.compiled import Rules
from harch.sovereignty.declassification import Declassification, retag, sign, verify
from harch.sovereignty.gates import (
    AccessRequest,
    GateVerdict,
    Migration,
    OfferVerdict,
    PipelineEdge,
    Replica,
    RunningWork,
    SovereigntyGate,
    TelemetryExport,
    admit,
    audit_resting,
    audit_running,
    before_load,
    before_offer,
    check_edge,
    check_export,
    check_migration,
    check_replica,
    eligible_mask,
    explain_work,
)
from harch.sovereignty.geography import (
    LegalSite,
    Passage,
    Safeguards,
    SiteSafeguards,
    Terrain,
    declared_safeguards,
    site_of,
    terrain_of,
)
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.lineage import derive_output, descendants
from harch.sovereignty.tags import Classification, DataKind, DataObject, Tag, contradictions, meet, parse_tag

REGISTRY = shipped_jurisdictions()
TAG = Tag(
    process_in=("MA", "SN"),
    rest_in=("MA",),
    transit_in=(),
    may_cross_borders=True,
    frameworks=(),
    classification=Classification.INTERNAL,
    encrypt_at_rest=False,
    encrypt_in_transit=False,
    key_in=(),
)
HOME = replace(TAG, process_in=("MA",), may_cross_borders=False)
SITES = tuple(LegalSite(hub=hub, country=country) for hub, country in (("a", "MA"), ("b", "MA"), ("c", "SN")))
TERRAIN = Terrain(
    SITES,
    (
        Passage(ends=("a", "b"), rtt_ms=1.0, countries_crossed=("MA",)),
        Passage(ends=("b", "c"), rtt_ms=1.0, countries_crossed=("MA", "SN")),
    ),
)


def data(tag: Tag | None, *hubs: str, id: str = "d", parents: tuple[str, ...] = ()) -> DataObject:
    return DataObject(id=id, kind=DataKind.DATASET, name=f"set-{id}", tenant="t", tag=tag, hubs=hubs, parents=parents)


@pytest.fixture
def rules() -> Rules:
    return Rules(TERRAIN)


PROCESS = Rejection("set-d at c", "process_in", "c is in SN; allowed: MA", "choose a hub in MA")
ROUTE = Rejection(
    "a -> c",
    "route",
    "no allowed route: b-c: crosses a border",
    "needs a link allowed by its tag",
)
GHOST = Rejection("w", "data", "names data `ghost`, which is not known", "add and tag it first")
RESIDENCY = Rejection("c", "residency", "is in SN; allowed: MA, CI", "choose a hub in MA, CI")


def test_a_yes_is_a_verdict_without_reasons(rules: Rules) -> None:
    access = AccessRequest(id="w", reads=(data(TAG, "a"),))
    for hub, scrub in (("a", False), ("b", False), ("c", True)):
        assert admit(rules, access, hub) == GateVerdict(
            gate=SovereigntyGate.ADMISSION, subject="w", hub=hub, allowed=True, rejections=(), scrub_after=scrub
        )


def test_a_no_has_every_reason_once_and_in_order(rules: Rules) -> None:
    access = AccessRequest(
        id="w", countries_allowed=("MA", "CI"), reads=(data(HOME, "a"), data(HOME, "a")), not_found=("ghost",)
    )
    assert admit(rules, access, "c") == GateVerdict(
        gate=SovereigntyGate.ADMISSION,
        subject="w",
        hub="c",
        allowed=False,
        rejections=(GHOST, RESIDENCY, PROCESS, ROUTE),
        scrub_after=True,
    )


def test_an_offer_goes_to_each_eligible_hub_once_and_all_others_have_reasons(rules: Rules) -> None:
    access = AccessRequest(id="w", reads=(data(HOME, "a"),))
    assert before_offer(rules, access, ["b", "c", "b", "a"]) == OfferVerdict(
        subject="w", eligible=("b", "a"), rejections=(PROCESS, ROUTE)
    )
    assert before_offer(rules, access, []) == OfferVerdict(subject="w", eligible=(), rejections=())


def test_work_is_kept_from_a_hub_by_name_by_place_and_by_every_copy(rules: Rules) -> None:
    assert explain_work(rules, AccessRequest(id="w"), "ghost") == (
        Rejection("ghost", "site", "the hub `ghost` is not known", "choose a hub of the fleet"),
    )
    assert explain_work(rules, AccessRequest(id="w", reads=(data(HOME),)), "a") == (
        Rejection("set-d at a", "location", "no known copy", "name the hub that has it"),
    )
    stuck = AccessRequest(id="w", reads=(data(HOME, "c", "ghost"),))
    assert [one.rule for one in explain_work(rules, stuck, "a")] == ["route", "site"]
    one_can = AccessRequest(id="w", reads=(data(HOME, "c", "b"),))
    assert explain_work(rules, one_can, "a") == ()
    assert explain_work(rules, AccessRequest(id="w", countries_allowed=("SN",)), "c") == ()
    lost = Rules(Terrain((LegalSite(hub="x", country=None),), ()))
    assert explain_work(lost, AccessRequest(id="w", countries_allowed=("MA",)), "x") == (
        Rejection("x", "residency", "is in an unknown country; allowed: MA", "choose a hub in MA"),
    )


def test_the_hubs_that_may_run_work_are_a_mask_in_the_order_of_the_terrain(rules: Rules) -> None:
    assert eligible_mask(rules, AccessRequest(id="w")) == 0b111
    assert eligible_mask(rules, AccessRequest(id="w", countries_allowed=("SN",))) == 0b100
    assert eligible_mask(rules, AccessRequest(id="w", reads=(data(HOME, "a"),))) == 0b011
    assert eligible_mask(rules, AccessRequest(id="w", reads=(data(TAG, "c"),))) == 0b111
    assert eligible_mask(rules, AccessRequest(id="w", reads=(data(HOME, "ghost"),))) == 0
    assert eligible_mask(rules, AccessRequest(id="w", reads=(data(HOME, "a"), data(HOME, "c")))) == 0
    assert eligible_mask(rules, AccessRequest(id="w", reads=(data(None, "a"),))) == 0
    assert eligible_mask(rules, AccessRequest(id="w", not_found=("x",))) == 0
    assert (rules.mask_of(("c", "ghost", "a")), rules.hubs_in(("SN", "FR"))) == (0b101, 0b100)


def test_the_agent_answers_for_its_own_site(rules: Rules) -> None:
    access = AccessRequest(id="w", countries_allowed=("MA", "CI"), reads=(data(TAG), data(TAG, id="e")))
    assert before_load(access, SITES[0]) == GateVerdict(
        gate=SovereigntyGate.LOAD, subject="w", hub="a", allowed=True, rejections=(), scrub_after=False
    )
    refused = before_load(replace(access, not_found=("ghost",)), SITES[2])
    assert refused == GateVerdict(
        gate=SovereigntyGate.LOAD, subject="w", hub="c", allowed=False, rejections=(GHOST, RESIDENCY), scrub_after=True
    )
    assert not before_load(AccessRequest(id="w", reads=(data(None),)), SITES[0]).allowed
    mixed = AccessRequest(id="w", reads=(data(replace(TAG, rest_in=("MA", "SN"))), data(TAG, id="e")))
    assert before_load(mixed, SITES[2]).scrub_after


def test_a_copy_that_must_not_rest_is_reported_with_its_reason(rules: Rules) -> None:
    (violation,) = audit_resting(rules, [data(TAG, "a", "c")], [])
    assert (violation.subject, violation.hub) == ("d", "c")
    assert violation.rejections == (
        Rejection("set-d at c", "rest_in", "c is in SN; allowed: MA", "choose a hub in MA"),
    )
    elsewhere = RunningWork(access=AccessRequest(id="w", reads=(data(TAG),)), hub="b")
    other = RunningWork(access=AccessRequest(id="w", reads=(data(TAG, id="e"),)), hub="c")
    unlawful = RunningWork(access=AccessRequest(id="w", reads=(data(HOME),)), hub="c")
    for running in (elsewhere, other, unlawful):
        assert len(audit_resting(rules, [data(TAG, "c")], [running])) == 1


# Two checks


def rules_of(checks: tuple[object, ...]) -> set[str]:
    return {one.rule for one in checks}  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["may_move", "may_rest", "may_process", "may_see"])
def test_where_the_compiled_rules_say_no_and_the_slow_ones_yes_it_is_no(
    rules: Rules, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    access = AccessRequest(id="w", reads=(data(TAG, "a"),))
    migration = Migration(access=access, checkpoint=data(TAG, "a", id="c"), source="a", target="b")
    checks = {
        "migration": lambda: check_migration(rules, migration),
        "replica": lambda: check_replica(rules, Replica(data=data(TAG), source="a", target="b")),
        "edge": lambda: check_edge(rules, PipelineEdge(pipeline="p", stream=TAG, source="a", target="b")),
        "export": lambda: check_export(rules, TelemetryExport(stream=TAG, source="a", viewer="b", stored=False)),
        "stored": lambda: check_export(rules, TelemetryExport(stream=TAG, source="a", viewer="b", stored=True)),
    }
    used = {
        "may_move": {"migration", "replica", "edge"},
        "may_rest": {"replica", "stored"},
        "may_process": {"migration", "edge"},
        "may_see": {"export", "stored"},
    }[method]
    assert all(check() == () for check in checks.values())
    monkeypatch.setattr(Rules, method, lambda *_: False)
    for name, check in checks.items():
        assert rules_of(check()) == ({"disagreement"} if name in used else set()), name


def test_work_that_the_masks_do_not_let_run_is_a_violation_even_if_the_slow_rules_find_nothing(
    rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = RunningWork(access=AccessRequest(id="w", reads=(data(TAG), data(TAG, id="e"))), hub="a")
    assert audit_running(rules, [work]) == ()
    answers = iter([True, False])
    monkeypatch.setattr(Rules, "may_process", lambda *_: next(answers))
    (violation,) = audit_running(rules, [work])
    assert violation.rejections == (
        Rejection("w at a", "disagreement", "two checks of one rule disagree, so it is no", "report this as a fault"),
    )


def test_a_migration_that_the_masks_do_not_let_in_is_refused(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    migration = Migration(access=AccessRequest(id="w"), checkpoint=data(TAG, "a", id="k"), source="a", target="b")
    monkeypatch.setattr(Rules, "mask_of", lambda *_: 0)
    assert rules_of(check_migration(rules, migration)) == {"disagreement"}


@pytest.mark.parametrize(
    ("tag", "source", "target", "migration", "replica", "edge", "export", "stored"),
    [
        (TAG, "a", "b", set(), set(), set(), set(), set()),
        (TAG, "a", "c", set(), {"rest_in"}, set(), set(), {"rest_in"}),
        (
            HOME,
            "a",
            "c",
            {"process_in", "arrive_in", "route"},
            {"rest_in", "arrive_in", "route"},
            {"process_in", "arrive_in", "route"},
            {"process_in", "route"},
            {"process_in", "route", "rest_in"},
        ),
        (HOME, "ghost", "a", {"site"}, {"site"}, {"site"}, {"route"}, {"route"}),
        (HOME, "a", "ghost", {"site"}, {"site"}, {"site"}, {"site", "route"}, {"site", "route"}),
        (None, "a", "a", {"tag"}, {"tag"}, {"tag"}, {"tag", "route"}, {"tag", "route"}),
    ],
)
def test_what_carries_data_somewhere_is_refused_for_exactly_these_reasons(
    rules: Rules,
    tag: Tag | None,
    source: str,
    target: str,
    migration: set[str],
    replica: set[str],
    edge: set[str],
    export: set[str],
    stored: set[str],
) -> None:
    checkpoint = data(tag, source, id="k")
    moved = Migration(access=AccessRequest(id="w"), checkpoint=checkpoint, source=source, target=target)
    assert rules_of(check_migration(rules, moved)) == migration
    assert rules_of(check_replica(rules, Replica(data=data(tag), source=source, target=target))) == replica
    stream = PipelineEdge(pipeline="p", stream=tag, source=source, target=target)
    assert rules_of(check_edge(rules, stream)) == edge
    for kept, expected in ((False, export), (True, stored)):
        view = TelemetryExport(stream=tag, source=source, viewer=target, stored=kept)
        assert rules_of(check_export(rules, view)) == expected


# Masks


def test_compiled_tags_are_kept_until_there_are_too_many(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "CACHE_MAX", 2)
    first = rules.compile(TAG)
    assert rules.compile(TAG) is first
    rules.compile(HOME)
    assert rules.compile(TAG) is first  # two are not too many
    rules.compile(replace(TAG, process_in=("SN",)))
    assert rules.compile(TAG) is not first
    assert rules.compile(TAG) == first


def test_links_without_countries_or_with_unknown_ends_lead_nowhere() -> None:
    lost = Terrain(
        SITES,
        (
            Passage(ends=("a", "b"), rtt_ms=1.0, countries_crossed=()),
            Passage(ends=("b", "ghost"), rtt_ms=1.0, countries_crossed=("MA",)),
            Passage(ends=("ghost", "c"), rtt_ms=1.0, countries_crossed=("SN",)),
        ),
    )
    assert Rules(lost).compile(TAG).reach == (0b001, 0b010, 0b100)
    assert Rules(TERRAIN).compile(TAG).reach == (0b111, 0b111, 0b111)
    assert Rules(TERRAIN).compile(HOME).reach == (0b011, 0b011, 0b100)


# Geography


def test_a_link_is_encrypted_if_both_of_its_ends_encrypt_what_they_send() -> None:
    fleet = shipped_fleet("five-hubs")
    sending = {hub.id for hub in fleet.hubs if hub.safeguards.encrypts_in_transit}
    declared = declared_safeguards(fleet)
    assert declared.links_encrypted == tuple(link.ends for link in fleet.links if set(link.ends) <= sending)
    assert {id: site.keys_in for id, site in declared.sites.items()} == {
        hub.id: hub.safeguards.keys_in for hub in fleet.hubs
    }
    one = fleet.links[0].ends
    terrain = terrain_of(fleet, REGISTRY, Safeguards(links_encrypted=((one[1], one[0]),)))
    assert [passage.ends for passage in terrain.passages if passage.encrypted] == [one]
    assert not any(site.encrypts_at_rest or site.keys_in for site in terrain.sites)


def test_a_site_upholds_the_laws_of_its_country_and_declared_ones_that_are_known() -> None:
    declared = SiteSafeguards(frameworks=("gdpr", "fantasy"), encrypts_at_rest=True, keys_in=("MA",))
    assert site_of("a", "MA", REGISTRY, declared) == LegalSite(
        hub="a", country="MA", frameworks=("gdpr", "ma-law-09-08"), encrypts_at_rest=True, keys_in=("MA",)
    )
    assert site_of("a", "QQ", REGISTRY, declared) == LegalSite(
        hub="a", country=None, frameworks=("gdpr",), encrypts_at_rest=True, keys_in=("MA",)
    )


def test_a_link_over_a_country_that_is_not_known_names_no_country() -> None:
    fleet = shipped_fleet("five-hubs")
    known = terrain_of(fleet, REGISTRY)
    assert [passage.countries_crossed for passage in known.passages] == [link.countries_crossed for link in fleet.links]
    less = replace(REGISTRY, countries={code: name for code, name in REGISTRY.countries.items() if code != "MR"})
    for passage, link in zip(terrain_of(fleet, less).passages, fleet.links, strict=True):
        assert passage.countries_crossed == (() if "MR" in link.countries_crossed else link.countries_crossed)
        assert passage.rtt_ms == link.rtt_ms
    assert (known.passages_of("ghost"), known.site("ghost")) == ((), None)


@pytest.mark.parametrize(
    ("countries", "is_international"), [(("MA",), False), (("MA", "MA"), False), (("MA", "SN"), True), ((), True)]
)
def test_a_link_that_crosses_anything_but_one_country_is_international(
    countries: tuple[str, ...], is_international: bool
) -> None:
    assert Passage(ends=("a", "b"), rtt_ms=1.0, countries_crossed=countries).is_international is is_international


# Tags


def fields(**changes: object) -> list[str]:
    return [name for name, _ in contradictions(replace(TAG, **changes))]


def test_a_tag_contradicts_itself_in_exactly_these_ways() -> None:
    assert fields() == []
    assert fields(rest_in=()) == ["rest_in"]
    assert fields(may_cross_borders=False) == ["process_in"]
    assert fields(may_cross_borders=False, rest_in=()) == ["rest_in"]
    assert fields(may_cross_borders=False, process_in=("MA",), transit_in=("MA", "MR")) == ["transit_in"]
    assert fields(transit_in=("MR",)) == []
    assert fields(may_cross_borders=False, process_in=("MA",), rest_in=("MA", "SN")) == []
    assert fields(encrypt_at_rest=True) == ["key_in"]
    assert fields(encrypt_at_rest=True, key_in=("MA",)) == []
    assert fields(encrypt_at_rest=True, key_in=("MA", "SN")) == ["key_in"]
    assert fields(encrypt_at_rest=True, rest_in=()) == ["rest_in"]
    assert fields(encrypt_at_rest=False, key_in=("FR",)) == []


def test_words_are_limited_in_number_and_a_place_in_the_message_can_be_given() -> None:
    whole = ["MA"] * 700
    assert parse_tag({"process_in": whole, "rest_in": whole}, REGISTRY).process_in == ("MA",)
    with pytest.raises(HarchError) as caught:
        parse_tag({"process_in": [*whole, "MA"], "rest_in": ["MA"]}, REGISTRY, where="data[3].tag")
    assert caught.value.code == "E0201"
    assert caught.value.field == "data[3].tag.process_in"
    assert caught.value.message == "data[3].tag.process_in: must be a list of at most 700 strings, e.g. `[MA]`"
    assert caught.value.hint == "docs/reference/tags.md describes every field of a tag"


def test_a_mistake_in_a_place_hides_contradictions_and_a_mistake_in_a_law_does_not() -> None:
    def reported(**fields: object) -> tuple[str, list[str]]:
        with pytest.raises(HarchError) as caught:
            parse_tag({"process_in": ["MA"], "rest_in": [], **fields}, REGISTRY)
        problems = caught.value.meta["problems"]
        return caught.value.code, [one["where"] for one in problems]  # type: ignore[attr-defined]

    assert reported() == ("E0904", ["tag.rest_in"])
    assert reported(transit_in=["xx"]) == ("E0901", ["tag.transit_in[0]"])
    assert reported(frameworks=["gdpr", "x"]) == ("E0905", ["tag.frameworks[1]", "tag.rest_in"])
    assert reported(may_cross_borders=1) == ("E0201", ["tag.may_cross_borders"])
    assert reported(classification="secret", frameworks=["x"]) == ("E0905", ["tag.frameworks[0]", "tag.classification"])


def test_what_is_written_is_read() -> None:
    written = {
        "process_in": ["MA", "SN"],
        "rest_in": ["MA"],
        "transit_in": ["MR"],
        "key_in": ["MA"],
        "may_cross_borders": True,
        "frameworks": ["09-08"],
        "classification": "public",
        "encrypt_at_rest": False,
        "encrypt_in_transit": False,
    }
    assert parse_tag(written, REGISTRY) == Tag(
        process_in=("MA", "SN"),
        rest_in=("MA",),
        transit_in=("MA", "MR", "SN"),
        may_cross_borders=True,
        frameworks=("ma-law-09-08",),
        classification=Classification.PUBLIC,
        encrypt_at_rest=False,
        encrypt_in_transit=False,
        key_in=("MA",),
    )
    assert [level.rank for level in Classification] == [0, 1, 2, 3]
    assert meet([TAG]) == TAG


# Products and declassification


def test_a_product_has_all_that_its_maker_says_of_it() -> None:
    one = data(TAG, "a", id="one")
    made = derive_output(
        [one, one, data(HOME, id="two")], id="o", kind=DataKind.MODEL, name="m", tenant="t", hub="b", size_bytes=7
    )
    assert made == DataObject(
        id="o",
        kind=DataKind.MODEL,
        name="m",
        tenant="t",
        tag=meet([TAG, HOME]),
        hubs=("b",),
        size_bytes=7,
        parents=("one", "two"),
    )
    assert derive_output([one], id="o", kind=DataKind.MODEL, name="m", tenant="t", hub="b").size_bytes == 0


def test_descendants_are_reported_nearest_first_and_once() -> None:
    catalog = {
        one.id: one
        for one in (
            data(TAG, id="far", parents=("near", "near2")),
            data(TAG, id="near", parents=("root",)),
            data(TAG, id="near2", parents=("root",)),
            data(TAG, id="root"),
        )
    }
    assert descendants(catalog, "root") == ("near", "near2", "far")
    assert descendants(catalog, "far") == ()


KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
AUTHORITIES = {"officer": KEY.public_key().public_bytes_raw()}
NOW = datetime(2026, 5, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def statement(issued_at: datetime, valid_until: datetime) -> Declassification:
    plain = Declassification(
        object_id="d",
        tag_revision=1,
        old=HOME,
        new=TAG,
        reason="r",
        authority="officer",
        issued_at=issued_at,
        valid_until=valid_until,
    )
    return sign(plain, KEY.private_bytes_raw())


@pytest.mark.parametrize(
    ("issued_at", "valid_until", "is_valid"),
    [
        (NOW, NOW, True),
        (NOW - SECOND, NOW + SECOND, True),
        (NOW + SECOND, NOW + SECOND, False),
        (NOW - SECOND, NOW - SECOND, False),
    ],
)
def test_a_declassification_holds_from_its_first_moment_to_its_last(
    issued_at: datetime, valid_until: datetime, is_valid: bool
) -> None:
    signed = statement(issued_at, valid_until)
    found = verify(signed, data(HOME), TAG, AUTHORITIES, now=NOW)
    assert found == (
        None
        if is_valid
        else Rejection(
            "d",
            "declassification.validity",
            "is not valid at this time",
            "have an authority sign a new declassification",
        )
    )


def test_a_refused_retag_says_why() -> None:
    target = data(HOME)
    with pytest.raises(HarchError) as refused:
        retag(target, TAG, authorities=AUTHORITIES, now=NOW)
    assert refused.value.message == "the new tag of set-d permits more than its current one"
    with pytest.raises(HarchError) as refused:
        retag(target, TAG, authorities={}, now=NOW, declassification=statement(NOW, NOW))
    assert refused.value.code == "E0909"
    assert refused.value.message == (
        "declassification.authority: the declassification `officer` is not an authority of this hub"
    )
    assert retag(target, HOME, authorities={}, now=NOW).tag_revision == 2
    assert retag(data(None), TAG, authorities={}, now=NOW) == replace(data(TAG), tag_revision=2)

"""Do tags form a semilattice, and do compiled rules, slow rules, routes and the oracle always agree?"""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sovereignty.compiled import Rules
from harch.sovereignty.gates import (
    AccessRequest,
    PipelineEdge,
    Replica,
    TelemetryExport,
    admit,
    before_offer,
    check_edge,
    check_export,
    check_replica,
)
from harch.sovereignty.geography import Passage, Terrain
from harch.sovereignty.jurisdiction_file import parse_jurisdictions, shipped_jurisdictions
from harch.sovereignty.rules import (
    TransferPlan,
    explain_passage,
    explain_process,
    explain_rest,
    may_take,
    passes,
    plan_transfer,
)
from harch.sovereignty.tags import (
    Classification,
    DataKind,
    DataObject,
    Tag,
    contradictions,
    is_within,
    loosens,
    meet,
    parse_tag,
)
from harch.testing.sovereignty import Oracle, random_tag, random_terrain

REGISTRY = shipped_jurisdictions()
codes = st.lists(st.sampled_from(("MA", "SN", "CI", "MR", "FR")), max_size=5).map(tuple)
tags = st.builds(
    Tag,
    process_in=codes,
    rest_in=codes,
    transit_in=codes,
    may_cross_borders=st.booleans(),
    frameworks=st.lists(st.sampled_from(sorted(REGISTRY.frameworks)), max_size=3).map(tuple),
    classification=st.sampled_from(Classification),
    encrypt_at_rest=st.booleans(),
    encrypt_in_transit=st.booleans(),
    key_in=codes,
)
seeds = st.integers(0, 2**32)


@settings(max_examples=200, deadline=None)
@given(tags, tags, tags)
def test_meet_is_commutative_associative_and_idempotent(a: Tag, b: Tag, c: Tag) -> None:
    assert meet([a, b]) == meet([b, a])
    assert meet([meet([a, b]), c]) == meet([a, meet([b, c])]) == meet([a, b, c])
    assert meet([a, a]) == meet([a]) == a


@settings(max_examples=200, deadline=None)
@given(tags, tags, tags)
def test_meet_is_the_greatest_lower_bound_and_monotone(a: Tag, b: Tag, c: Tag) -> None:
    both = meet([a, b])
    assert is_within(both, a)
    assert is_within(both, b)
    assert is_within(c, both) == (is_within(c, a) and is_within(c, b))
    assert is_within(a, b) == (both == a)
    lower = meet([a, c])  # any tag below a
    assert is_within(meet([lower, b]), both)


@settings(max_examples=200, deadline=None)
@given(tags, tags)
def test_tightening_never_loosens_and_the_order_has_no_cycles(a: Tag, b: Tag) -> None:
    assert not loosens(a, meet([a, b]))
    assert loosens(a, b) or loosens(b, a) or a == b
    assert not loosens(a, a)


@settings(max_examples=200, deadline=None)
@given(tags)
def test_a_tag_that_makes_sense_reads_back_as_itself(tag: Tag) -> None:
    written = msgspec.to_builtins(tag)
    assert msgspec.json.decode(msgspec.json.encode(tag), type=Tag) == tag
    if not contradictions(tag):
        assert parse_tag(written, REGISTRY) == tag


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(("MA", "UEMOA")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
fields = st.sampled_from([field.name for field in msgspec.structs.fields(Tag)])


@settings(max_examples=300, deadline=None)
@given(anything | st.dictionaries(fields, anything))
@example({"process_in": ["\ud800"], "rest_in": ["\0"]})
def test_whatever_is_said_is_a_sensible_tag_or_an_error_for_people(raw: object) -> None:
    refusal: HarchError | None = None
    try:
        assert contradictions(parse_tag(raw, REGISTRY)) == []
    except HarchError as error:
        refusal = error
    if refusal is not None:
        assert refusal.code in ("E0201", "E0901", "E0904", "E0905")
        assert refusal.hint


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.sampled_from(("[groups.A]", "[frameworks.a]\nbit=1", "[countries]\nXX=1")))
def test_whatever_a_jurisdiction_file_holds_it_is_read_or_refused(text: str) -> None:
    refusal: HarchError | None = None
    try:
        assert set(parse_jurisdictions(text, "own.toml").frameworks) >= set(REGISTRY.frameworks)
    except HarchError as error:
        refusal = error
    assert refusal is None or refusal.code == "E0903"


def world(seed: int) -> tuple[np.random.Generator, Terrain, list[str]]:
    rng = np.random.default_rng(seed)
    terrain = random_terrain(rng, int(rng.integers(1, 8)), int(rng.integers(1, 12)))
    return rng, terrain, [site.hub for site in terrain.sites] + ["atlantis"]


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_compiled_rules_slow_rules_and_oracle_agree(seed: int) -> None:
    rng, terrain, hubs = world(seed)
    rules = Rules(terrain)
    tag = random_tag(rng, terrain)
    oracle = Oracle(terrain, tag)
    stream = DataObject(id="d", kind=DataKind.STREAM, name="d", tenant="t", tag=tag)
    for passage in (*terrain.passages, Passage(ends=("a", "b"), rtt_ms=1.0, countries_crossed=(), encrypted=True)):
        assert passes(explain_passage(tag, passage)) == may_take(tag, passage) == oracle.may_take(passage)
    for hub in hubs:
        assert rules.may_process(tag, hub) == oracle.may_process(hub) == passes(explain_process(tag, terrain.site(hub)))
        assert rules.may_rest(tag, hub) == oracle.may_rest(hub) == passes(explain_rest(tag, terrain.site(hub)))
    for source, target in itertools.product(hubs, hubs):
        moves = oracle.may_move(source, target)
        assert rules.may_move(tag, source, target) == moves
        assert rules.may_see(tag, source, target) == oracle.may_see(source, target)
        seen = check_export(rules, TelemetryExport(stream=tag, source=source, viewer=target, stored=False))
        assert (seen == ()) == oracle.may_see(source, target)
        kept = check_replica(rules, Replica(data=stream, source=source, target=target))
        assert (kept == ()) == (moves and oracle.may_rest(target))
        edge = check_edge(rules, PipelineEdge(pipeline="p", stream=tag, source=source, target=target))
        assert (edge == ()) == (moves and oracle.may_process(target))
        assert "disagreement" not in {reason.rule for reason in (*seen, *kept, *edge)}


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_a_plan_is_the_quickest_of_all_allowed_ways(seed: int) -> None:
    rng, terrain, hubs = world(seed)
    tag = random_tag(rng, terrain)
    oracle = Oracle(terrain, tag)
    for source, target in itertools.product(hubs, hubs):
        plan = plan_transfer(terrain, tag, source, target)
        assert isinstance(plan, TransferPlan) == oracle.may_move(source, target)
        if isinstance(plan, TransferPlan):
            ways = all_ways(terrain, oracle, source, target)
            assert plan.rtt_ms == min(rtt_ms for _, rtt_ms, _ in ways)
            assert (plan.hubs, plan.rtt_ms, set(plan.countries_crossed)) in ways
            assert set(plan.countries_crossed) <= set(tag.transit_in) or source == target


def all_ways(
    terrain: Terrain, oracle: Oracle, source: str, target: str
) -> list[tuple[tuple[str, ...], float, set[str]]]:
    """Every way without a loop, by trying all: hubs, round trip, countries."""
    home = {site.country for site in terrain.sites if site.hub == source and site.country is not None}
    found: list[tuple[tuple[str, ...], float, set[str]]] = []

    def walk(hubs: tuple[str, ...], rtt_ms: float, countries: set[str]) -> None:
        if hubs[-1] == target:
            found.append((hubs, rtt_ms, countries))
            return
        for passage in terrain.passages:
            there = other_end(passage, hubs[-1])
            if there is not None and there not in hubs and oracle.may_take(passage):
                walk((*hubs, there), rtt_ms + passage.rtt_ms, countries | set(passage.countries_crossed))

    walk((source,), 0.0, home)
    return found


def other_end(passage: Passage, hub: str) -> str | None:
    if hub not in passage.ends:
        return None
    return passage.ends[1] if passage.ends[0] == hub else passage.ends[0]


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_a_stricter_tag_never_permits_more(seed: int) -> None:
    rng, terrain, hubs = world(seed)
    rules = Rules(terrain)
    loose = random_tag(rng, terrain)
    strict = meet([loose, random_tag(rng, terrain)])
    for source, target in itertools.product(hubs, hubs):
        assert rules.may_process(strict, target) <= rules.may_process(loose, target)
        assert rules.may_rest(strict, target) <= rules.may_rest(loose, target)
        assert rules.may_move(strict, source, target) <= rules.may_move(loose, source, target)
        assert rules.may_see(strict, source, target) <= rules.may_see(loose, source, target)


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_the_gates_admit_exactly_what_the_oracle_permits(seed: int) -> None:
    rng, terrain, hubs = world(seed)
    rules = Rules(terrain)
    reads = []
    for number in range(int(rng.integers(0, 3))):
        tag = None if rng.random() < 0.1 else random_tag(rng, terrain)
        places = tuple(hub for hub in hubs if rng.random() < 0.4)
        reads.append(DataObject(id=str(number), kind=DataKind.MODEL, name="m", tenant="t", tag=tag, hubs=places))
    homes = sorted({site.country for site in terrain.sites if site.country is not None})
    allowed = tuple(code for code in homes if rng.random() < 0.7)
    ask = AccessRequest(id="wl", countries_allowed=allowed, reads=tuple(reads))
    eligible = before_offer(rules, ask, hubs).eligible
    for hub in hubs:
        site = terrain.site(hub)
        expected = site is not None and (not allowed or site.country in allowed)
        for data in reads:
            expected = expected and data.tag is not None and readable(Oracle(terrain, data.tag), data, hub)
        verdict = admit(rules, ask, hub)
        assert verdict.allowed == expected == (hub in eligible)
        assert verdict.allowed == (verdict.rejections == ())
        assert "disagreement" not in {reason.rule for reason in verdict.rejections}


def readable(oracle: Oracle, data: DataObject, hub: str) -> bool:
    return oracle.may_process(hub) and any(oracle.may_move(place, hub) for place in data.hubs)

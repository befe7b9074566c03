"""Is every edge of a pipeline proved, and is every refusal one that a person can act on?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.pipelines.spec.deployment import Deployment, plan_deployment
from harch.pipelines.spec.residency import EdgeKind, model_tags, on_whole_ways
from harch.pipelines.spec.settings import PipelineStageName
from harch.sovereignty.compiled import Rules
from harch.testing.sovereignty import random_tag, random_terrain
from unit.pipelines.spec.pipeline_files import JURISDICTIONS, changed, irrigation, proved, rules

MOROCCO = {"casablanca", "dakhla", "tangier"}
WIDE = {
    "process_in": ["MA", "SN"],
    "rest_in": ["MA", "SN"],
    "transit_in": ["MA", "SN", "MR"],
    "may_cross_borders": True,
    "encrypt_at_rest": False,
    "encrypt_in_transit": False,
}


def test_a_moroccan_pipeline_is_proved_edge_by_edge_and_stays_in_morocco() -> None:
    proof = proved(irrigation(), declassified=["water-used"])
    assert proof.rejections == ()
    assert {stage: set(hubs) for stage, hubs in proof.hubs.items()} == dict.fromkeys(PipelineStageName, MOROCCO)
    edges = {(edge.kind, edge.name) for edge in proof.edges}
    assert edges == {
        (EdgeKind.SOURCE, "fields -> sense"),
        (EdgeKind.SOURCE, "weather -> sense"),
        (EdgeKind.SOURCE, "gateways -> sense"),
        (EdgeKind.STREAM, "sense -> think"),
        (EdgeKind.STREAM, "think -> act"),
        (EdgeKind.STATE, "sense -> checkpoints"),
        (EdgeKind.STATE, "act -> ledger"),
        (EdgeKind.DEAD_LETTERS, "sense -> late and refused events"),
        (EdgeKind.DEAD_LETTERS, "act -> dead letters"),
        (EdgeKind.SINK, "act -> valves"),
        (EdgeKind.SINK, "act -> book"),
        (EdgeKind.EXPORT, "act -> water-used"),
    }
    for edge in proof.edges:
        assert edge.hubs
        assert set(edge.countries) <= ({"MA", "SN"} if edge.kind is EdgeKind.EXPORT else {"MA"})


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"hubs": ["dakar"]}, "process_in"),
        ({"hubs": ["casablanca", "dakar"]}, "process_in"),  # a hub that was named must hold
        ({"hubs": ["nowhere"]}, "site"),
        ({"scaling__think__hubs": ["abidjan"]}, "rest_in"),
        ({"origins__weather": "SN"}, "may_cross_borders"),  # whoever sends there is further away than the hub
        ({"origins__fields": "SN"}, "country"),  # the operator says otherwise
        ({"act__sinks__valves__country": "FR"}, "country"),
        ({"act__sinks__valves__host": "10.2.0.5", "act__sinks__valves__country": None}, "process_in"),
        ({"act__sinks__valves__host": "10.9.0.5"}, "place"),  # that the file says MA is no proof
        ({"jurisdiction__frameworks": ["gdpr"]}, "frameworks"),
        ({"jurisdiction__encrypt_at_rest": True, "jurisdiction__key_in": ["MA"], "hubs": ["dakar"]}, "key_in"),
        ({"exports": [{"name": "out", "to": ["CI"]}]}, "process_in"),
        ({"exports": [{"name": "out", "to": ["SN"], "tag": WIDE}]}, "declassification"),
        ({"exports": [{"name": "out", "to": ["DE"], "tag": WIDE}]}, "site"),
        ({"jurisdiction__process_in": ["EG"], "jurisdiction__rest_in": ["EG"]}, "process_in"),
    ],
)
def test_each_way_out_of_the_law_is_refused_with_its_rule_and_a_fix(fields: dict[str, object], rule: str) -> None:
    proof = proved(changed(**fields))
    assert not proof.holds
    assert rule in {rejection.rule for rejection in proof.rejections}
    assert all(rejection.detail for rejection in proof.rejections)
    assert isinstance(plan_deployment(changed(**fields), proof, rules().terrain), tuple)


def test_a_models_own_tag_limits_where_think_runs_and_without_one_it_is_the_pipelines() -> None:
    model = {
        "name": "thirst",
        "inputs": ["flow.mean"],
        "outputs": ["need_mm"],
        "versions": [{"version": "1", "runtime": "python", "callable": "m:f"}],
        "tag": {**WIDE, "process_in": ["SN"], "rest_in": ["SN"]},
    }
    proof = proved(changed(think__models=[model]))
    assert any("model thirst@1" in rejection.subject for rejection in proof.rejections)
    ((name, tag),) = model_tags(irrigation(), JURISDICTIONS)
    assert (name, tag.process_in) == ("thirst@1", ("MA",))


def test_an_export_that_an_authority_has_signed_may_leave_and_one_hub_means_one_hub() -> None:
    proof = proved(irrigation(), declassified=["water-used"])
    (export,) = [edge for edge in proof.edges if edge.kind is EdgeKind.EXPORT]
    assert all(target == "dakar" for _, target in export.hubs)
    apart = changed(latency__one_hub=True, scaling__sense__hubs=["dakhla"], scaling__act__hubs=["tangier"], exports=[])
    refused = proved(apart)
    assert {rejection.rule for rejection in refused.rejections} == {"one_hub"}
    split = changed(scaling__sense__hubs=["dakhla"], scaling__act__hubs=["tangier"], exports=[])
    assert proved(split).holds


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_in_any_world_exactly_the_hubs_on_allowed_ways_are_left(seed: int) -> None:
    rng = np.random.default_rng(seed)
    terrain = random_terrain(rng, 7, 4)
    tag = random_tag(rng, terrain)
    law = Rules(terrain)
    allowed = [tuple(hub for hub in law.bits if rng.random() < 0.7) for _ in range(3)]
    ways = [
        (a, b, c)
        for a in allowed[0]
        for b in allowed[1]
        for c in allowed[2]
        if all(law.may_move(tag, x, y) and law.may_process(tag, y) for x, y in ((a, b), (b, c)))
    ]
    found = on_whole_ways(law, tag, allowed)
    assert [set(hubs) for hubs in found] == [{way[number] for way in ways} for number in range(3)]


def test_a_pipeline_that_may_be_in_two_countries_is_put_into_one() -> None:
    spec = changed(jurisdiction=WIDE, exports=[], act__sinks__valves__country="MA")
    proof = proved(spec)
    assert proof.holds
    assert "dakar" in proof.hubs[PipelineStageName.SENSE]
    plan = plan_deployment(spec, proof, rules().terrain, scores={"tangier": 1.0})
    assert isinstance(plan, Deployment)
    assert {placement.hub for placement in plan.placements} == {"tangier"}
    assert plan.rtt_ms == 0
    forced = changed(jurisdiction=WIDE, exports=[], scaling__sense__hubs=["dakar"], scaling__think__hubs=["casablanca"])
    refused = plan_deployment(forced, proved(forced), rules().terrain)
    assert isinstance(refused, tuple)
    assert refused[0].rule == "country"
    assert refused[0].nearest_fix

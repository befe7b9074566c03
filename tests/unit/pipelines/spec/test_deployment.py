"""Is a deployment complete and minimal, and does an update touch only what has to be touched?"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harch.hub.pipelines.planning import parts_at
from harch.pipelines.engine.layout import ServerLimits
from harch.pipelines.engine.streams import check_streams
from harch.pipelines.spec.deployment import Deployment, plan_deployment, shared_partitions
from harch.pipelines.spec.settings import PipelineSpec, PipelineStageName
from harch.pipelines.spec.update import UpdateStep, plan_update
from harch.pipelines.workers.names import StageRoute
from unit.pipelines.spec.pipeline_files import JURISDICTIONS, changed, irrigation, parse, proved, raw, rules


def deployed(spec: PipelineSpec) -> Deployment:
    exports = [export.name for export in spec.exports]
    plan = plan_deployment(spec, proved(spec, declassified=exports), rules().terrain)
    assert isinstance(plan, Deployment), plan
    return plan


def test_stages_share_a_hub_and_speak_on_subjects_of_their_country() -> None:
    plan = deployed(irrigation())
    assert plan.country == "MA"
    assert len({placement.hub for placement in plan.placements}) == 1
    sense = plan.placements[0]
    assert (sense.workers, sorted(sum(sense.partitions, ()))) == (2, list(range(64)))
    for share in plan.domains:
        for grant in share.grants:
            for subject in (*grant.listens, *grant.speaks):
                assert subject.startswith("juris.ma.souss-irrigation.")  # no worker speaks over a border
    think, act = plan.placements[1:]
    assert "juris.ma.souss-irrigation.think.*" in think.listens
    assert "juris.ma.souss-irrigation.act.*" in think.speaks
    assert "juris.ma.souss-irrigation.export.*" in sense.speaks
    assert "juris.ma.souss-irrigation.export.*" not in (*think.speaks, *act.speaks)
    devices = next(grant for grant in plan.domains[0].grants if grant.stage == "devices")
    assert (devices.speaks, devices.listens) == (("juris.ma.souss-irrigation.in.>",), ())
    (offer,) = plan.exports
    assert (offer.name, offer.columns, offer.tag.process_in) == ("water-used", (), ("MA", "SN"))
    assert {rules().terrain.site(hub).country for hub in offer.hubs} == {"SN"}  # type: ignore[union-attr]
    waiting = next(one for one in plan.domains[0].wanted.streams if one.name == "ma-souss-irrigation-export")
    assert not waiting.discard_new  # a border that is shut stops nothing at home
    assert not [one for one in deployed(changed(exports=[])).domains[0].wanted.streams if one.name.endswith("-export")]


def test_synced_actions_live_in_a_domain_of_their_own_where_sense_has_no_user() -> None:
    plan = deployed(irrigation())
    main, act = plan.domains
    assert (main.domain, main.synced, act.domain, act.synced) == ("ma", False, "ma-act", True)
    assert "ma-souss-irrigation-act" not in {stream.name for stream in main.wanted.streams}
    assert {"ma-souss-irrigation-act", "KV_ma-souss-irrigation-ledger"} <= {s.name for s in act.wanted.streams}
    ledger = next(stream for stream in act.wanted.streams if stream.name.endswith("ledger"))
    assert ledger.max_age_s == 7 * 86_400
    assert "sense" not in {grant.stage for grant in act.grants}
    think = next(grant for grant in act.grants if grant.stage == "think")
    assert think.speaks == ("juris.ma.souss-irrigation.act.*",)
    assert (think.listens, think.reads, think.buckets) == ((), (), ())
    for share in plan.domains:
        assert check_streams(share.wanted, ServerLimits(), servers=1, synced=share.synced) == ()


@pytest.mark.parametrize(("think", "kept"), [("hot", False), ("stored", True)])
def test_features_of_the_hot_lane_are_kept_by_nobody(think: str, kept: bool) -> None:
    (share,) = deployed(changed(durability={"act": "stored", "think": think})).domains
    names = {stream.name for stream in share.wanted.streams}
    assert ("ma-souss-irrigation-think" in names) is kept
    assert {"ma-souss-irrigation-act", "KV_ma-souss-irrigation-ledger"} <= names  # one engine has it all
    assert {consumer.stream for consumer in share.wanted.consumers} <= names


def test_a_pipeline_that_only_scores_has_no_engine_of_actions() -> None:
    (share,) = deployed(changed(act=None, exports=[])).domains
    assert (share.domain, share.synced) == ("ma", False)


def test_a_source_of_another_country_is_refused() -> None:
    sources = [{"kind": "nats", "name": "gateways", "subject": "juris.sn.souss-irrigation.in.>"}]
    spec = changed(sense__sources=sources, origins={}, exports=[])
    refused = plan_deployment(spec, proved(spec), rules().terrain)
    assert isinstance(refused, tuple)
    assert [rejection.rule for rejection in refused] == ["country"]


def test_workers_are_told_what_the_plan_and_the_rules_say() -> None:
    spec = irrigation()
    plan = deployed(spec)
    hub = plan.placements[0].hub
    parts = parts_at(spec, plan, hub, rules(), JURISDICTIONS, policy_version=3)
    assert parts.workers == {"source": 1, "sense": 2, "think": 1, "act": 1}
    assert parts.lane == "durable"
    assert parts.juris_mask == rules().hubs_in(("MA",))
    assert parts.juris_mask & parts.country_bits["SN"] == 0
    assert set(parts.model_tags) == {"thirst@1"}


@pytest.mark.parametrize(
    ("without", "route", "streams"),
    [
        (("act",), StageRoute(acts=False), {"think", "results"}),
        (("think", "act"), StageRoute(thinks=False, acts=False), {"results"}),
        (("think",), StageRoute(thinks=False), {"act"}),
    ],
)
def test_a_pipeline_without_think_or_act_has_the_lanes_and_rights_of_its_stages_only(
    without: tuple[str, ...], route: StageRoute, streams: set[str]
) -> None:
    data = raw()
    for stage in without:
        del data[stage]
    if "act" in data:
        data["act"]["actions"] = [
            {"name": "water", "when": "moisture.mean < 20", "ttl_s": 60, "sink": "valves", "args": {"value": 1}}
        ]
    data["exports"] = []
    spec = parse(yaml.safe_dump(data))
    plan = deployed(spec)
    parts = parts_at(spec, plan, plan.placements[0].hub, rules(), JURISDICTIONS, policy_version=3)
    assert parts.route == route
    found = {stream.name for share in plan.domains for stream in share.wanted.streams}
    lanes = {lane for lane in ("think", "act", "results") if f"ma-{spec.name}-{lane}" in found}
    assert lanes == streams
    users = {grant.stage for share in plan.domains for grant in share.grants}
    assert users & {"think", "act"} == {"think", "act"} - set(without)
    assert ("readers" in users) is ("act" in without)
    speakers = {g.stage for share in plan.domains for g in share.grants if any(".results." in s for s in g.speaks)}
    assert speakers - {"fused", "replay"} == ({route.last} if "act" in without else set())


def test_three_copies_are_refused_where_the_country_has_one_server() -> None:
    plan = deployed(changed(durability={"replicas": 3}))
    assert {r.rule for r in check_streams(plan.domains[0].wanted, ServerLimits(), servers=1)} == {"replicas"}
    assert check_streams(plan.domains[0].wanted, ServerLimits(), servers=3) == ()


@given(partitions=st.integers(1, 1024), workers=st.integers(1, 256))
def test_every_partition_has_exactly_one_worker_and_shares_differ_by_at_most_one(partitions: int, workers: int) -> None:
    shares = shared_partitions(partitions, workers)
    assert sorted(sum(shares, ())) == list(range(partitions))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def model(version: str, **fields: Any) -> dict[str, Any]:
    first = raw()["think"]["models"][0]
    first["versions"] = [{"version": version, "runtime": "python", "callable": "farm.models:thirst"}]
    return {**first, **fields}


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({}, {}),
        ({"think__models": [model("2")]}, {PipelineStageName.THINK: UpdateStep.SWAP}),
        ({"think__models": [model("2", canary_percent=10.0)]}, {PipelineStageName.THINK: UpdateStep.SWAP}),
        ({"think__models": [model("1", threads=2)]}, {PipelineStageName.THINK: UpdateStep.RESTART}),
        ({"sense__windows": {"size_s": 30}}, {PipelineStageName.SENSE: UpdateStep.RESTART}),
        ({"act__concurrency": 4}, {PipelineStageName.ACT: UpdateStep.RESTART}),
        ({"scaling__think": {"workers_max": 4}}, {PipelineStageName.THINK: UpdateStep.SCALE}),
        ({"scaling__act": {"hubs": ["tangier"]}}, {PipelineStageName.ACT: UpdateStep.RESTART}),
        (
            {"durability": {"think": "hot"}},
            {PipelineStageName.SENSE: UpdateStep.RESTART, PipelineStageName.THINK: UpdateStep.RESTART},
        ),
        ({"latency": {"p99_ms_target": 20}}, {}),
        ({"exports": []}, {PipelineStageName.SENSE: UpdateStep.RESTART}),
        ({"origins": {}}, {PipelineStageName.SENSE: UpdateStep.RESTART}),
        ({"hubs": ["tangier"]}, dict.fromkeys(PipelineStageName, UpdateStep.RESTART)),
    ],
)
def test_a_change_touches_only_the_stages_that_it_concerns(
    fields: dict[str, Any], steps: dict[PipelineStageName, UpdateStep]
) -> None:
    plan = plan_update(irrigation(), changed(**fields), JURISDICTIONS)
    touched = {update.stage: update.step for update in plan.stages if update.step is not UpdateStep.KEEP}
    assert touched == steps
    assert all(update.because for update in plan.stages if update.step is not UpdateStep.KEEP)
    assert plan.refusals == ()
    if not fields:
        assert plan.changes_nothing


def test_a_stage_may_be_removed_and_added() -> None:
    without = changed(act=None, scaling={}, exports=[])
    gone = plan_update(changed(exports=[], scaling={}), without, JURISDICTIONS)
    assert gone.stages[-1].step is UpdateStep.STOP
    assert gone.streams_change
    assert [refusal.rule for refusal in gone.refusals] == ["stages"]  # not while something is under way
    back = plan_update(without, changed(exports=[], scaling={}), JURISDICTIONS)
    assert back.stages[-1].step is UpdateStep.START


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"name": "other", "sense__sources": [], "origins": {}}, "name"),
        ({"sense__partitions": 32}, "partitions"),
        ({"jurisdiction__process_in": ["MA", "SN"], "jurisdiction__rest_in": ["MA", "SN"]}, "declassification"),
        ({"durability": {"act": "stored"}}, "durability"),
    ],
)
def test_what_cannot_be_done_to_a_running_pipeline_is_refused_with_a_fix(fields: dict[str, Any], rule: str) -> None:
    plan = plan_update(irrigation(), changed(**fields), JURISDICTIONS)
    assert [refusal.rule for refusal in plan.refusals] == [rule]
    assert plan.refusals[0].nearest_fix


def test_a_stricter_tag_is_no_refusal_but_residency_is_proved_again() -> None:
    plan = plan_update(irrigation(), changed(jurisdiction__classification="restricted"), JURISDICTIONS)
    assert plan.refusals == ()
    assert plan.proof_again

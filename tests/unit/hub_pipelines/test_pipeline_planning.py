"""What may be deployed here is proved edge by edge; a change touches exactly the stages that it concerns."""

from __future__ import annotations

import pytest
from msgspec import structs

from harch.base.errors import HarchError
from harch.hub.pipelines import planning
from harch.hub.pipelines.apply import with_version
from harch.hub.pipelines.values import ALL_STAGES, DesiredState, PipelineRecord
from harch.pipelines.spec.settings import PipelineSpec
from unit.hub_pipelines.pipeline_samples import ground, spec

LOCAL = "http://127.0.0.1:9/valve"


def record(of: PipelineSpec | None = None) -> PipelineRecord:
    planned = planning.plan(of or spec(), ground())
    return planning.first_record(planned, ground(), tenant="t", version=1, at="now", by="me")


def after(changed: PipelineSpec, before: PipelineRecord | None = None, *, drop_state: bool = False) -> PipelineRecord:
    known = before or record()
    planned = planning.plan(changed, ground(), known, drop_state=drop_state)
    return planning.updated(known, planned, ground(), at="later", by="me")


def renewed(changed: PipelineSpec) -> set[str]:
    found = after(changed)
    return {stage for stage in ALL_STAGES if found.generations[stage] != 1}


def test_a_sink_abroad_names_its_edge_and_the_nearest_fix() -> None:
    abroad = spec((LOCAL, "https://valves.example/v"), ('headers: {authorization: "env:VALVE_KEY"}', "country: SN"))
    with pytest.raises(HarchError) as refused:
        planning.plan(abroad, ground())
    assert refused.value.code == "E0907"
    assert "dakhla -> sink valves" in refused.value.message
    assert refused.value.hint
    assert {one["rule"] for one in refused.value.meta["rejections"]} >= {"place"}  # type: ignore[index,union-attr]


def test_another_country_s_pipeline_is_sent_to_its_hub() -> None:
    senegal = spec(("{process_in: [MA], rest_in: [MA]", "{process_in: [SN], rest_in: [SN]"))
    with pytest.raises(HarchError) as refused:
        planning.plan(senegal, ground())
    assert refused.value.code == "E0712"
    assert "--hub dakar" in refused.value.hint


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        (("need >= 1", "need >= 2"), {"act"}),
        (("inputs: [mean]", "inputs: [count]"), {"think"}),
        (("kind: http, name: web", "kind: http, name: web, disorder_s: 2.0"), {"source", "sense"}),
        (("statistics: [count, mean]", "statistics: [count, mean, max]"), {"source", "sense", "think", "act"}),
        (("workers_max: 3", "workers_max: 2"), set()),
    ],
)
def test_only_stages_that_a_change_concerns_get_new_workers(change: tuple[str, str], stages: set[str]) -> None:
    assert renewed(spec(change)) == stages


def test_another_version_of_a_model_is_swapped_and_restarts_nothing() -> None:
    new = with_version(
        spec(), "dryness", {"version": "2", "role": "active", "runtime": "python", "callable": "field_models:drier"}
    )
    found = after(new)
    assert set(found.generations.values()) == {1}
    assert found.models_revision == found.version == 2
    roles = {one["version"]: one["role"] for one in found.spec["think"]["models"][0]["versions"]}
    assert roles == {"1": "loaded", "2": "active"}


def test_a_version_with_a_tag_of_its_own_needs_workers_that_know_it() -> None:
    tag = "process_in: [MA], rest_in: [MA], encrypt_at_rest: false, encrypt_in_transit: false, classification: internal"
    second = (
        '        - {version: "2", runtime: python, callable: "field_models:drier", role: shadow, tag: {' + tag + "}}\n"
    )
    assert renewed(spec(("act:\n  sinks", f"{second}act:\n  sinks"))) == {"think"}


@pytest.mark.parametrize(
    "wanted",
    [
        {"version": "1", "role": "shadow"},  # nobody would be active
        {"version": "1", "role": "retired"},
        {"version": "2", "role": "active"},  # no file
        {"version": "2", "role": "boss", "path": "m.onnx"},
    ],
)
def test_impossible_versions_are_refused(wanted: dict[str, object]) -> None:
    with pytest.raises(HarchError) as refused:
        with_version(spec(), "dryness", wanted)
    assert refused.value.code == "E0201"


def test_what_is_fixed_while_it_runs_is_said_with_what_to_do_first() -> None:
    with pytest.raises(HarchError) as refused:
        after(spec(("partitions: 4", "partitions: 8")))
    assert refused.value.code == "E0711"
    assert "harch pipeline drain fields" in refused.value.hint


def test_windows_that_would_mean_something_else_need_a_drained_pipeline_and_begin_anew() -> None:
    wider = spec(("  partitions: 4", "  windows: {size_s: 120}\n  partitions: 4"))
    with pytest.raises(HarchError) as refused:
        after(wider)
    assert refused.value.code == "E0711"
    assert "harch pipeline drain fields" in refused.value.hint
    drained = structs.replace(record(), desired=DesiredState.DRAIN)
    with pytest.raises(HarchError) as refused:
        after(wider, drained)
    assert refused.value.code == "E0757"
    assert "--drop-state" in refused.value.hint
    assert "counts of open windows" in refused.value.hint
    assert after(wider, drained, drop_state=True).state_version == 2
    assert after(spec(("need >= 1", "need >= 2")), drained).state_version == drained.state_version == 1


def test_another_numbering_of_hubs_gets_another_version() -> None:
    known = record()
    assert after(spec(("need >= 1", "need >= 2")), known).policy_version == known.policy_version
    moved = PipelineRecord(
        name=known.name,
        tenant="t",
        version=1,
        spec=known.spec,
        generations=known.generations,
        policy_version=3,
        policy_bits={"dakhla": 7},
    )
    assert after(spec(("need >= 1", "need >= 2")), moved).policy_version == 4


def test_secrets_and_files_that_a_pipeline_names_are_found() -> None:
    assert planning.secrets_named(planning.plain(spec())) == ("VALVE_KEY",)
    assert planning.files_named(spec()) == {"field_models.py": None}


def test_added_devices_are_told_to_workers_that_run_and_more_room_keeps_the_state() -> None:
    more = spec(("devices_max: 2", "devices_max: 4"))
    assert after(more).state_version == 1
    assert renewed(more) == {"source", "sense"}
    roomy = structs.replace(record(), spec=planning.plain(more))
    known = after(
        spec(
            ("devices: [field-0, field-1]", "devices: [field-0, field-1, field-2]"),
            ("devices_max: 2", "devices_max: 4"),
        ),
        roomy,
    )
    assert known.devices_revision == known.version
    assert known.generations == roomy.generations
    assert known.models_revision == roomy.models_revision
    swapped = spec(("devices: [field-0, field-1]", "devices: [field-1, field-0]"))
    assert renewed(swapped) == {"source", "sense", "think", "act"}  # numbers have other names

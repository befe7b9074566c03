"""Are all mistakes of a pipeline file told at once, each with its place and a way out?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.pipelines.spec.deployment import Deployment, plan_deployment
from harch.pipelines.spec.file import parse_pipelines, pipeline_problems, pipeline_schema, pipeline_schema_text
from harch.pipelines.spec.settings import PipelineSpec, PipelineStageName
from harch.pipelines.spec.shape import shape_problems
from unit.pipelines.spec.pipeline_files import IRRIGATION, JURISDICTIONS, irrigation, proved, raw, rules


def refused(text: str) -> HarchError:
    with pytest.raises(HarchError) as caught:
        parse_pipelines(text.encode(), "farm.yaml", JURISDICTIONS)
    return caught.value


def test_a_right_file_is_read_with_its_stages_and_defaults() -> None:
    spec = irrigation()
    assert spec.stages == (PipelineStageName.SENSE, PipelineStageName.THINK, PipelineStageName.ACT)
    assert spec.scaling.of(PipelineStageName.SENSE).workers_max == 8
    assert spec.scaling.of(PipelineStageName.ACT).workers_max == 1
    assert spec.origins == {"fields": "MA"}


def test_every_mistake_is_told_at_once_with_line_path_and_fix() -> None:
    text = IRRIGATION.replace("process_in: [MA]\n  rest_in", "process_in: [Marocco]\n  rest_in", 1)
    text = text.replace("devices_max: 200", "devices_mx: 200")
    text = text.replace("workers_max: 8", "workers_max: many")
    text = text.replace("kind: modbus", "kind: modbuss")
    text = text.replace("ttl_s: 600", "ttl_s: -1")
    text = text.replace("p99_ms_target: 50", "p99_ms_target: 0")
    error = refused(text)
    assert error.code == "E0250"
    problems = error.meta["problems"]
    assert isinstance(problems, list)
    paths = {entry["field"] for entry in problems}
    assert paths == {
        "jurisdiction.process_in[0]",
        "sense.devices_mx",
        "scaling.sense.workers_max",
        "act.sinks.valves.kind",
        "act.actions[0].ttl_s",
        "latency.p99_ms_target",
    }
    by_path = {entry["field"]: entry for entry in problems}
    assert by_path["sense.devices_mx"]["hint"] == "did you mean `devices_max`?"
    assert by_path["act.sinks.valves.kind"]["hint"] == "did you mean `modbus`?"
    lines = text.splitlines()
    for path, word in (("sense.devices_mx", "devices_mx"), ("latency.p99_ms_target", "p99_ms_target")):
        assert word in lines[by_path[path]["line"] - 1]
    assert error.hint


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("kind: pipeline\n", "", "kind"),
        ("kind: pipeline\n", "kind: workload\n", "kind"),
        ("name: souss-irrigation\n", "", "name"),
        ("name: souss-irrigation\n", "name: Souss Irrigation\n", "name"),
        ("  fields: MA\n", "  feilds: MA\n", "origins.feilds"),
        ("workers_min: 2, workers_max: 8", "workers_min: 9, workers_max: 8", "scaling.sense.workers_min"),
        ("partitions: 64", "partitions: 4", "scaling.sense.workers_max"),
        ("when: need_mm > 2", "when: unknown > 2", "act.actions[0].when"),
        ("inputs: [moisture.mean, flow.mean]", "inputs: [flow.mean, flow.mean]", "think.models[0].inputs"),
        ("inputs: [moisture.mean, flow.mean]", "inputs: [moisture.mien]", "think.models[0].inputs[0]"),
        ("juris.ma.souss-irrigation.in.>", "juris.ma.other.in.>", "sense.sources[2].subject"),
        ("juris.ma.souss-irrigation.in.>", "juris.*.souss-irrigation.in.>", "sense.sources[2].subject"),
        ("juris.ma.souss-irrigation.in.>", "juris.ma.souss-irrigation.act.>", "sense.sources[2].subject"),
        ("latency: {p99", "durability: {act: hot}\nlatency: {p99", "durability.act"),
        ("windows: {size_s: 60}", "windows: {size_s: 60, slide_s: 7}", "sense.windows.slide_s"),
        ("to: [SN]", "to: [XX]", "exports[0].to"),
        ("latency: {p99", "durability: {think: synced}\nlatency: {p99", "durability.think"),
        ("latency: {p99", "durability: {replicas: 2}\nlatency: {p99", "durability.replicas"),
        ("latency: {p99", "durability: {act: sincked}\nlatency: {p99", "durability.act"),
        ("sense: {workers_min: 2", "sense: {hubs: [dakar], workers_min: 2", "scaling.sense.hubs"),
        ("kind: mqtt, name", "name", "sense.sources[0].kind"),
    ],
)
def test_single_mistakes_are_found_where_they_are(old: str, new: str, where: str) -> None:
    text = IRRIGATION.replace(old, new, 1)
    if where == "scaling.sense.hubs":
        text = text.replace("origins:", "hubs: [casablanca]\norigins:")
    assert text != IRRIGATION
    problems = refused(text).meta["problems"]
    assert isinstance(problems, list)
    assert [entry["field"] for entry in problems if entry["field"].startswith(where)], problems


def test_a_stage_that_is_not_there_cannot_be_scaled_and_sense_alone_is_a_pipeline() -> None:
    data = raw()
    del data["act"], data["think"], data["kind"]
    assert pipeline_problems(data, JURISDICTIONS) == []
    data["scaling"]["act"] = {"workers_max": 3}
    assert {problem.path for problem in pipeline_problems(data, JURISDICTIONS)} == {"scaling.act"}


def test_without_models_rules_are_about_features_of_devices() -> None:
    data = raw()
    del data["think"], data["kind"]
    (action,) = data["act"]["actions"]
    action |= {"when": "moisture.mean < 20 and flow.max > 0", "args": {"value": "{flow.last}"}}
    assert pipeline_problems(data, JURISDICTIONS) == []
    action |= {"when": "moisture.maen < 20", "model": "thirst"}
    data["sense"]["rows_per"] = "metric"
    found = {problem.path for problem in pipeline_problems(data, JURISDICTIONS)}
    assert found == {"act.actions[0].when", "act.actions[0].args", "act.actions[0].model", "sense.rows_per"}
    data["sense"] |= {"rows_per": "device", "metrics": ["soil-moisture", "flow"]}
    action |= {"when": "soil_moisture.mean < 20", "model": ""}
    assert pipeline_problems(data, JURISDICTIONS) == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: [", "E0202"),
        ("", "E0250"),
        ("- just\n- a list\n", "E0250"),
        ("a: &x 1\nb: *x\n", "E0250"),
        ("kind: pipeline\nname: a\nname: b\n", "E0250"),
        ("a: " + "[" * 40 + "]" * 40, "E0250"),
        ("--- {}\n" * 30, "E0250"),
        ("x: " + "y" * (9 << 20), "E0204"),
        ("kind: !!python/object:os.system pipeline\n", "E0250"),
    ],
)
def test_hostile_and_broken_yaml_is_refused_with_a_code(text: str, code: str) -> None:
    assert refused(text).code == code


def test_the_country_norway_is_not_a_boolean() -> None:
    text = IRRIGATION.replace("[MA]", "[NO]").replace("fields: MA", "fields: NO").replace("country: MA", "country: NO")
    spec = parse_pipelines(text.encode(), "farm.yaml", JURISDICTIONS)[0]
    assert spec.origins == {"fields": "NO"}


def test_two_pipelines_of_one_name_are_refused_and_of_two_names_read() -> None:
    other = IRRIGATION.replace("souss-irrigation", "draa-irrigation")
    both = parse_pipelines(f"{IRRIGATION}---\n{other}".encode(), "farm.yaml", JURISDICTIONS)
    assert [spec.name for spec in both] == ["souss-irrigation", "draa-irrigation"]
    assert "two pipelines are named" in str(refused(f"{IRRIGATION}---\n{IRRIGATION}"))


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_stands_in_one_place_the_verdict_agrees_with_msgspec(data: st.DataObject) -> None:
    """Any field replaced by anything: problems are named exactly when the types refuse it, and nothing else raises."""
    tree = {key: value for key, value in raw().items() if key != "kind"}
    node: Any = tree
    for _ in range(data.draw(st.integers(0, 4))):
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys)) if keys else None
        if key is None or not isinstance(node[key], dict | list) or not node[key]:
            break
        node = node[key]
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    node[data.draw(st.sampled_from(keys))] = data.draw(values)
    try:
        msgspec.convert(tree, PipelineSpec)
        is_right = True
    except msgspec.ValidationError:
        is_right = False
    assert (shape_problems(tree, PipelineSpec) == []) is is_right
    pipeline_problems(tree, JURISDICTIONS)


def test_the_schema_takes_the_file_and_refuses_what_it_refuses() -> None:
    schema = pipeline_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert list(validator.iter_errors(yaml.safe_load(IRRIGATION))) == []
    wrong = yaml.safe_load(IRRIGATION.replace("devices_max", "devices_mx"))
    assert list(validator.iter_errors(wrong))
    assert json.loads(pipeline_schema_text())["required"] == ["kind", "name", "jurisdiction", "sense"]


EXAMPLES = sorted((Path(__file__).parents[4] / "examples" / "pipelines").glob("*/pipeline.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_every_example_is_valid_and_may_run_on_the_shipped_fleet(path: Path) -> None:
    (spec,) = parse_pipelines(path.read_bytes(), path.name, JURISDICTIONS)
    proof = proved(spec)
    assert proof.rejections == ()
    assert isinstance(plan_deployment(spec, proof, rules().terrain), Deployment)


def test_there_are_three_examples() -> None:
    assert [path.parent.name for path in EXAMPLES] == ["grid-balancing", "irrigation", "transactions"]

"""Are mistakes in the settings of THINK told by place, sentence and hint?"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from harch.base.errors import HarchError
from harch.pipelines.think.settings import Device, ModelRole, input_problems, parse_think

GOOD: dict[str, Any] = {
    "models": [
        {
            "name": "soil-water",
            "inputs": ["moisture_mean", "air_temp_mean"],
            "outputs": ["valve_minutes"],
            "versions": [{"version": "1", "path": "model.onnx", "sha256": "0" * 64}],
        }
    ]
}


def changed(**fields: object) -> dict[str, Any]:
    raw = copy.deepcopy(GOOD)
    raw["models"][0].update(fields)
    return raw


def test_a_short_description_is_enough_and_waits_for_nothing() -> None:
    model = parse_think(GOOD).models[0]
    assert model.versions[0].role is ModelRole.ACTIVE
    assert (model.batching.delay_ms_max, model.batching.rows_max, model.threads) == (0, 4096, 1)
    assert model.device is Device.AUTO


@pytest.mark.parametrize(
    ("raw", "field", "words"),
    [
        (changed(name="Soil Water"), "think.models[0].name", "regex"),
        (changed(colour="red"), "think.models[0]", "colour"),
        (changed(outputs=["a.b"]), "think.models[0].outputs[0]", "regex"),
        (changed(inputs=[]), "think.models[0].inputs", "length >= 1"),
        (changed(inputs=["a", "a"]), "think.models[0].inputs[1]", "`a` is given twice"),
        (changed(canary_percent=80), "think.models[0].canary_percent", "<= 50"),
        (changed(versions=[{"version": "1", "path": "m.onnx"}]), "think.models[0].versions[0].sha256", "is missing"),
        (
            changed(versions=[{"version": "1", "runtime": "python", "path": "m.py"}]),
            "think.models[0].versions[0].callable",
            "is missing",
        ),
        (
            changed(versions=[{"version": "1", "runtime": "python", "callable": "m:f", "role": "shadow"}]),
            "think.models[0].versions",
            "no version is `active`",
        ),
        (
            changed(versions=[{"version": str(n), "runtime": "python", "callable": "m:f"} for n in (1, 2)]),
            "think.models[0].versions",
            "2 versions are `active`",
        ),
        (
            changed(batching={"preferred_rows": [256, 64]}),
            "think.models[0].batching.preferred_rows",
            "must increase",
        ),
        (
            changed(batching={"rows_max": 100}),
            "think.models[0].batching.preferred_rows",
            "256 is more than `rows_max`, 100",
        ),
        (
            changed(batching={"queue_rows_max": 100}),
            "think.models[0].batching.queue_rows_max",
            "less than one batch",
        ),
        (
            changed(batching={"delay_ms_max": 50, "timeout_ms": 20}),
            "think.models[0].batching.delay_ms_max",
            "not below the timeout",
        ),
    ],
)
def test_a_mistake_is_told_by_its_place(raw: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(HarchError) as caught:
        parse_think(raw)
    assert caught.value.code == "E0201"
    assert caught.value.field == field
    assert words in caught.value.message
    assert caught.value.hint


def test_all_mistakes_between_fields_are_told_at_once() -> None:
    raw = changed(inputs=["a", "a"], batching={"preferred_rows": [256, 64], "queue_rows_max": 1, "rows_max": 512})
    with pytest.raises(HarchError) as caught:
        parse_think(raw)
    assert len(caught.value.meta["problems"]) == 3  # type: ignore[arg-type]


def test_an_output_belongs_to_one_model() -> None:
    raw = copy.deepcopy(GOOD)
    raw["models"].append({**raw["models"][0], "name": "other"})
    with pytest.raises(HarchError) as caught:
        parse_think(raw)
    assert caught.value.field == "think.models[1].outputs[0]"


def test_an_input_that_sense_does_not_give_is_named_with_the_nearest_that_it_does() -> None:
    problems = input_problems(parse_think(GOOD), ["moisture.mean", "air_temp_mean"])
    assert [(problem.path, problem.hint) for problem in problems] == [
        ("think.models[0].inputs[0]", "did you mean `moisture.mean`?")
    ]

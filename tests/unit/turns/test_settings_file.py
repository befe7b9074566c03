"""The scheduling file: every field can be set, every mistake is named at once."""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.placement.queueing.settings import FORMAT, QueueSettings, Quota, parse_settings
from harch.workloads.spec import SchedulingClass


def test_an_empty_file_is_the_defaults() -> None:
    assert parse_settings("") == QueueSettings()


def test_a_tenant_has_a_weight_a_quota_and_one_per_class() -> None:
    settings = parse_settings(
        """
        [quota]
        gpus_held_max = 64
        [tenants.acme]
        weight = 3
        [tenants.globex]
        tasks_held_max = 10
        [tenants.globex.classes.training]
        gpus_held_max = 8.5
        """
    )
    assert settings.tenant_weights == {"acme": 3.0}
    assert settings.quota_default == Quota(gpus_held_max=64)
    assert settings.tenant_quotas == {"globex": Quota(tasks_held_max=10)}  # acme keeps the default
    assert settings.class_quotas == {("globex", SchedulingClass.TRAINING): Quota(gpus_held_max=8.5)}


def test_one_class_weight_leaves_the_others() -> None:
    weights = parse_settings("[class_weights]\ntraining = 5").class_weights
    assert dict(weights) == {
        SchedulingClass.INFERENCE: 100,
        SchedulingClass.INTERACTIVE: 10,
        SchedulingClass.TRAINING: 5,
    }


def test_every_field_of_the_settings_can_be_set() -> None:
    reached = {key.field for keys in FORMAT.values() for key in keys}
    whole = {field.name for field in fields(Quota)} | {"tenant_quotas", "class_quotas", "quota_default"}
    assert {field.name for field in fields(QueueSettings)} - whole == reached - whole
    assert {field.name for field in fields(Quota)} <= reached


def test_every_mistake_is_named_at_once_with_its_fix() -> None:
    text = """
    starvation_s = 5
    [class_weights]
    trainng = 2
    inference = 0
    [fairness]
    aged_share = "much"
    [preemption]
    victims_max = 2.5
    [tenants.acme]
    gpus_max = 4
    classes.batch.gpus_held_max = 1
    [reservations]
    at_once_max = true
    """
    with pytest.raises(HarchError) as refused:
        parse_settings(text, "mine.toml")
    assert refused.value.code == "E0201"
    assert refused.value.message.splitlines() == [
        "mine.toml is not a scheduling file:",
        "  starvation_s: unknown table; " + refused.value.message.split("unknown table; ")[1].splitlines()[0],
        '  fairness.aged_share: must be a number, is the text "much"',
        "  reservations.at_once_max: must be a whole number, is true",
        "  preemption.victims_max: must be a whole number, is 2.5",
        "  class_weights.trainng: unknown key; did you mean `training`?",
        "  class_weights.inference: 0 is out of range; use 0.001 to 1,000,000",
        "  tenants.acme.gpus_max: unknown key; did you mean `gpus_held_max`?",
        "  tenants.acme.classes.batch: is not a class; known: inference, interactive, training",
    ]


@pytest.mark.parametrize("text", ["[quota", "a = " + "9" * 5000, "quota = 3", "tenants = [1]", "[tenants]\na = 1"])
def test_nonsense_is_refused_in_words(text: str) -> None:
    with pytest.raises(HarchError) as refused:
        parse_settings(text)
    assert refused.value.code in {"E0201", "E0202"}
    assert "scheduling.md" in refused.value.hint


@given(
    st.recursive(
        st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=5)),
        lambda inner: st.dictionaries(
            st.sampled_from([*FORMAT, *(key.name for keys in FORMAT.values() for key in keys), "x"]), inner, max_size=4
        ),
        max_leaves=12,
    )
)
def test_whatever_a_file_holds_it_is_settings_or_a_refusal(value: object) -> None:
    def toml(item: object) -> str:
        if isinstance(item, dict):
            return "{" + ", ".join(f"{json.dumps(name)} = {toml(inner)}" for name, inner in item.items()) + "}"
        if isinstance(item, float):
            return {"nan": "nan", "inf": "inf", "-inf": "-inf"}.get(repr(item), repr(item))
        return json.dumps(item)

    text = "\n".join(f"{json.dumps(n)} = {toml(v)}" for n, v in value.items()) if isinstance(value, dict) else ""
    with contextlib.suppress(HarchError):
        assert isinstance(parse_settings(text), QueueSettings)

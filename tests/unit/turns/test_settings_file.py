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


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("lookahead_s", 0.0, 0.1),
        ("memory_s", 0.0, 0.1),
        ("starvation_s", 0.0, 0.1),
        ("assumed_duration_s", 0.0, 0.1),
        ("defragment_after_s", 0.0, 0.1),
        ("aged_share", 0.0, 0.001),
        ("aged_share", 1.0, 0.999),
        ("training_floor_share", 1.0, 0.999),
        ("training_floor_share", -0.001, 0.0),
    ],
)
def test_every_limit_of_a_setting_is_its_last_wrong_value(name: str, wrong: float, right: float) -> None:
    with pytest.raises(ValueError, match=name):
        QueueSettings(**{name: wrong})  # type: ignore[arg-type]
    assert getattr(QueueSettings(**{name: right}), name) == right  # type: ignore[arg-type]


def test_every_class_and_every_named_tenant_has_a_weight_above_zero() -> None:
    weights = dict(QueueSettings().class_weights)
    for turn_class in SchedulingClass:
        for wrong in ({**weights, turn_class: 0.0}, {key: w for key, w in weights.items() if key is not turn_class}):
            with pytest.raises(ValueError, match="needs a weight above 0"):
                QueueSettings(class_weights=wrong)
    with pytest.raises(ValueError, match="needs a weight above 0"):
        QueueSettings(tenant_weights={"a": 1.0, "b": 0.0})
    settings = QueueSettings(tenant_weights={"a": 0.5})
    assert (settings.tenant_weight("a"), settings.tenant_weight("b")) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("given_", "none"),
    [
        ({}, True),
        ({"quota_default": Quota()}, True),
        ({"quota_default": Quota(tasks_held_max=1)}, False),
        ({"tenant_quotas": {"a": Quota()}}, False),
        ({"class_quotas": {("a", SchedulingClass.TRAINING): Quota()}}, False),
    ],
)
def test_without_any_quota_none_is_asked_for(given_: dict[str, object], none: bool) -> None:
    assert QueueSettings(**given_).has_no_quotas is none  # type: ignore[arg-type]


def written(number: float) -> str:
    return f"{number:.12g}" if number != int(number) else str(int(number))


@pytest.mark.parametrize("table", FORMAT)
def test_the_ends_of_every_range_belong_to_it(table: str) -> None:
    head = {"tenants": "tenants.acme", "tenants.classes": "tenants.acme.classes.training"}.get(table, table)
    for key in FORMAT[table]:
        for value in (key.low, key.high):
            settings = parse_settings(f"[{head}]\n{key.name} = {written(value)}")
            assert settings.aged_share
        for value in (key.low - 1, key.high + 1):
            with pytest.raises(HarchError) as refused:
                parse_settings(f"[{head}]\n{key.name} = {written(value)}")
            assert f"{head}.{key.name}: " in refused.value.message
            assert "is out of range; use" in refused.value.message


def test_numbers_come_out_as_they_were_put_in() -> None:
    settings = parse_settings(
        """
        [fairness]
        lookahead_s = 60
        [reservations]
        at_once_max = 7
        yields_after_s = 5
        [defragmentation]
        after_s = 90
        [tenants.acme]
        weight = 2
        gpus_held_max = 3
        classes.inference.workloads_waiting_max = 4
        """
    )
    assert (settings.lookahead_s, settings.reservations_max) == (60.0, 7)
    assert (settings.kept_yields_after_s, settings.defragment_after_s) == (5.0, 90.0)
    assert (type(settings.lookahead_s), type(settings.reservations_max)) == (float, int)
    assert settings.tenant_weights == {"acme": 2.0}
    assert settings.tenant_quotas == {"acme": Quota(gpus_held_max=3.0)}
    assert settings.class_quotas == {("acme", SchedulingClass.INFERENCE): Quota(workloads_waiting_max=4)}


def test_a_file_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harch.placement.queueing.settings.FILE_BYTES_MAX", 2048)
    assert parse_settings("#" * 2048) == QueueSettings()
    with pytest.raises(HarchError) as refused:
        parse_settings("#" * 2049, "mine.toml")
    assert (refused.value.code, refused.value.message) == ("E0201", "mine.toml: larger than 2 KiB")


def test_so_many_tenants_have_a_table_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harch.placement.queueing.settings.TENANTS_MAX", 2)
    assert len(parse_settings("[tenants]\na.weight = 1\nb.weight = 1").tenant_weights) == 2
    with pytest.raises(HarchError) as refused:
        parse_settings("[tenants]\na.weight = 1\nb.weight = 1\nc.weight = 1")
    assert refused.value.message.splitlines()[1:] == [
        "  tenants: has 3 entries, the limit is 2; leave some to the default"
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("quota = 3", "quota: must be a table; write `[quota]`"),
        ("tenants = 3", "tenants: must hold named tables; write e.g. `[tenants.acme]`"),
        ("[tenants]\nacme = 3", "tenants: must hold named tables; write e.g. `[tenants.acme]`"),
        (
            "[tenants.acme]\nclasses = 3",
            "tenants.acme.classes: must hold named tables; write e.g. `[tenants.acme.classes.training]`",
        ),
        (
            '[tenants."a/b"]\nweight = 1',
            "tenants.a/b: is not the name of a tenant; use letters, digits, dots and dashes",
        ),
        ("[fairness]\nmemory_s = nan", "fairness.memory_s: nan is out of range; use 1 to 31,622,400"),
        (
            "[tenants.acme]\nclases.training.tasks_held_max = 1",
            "tenants.acme.clases: unknown key; did you mean `classes`?",
        ),
        ("fairnes = 1", "fairnes: unknown table; did you mean `fairness`?"),
        ("[tenants.acme]\nweight = true", "tenants.acme.weight: must be a number, is true"),
        ("[quota]\ntasks_held_max = 1.0", "quota.tasks_held_max: must be a whole number, is 1.0"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_its_fix(text: str, line: str) -> None:
    with pytest.raises(HarchError) as refused:
        parse_settings(text)
    assert refused.value.message == f"scheduling.toml is not a scheduling file:\n  {line}"


def test_what_is_not_toml_is_said_so() -> None:
    with pytest.raises(HarchError) as refused:
        parse_settings("[quota", "mine.toml")
    assert refused.value.code == "E0202"
    assert refused.value.message.startswith("mine.toml: not valid TOML: ")

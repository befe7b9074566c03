"""Rules over model outputs: what they may say, what they mean, and that nothing else is ever executed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harch.pipelines.act.expressions import NotUnderstood, Unfillable, read_condition, read_expression, read_template

NUMBERS = st.floats(-1e6, 1e6)


def holds(text: str, **values: float) -> bool:
    mask, _ = read_condition(text).mask({name: np.array([value]) for name, value in values.items()}, 1)
    return bool(mask[0])


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "score.__class__ > 1",
        "(lambda: 1)() > 0",
        "[x for x in (1,)] > 0",
        "score[0] > 1",
        "open('f') > 1",
        "max(score, *other) > 1",
        "f'{score}' > 1",
        "score if 1 > 0 else 2",
        "(y := 3) > 1",
        "score ** 99999999 > 1",
        "score > 'a'",
        "1e999 > score",
        "score >",
        "x" * 501,
        "+".join(["a"] * 90) + " > 1",
    ],
)
def test_anything_but_the_small_language_is_refused(text: str) -> None:
    with pytest.raises(NotUnderstood):
        read_condition(text)


def test_a_number_is_no_condition_and_a_condition_no_number() -> None:
    with pytest.raises(NotUnderstood, match="compare it"):
        read_condition("score + 1")
    with pytest.raises(NotUnderstood, match="where a number is needed"):
        read_condition("(score > 1) + 1 > 2")
    with pytest.raises(NotUnderstood, match="where a condition is needed"):
        read_condition("score and moisture > 1")


@given(a=NUMBERS, b=NUMBERS, c=NUMBERS)
def test_a_rule_means_what_it_means_in_python(a: float, b: float, c: float) -> None:
    assert holds("a > b and not b >= c or a == c", a=a, b=b, c=c) == ((a > b and not b >= c) or a == c)
    assert holds("a < b < c", a=a, b=b, c=c) == (a < b < c)
    assert holds("max(a, b) - min(a, b) >= abs(a - b) - 1", a=a, b=b) is True
    assert holds("clip(a, -1, 1) == a", a=a) == (-1 <= a <= 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_a_number_fits_no_rule_and_is_counted(value: float) -> None:
    for text in ("score > 0.5", "not score > 0.5", "score != 1", "True or score > 1"):
        mask, unfit = read_condition(text).mask({"score": np.array([value, 0.7])}, 2)
        assert not mask[0]
        assert unfit == 1


def test_a_division_by_zero_fits_no_rule() -> None:
    mask, unfit = read_condition("1 / score > 0").mask({"score": np.array([0.0, 2.0])}, 2)
    assert mask.tolist() == [False, True]
    assert unfit == 1


def test_a_template_gives_numbers_texts_and_flags() -> None:
    template = read_template({"value": "{round(score * 10)}", "on": "{score > 0.5}", "to": "pump-{device}", "n": 3})
    filled = template.columns({"score": np.array([0.2, 0.71])}, np.array([1]))
    assert template.fill("d7", 0, filled) == {"value": 7.0, "on": True, "to": "pump-d7", "n": 3}


def test_a_template_without_its_output_or_with_nan_cannot_be_filled() -> None:
    template = read_template({"value": "{score * factor}"})
    with pytest.raises(Unfillable, match="factor"):
        template.columns({"score": np.array([1.0])}, np.array([0]))
    filled = template.columns({"score": np.array([math.nan]), "factor": np.array([1.0])}, np.array([0]))
    with pytest.raises(Unfillable, match="not a finite number"):
        template.fill("d", 0, filled)


@pytest.mark.parametrize("text", ["{score", "score}", "{}", "{score.__dict__}", "a{b}{c"])
def test_a_template_with_a_mistake_is_refused(text: str) -> None:
    with pytest.raises(NotUnderstood):
        read_template({"value": text})


def test_names_are_known_before_any_batch_comes() -> None:
    assert read_expression("a + max(b, 2) * c").names == {"a", "b", "c"}

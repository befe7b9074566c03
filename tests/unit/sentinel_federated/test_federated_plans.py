"""How questions are cut, what other hubs get to read, and what cannot be asked over hubs."""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.sentinel.federated.messages import LogPart, MetricPart
from harch.sentinel.federated.query.log_split import plan_lines, plan_logs
from harch.sentinel.federated.query.plans import aligned
from harch.sentinel.federated.query.split import plan
from harch.sentinel.promql.evaluate.values import StepGrid

GRID = StepGrid.between(600_000, 1_200_000, 60_000)


def parts(expression: str, hub_label: str | None = None) -> list[str]:
    return [part.expression for part in plan(expression, GRID, hub_label=hub_label).parts]


@pytest.mark.parametrize(
    ("expression", "sent"),
    [
        ("sum by (job) (rate(x[5m]))", ["sum by (job) (rate(x[5m]))"]),
        ("avg(x)", ["sum(x)", "count(x)"]),
        ("stddev(x)", ["count(x)", "avg(x)", "stdvar(x)"]),
        ("sum(x) / count(x)", ["sum(x)", "count(x)"]),
        ("avg(x) + sum(x)", ["sum(x)", "count(x)"]),
        ("histogram_quantile(0.9, sum by (le) (rate(b[5m])))", ["sum by (le) (rate(b[5m]))"]),
        ("sum(x) > 5", ["sum(x)"]),
        ("sum(x > 5)", ["sum(x > 5)"]),
        ("sum(x * 8) / 1e9", ["sum(x)"]),
        ("sum(-x)", ["sum(x)"]),
        ("sum by (a) (sum by (a, b) (x))", ["sum by (a) (x)"]),
        ("sum(count by (b) (x))", ["count(x)"]),
        ("max without (a) (max by (a, b) (x))", ["max by (b) (x)"]),
        ("sum by (a, b) (sum without (b, c) (x))", ["sum by (a) (x)"]),
        ("sum(topk by (job) (3, x))", ["topk by (job) (3, x)"]),
        ("topk(3, sum by (job) (x))", ["sum by (job) (x)"]),
        ("quantile(0.9, x)", ["x"]),
        ("x / y", ["x", "y"]),
        ("x > scalar(sum(y))", ["x", "sum(y)"]),
        ("absent(x)", ["group(x)"]),
        ("absent_over_time(x[5m])", ["group(present_over_time(x[5m]))"]),
        ("time() + vector(1)", []),
        ("sum(x) or vector(0)", ["sum(x)"]),
        ("sum(x + start())", ["sum(x + (600))"]),
        ("max_over_time(x[5m:])", ["max_over_time(x[5m:1m])"]),
    ],
)
def test_hubs_get_the_largest_parts_that_they_can_answer_alone(expression: str, sent: list[str]) -> None:
    assert parts(expression) == sent


def test_with_a_label_of_its_own_a_hub_matches_its_series_itself() -> None:
    assert parts("sum(x / on (hub, gpu) y)") == ["x", "y"]
    assert parts("sum(x / on (hub, gpu) y)", "hub") == ["sum(x / on (hub, gpu) y)"]
    assert parts("sum(x / ignoring (gpu) y)", "hub") == ["sum(x / ignoring (gpu) y)"]
    assert parts("sum(x / on (gpu) y)", "hub") == ["x", "y"]
    assert parts("sum(quantile by (hub) (0.5, x))", "hub") == ["sum(quantile by (hub) (0.5, x))"]
    one = 'label_replace(x, "hub", "one", "", "")'
    assert parts(f"quantile by (hub) (0.5, {one})", "hub") == [one], "now it is the same at all hubs"


def test_a_part_inside_of_a_subquery_is_asked_at_the_times_of_the_subquery() -> None:
    (part,) = plan("max_over_time(sum(x)[10m:2m] offset 1m)", GRID).parts
    assert isinstance(part, MetricPart)
    assert (part.start_ms, part.end_ms, part.step_ms) == (0, 1_080_000, 120_000)


@pytest.mark.parametrize(
    "expression",
    ["x[5m]", "info(x)", "quantile_over_time(scalar(sum(y)), x[5m])", " + ".join(f"sum(x{n})" for n in range(65))],
)
def test_what_needs_single_samples_of_a_range_is_refused_with_a_hint(expression: str) -> None:
    with pytest.raises(HarchError) as error:
        plan(expression, GRID)
    assert error.value.code == "E0694"
    assert error.value.hint


def test_a_grid_for_hubs_of_other_countries_is_coarse_and_not_up_to_this_moment() -> None:
    now_ms = 10_000_123
    assert aligned(StepGrid.instant(now_ms), now_ms) == StepGrid.instant(9_900_000)
    shared = aligned(StepGrid.between(9_000_001, now_ms, 15_000), now_ms)
    assert (shared.start_ms, shared.end_ms, shared.step_ms) == (9_000_000, 9_900_000, 60_000)


@pytest.mark.parametrize(
    ("expression", "sent"),
    [
        ('sum by (job) (rate({a="b"}[5m]))', ['sum by (job) (rate({a="b"}[5m]))']),
        ('sum(rate({a="b"} |= "x" [5m])) / 2', ['sum(rate({a="b"} |= "x" [5m]))']),
        ('count_over_time({a="b"}[5m]) > 3', ['count_over_time({a="b"}[5m]) > 3']),
        ('max_over_time({a="b"} | unwrap t [5m]) by (job)', None),
        ('absent_over_time({a="b"}[5m])', ['count(count_over_time({a="b"}[5m]))']),
        ('topk(2, sum by (job) (rate({a="b"}[5m])))', ['sum by (job) (rate({a="b"}[5m]))']),
    ],
)
def test_questions_about_logs_are_cut_in_the_same_way(expression: str, sent: list[str] | None) -> None:
    found = plan_logs(expression, GRID).parts
    assert all(isinstance(part, LogPart) and part.start_ns == 600_000 * 10**6 for part in found)
    if sent is not None:
        assert [part.expression.replace(" ", "") for part in found] == [text.replace(" ", "") for text in sent]


def test_lines_and_numbers_are_asked_for_in_different_ways() -> None:
    with pytest.raises(HarchError, match="lines are not a number"):
        plan_logs('{a="b"}', GRID)
    with pytest.raises(HarchError, match="numbers"):
        plan_lines('sum(rate({a="b"}[5m]))', start_ns=0, end_ns=1, limit=1)
    with pytest.raises(HarchError, match="all hubs together"):
        plan_logs('quantile_over_time(0.9, {a="b"} | unwrap t [5m]) by (job)', GRID)

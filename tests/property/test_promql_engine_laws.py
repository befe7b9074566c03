"""However a question is asked, the answer is the same: at an instant, as a step of a range, or with `@`."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harch.sentinel.promql.syntax.parser import parse
from harch.testing.promqltest.commands import EvaluationGrid, EvaluationResult, ExpectedValue, Point, QueryFailed
from harch.testing.promqltest.comparison import same_point
from harch.testing.promqltest.engine import EngineTarget
from harch.testing.promqltest.runner import fixed_queries
from harch.testing.promqltest.script import read_script

DATA = """load 1m
  f{a="1"} 1+1x9 NaN Inf stale 3 4
  f{a="2"} 5x15
  f{a="3", b="x"} 10-3x9 _x3 7
  g{a="1"} _x3 7-1x9
  h{a="1"} {{count:3 sum:4 buckets:[1 2]}}+{{count:3 sum:4 buckets:[1 2]}}x10
  h{a="2"} {{schema:1 count:2 sum:3 buckets:[1 1]}}x4 {{schema:0 count:1 sum:1 buckets:[1]}}x4
  m{a="1"} 1 2 {{count:1 sum:1 buckets:[1]}} 3 stale {{count:5 sum:5 buckets:[5] counter_reset_hint:gauge}}x5
"""
SELECTORS = st.sampled_from(["f", "g", "h", "m", 'f{a="1"}', '{a=~".+"}', "f offset 1m", "f @ 240", "absent_metric"])
RANGES = st.sampled_from(
    ["f[5m]", "g[3m]", "h[4m]", "m[6m]", 'f{a!="2"}[90s] offset 30s', "f[5m] anchored", "f[3m] smoothed"]
)
OVER_RANGES = [
    "rate",
    "increase",
    "delta",
    "irate",
    "sum_over_time",
    "avg_over_time",
    "count_over_time",
    "max_over_time",
]
OVER_RANGES += ["last_over_time", "changes", "resets", "stddev_over_time", "present_over_time"]
EXTENDED = {"rate", "increase", "delta", "changes", "resets"}
OPERATORS = st.sampled_from(
    ["+", "-", "*", "/", "%", "==", "!= bool", ">", "and", "or", "unless", "+ on (a)", "- on (a) fill (0)"]
)


@st.composite
def folded(draw: st.DrawFn) -> str:
    over, name = draw(RANGES), draw(st.sampled_from(OVER_RANGES))
    if "smoothed" in over:
        name = draw(st.sampled_from(["rate", "increase", "delta"]))
    elif "anchored" in over:
        name = draw(st.sampled_from(sorted(EXTENDED)))
    return f"{name}({over})"


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, OPERATORS, inner).map(lambda parts: f"({parts[0]}) {parts[1]} ({parts[2]})"),
        st.tuples(
            st.sampled_from(["sum", "avg", "min", "max", "count", "stddev", "topk 2", "quantile 0.3", "limitk 1"]),
            st.sampled_from(["by (a)", "without (a)", ""]),
            inner,
        ).map(_aggregation),
        st.tuples(st.sampled_from(["abs", "-", "histogram_count", "absent", "timestamp", "sgn"]), inner).map(
            lambda parts: f"{parts[0]}({parts[1]})"
        ),
        st.tuples(inner, st.sampled_from(["[4m:1m]", "[3m:40s]", "[5m:] offset 1m"])).map(
            lambda parts: f"last_over_time(({parts[0]}){parts[1]})"
        ),
    )


def _aggregation(parts: tuple[str, str, str]) -> str:
    operator, _, parameter = parts[0].partition(" ")
    return f"{operator} {parts[1]} ({parameter + ', ' if parameter else ''}{parts[2]})"


QUERIES = st.recursive(st.one_of(SELECTORS, folded()), larger, max_leaves=4)
TIMES = st.sampled_from([0, 60_000, 330_000, 600_000, 840_000])


def target() -> EngineTarget:
    made = EngineTarget()
    (load,) = read_script(DATA)
    made.load(60_000, load.series)  # type: ignore[union-attr]
    return made


TARGET = target()


def at(answer: EvaluationResult, time_ms: int) -> dict[object, Point]:
    return {series.labels: point for series in answer.series for when, point in series.points if when == time_ms}


def alike(left: dict[object, Point], right: dict[object, Point]) -> bool:
    return left.keys() == right.keys() and all(
        same_point(ExpectedValue(point), right[labels])  # type: ignore[arg-type]
        for labels, point in left.items()
    )


@settings(max_examples=150)
@given(QUERIES, TIMES, st.sampled_from([60_000, 17_000]))
def test_a_step_of_a_range_is_the_instant_at_its_time(query: str, time_ms: int, step_ms: int) -> None:
    try:
        span = TARGET.query(query, EvaluationGrid(time_ms - 2 * step_ms, time_ms + 2 * step_ms, step_ms))
    except QueryFailed:
        return  # another step may fail where this one would not
    instant = TARGET.query(query, EvaluationGrid(time_ms, time_ms))
    assert alike(at(instant, time_ms), at(span, time_ms))


@settings(max_examples=100)
@given(QUERIES, TIMES)
def test_what_is_fixed_in_time_can_be_asked_at_any_time(query: str, time_ms: int) -> None:
    try:
        instant = TARGET.query(query, EvaluationGrid(time_ms, time_ms))
    except QueryFailed:
        return
    for text, when_ms in fixed_queries(parse(query), time_ms):
        assert alike(at(instant, time_ms), at(TARGET.query(text, EvaluationGrid(when_ms, when_ms)), when_ms))

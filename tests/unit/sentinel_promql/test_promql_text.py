"""How is a tree written, and what do its durations mean in a query?"""

from __future__ import annotations

import pytest

from harch.sentinel.promql.syntax.binding import QueryTimes, bind
from harch.sentinel.promql.syntax.errors import PromqlSyntaxError
from harch.sentinel.promql.syntax.literals import duration_ms, format_duration, format_number
from harch.sentinel.promql.syntax.nodes import MatrixSelector, Subquery, VectorSelector, unwrap, walk
from harch.sentinel.promql.syntax.parser import parse
from harch.sentinel.promql.syntax.printer import to_lines, to_text


@pytest.mark.parametrize(
    ("query", "normal"),
    [
        ("sum  by(a)( rate( b [5m] ))", "sum by (a) (rate(b[5m]))"),
        ("a{ b = 'c' , }", 'a{b="c"}'),
        ("a offset 90s", "a offset 1m30s"),
        ("a offset -1h @ start()", "a @ start() offset -1h"),
        ("a[1w]", "a[1w]"),
        ("a[8d]", "a[8d]"),
        ("+5 - -3", "5 - -3"),
        ("a*on(x)group_right b", "a * on (x) group_right () b"),
        ("a + fill(1) b", "a + fill (1) b"),
        ("a[step()*2:min_of(1m,2m)] offset -(1h-30m)", "a[step() * 2:min_of(1m, 2m)] offset -(1h - 30m)"),
        ('sum by ("a.b") (c)', 'sum by ("a.b") (c)'),
        ("0x10 + 1e3", "16 + 1000"),
    ],
)
def test_the_normal_form_is_written_one_way(query: str, normal: str) -> None:
    assert to_text(parse(query)) == normal
    assert parse(normal) == parse(query)


def test_long_queries_are_broken_into_lines() -> None:
    query = (
        'sum by (job, instance) (rate(http_requests_total{job="a-rather-long-name", code=~"5.."}[5m])) / '
        'sum by (job, instance) (rate(http_requests_total{job="a-rather-long-name"}[5m])) > 0.05'
    )
    lines = to_lines(parse(query))
    assert max(map(len, lines.splitlines())) <= 100
    assert len(lines.splitlines()) > 3
    assert parse(lines) == parse(query)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (1, "1ms"), (5_400_000, "1h30m"), (604_800_000, "1w"), (691_200_000, "8d"), (-60_000, "-1m")],
)
def test_durations_have_a_shortest_form(ms: int, text: str) -> None:
    assert format_duration(ms) == text
    if ms >= 0:
        assert duration_ms(text) == ms


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (0.1, "0.1"),
        (1e21, "1000000000000000000000"),
        (1e-7, "0.0000001"),
        (-2.5e-8, "-0.000000025"),
        (1.5e3, "1500"),
    ],
)
def test_numbers_are_written_without_exponents(value: float, text: str) -> None:
    assert format_number(value) == text


def bound(query: str, times: QueryTimes) -> VectorSelector | MatrixSelector | Subquery:
    node = unwrap(bind(query, parse(query), times))
    return next(part for part in walk(node) if isinstance(part, VectorSelector | MatrixSelector | Subquery))


RANGE = QueryTimes(start_ms=100_000, end_ms=160_000, step_ms=10_000)


def test_durations_and_edges_are_settled_for_a_query() -> None:
    matrix = bound("rate(a[step() + 1m] @ end() offset (range() / 2))", RANGE)
    assert isinstance(matrix, MatrixSelector)
    assert (matrix.range_ms, matrix.range_expr) == (70_000, None)
    assert (matrix.selector.at_ms, matrix.selector.at_edge) == (160_000, None)
    assert matrix.selector.offset_ms == 30_000
    subquery = bound("max_over_time(a[2 ^ 3 * 1m:max_of(step(), 15s)] @ start())", RANGE)
    assert isinstance(subquery, Subquery)
    assert (subquery.range_ms, subquery.step_ms, subquery.at_ms) == (480_000, 15_000, 100_000)
    shifted = bound("a offset -(min_of(step(), 2s) - 5)", RANGE)
    assert isinstance(shifted, VectorSelector)
    assert shifted.offset_ms == 3_000


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("a[1m - 2m]", "duration must be greater than 0"),
        ("a[1m / (1 - 1)]", "division by zero"),
        ("a[1m % 0]", "modulo by zero"),
        ("a[10 ^ 300]", "duration is out of range"),
        ("a[(-8) ^ 0.5]", "duration is out of range"),
    ],
)
def test_durations_that_are_none_are_refused_with_their_place(query: str, reason: str) -> None:
    with pytest.raises(PromqlSyntaxError) as caught:
        bind(query, parse(query), RANGE)
    assert caught.value.reason == reason
    assert caught.value.position == "1:3"

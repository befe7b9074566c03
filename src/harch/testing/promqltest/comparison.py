"""Is the answer the expected one? Numbers may differ by a millionth, histograms bucket by bucket."""

from __future__ import annotations

import math
import re
import sys

from harch.sentinel.model.histograms import NativeHistogram
from harch.sentinel.model.labels import METRIC_NAME, Labels
from harch.sentinel.promql.histograms.buckets import bucket_rows, compacted, indexed
from harch.sentinel.promql.histograms.notation import write_histogram
from harch.sentinel.promql.syntax.literals import format_number, quote
from harch.testing.promqltest.commands import (
    DisplayedHistogram,
    Eval,
    EvaluationGrid,
    EvaluationResult,
    Expectation,
    ExpectedSeries,
    ExpectedValue,
    ExpectSubject,
    Point,
    ResultSeries,
)

TOLERANCE = 1e-6
_POSITION = re.compile(r" \(\d+:\d+\)$")


class ResultMismatch(Exception):
    """The sentence says what was expected and what came."""


def check_answer(command: Eval, answer: EvaluationResult, grid: EvaluationGrid, *, positions: bool = True) -> None:
    """Raises Mismatch. `grid` is when it was asked; without `positions`, those in annotations are not compared."""
    check_annotations(command, answer, positions=positions)
    if command.text is not None:
        if answer.kind != "string" or answer.value != command.text:
            raise ResultMismatch(f"expected the string {command.text!r}, got {answer.kind} {answer.value!r}")
        return
    if command.scalar is not None:
        if answer.kind != "scalar" or not isinstance(answer.value, float) or not close(command.scalar, answer.value):
            raise ResultMismatch(f"expected the scalar {command.scalar}, got {answer.kind} {answer.value}")
        return
    if command.range_vector is not None:
        _check_series(command, answer.series, command.range_vector)
    elif answer.kind == ("vector" if grid.is_instant else "matrix"):
        _check_series(command, answer.series, grid)
    elif command.series or answer.kind in ("scalar", "string"):
        raise ResultMismatch(f"expected {len(command.series)} series, got a {answer.kind}")
    elif answer.series:
        raise ResultMismatch(f"expected nothing, got a {answer.kind} of {len(answer.series)} series")


def check_annotations(command: Eval, answer: EvaluationResult, *, positions: bool = True) -> None:
    for expected, forbidden, actual in (
        (ExpectSubject.WARN, ExpectSubject.NO_WARN, answer.warnings),
        (ExpectSubject.INFO, ExpectSubject.NO_INFO, answer.infos),
    ):
        if command.expected(forbidden) and actual:
            raise ResultMismatch(f"expected {forbidden.value}, got {'; '.join(actual)}")
        wanted = command.expected(expected)
        if not wanted:
            continue
        for expectation in wanted:
            if not any(matches(expectation, text, positions=positions) for text in actual):
                raise ResultMismatch(f"expected {_described(expectation)}, got {'; '.join(actual) or 'none'}")
        for text in actual:
            if not any(matches(expectation, text, positions=positions) for expectation in wanted):
                raise ResultMismatch(f"unexpected {expected.value}: {text}")


def _described(expectation: Expectation) -> str:
    return f"{expectation.subject.value} {expectation.text or expectation.pattern or '(any)'}"


def matches(expectation: Expectation, text: str, *, positions: bool = True) -> bool:
    if expectation.text is not None:
        if positions:
            return expectation.text == text
        return _POSITION.sub("", expectation.text) == _POSITION.sub("", text)
    if expectation.pattern is None or (not positions and ":" in expectation.pattern):
        return True
    return re.search(expectation.pattern, text) is not None


def close(expected: float, actual: float) -> bool:
    """Equal but for a relative difference; zero is close to zero only, NaN to NaN."""
    if expected == actual or (math.isnan(expected) and math.isnan(actual)):
        return True
    total, difference = abs(expected) + abs(actual), abs(expected - actual)
    smallest = sys.float_info.min
    if expected == 0 or actual == 0 or total < smallest:
        return difference < TOLERANCE * smallest
    return difference / min(total, sys.float_info.max) < TOLERANCE


def _check_series(command: Eval, actual: tuple[ResultSeries, ...], grid: EvaluationGrid) -> None:
    expected = {series.labels: (place, series) for place, series in enumerate(command.series)}
    wanted = {labels for labels, (_, series) in expected.items() if any(value is not None for value in series.values)}
    seen: set[Labels] = set()
    for place, series in enumerate(actual):
        if series.labels in seen:
            raise ResultMismatch(f"{format_labels(series.labels)} is in the result twice")
        seen.add(series.labels)
        if series.labels not in expected:
            raise ResultMismatch(f"unexpected {format_labels(series.labels)} {_format_points(series.points)}")
        at, wanted_series = expected[series.labels]
        if command.is_ordered and at != place:
            raise ResultMismatch(f"{format_labels(series.labels)} is at place {place}, expected at {at}")
        _check_points(wanted_series, series, grid)
    for labels in wanted - seen:
        raise ResultMismatch(f"{format_labels(labels)} is missing in the result of {len(actual)} series")


def _check_points(expected: ExpectedSeries, actual: ResultSeries, grid: EvaluationGrid) -> None:
    wanted = {
        time_ms: value for time_ms, value in zip(grid.times(), expected.values, strict=False) if value is not None
    }
    got = dict(actual.points)
    if wanted.keys() != got.keys():
        got_text = _format_points(actual.points)
        raise ResultMismatch(f"{format_labels(expected.labels)}: expected {_format_times(wanted)}, got {got_text}")
    for time_ms, value in wanted.items():
        point = got[time_ms]
        if not same_point(value, point):
            where = f"{format_labels(expected.labels)} at {time_ms} ms"
            raise ResultMismatch(f"{where}: expected {_format_point(value.content)}, got {_format_point(point)}")


def same_point(expected: ExpectedValue, actual: Point) -> bool:
    wanted = expected.content
    if isinstance(wanted, float):
        return isinstance(actual, float) and close(wanted, actual)
    if isinstance(actual, float):
        return False
    if isinstance(actual, DisplayedHistogram):
        return _same_displayed(displayed(wanted), actual)
    if expected.names_hint and wanted.reset_hint is not actual.reset_hint:
        return False
    return _same_histogram(compacted(wanted), compacted(actual))


def _same_histogram(expected: NativeHistogram, actual: NativeHistogram) -> bool:
    same_layout = (
        expected.schema == actual.schema
        and expected.zero_threshold == actual.zero_threshold
        and expected.custom_bounds == actual.custom_bounds
    )
    return (
        same_layout
        and close(expected.count, actual.count)
        and close(expected.sum, actual.sum)
        and close(expected.zero_count, actual.zero_count)
        and _same_counts(
            indexed(expected.positive_spans, expected.positive_counts),
            indexed(actual.positive_spans, actual.positive_counts),
        )
        and _same_counts(
            indexed(expected.negative_spans, expected.negative_counts),
            indexed(actual.negative_spans, actual.negative_counts),
        )
    )


def _same_counts(expected: dict[int, float], actual: dict[int, float]) -> bool:
    return expected.keys() == actual.keys() and all(close(count, actual[index]) for index, count in expected.items())


def displayed(histogram: NativeHistogram) -> DisplayedHistogram:
    """What JSON keeps of a histogram: its populated buckets with bounds."""
    return DisplayedHistogram(histogram.count, histogram.sum, tuple(bucket_rows(histogram)))


def _same_displayed(expected: DisplayedHistogram, actual: DisplayedHistogram) -> bool:
    return (
        close(expected.count, actual.count)
        and close(expected.sum, actual.sum)
        and len(expected.buckets) == len(actual.buckets)
        and all(
            kind == other[0] and all(map(close, numbers, other[1:]))
            for (kind, *numbers), other in zip(expected.buckets, actual.buckets, strict=True)
        )
    )


def format_labels(labels: Labels) -> str:
    name = dict(labels).get(METRIC_NAME, "")
    rest = ", ".join(f"{label}={quote(value)}" for label, value in labels if label != METRIC_NAME)
    return f"{name}{{{rest}}}"


def _format_point(point: Point) -> str:
    if isinstance(point, float):
        return format_number(point)
    return write_histogram(point) if isinstance(point, NativeHistogram) else str(point)


def _format_points(points: tuple[tuple[int, Point], ...]) -> str:
    return " ".join(f"{_format_point(point)}@{time_ms}" for time_ms, point in points[:12]) or "no values"


def _format_times(wanted: dict[int, ExpectedValue]) -> str:
    return (
        " ".join(f"{_format_point(value.content)}@{time_ms}" for time_ms, value in list(wanted.items())[:12]) or "none"
    )

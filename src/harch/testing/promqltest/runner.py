"""Which evaluations pass?

Runs the commands of a file against a target, also with `@` at other times and as the middle step of a range, and
reports counts per file and what failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import CUSTOM_BUCKETS_SCHEMA, BucketSpan, NativeHistogram
from harch.sentinel.model.labels import BUCKET_LABEL, METRIC_NAME, Labels, labels
from harch.sentinel.promql.syntax.nodes import (
    Aggregate,
    Binary,
    DurationExpr,
    DurationNode,
    DurationOperator,
    Expr,
    FunctionCall,
    MatrixSelector,
    NumberLiteral,
    Paren,
    StringLiteral,
    Subquery,
    Unary,
    ValueType,
    VectorSelector,
    walk,
)
from harch.sentinel.promql.syntax.parser import parse
from harch.sentinel.promql.syntax.printer import to_text
from harch.testing.promqltest.commands import (
    Clear,
    Eval,
    EvaluationGrid,
    EvaluationResult,
    ExpectedValue,
    ExpectSubject,
    Load,
    QueryFailed,
    QueryTarget,
    ResultSeries,
    ScriptError,
    SeriesSamples,
)
from harch.testing.promqltest.comparison import ResultMismatch, check_answer, matches
from harch.testing.promqltest.script import read_script

_SUFFIXES = ("_bucket", "_count", "_sum")


def with_custom_buckets(series: tuple[SeriesSamples, ...]) -> tuple[SeriesSamples, ...]:
    """A series of native histograms for every classic one among these."""
    groups: dict[Labels, dict[str | float, SeriesSamples]] = {}
    for one in series:
        found = _part(one.labels)
        if found is not None:
            base, part = found
            groups.setdefault(base, {})[part] = one
    return tuple(
        SeriesSamples(base, _histograms(parts))
        for base, parts in groups.items()
        if any(isinstance(part, float) for part in parts)
    )


def _part(series: Labels) -> tuple[Labels, str | float] | None:
    """Which histogram a series belongs to, and which part of it it is: an upper bound, `_count` or `_sum`."""
    pairs = dict(series)
    name = pairs.get(METRIC_NAME, "")
    suffix = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), None)
    if suffix is None:
        return None
    part: str | float = suffix
    if suffix == "_bucket":
        try:
            part = float(pairs.pop(BUCKET_LABEL))
        except (KeyError, ValueError):
            return None
    pairs[METRIC_NAME] = name.removesuffix(suffix)
    return labels(pairs), part


def _histograms(parts: dict[str | float, SeriesSamples]) -> tuple[ExpectedValue | None, ...]:
    length = max(len(part.values) for part in parts.values())
    return tuple(_histogram_at(parts, place) for place in range(length))


def _histogram_at(parts: dict[str | float, SeriesSamples], place: int) -> ExpectedValue | None:
    found = {name: _float_at(part, place) for name, part in parts.items()}
    cumulated = sorted((name, value) for name, value in found.items() if isinstance(name, float) and value is not None)
    if not cumulated:
        return None
    bounds = tuple(bound for bound, _ in cumulated if bound != math.inf)
    total = found.get("_count")
    if total is None:
        total = cumulated[-1][1]
    levels = [count for bound, count in cumulated if bound != math.inf] + [total]
    counts = tuple(level - before for level, before in zip(levels, [0.0, *levels], strict=False))
    histogram = NativeHistogram(
        count=total,
        sum=found.get("_sum") or 0.0,
        schema=CUSTOM_BUCKETS_SCHEMA,
        positive_spans=(BucketSpan(0, len(counts)),),
        positive_counts=counts,
        custom_bounds=bounds,
    )
    return None if any(count < 0 for count in counts) else ExpectedValue(histogram)


def _float_at(series: SeriesSamples, place: int) -> float | None:
    value = series.values[place] if place < len(series.values) else None
    return value.content if value is not None and isinstance(value.content, float) else None


# In which other ways can the same be asked? With `@` at other times, and as the middle step of a range.


_CALENDAR = {"days_in_month", "day_of_month", "day_of_week", "day_of_year", "hour", "minute", "month", "year"}
_QUERY_TIMES = {"start", "end", "step", "range"}
_TIME_DEPENDENT = _CALENDAR | _QUERY_TIMES | {"predict_linear", "time", "timestamp", "start_timestamp"}
MIDDLE_STEP_MS = 60_000


def fixed_queries(expr: Expr, time_ms: int) -> list[tuple[str, int]]:
    """The query with `@ time` at every selector that has none, and when to ask it: the answer must not change.

    A subquery takes the time for what is inside of it. Empty where a function looks at the clock itself.
    """
    if any(isinstance(node, FunctionCall) and node.function in _TIME_DEPENDENT for node in walk(expr)):
        return []
    if _needs_grid(expr) or any(isinstance(node, Subquery) and _has_edge(node.expr) for node in walk(expr)):
        return []
    text = to_text(_fixed(expr, time_ms))
    if time_ms == 0:
        return [(text, -1000), (text, 0), (text, 1000)]
    return [(text, when) for when in (-10 * time_ms, 0, int(time_ms / 5), time_ms, 10 * time_ms)]


def can_be_middle_step(expr: Expr) -> bool:
    """False where the query looks at its own grid, which is another one in a range."""
    if any(isinstance(node, FunctionCall) and node.function in _QUERY_TIMES for node in walk(expr)):
        return False
    return not _has_edge(expr) and not _needs_grid(expr)


def _has_edge(expr: Expr) -> bool:
    return any(isinstance(node, VectorSelector | Subquery) and node.at_edge is not None for node in walk(expr))


def _needs_grid(expr: Expr) -> bool:
    return any(
        _uses_grid(duration)
        for node in walk(expr)
        for duration in (
            getattr(node, "range_expr", None),
            getattr(node, "step_expr", None),
            getattr(node, "offset_expr", None),
        )
    )


def _uses_grid(duration: DurationNode | None) -> bool:
    if not isinstance(duration, DurationExpr):
        return False
    if duration.operator in (DurationOperator.STEP, DurationOperator.RANGE):
        return True
    return _uses_grid(duration.left) or _uses_grid(duration.right)


def _fixed(node: Expr, time_ms: int) -> Expr:
    match node:
        case NumberLiteral() | StringLiteral():
            return node
        case VectorSelector():
            return _at(node, time_ms)
        case MatrixSelector():
            return replace(node, selector=_at(node.selector, time_ms))
        case Subquery():
            return node if node.at_ms is not None else replace(node, at_ms=time_ms, at_edge=None)
        case Paren() | Unary():
            return replace(node, expr=_fixed(node.expr, time_ms))
        case Binary():
            return replace(node, left=_fixed(node.left, time_ms), right=_fixed(node.right, time_ms))
        case Aggregate():
            parameter = None if node.parameter is None else _fixed(node.parameter, time_ms)
            return replace(node, expr=_fixed(node.expr, time_ms), parameter=parameter)
        case FunctionCall():
            return replace(node, arguments=tuple(_fixed(argument, time_ms) for argument in node.arguments))


def _at(selector: VectorSelector, time_ms: int) -> VectorSelector:
    return selector if selector.at_ms is not None else replace(selector, at_ms=time_ms, at_edge=None)


# Which evaluations pass? Runs the commands of a file against a target and keeps what went wrong.


@dataclass(frozen=True, slots=True)
class EvaluationOutcome:
    """One evaluation. `variant` names the way of asking that failed, "" for the query as it stands."""

    line: int
    query: str
    has_histograms: bool
    failure: str = ""
    variant: str = ""

    @property
    def passed(self) -> bool:
        return not self.failure


@dataclass(slots=True)
class FileOutcome:
    name: str
    evals: list[EvaluationOutcome] = field(default_factory=list)
    broken: str = ""  # the file could not be read or loaded

    def counts(self, *, histograms: bool | None = None) -> tuple[int, int]:
        """Passed and all, of those with or without native histograms, or of both."""
        chosen = [one for one in self.evals if histograms is None or one.has_histograms is histograms]
        return sum(one.passed for one in chosen), len(chosen)


def run_file(path: Path, target: QueryTarget) -> FileOutcome:
    """A fresh target, then every command in order. A command that cannot be run breaks the file off."""
    outcome = FileOutcome(path.name)
    try:
        commands = read_script(path.read_text(encoding="utf-8"))
    except ScriptError as wrong:
        outcome.broken = str(wrong)
        return outcome
    target.clear()
    native: set[Labels] = set()  # series that hold native histograms
    for command in commands:
        if isinstance(command, Clear):
            target.clear()
            native = set()
        elif isinstance(command, Load):
            series = command.series
            if command.with_nhcb:
                series = (*series, *with_custom_buckets(series))
            native.update(one.labels for one in series if _holds_histogram(one))
            try:
                target.load(command.step_ms, series)
            except (HarchError, OSError) as failed:
                outcome.broken = f"line {command.line}: load failed: {failed}"
                return outcome
        else:
            sees = command.has_histograms or _reads_any(command.query, native)
            outcome.evals.append(run_eval(command, target, has_histograms=sees))
    return outcome


def _holds_histogram(series: SeriesSamples) -> bool:
    return any(value is not None and isinstance(value.content, NativeHistogram) for value in series.values)


def _reads_any(query: str, series: set[Labels]) -> bool:
    """Whether a selector of the query takes one of these series."""
    try:
        nodes = list(walk(parse(query)))
    except HarchError:
        return False
    known = [dict(labels) for labels in series]
    selectors = [node.matchers for node in nodes if isinstance(node, VectorSelector)]
    return any(
        all(matcher.matches(labels.get(matcher.name, "")) for matcher in matchers)
        for matchers in selectors
        for labels in known
    )


def run_eval(command: Eval, target: QueryTarget, *, has_histograms: bool = False) -> EvaluationOutcome:
    """The query as it stands first, then its variants; the first failure is kept."""
    passed = EvaluationOutcome(command.line, command.query, has_histograms)
    for variant, attempt in _attempts(command):
        try:
            attempt(target)
        except ResultMismatch as wrong:
            return replace(passed, failure=str(wrong), variant=variant)
        except QueryFailed as wrong:
            return replace(passed, failure=f"query failed: {wrong}", variant=variant)
    return passed


@dataclass(frozen=True, slots=True)
class _Attempt:
    command: Eval
    query: str
    grid: EvaluationGrid
    as_middle_step: bool = False

    def __call__(self, target: QueryTarget) -> None:
        failures = self.command.expected(ExpectSubject.FAIL)
        try:
            answer = target.query(self.query, self._grid())
        except QueryFailed as failed:
            if not failures:
                raise
            for expectation in failures:
                if not matches(expectation, str(failed)):
                    wanted = expectation.text or expectation.pattern
                    raise ResultMismatch(f"expected the failure {wanted!r}, got {str(failed)!r}") from failed
            return
        if failures:
            raise ResultMismatch(f"expected a failure, got a {answer.kind} of {len(answer.series)} series")
        is_original = self.query == self.command.query and not self.as_middle_step
        if self.as_middle_step:
            answer = _middle(answer, self.grid.start_ms, scalar=self.command.scalar is not None)
        check_answer(self.command, answer, self.grid, positions=is_original)

    def _grid(self) -> EvaluationGrid:
        if not self.as_middle_step:
            return self.grid
        return EvaluationGrid(self.grid.start_ms - MIDDLE_STEP_MS, self.grid.start_ms + MIDDLE_STEP_MS, MIDDLE_STEP_MS)


def _middle(answer: EvaluationResult, time_ms: int, *, scalar: bool) -> EvaluationResult:
    """The middle step of a range as an instant's answer; its annotations speak of other steps, too."""
    series = []
    for one in answer.series:
        points = tuple(point for point in one.points if point[0] == time_ms)
        if points:
            series.append(ResultSeries(one.labels, points))
    if scalar:
        value = series[0].points[0][1] if series else float("nan")
        return EvaluationResult("scalar", value=value if isinstance(value, float) else float("nan"))
    return EvaluationResult("vector", tuple(series))


def _attempts(command: Eval) -> Iterable[tuple[str, _Attempt]]:
    yield "", _Attempt(command, command.query, command.grid)
    if not command.grid.is_instant or command.text is not None or command.range_vector is not None:
        return
    try:
        expr = parse(command.query)
    except HarchError:
        return
    if expr.type not in (ValueType.SCALAR, ValueType.VECTOR):
        return
    bare = replace(command, expectations=tuple(command.expected(ExpectSubject.FAIL)))
    if not command.is_ordered and can_be_middle_step(expr):
        yield "as middle step of a range", _Attempt(bare, command.query, command.grid, as_middle_step=True)
    for text, when_ms in fixed_queries(expr, command.grid.start_ms):
        yield f"{text} at {when_ms} ms", _AtOther(command, text, command.grid, when_ms=when_ms)
        if not command.is_ordered and can_be_middle_step(expr):
            yield (
                f"{text} around {when_ms} ms",
                _AtOther(bare, text, command.grid, as_middle_step=True, when_ms=when_ms),
            )


@dataclass(frozen=True, slots=True)
class _AtOther(_Attempt):
    """Asked at another time than the one that is expected; the answer is moved back to be compared."""

    when_ms: int = 0

    def __call__(self, target: QueryTarget) -> None:
        moved = replace(self.command, grid=EvaluationGrid(self.when_ms, self.when_ms))
        _Attempt(moved, self.query, moved.grid, self.as_middle_step)(target)


# How did it go? Counts per file, those with native histograms apart, and what failed.


def as_json(outcomes: Sequence[FileOutcome]) -> dict[str, object]:
    """Everything, for programs: totals, files, every evaluation that failed."""
    return {
        "plain": _counts(outcomes, histograms=False),
        "native_histograms": _counts(outcomes, histograms=True),
        "all": _counts(outcomes, histograms=None),
        "files": [_file(outcome) for outcome in outcomes],
    }


def _counts(outcomes: Sequence[FileOutcome], *, histograms: bool | None) -> dict[str, float]:
    pairs = [outcome.counts(histograms=histograms) for outcome in outcomes]
    passed, total = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    return {"passed": passed, "evals": total, "percent": round(100 * passed / total, 2) if total else 100.0}


def _file(outcome: FileOutcome) -> dict[str, object]:
    failed = [
        {"line": one.line, "query": one.query, "variant": one.variant, "failure": one.failure}
        for one in outcome.evals
        if not one.passed
    ]
    return {
        "name": outcome.name,
        "broken": outcome.broken,
        "plain": _counts([outcome], histograms=False),
        "native_histograms": _counts([outcome], histograms=True),
        "failed": failed,
    }


def as_table(outcomes: Sequence[FileOutcome], *, failures: int, totals: bool = True) -> str:
    """A line a file: passed and all, without and with native histograms; below it, its first failures."""
    lines = []
    for outcome in outcomes:
        if not totals:
            lines.append(_line(outcome.name, outcome.counts(histograms=False), outcome.counts(histograms=True)))
        if outcome.broken:
            lines.append(f"    broken: {outcome.broken}")
        wrong = [one for one in outcome.evals if not one.passed]
        for one in wrong[:failures]:
            lines.append(f"    line {one.line}: {one.query}")
            if one.variant:
                lines.append(f"        variant: {one.variant}")
            lines.append(f"        {one.failure}")
        if failures and len(wrong) > failures:
            lines.append(f"    … and {len(wrong) - failures} more")
    if totals:
        plain, native = _counts(outcomes, histograms=False), _counts(outcomes, histograms=True)
        lines.append(
            f"without native histograms {plain['passed']:.0f} of {plain['evals']:.0f} ({plain['percent']} %), "
            f"with {native['passed']:.0f} of {native['evals']:.0f} ({native['percent']} %)"
        )
    return "\n".join(lines)


def _line(name: str, plain: tuple[int, int], native: tuple[int, int]) -> str:
    return f"{name:32} {plain[0]:5}/{plain[1]:<5} native {native[0]:5}/{native[1]:<5}"

"""Which evaluations pass? Runs the commands of a file against a target and keeps what went wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from harch.base.errors import HarchError
from harch.sentinel.model.histograms import Histogram
from harch.sentinel.model.labels import Labels
from harch.sentinel.promql.syntax.nodes import VectorSelector, walk
from harch.sentinel.promql.syntax.parser import parse
from harch.sentinel.promql.syntax.value_types import ValueType
from harch.testing.promqltest.classic import with_custom_buckets
from harch.testing.promqltest.commands import Clear, Eval, Grid, Load, ScriptError, SeriesSamples, Subject
from harch.testing.promqltest.comparison import Mismatch, check_answer, matches
from harch.testing.promqltest.results import Answer, QueryFailed, ResultSeries, Target
from harch.testing.promqltest.script import read_script
from harch.testing.promqltest.variants import MIDDLE_STEP_MS, can_be_middle_step, fixed_queries


@dataclass(frozen=True, slots=True)
class Outcome:
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
    evals: list[Outcome] = field(default_factory=list)
    broken: str = ""  # the file could not be read or loaded

    def counts(self, *, histograms: bool | None = None) -> tuple[int, int]:
        """Passed and all, of those with or without native histograms, or of both."""
        chosen = [one for one in self.evals if histograms is None or one.has_histograms is histograms]
        return sum(one.passed for one in chosen), len(chosen)


def run_file(path: Path, target: Target) -> FileOutcome:
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
    return any(value is not None and isinstance(value.content, Histogram) for value in series.values)


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


def run_eval(command: Eval, target: Target, *, has_histograms: bool = False) -> Outcome:
    """The query as it stands first, then its variants; the first failure is kept."""
    passed = Outcome(command.line, command.query, has_histograms)
    for variant, attempt in _attempts(command):
        try:
            attempt(target)
        except Mismatch as wrong:
            return replace(passed, failure=str(wrong), variant=variant)
        except QueryFailed as wrong:
            return replace(passed, failure=f"query failed: {wrong}", variant=variant)
    return passed


@dataclass(frozen=True, slots=True)
class _Attempt:
    command: Eval
    query: str
    grid: Grid
    as_middle_step: bool = False

    def __call__(self, target: Target) -> None:
        failures = self.command.expected(Subject.FAIL)
        try:
            answer = target.query(self.query, self._asked())
        except QueryFailed as failed:
            if not failures:
                raise
            for expectation in failures:
                if not matches(expectation, str(failed)):
                    wanted = expectation.text or expectation.pattern
                    raise Mismatch(f"expected the failure {wanted!r}, got {str(failed)!r}") from failed
            return
        if failures:
            raise Mismatch(f"expected a failure, got a {answer.kind} of {len(answer.series)} series")
        is_original = self.query == self.command.query and not self.as_middle_step
        if self.as_middle_step:
            answer = _middle(answer, self.grid.start_ms, scalar=self.command.scalar is not None)
        check_answer(self.command, answer, self.grid, positions=is_original)

    def _asked(self) -> Grid:
        if not self.as_middle_step:
            return self.grid
        return Grid(self.grid.start_ms - MIDDLE_STEP_MS, self.grid.start_ms + MIDDLE_STEP_MS, MIDDLE_STEP_MS)


def _middle(answer: Answer, time_ms: int, *, scalar: bool) -> Answer:
    """The middle step of a range as an instant's answer; its annotations speak of other steps, too."""
    series = []
    for one in answer.series:
        points = tuple(point for point in one.points if point[0] == time_ms)
        if points:
            series.append(ResultSeries(one.labels, points))
    if scalar:
        value = series[0].points[0][1] if series else float("nan")
        return Answer("scalar", value=value if isinstance(value, float) else float("nan"))
    return Answer("vector", tuple(series))


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
    bare = replace(command, expectations=tuple(command.expected(Subject.FAIL)))
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

    def __call__(self, target: Target) -> None:
        moved = replace(self.command, grid=Grid(self.when_ms, self.when_ms))
        _Attempt(moved, self.query, moved.grid, self.as_middle_step)(target)

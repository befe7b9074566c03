"""How does a rule test file run by itself? It names its rule files; samples live in memory, PromQL is our own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from harch.base.errors import HarchError
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import ScalarResult, VectorResult
from harch.sentinel.promql.memory_store import MemoryStore
from harch.sentinel.promql.syntax.parser import parse
from harch.sentinel.rules.definitions import RuleSample, Vector
from harch.sentinel.rules.loader import read_rule_files
from harch.sentinel.rules.rule_tests import parse_rule_tests, run_rule_test
from harch.sentinel.rules.yaml_positions import FILE_CHARS_MAX


class RuleTestResult(Struct, frozen=True, kw_only=True):
    """`failures`: what is not as expected, one sentence each."""

    file: str
    tests: int
    rules: int
    failures: tuple[str, ...] = ()


class MemoryEvaluator:
    """The query engine over a store in memory."""

    def __init__(self) -> None:
        self._engine, self._store = QueryEngine(), MemoryStore()

    def __call__(self, expression: str, at_ms: int) -> Vector:
        value = self._engine.instant(expression, at_ms, self._store).value
        if isinstance(value, ScalarResult):
            return [({}, value.value)]
        if not isinstance(value, VectorResult):
            raise HarchError(
                "E0640", f"`{expression[:80]}` is not an instant vector or a scalar", hint="rules and tests need one"
            )
        return [(dict(value.series.labels_of(n)), float(value.values[n])) for n in range(value.series.count)]

    def append(self, samples: Sequence[RuleSample]) -> None:
        for sample in samples:
            self._store.append(sample.labels, sample.at_ms, sample.value)


def run_rule_test_file(path: Path) -> RuleTestResult:
    """All tests of one file. Its rule files are relative to its folder, as for promtool. Raises E0640."""
    try:
        if path.stat().st_size > 4 * FILE_CHARS_MAX:
            raise HarchError("E0640", f"{path} is too large", hint="split it")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise HarchError("E0640", f"{path} cannot be read: {reason}", hint="check the path") from error
    file = parse_rule_tests(text, name=str(path))
    found = read_rule_files([str(path.parent / name) for name in file.rule_files], check_expression=parse)
    groups = file.in_order(group for one in found for group in one.groups)
    failures: list[str] = []
    for test in file.tests:
        failures += run_rule_test(test, groups, MemoryEvaluator, evaluation_interval=file.evaluation_interval)
    rules = sum(len(group.rules) for group in groups)
    return RuleTestResult(file=str(path), tests=len(file.tests), rules=rules, failures=tuple(failures))

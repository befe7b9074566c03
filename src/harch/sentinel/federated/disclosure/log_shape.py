"""Which LogQL expressions may be asked from abroad? Sums of counted lines or bytes, of streams or by their level.

A filter on the text of a line would be an oracle: "how many lines contain this name" is a question about single lines.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.sentinel.federated.disclosure.policy import TelemetryPolicy
from harch.sentinel.logql.syntax.nodes import (
    Grouping,
    LabelFilter,
    LogQuery,
    RangeAggregation,
    Stage,
    TextCondition,
    VectorAggregation,
)
from harch.sentinel.logql.syntax.parser import parse
from harch.sentinel.model.labels import Matcher
from harch.sentinel.model.logs import LEVEL

FUNCTIONS = frozenset({"count_over_time", "rate", "bytes_over_time", "bytes_rate"})


@dataclass(frozen=True, slots=True)
class CrossBorderLogQuery:
    """`levels` must all hold for the level of a line; it is in the line's metadata or a label of its stream."""

    function: str
    matchers: tuple[Matcher, ...]
    levels: tuple[Matcher, ...]
    grouping: tuple[str, ...]
    range_ns: int
    offset_ns: int

    @property
    def counts_bytes(self) -> bool:
        return self.function.startswith("bytes")

    @property
    def divisor_s(self) -> float:
        return self.range_ns / 1e9 if self.function in ("rate", "bytes_rate") else 1.0


def parse_cross_border_logs(expression: str, policy: TelemetryPolicy) -> CrossBorderLogQuery | Rejection:
    """The expression taken apart, or the rule that it breaks."""
    try:
        tree = parse(expression)
    except HarchError as error:
        return Rejection(expression, "syntax", error.message, "send a LogQL expression")
    if isinstance(tree, LogQuery):
        return _no(expression, "lines", "lines do not leave the country", "sum by (job) (count_over_time({…}[5m]))")
    inner = tree.expr if isinstance(tree, VectorAggregation) else None
    if not isinstance(tree, VectorAggregation) or tree.operator != "sum" or not isinstance(inner, RangeAggregation):
        return _no(
            expression, "aggregate", "only sums may leave the country", "sum by (job) (count_over_time({…}[5m]))"
        )
    if inner.function not in FUNCTIONS or inner.unwrap is not None or inner.grouping is not None:
        detail = f"`{inner.function}` inspects single lines"
        return _no(expression, "function", detail, f"one of {', '.join(sorted(FUNCTIONS))}")
    grouping = tree.grouping or Grouping(())
    named = [*grouping.labels, *(matcher.name for matcher in inner.query.matchers)]
    strange = [name for name in named if name not in policy.cross_border_labels]
    if grouping.without or strange:
        detail = f"`{strange[0]}` is not an allowed label" if strange else "`without` keeps unnamed labels"
        return _no(expression, "labels", detail, f"allowed labels: {', '.join(sorted(policy.cross_border_labels))}")
    levels = [_level_of(stage) for stage in inner.query.stages]
    if None in levels:
        return _no(expression, "filter", "line filters would disclose single lines", f'| {LEVEL}="error"')
    return CrossBorderLogQuery(
        inner.function,
        inner.query.matchers,
        tuple(level for level in levels if level is not None),
        grouping.labels,
        inner.range_ns,
        inner.offset_ns,
    )


def _level_of(stage: Stage) -> Matcher | None:
    if isinstance(stage, LabelFilter) and isinstance(stage.condition, TextCondition):
        matcher = stage.condition.matcher
        return matcher if matcher.name == LEVEL else None
    return None


def _no(expression: str, rule: str, detail: str, fix: str) -> Rejection:
    return Rejection(expression, rule, detail, fix)

"""What is a LogQL query made of? Selectors with pipelines, and numbers made from them.

Two trees are equal if they mean the same: positions take no part in comparisons. Durations are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from harch.sentinel.logql.syntax.stages import LabelFilter, Stage
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.promql.syntax.nodes import NOWHERE, Span, VectorMatching


@dataclass(frozen=True, slots=True)
class LogQuery:
    """`{matchers} | stages`: lines."""

    matchers: tuple[Matcher, ...]
    stages: tuple[Stage, ...] = ()
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Grouping:
    labels: tuple[str, ...]
    without: bool = False


@dataclass(frozen=True, slots=True)
class Unwrap:
    """`| unwrap label`, after which only filters on labels may stand. `conversion` is "", "duration" or "bytes"."""

    label: str
    conversion: str = ""
    filters: tuple[LabelFilter, ...] = ()


@dataclass(frozen=True, slots=True)
class RangeAggregation:
    """`function(parameter, query[range] offset …) by (…)`."""

    function: str
    query: LogQuery
    range_ns: int
    offset_ns: int = 0
    unwrap: Unwrap | None = None
    parameter: float | None = None
    grouping: Grouping | None = None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class VectorAggregation:
    """`operator by (…) (parameter, expr)`."""

    operator: str
    expr: Metric
    parameter: int | None = None
    grouping: Grouping | None = None
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class BinaryOperation:
    """`matching` is None where a side is a number."""

    operator: str
    left: Metric
    right: Metric
    matching: VectorMatching | None = None
    return_bool: bool = False
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Number:
    value: float
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class VectorOf:
    """`vector(1)`: a number as a vector of one series without labels."""

    value: float
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class LabelReplace:
    expr: Metric
    target: str
    replacement: str
    source: str
    expression: str
    span: Span = field(default=NOWHERE, compare=False)


Metric = RangeAggregation | VectorAggregation | BinaryOperation | Number | VectorOf | LabelReplace
Query = LogQuery | Metric


def children(node: Query) -> tuple[Query, ...]:
    """The expressions directly below a node, in the order of the text."""
    match node:
        case RangeAggregation(query=query):
            return (query,)
        case VectorAggregation(expr=expr) | LabelReplace(expr=expr):
            return (expr,)
        case BinaryOperation(left=left, right=right):
            return (left, right)
        case _:
            return ()


def walk(root: Query) -> Iterator[Query]:
    """Every node, parents before their children."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(children(node)))


def log_queries(root: Query) -> list[LogQuery]:
    """All selectors with their pipelines, in the order of the text."""
    return [node for node in walk(root) if isinstance(node, LogQuery)]

"""How is a question about logs cut? Numbers like those of metrics: what LogQL computes above its lines is PromQL's.

A LogQL tree becomes a PromQL tree in which each range aggregation is a *leaf*; it is cut as any other, and the parts
are written as LogQL again. A query for lines is one part: hubs of one country tell lines, others refuse.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harch.base.errors import HarchError
from harch.sentinel.federated.messages import LOOKBACK_MS, LogPart
from harch.sentinel.federated.query.plans import FederatedPlan
from harch.sentinel.federated.query.split import Cutter
from harch.sentinel.logql.syntax.nodes import (
    BinaryOperation,
    Grouping,
    LabelReplace,
    LogQuery,
    Metric,
    Number,
    Query,
    RangeAggregation,
    VectorAggregation,
    VectorOf,
)
from harch.sentinel.logql.syntax.parser import parse
from harch.sentinel.logql.syntax.printer import to_text
from harch.sentinel.model.labels import Matcher, MatchKind
from harch.sentinel.promql.evaluate.values import StepGrid
from harch.sentinel.promql.syntax.nodes import (
    Aggregate,
    Binary,
    Expr,
    FunctionCall,
    NumberLiteral,
    Paren,
    StringLiteral,
    Unary,
    VectorSelector,
)

MS = 1_000_000
_LEAF = "__leaf__"
# A leaf with groups of its own: how the groups of several hubs become one.
_JOINED_BY = {
    **dict.fromkeys(("count_over_time", "rate", "bytes_over_time", "bytes_rate", "sum_over_time"), "sum"),
    "max_over_time": "max",
    "min_over_time": "min",
}


@dataclass(frozen=True, slots=True)
class LinesPlan:
    """A query for lines: the part that every hub gets."""

    expression: str
    part: LogPart


def plan_logs(expression: str, grid: StepGrid) -> FederatedPlan:
    """The parts of a query for numbers. Raises E0694 for lines and what cannot be cut, and what `parse` raises."""
    tree = parse(expression)
    if isinstance(tree, LogQuery):
        raise HarchError("E0694", "lines are not a number", hint="query lines, or count them with count_over_time()")
    leaves: list[RangeAggregation] = []
    root = _as_promql(tree, leaves)

    def part_of(piece: Expr, at: StepGrid) -> LogPart:
        return LogPart(
            expression=to_text(_as_logql(piece, leaves)),
            start_ns=at.start_ms * MS,
            end_ns=at.end_ms * MS,
            step_ns=at.step_ms * MS,
        )

    cutter = Cutter(part_of, None)
    rest = cutter.cut(root, grid)
    return FederatedPlan(expression, grid, LOOKBACK_MS, rest, tuple(cutter.places), tuple(cutter.parts))


def plan_lines(expression: str, *, start_ns: int, end_ns: int, limit: int, newest_first: bool = True) -> LinesPlan:
    """Raises E0694 for numbers, and what `parse` raises."""
    tree = parse(expression)
    if not isinstance(tree, LogQuery):
        raise HarchError("E0694", "this query returns numbers, not lines", hint="remove the aggregation")
    part = LogPart(
        expression=to_text(tree), start_ns=start_ns, end_ns=end_ns, step_ns=0, limit=limit, newest_first=newest_first
    )
    return LinesPlan(expression, part)


def _as_promql(node: Metric, leaves: list[RangeAggregation]) -> Expr:
    match node:
        case Number(value=value):
            return NumberLiteral(value, span=node.span)
        case VectorOf(value=value):
            return FunctionCall("vector", (NumberLiteral(value),), span=node.span)
        case BinaryOperation(left=left, right=right):
            sides = (_as_promql(side, leaves) for side in (left, right))
            first, second = sides
            return Binary(node.operator, first, second, node.matching, node.return_bool, span=node.span)
        case LabelReplace():
            strings = (node.target, node.replacement, node.source, node.expression)
            return FunctionCall(
                "label_replace", (_as_promql(node.expr, leaves), *map(StringLiteral, strings)), span=node.span
            )
        case VectorAggregation():
            inner = _as_promql(node.expr, leaves)
            if node.operator in ("sort", "sort_desc"):
                return FunctionCall(node.operator, (inner,), span=node.span)
            grouping = node.grouping or Grouping(())
            parameter = None if node.parameter is None else NumberLiteral(float(node.parameter))
            return Aggregate(node.operator, inner, parameter, grouping.labels, grouping.without, span=node.span)
        case RangeAggregation():
            return _leaf(node, leaves)


def _leaf(node: RangeAggregation, leaves: list[RangeAggregation]) -> Expr:
    if node.function == "absent_over_time":
        counted = replace(node, function="count_over_time", unwrap=None, grouping=None)
        if node.unwrap is not None:
            raise _refusal(node, "absent_over_time of an unwrapped label")
        return FunctionCall("absent", (_selector(counted, leaves, node.query.matchers),), span=node.span)
    selector = _selector(node, leaves)
    if node.grouping is None:
        return selector
    operator = _JOINED_BY.get(node.function)
    if operator is None:
        raise _refusal(node, f"groups of {node.function} need the values of all hubs together")
    return Aggregate(operator, selector, None, node.grouping.labels, node.grouping.without, span=node.span)


def _selector(
    node: RangeAggregation, leaves: list[RangeAggregation], matchers: tuple[Matcher, ...] = ()
) -> VectorSelector:
    leaves.append(node)
    mark = Matcher(MatchKind.REGEX, _LEAF, str(len(leaves) - 1))
    return VectorSelector("", (*matchers, mark), span=node.span)


def _as_logql(node: Expr, leaves: Sequence[RangeAggregation]) -> Metric:
    match node:
        case NumberLiteral(value=value):
            return Number(value)
        case Paren(expr=inner):
            return _as_logql(inner, leaves)
        case VectorSelector(matchers=matchers):
            return leaves[int(matchers[-1].value)]
        case Binary(left=left, right=right):
            sides = (_as_logql(left, leaves), _as_logql(right, leaves))
            return BinaryOperation(node.operator, *sides, node.matching, node.return_bool)
        case Aggregate():
            operator = "count" if node.operator == "group" else node.operator  # only whether there is one matters
            parameter = int(node.parameter.value) if isinstance(node.parameter, NumberLiteral) else None
            grouping = Grouping(node.grouping, node.without) if node.grouping or node.without else None
            return VectorAggregation(operator, _as_logql(node.expr, leaves), parameter, grouping)
        case FunctionCall(function="label_replace", arguments=(inner, *strings)):
            target, replacement, source, pattern = (text.value for text in strings if isinstance(text, StringLiteral))
            return LabelReplace(_as_logql(inner, leaves), target, replacement, source, pattern)
        case Unary() | _:
            raise HarchError("E0694", "this log query cannot be split", hint="query a single hub")


def _refusal(node: Query, reason: str) -> HarchError:
    return HarchError("E0694", f"{reason}: `{to_text(node)[:120]}`", hint="group around it: sum by (…) (…)")

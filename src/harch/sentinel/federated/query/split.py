"""How is a query split?

Every hub gets the largest parts that it can answer alone, rewritten to read less; what joins hubs is done here.
"""

# harch: pure

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from harch.base.errors import HarchError
from harch.sentinel.federated.messages import LOOKBACK_MS, PARTS_MAX, LogPart, MetricPart
from harch.sentinel.federated.query.plans import FederatedPlan, Joining, Placeholder, place_selector
from harch.sentinel.model.labels import METRIC_NAME, Matcher
from harch.sentinel.promql.evaluate.values import StepGrid
from harch.sentinel.promql.syntax.binding import QueryTimes, bind
from harch.sentinel.promql.syntax.nodes import (
    Aggregate,
    Binary,
    Expr,
    FunctionCall,
    MatrixSelector,
    NumberLiteral,
    Paren,
    StringLiteral,
    Subquery,
    Unary,
    ValueType,
    VectorMatching,
    VectorSelector,
    unwrap,
    walk,
)
from harch.sentinel.promql.syntax.parser import parse
from harch.sentinel.promql.syntax.printer import to_text

# Which expressions may every hub evaluate alone, so that all their series together are the answer?
#
# Those in which every series of the result comes from one series of the store: selectors, functions over time,
# arithmetic with numbers. Matching between vectors, and groups, may join series of two hubs. Where every series
# carries a
# label that no two hubs share (`hub_label`), what keeps this label apart stays inside a hub, too.


# What looks at more than one series at a time, at their order, or at none of them.
_LOOKS_AROUND = frozenset(
    {"absent", "absent_over_time", "info", "scalar", "vector", "sort", "sort_desc", "sort_by_label"}
    | {"sort_by_label_desc", "histogram_quantile", "histogram_quantiles", "histogram_fraction"}
)
_BUCKETS = frozenset({"histogram_quantile", "histogram_quantiles", "histogram_fraction"})  # join series of one `le`
_WRITES_LABELS = frozenset({"label_replace", "label_join", "histogram_quantiles"})  # the second argument names it


def reads_series(node: Expr) -> bool:
    """Whether anything is read from a store. What reads nothing is evaluated where the question is asked."""
    return any(isinstance(each, VectorSelector) for each in walk(node))


def is_constant(node: Expr) -> bool:
    """A number or text that is the same at every hub at the same time."""
    return node.type in (ValueType.SCALAR, ValueType.STRING) and not reads_series(node)


def is_local(node: Expr, hub_label: str | None = None) -> bool:
    """Whether the series that hubs compute alone are, put together, those that one store of all hubs would give."""
    match node:
        case NumberLiteral() | StringLiteral():
            return False
        case VectorSelector():
            return True
        case MatrixSelector(selector=selector):
            return is_local(selector, hub_label)
        case Subquery(expr=inner) | Paren(expr=inner) | Unary(expr=inner):
            return is_local(inner, hub_label)
        case Binary():
            return _is_local_binary(node, hub_label)
        case Aggregate():
            return _is_local_aggregate(node, hub_label)
        case FunctionCall():
            return _is_local_call(node, hub_label)


def _is_local_binary(node: Binary, hub_label: str | None) -> bool:
    if is_constant(node.left):
        return is_local(node.right, hub_label)
    if is_constant(node.right):
        return is_local(node.left, hub_label)
    if hub_label is None or node.matching is None or not _matches_on(node.matching, hub_label):
        return False
    return all(is_local(side, hub_label) and not _writes(side, hub_label) for side in (node.left, node.right))


def _matches_on(matching: VectorMatching, label: str) -> bool:
    return (label in matching.labels) is matching.on


def _is_local_aggregate(node: Aggregate, hub_label: str | None) -> bool:
    if node.parameter is not None and not is_constant(node.parameter):
        return False
    if node.operator == "limit_ratio":  # chooses series by their labels alone
        return is_local(node.expr, hub_label)
    if hub_label is None or (hub_label in node.grouping) is node.without or _writes(node, hub_label):
        return False
    return is_local(node.expr, hub_label)


def _is_local_call(node: FunctionCall, hub_label: str | None) -> bool:
    if node.function in _LOOKS_AROUND:
        may_stay = hub_label is not None and node.function in _BUCKETS and not _writes(node, hub_label)
        if not may_stay:
            return False
    series = [each for each in node.arguments if not is_constant(each)]
    return len(series) == 1 and is_local(series[0], hub_label)


def _writes(node: Expr, label: str) -> bool:
    """Whether the label may no longer be the one that the hub's series carry."""
    return any(
        (
            isinstance(each, FunctionCall)
            and each.function in _WRITES_LABELS
            and each.arguments[1] == StringLiteral(label)
        )
        or (isinstance(each, Aggregate) and each.parameter == StringLiteral(label))
        for each in walk(node)
    )


# What means the same and asks for less? Sums of sums become one sum, and factors are applied where it is asked.


# outer over inner -> what both are in one
_NESTED = {("sum", "sum"): "sum", ("sum", "count"): "count", ("min", "min"): "min", ("max", "max"): "max"}
_LINEAR = frozenset({"sum", "avg"})


def settled(node: Expr, times: QueryTimes, subquery_step_ms: int) -> Expr:
    """Without what other hubs could read differently: `start()`, `end()`, `step()`, `range()`, a missing step."""
    match node:
        case NumberLiteral() | StringLiteral() | VectorSelector() | MatrixSelector():
            return node
        case Paren() | Unary():
            return replace(node, expr=settled(node.expr, times, subquery_step_ms))
        case Subquery():
            inner = settled(node.expr, times, subquery_step_ms)
            return replace(node, expr=inner, step_ms=node.step_ms or subquery_step_ms)
        case Binary():
            sides = (settled(side, times, subquery_step_ms) for side in (node.left, node.right))
            left, right = sides
            return replace(node, left=left, right=right)
        case Aggregate():
            parameter = None if node.parameter is None else settled(node.parameter, times, subquery_step_ms)
            return replace(node, expr=settled(node.expr, times, subquery_step_ms), parameter=parameter)
        case FunctionCall(function="start"):
            return Paren(NumberLiteral(times.start_ms / 1000, span=node.span))
        case FunctionCall(function="end"):
            return Paren(NumberLiteral(times.end_ms / 1000, span=node.span))
        case FunctionCall(function="step"):
            return Paren(NumberLiteral(times.step_ms / 1000, span=node.span))
        case FunctionCall(function="range"):
            return Paren(NumberLiteral((times.end_ms - times.start_ms) / 1000, span=node.span))
        case FunctionCall():
            return replace(node, arguments=tuple(settled(each, times, subquery_step_ms) for each in node.arguments))


def flattened(node: Aggregate) -> Aggregate:
    """`sum by (a) (sum by (a, b) (x))` is `sum by (a) (x)`: hubs then tell less, and of larger groups."""
    inner = unwrap(node.expr)
    while isinstance(inner, Aggregate) and (node.operator, inner.operator) in _NESTED:
        operator = _NESTED[node.operator, inner.operator]
        node = replace(_joint_grouping(node, inner), operator=operator, expr=inner.expr)
        inner = unwrap(node.expr)
    return node


def _joint_grouping(outer: Aggregate, inner: Aggregate) -> Aggregate:
    """The labels that both keep. `without` also takes the name away."""
    if outer.without and inner.without:
        return replace(outer, grouping=tuple(dict.fromkeys((*outer.grouping, *inner.grouping))))
    if outer.without:
        dropped = {*outer.grouping, METRIC_NAME}
        return replace(outer, without=False, grouping=tuple(name for name in inner.grouping if name not in dropped))
    if inner.without:
        dropped = {*inner.grouping, METRIC_NAME}
        return replace(outer, grouping=tuple(name for name in outer.grouping if name not in dropped))
    return replace(outer, grouping=tuple(name for name in outer.grouping if name in inner.grouping))


def without_factor(node: Aggregate) -> tuple[Aggregate, Binary | Unary] | None:
    """`sum(x * 8)` as `sum(x)` and the `… * 8` around it; None where there is no factor to take out.

    Only numbers: a product with zero or infinity is not that of the sum.
    """
    inner = unwrap(node.expr)
    if node.operator not in _LINEAR:
        return None
    if isinstance(inner, Unary):
        return replace(node, expr=inner.expr), inner
    if isinstance(inner, Binary) and inner.operator in ("*", "/"):
        if _is_factor(inner.right):
            return replace(node, expr=inner.left), inner
        if inner.operator == "*" and _is_factor(inner.left):
            return replace(node, expr=inner.right), inner
    return None


def with_factor(value: Expr, factor: Binary | Unary) -> Expr:
    if isinstance(factor, Unary):
        return replace(factor, expr=value)
    if _is_factor(factor.right):
        return replace(factor, left=value)
    return replace(factor, right=value)


def _is_factor(node: Expr) -> bool:
    number = unwrap(node)
    if isinstance(number, Unary):
        number = unwrap(number.expr)
    return isinstance(number, NumberLiteral) and math.isfinite(number.value) and number.value != 0


# How is a question cut? Every hub gets the largest parts that it can answer alone; what joins hubs is done here.
#
# `sum`, `count`, `group`, `min`, `max` and `count_values` are answered by hubs and merged by the same aggregation or a
# sum; `avg` is a sum and a count, `stddev` and `stdvar` are count, mean and variance. `topk`, `bottomk` and `limitk` of
# hubs hold those of all. `quantile`, and whatever matches series with each other, needs the single series. Each part
# has the times at which the rest of the expression reads it: inside of a subquery, those of the subquery.


SUBQUERY_STEP_MS = 60_000
STEPS_MAX = 11_000  # of one part

_AS_SUM = frozenset({"sum", "count"})
_ALIKE = frozenset({"min", "max", "group"})
_CHOSEN = frozenset({"topk", "bottomk", "limitk"})
_SPREADS = {"stdvar": Joining.SPREAD, "stddev": Joining.DEVIATION}


def plan(
    expression: str,
    grid: StepGrid,
    *,
    lookback_ms: int = LOOKBACK_MS,
    subquery_step_ms: int = SUBQUERY_STEP_MS,
    hub_label: str | None = None,
) -> FederatedPlan:
    """The parts of a question and what is left to do with their answers.

    `hub_label` promises that every series carries this label and no two hubs share a value of it. Raises E0694 for what
    cannot be cut, and what `parse` raises.
    """
    times = QueryTimes(grid.start_ms, grid.end_ms if grid.step_ms else grid.start_ms, grid.step_ms)
    tree = settled(bind(expression, parse(expression), times), times, subquery_step_ms)
    if tree.type is ValueType.MATRIX:
        raise _refusal(tree, "a range selector returns single samples", "wrap the range in a function such as rate()")

    def part_of(piece: Expr, at: StepGrid) -> MetricPart:
        return MetricPart(
            expression=to_text(piece),
            start_ms=at.start_ms,
            end_ms=at.end_ms,
            step_ms=at.step_ms,
            lookback_ms=lookback_ms,
        )

    cutter = Cutter(part_of, hub_label)
    rest = cutter.cut(tree, grid)
    return FederatedPlan(expression, grid, lookback_ms, rest, tuple(cutter.places), tuple(cutter.parts))


class Cutter:
    """Collects parts and places while it walks down the tree. `part_of` writes an expression for other hubs."""

    def __init__(self, part_of: Callable[[Expr, StepGrid], MetricPart | LogPart], hub_label: str | None) -> None:
        self._part_of, self._hub_label = part_of, hub_label
        self.places: list[Placeholder] = []
        self.parts: list[MetricPart | LogPart] = []

    def cut(self, node: Expr, grid: StepGrid) -> Expr:
        """The node with every largest part replaced by a place."""
        if not reads_series(node):
            return node
        if node.type is not ValueType.MATRIX and is_local(node, self._hub_label):
            return self._place(Joining.SERIES, grid, node)
        match node:
            case Paren(expr=inner) | Unary(expr=inner):
                return replace(node, expr=self.cut(inner, grid))
            case Binary(left=left, right=right):
                return replace(node, left=self.cut(left, grid), right=self.cut(right, grid))
            case Subquery(expr=inner):
                return replace(node, expr=self.cut(inner, inner_grid(node, grid)))
            case Aggregate():
                return self._aggregate(flattened(node), grid)
            case FunctionCall():
                return self._call(node, grid)
        raise _refusal(node, "this would transfer single samples of a range", "aggregate before comparing")

    def _aggregate(self, node: Aggregate, grid: StepGrid) -> Expr:
        outside = without_factor(node)
        if outside is not None:
            return Paren(with_factor(self._aggregate(flattened(outside[0]), grid), outside[1]), span=node.span)
        settled_parameter = node.parameter is None or is_constant(node.parameter)
        if not (settled_parameter and is_local(node.expr, self._hub_label)):
            parameter = None if node.parameter is None else self.cut(node.parameter, grid)
            return replace(node, parameter=parameter, expr=self.cut(node.expr, grid))
        operator = node.operator
        keeps_name = METRIC_NAME in node.grouping and not node.without
        if operator in _AS_SUM:
            return self._summed(node, grid)
        if operator in _ALIKE:
            return replace(node, expr=self._place(Joining.ROWS, grid, node))
        if operator in _CHOSEN:
            return replace(node, expr=self._place(Joining.SERIES, grid, node))
        if operator == "count_values":
            return self._counted_values(node, grid)
        if operator in _SPREADS:
            pieces = (replace(node, operator=each) for each in ("count", "avg", "stdvar"))
            return Unary("+", self._place(_SPREADS[operator], grid, *pieces), span=node.span)
        if operator == "avg" and not keeps_name:  # a division would lose the name
            total, count = (self._summed(replace(node, operator=each), grid) for each in ("sum", "count"))
            return Paren(Binary("/", total, count, VectorMatching(), span=node.span), span=node.span)
        return replace(node, expr=self._place(Joining.SERIES, grid, node.expr))

    def _summed(self, node: Aggregate, grid: StepGrid) -> Aggregate:
        return replace(node, operator="sum", parameter=None, expr=self._place(Joining.ROWS, grid, node))

    def _counted_values(self, node: Aggregate, grid: StepGrid) -> Expr:
        label = unwrap(node.parameter) if node.parameter is not None else None
        if node.without or not isinstance(label, StringLiteral):
            return self._summed(node, grid)
        return replace(self._summed(node, grid), grouping=(*node.grouping, label.value))

    def _call(self, node: FunctionCall, grid: StepGrid) -> Expr:
        if node.function == "info":
            raise _refusal(node, "`info` reads labels of other series in the same store", "query a single hub")
        if node.function in ("absent", "absent_over_time"):
            return self._absence(node, grid)
        return replace(node, arguments=tuple(self.cut(each, grid) for each in node.arguments))

    def _absence(self, node: FunctionCall, grid: StepGrid) -> Expr:
        """Is there nothing anywhere? Hubs say whether there is something; the labels are those of the selector."""
        argument = unwrap(node.arguments[0])
        if not is_local(argument, self._hub_label):
            return replace(node, arguments=(self.cut(argument, grid),))
        found: Expr = argument
        if argument.type is ValueType.MATRIX:
            found = FunctionCall("present_over_time", (argument,), span=node.span)
        selector = argument.selector if isinstance(argument, MatrixSelector) else argument
        matchers = selector.matchers if isinstance(selector, VectorSelector) else ()
        place = self._place(Joining.ROWS, grid, Aggregate("group", found), matchers=matchers)
        return replace(node, function="absent", arguments=(place,))

    def _place(self, joining: Joining, grid: StepGrid, *pieces: Expr, matchers: tuple[Matcher, ...] = ()) -> Expr:
        """A place that is filled from these expressions. On an empty grid nothing is asked."""
        numbers = tuple(self._part(piece, grid) for piece in pieces) if grid.count else ()
        self.places.append(Placeholder(joining, numbers, grid))
        return replace(place_selector(len(self.places) - 1, matchers), span=pieces[0].span)

    def _part(self, piece: Expr, grid: StepGrid) -> int:
        if grid.count > STEPS_MAX:
            raise _refusal(piece, f"{grid.count} steps are needed, {STEPS_MAX} allowed", "widen the step")
        part = self._part_of(piece, grid)
        if part not in self.parts:
            if len(self.parts) >= PARTS_MAX:
                raise _refusal(piece, f"the query has more than {PARTS_MAX} parts", "reduce the query")
            self.parts.append(part)
        return self.parts.index(part)


def inner_grid(node: Subquery, grid: StepGrid) -> StepGrid:
    """The times at which the expression of a subquery is evaluated: multiples of its step, over all of its ranges."""
    first_end_ms, last_end_ms = (grid.start_ms, grid.end_ms) if node.at_ms is None else (node.at_ms, node.at_ms)
    after_ms, until_ms = first_end_ms - node.offset_ms - node.range_ms, last_end_ms - node.offset_ms
    step_ms = node.step_ms
    first_ms = -(-after_ms // step_ms) * step_ms if after_ms < 0 else after_ms // step_ms * step_ms
    return StepGrid.between(first_ms + step_ms if first_ms <= after_ms else first_ms, until_ms, step_ms)


def _refusal(node: Expr, reason: str, hint: str) -> HarchError:
    excerpt = to_text(node)
    return HarchError("E0694", f"{reason}: `{excerpt[:120]}{'…' if len(excerpt) > 120 else ''}`", hint=hint)

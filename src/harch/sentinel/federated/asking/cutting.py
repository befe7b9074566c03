"""How is a question cut? Every hub gets the largest parts that it can answer alone; what joins hubs is done here.

`sum`, `count`, `group`, `min`, `max` and `count_values` are told by hubs and joined by the same aggregation or a sum;
`avg` is a sum and a count, `stddev` and `stdvar` are count, mean and variance. `topk`, `bottomk` and `limitk` of hubs
hold those of all. `quantile`, and whatever matches series with each other, needs the single series. Each part has the
times at which the rest of the expression reads it: inside of a subquery, those of the subquery.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harch.base.errors import HarchError
from harch.sentinel.federated.asking.distribution import is_constant, is_local, reads_series
from harch.sentinel.federated.asking.plans import FederatedPlan, Joining, Place, place_selector
from harch.sentinel.federated.asking.rewriting import flattened, settled, with_factor, without_factor
from harch.sentinel.federated.messages import LOOKBACK_MS, PARTS_MAX, LogPart, MetricPart
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.promql.evaluate.grid import Grid
from harch.sentinel.promql.syntax.binding import QueryTimes, bind
from harch.sentinel.promql.syntax.nodes import (
    Aggregate,
    Binary,
    Call,
    Expr,
    MatrixSelector,
    Paren,
    StringLiteral,
    Subquery,
    Unary,
    VectorMatching,
    VectorSelector,
    unwrap,
)
from harch.sentinel.promql.syntax.parser import parse
from harch.sentinel.promql.syntax.printer import to_text
from harch.sentinel.promql.syntax.value_types import ValueType

SUBQUERY_STEP_MS = 60_000
STEPS_MAX = 11_000  # of one part

_AS_SUM = frozenset({"sum", "count"})
_ALIKE = frozenset({"min", "max", "group"})
_CHOSEN = frozenset({"topk", "bottomk", "limitk"})
_SPREADS = {"stdvar": Joining.SPREAD, "stddev": Joining.DEVIATION}


def plan(
    expression: str,
    grid: Grid,
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
        raise _refusal(tree, "samples of a range are single samples", "put the range into a function such as rate()")

    def part_of(piece: Expr, at: Grid) -> MetricPart:
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

    def __init__(self, part_of: Callable[[Expr, Grid], MetricPart | LogPart], hub_label: str | None) -> None:
        self._part_of, self._hub_label = part_of, hub_label
        self.places: list[Place] = []
        self.parts: list[MetricPart | LogPart] = []

    def cut(self, node: Expr, grid: Grid) -> Expr:
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
            case Call():
                return self._call(node, grid)
        raise _refusal(node, "single samples of a range would have to move", "aggregate before you compare")

    def _aggregate(self, node: Aggregate, grid: Grid) -> Expr:
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

    def _summed(self, node: Aggregate, grid: Grid) -> Aggregate:
        return replace(node, operator="sum", parameter=None, expr=self._place(Joining.ROWS, grid, node))

    def _counted_values(self, node: Aggregate, grid: Grid) -> Expr:
        label = unwrap(node.parameter) if node.parameter is not None else None
        if node.without or not isinstance(label, StringLiteral):
            return self._summed(node, grid)
        return replace(self._summed(node, grid), grouping=(*node.grouping, label.value))

    def _call(self, node: Call, grid: Grid) -> Expr:
        if node.function == "info":
            raise _refusal(node, "`info` looks for labels in other series of the same store", "ask one hub alone")
        if node.function in ("absent", "absent_over_time"):
            return self._absence(node, grid)
        return replace(node, arguments=tuple(self.cut(each, grid) for each in node.arguments))

    def _absence(self, node: Call, grid: Grid) -> Expr:
        """Is there nothing anywhere? Hubs say whether there is something; the labels are those of the selector."""
        argument = unwrap(node.arguments[0])
        if not is_local(argument, self._hub_label):
            return replace(node, arguments=(self.cut(argument, grid),))
        found: Expr = argument
        if argument.type is ValueType.MATRIX:
            found = Call("present_over_time", (argument,), span=node.span)
        selector = argument.selector if isinstance(argument, MatrixSelector) else argument
        matchers = selector.matchers if isinstance(selector, VectorSelector) else ()
        place = self._place(Joining.ROWS, grid, Aggregate("group", found), matchers=matchers)
        return replace(node, function="absent", arguments=(place,))

    def _place(self, joining: Joining, grid: Grid, *pieces: Expr, matchers: tuple[Matcher, ...] = ()) -> Expr:
        """A place that is filled from these expressions. On an empty grid nothing is asked."""
        numbers = tuple(self._part(piece, grid) for piece in pieces) if grid.count else ()
        self.places.append(Place(joining, numbers, grid))
        return replace(place_selector(len(self.places) - 1, matchers), span=pieces[0].span)

    def _part(self, piece: Expr, grid: Grid) -> int:
        if grid.count > STEPS_MAX:
            raise _refusal(piece, f"{grid.count} steps are needed, {STEPS_MAX} allowed", "widen the step")
        part = self._part_of(piece, grid)
        if part not in self.parts:
            if len(self.parts) >= PARTS_MAX:
                raise _refusal(piece, f"the question has more than {PARTS_MAX} parts", "ask for less at once")
            self.parts.append(part)
        return self.parts.index(part)


def inner_grid(node: Subquery, grid: Grid) -> Grid:
    """The times at which the expression of a subquery is evaluated: multiples of its step, over all of its ranges."""
    first_end_ms, last_end_ms = (grid.start_ms, grid.end_ms) if node.at_ms is None else (node.at_ms, node.at_ms)
    after_ms, until_ms = first_end_ms - node.offset_ms - node.range_ms, last_end_ms - node.offset_ms
    step_ms = node.step_ms
    first_ms = -(-after_ms // step_ms) * step_ms if after_ms < 0 else after_ms // step_ms * step_ms
    return Grid.between(first_ms + step_ms if first_ms <= after_ms else first_ms, until_ms, step_ms)


def _refusal(node: Expr, reason: str, hint: str) -> HarchError:
    shown = to_text(node)
    return HarchError("E0694", f"{reason}: `{shown[:120]}{'…' if len(shown) > 120 else ''}`", hint=hint)

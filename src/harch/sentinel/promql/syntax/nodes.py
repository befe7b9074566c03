"""What is a query made of? The nodes of its tree; every node knows where in the text it stands.

Two trees are equal if they mean the same: positions take no part in comparisons. Times are milliseconds since 1970,
durations milliseconds. A duration that is an expression (`[2 * 5m]`, `offset step()`) stands in a field `..._expr`
beside the number; `bind` (see `binding`) replaces all of them by numbers, so the evaluator reads numbers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from harch.sentinel.model.matchers import Matcher
from harch.sentinel.promql.syntax.functions import SIGNATURES, Signature
from harch.sentinel.promql.syntax.value_types import ValueType

ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "^", "atan2"})
COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">="})
SET_OPERATORS = frozenset({"and", "or", "unless"})
TRIMS = frozenset({"</", ">/"})

AGGREGATIONS = frozenset(
    {"avg", "bottomk", "count", "count_values", "group", "limit_ratio", "limitk", "max", "min", "quantile", "stddev"}
    | {"stdvar", "sum", "topk"}
)
AGGREGATIONS_WITH_PARAMETER = frozenset({"bottomk", "count_values", "limit_ratio", "limitk", "quantile", "topk"})


@dataclass(frozen=True, slots=True)
class Span:
    """Where in the query a node stands: offsets of bytes in its UTF-8 form, the end not included."""

    start: int
    end: int


NOWHERE = Span(0, 0)


class Edge(Enum):
    """`@ start()` and `@ end()`: the first and last step of the whole query."""

    START = "start"
    END = "end"


class RangeMode(Enum):
    """How the ends of a range are treated: as they are, or `anchored` or `smoothed` (extended range selectors)."""

    PLAIN = ""
    ANCHORED = "anchored"
    SMOOTHED = "smoothed"


class Cardinality(Enum):
    """How many series of each side one match may join."""

    ONE_TO_ONE = "one-to-one"
    MANY_TO_ONE = "many-to-one"  # group_left
    ONE_TO_MANY = "one-to-many"  # group_right
    MANY_TO_MANY = "many-to-many"  # and, or, unless


@dataclass(frozen=True, slots=True)
class VectorMatching:
    """Which series of two vectors belong together, and what stands in for one that is missing."""

    cardinality: Cardinality = Cardinality.ONE_TO_ONE
    labels: tuple[str, ...] = ()
    on: bool = False  # True: match on `labels` only; False: on all but them
    include: tuple[str, ...] = ()
    fill_left: float | None = None
    fill_right: float | None = None


@dataclass(frozen=True, slots=True)
class NumberLiteral:
    """A number; `is_duration` remembers that it was written as one (`5m` is 300)."""

    value: float
    is_duration: bool = field(default=False, compare=False)
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> ValueType:
        return ValueType.SCALAR


@dataclass(frozen=True, slots=True)
class StringLiteral:
    value: str
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> ValueType:
        return ValueType.STRING


class DurationOperator(Enum):
    """What a duration expression does. `step()` and `range()` ask the query for its step and its length."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"
    MODULO = "%"
    POWER = "^"
    MINIMUM = "min_of"
    MAXIMUM = "max_of"
    STEP = "step"
    RANGE = "range"


@dataclass(frozen=True, slots=True)
class DurationExpr:
    """Arithmetic on durations, in seconds. A sign has no left side; `step()` and `range()` have no sides."""

    operator: DurationOperator
    left: DurationNode | None = None
    right: DurationNode | None = None
    is_wrapped: bool = False  # stood in parentheses
    span: Span = field(default=NOWHERE, compare=False)


DurationNode = NumberLiteral | DurationExpr


@dataclass(frozen=True, slots=True)
class VectorSelector:
    """`name{matchers} offset … @ …`. The matchers include the one for the name."""

    name: str
    matchers: tuple[Matcher, ...]
    offset_ms: int = 0
    offset_expr: DurationExpr | None = None
    at_ms: int | None = None
    at_edge: Edge | None = None
    range_mode: RangeMode = RangeMode.PLAIN
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> ValueType:
        return ValueType.VECTOR


@dataclass(frozen=True, slots=True)
class MatrixSelector:
    """`selector[range]`. Offset, `@` and the range's mode stand in the selector."""

    selector: VectorSelector
    range_ms: int
    range_expr: DurationExpr | None = None
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> ValueType:
        return ValueType.MATRIX


@dataclass(frozen=True, slots=True)
class Subquery:
    """`expr[range:step]`; a step of 0 means the server's default."""

    expr: Expr
    range_ms: int
    range_expr: DurationExpr | None = None
    step_ms: int = 0
    step_expr: DurationExpr | None = None
    offset_ms: int = 0
    offset_expr: DurationExpr | None = None
    at_ms: int | None = None
    at_edge: Edge | None = None
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> ValueType:
        return ValueType.MATRIX


@dataclass(frozen=True, slots=True)
class Paren:
    expr: Expr
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> ValueType:
        return self.expr.type


@dataclass(frozen=True, slots=True)
class Unary:
    """`-expr` or `+expr`, of a scalar or an instant vector."""

    operator: str
    expr: Expr
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> ValueType:
        return self.expr.type


@dataclass(frozen=True, slots=True)
class Binary:
    """`left operator right`; `matching` is there if both sides are vectors."""

    operator: str
    left: Expr
    right: Expr
    matching: VectorMatching | None = None
    return_bool: bool = False
    span: Span = field(default=NOWHERE, compare=False)
    operator_span: Span = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> ValueType:
        scalars = self.left.type is ValueType.SCALAR and self.right.type is ValueType.SCALAR
        return ValueType.SCALAR if scalars else ValueType.VECTOR


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`operator by|without (grouping) (parameter, expr)`."""

    operator: str
    expr: Expr
    parameter: Expr | None = None
    grouping: tuple[str, ...] = ()
    without: bool = False
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> ValueType:
        return ValueType.VECTOR


@dataclass(frozen=True, slots=True)
class Call:
    """`function(arguments)`; the function is one of `functions.SIGNATURES`."""

    function: str
    arguments: tuple[Expr, ...] = ()
    span: Span = field(default=NOWHERE, compare=False)

    @property
    def signature(self) -> Signature:
        return SIGNATURES[self.function]

    @property
    def type(self) -> ValueType:
        return self.signature.returns


Expr = (
    NumberLiteral
    | StringLiteral
    | VectorSelector
    | MatrixSelector
    | Subquery
    | Paren
    | Unary
    | Binary
    | Aggregate
    | Call
)


def children(node: Expr) -> tuple[Expr, ...]:
    """The expressions directly below a node, in the order of the text."""
    match node:
        case NumberLiteral() | StringLiteral() | VectorSelector():
            return ()
        case MatrixSelector(selector=selector):
            return (selector,)
        case Subquery(expr=expr) | Paren(expr=expr) | Unary(expr=expr):
            return (expr,)
        case Binary(left=left, right=right):
            return (left, right)
        case Aggregate(expr=expr, parameter=parameter):
            return (expr,) if parameter is None else (parameter, expr)
        case Call(arguments=arguments):
            return arguments


def walk(root: Expr) -> Iterator[Expr]:
    """Every node, parents before their children; deep trees need no deep stack."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(children(node)))


def unwrap(expr: Expr) -> Expr:
    """The expression inside of any number of parentheses."""
    while isinstance(expr, Paren):
        expr = expr.expr
    return expr

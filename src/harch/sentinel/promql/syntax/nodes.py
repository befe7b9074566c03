"""What is a query made of?

The nodes of its tree, each with its place in the text and its type, and the functions that there are.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from harch.sentinel.model.labels import Matcher


class ValueType(Enum):
    SCALAR = "scalar"
    VECTOR = "vector"
    MATRIX = "matrix"
    STRING = "string"

    @property
    def words(self) -> str:
        """The name in messages: what the HTTP API calls a vector is an instant vector to people."""
        return {"vector": "instant vector", "matrix": "range vector"}.get(self.value, self.value)


# Which functions are there, what do they take and what do they give?


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's parameters. `optional`: how many may be left out at the end; -1: the last may be repeated."""

    name: str
    parameters: tuple[ValueType, ...]
    returns: ValueType
    optional: int = 0
    experimental: bool = False

    @property
    def arguments_min(self) -> int:
        return len(self.parameters) - abs(self.optional)

    @property
    def arguments_max(self) -> int | None:
        """None: any number, as for label_join."""
        return None if self.optional < 0 else len(self.parameters)

    def parameter(self, index: int) -> ValueType:
        return self.parameters[min(index, len(self.parameters) - 1)]


_SCALAR, _VECTOR, _MATRIX, _STRING = ValueType.SCALAR, ValueType.VECTOR, ValueType.MATRIX, ValueType.STRING
_LETTERS = {"s": _SCALAR, "v": _VECTOR, "m": _MATRIX, "t": _STRING}

# name(parameters) -> returns, in letters: s scalar, v instant vector, m range vector, t string.
# `?` closes parameters of which the last, `??` of which the last two may be left out; `*`: the last may be repeated
# any number of times or left out; `!` marks experimental ones.
_TABLE = """
abs(v)v absent(v)v absent_over_time(m)v acos(v)v acosh(v)v asin(v)v asinh(v)v atan(v)v atanh(v)v avg_over_time(m)v
ceil(v)v changes(m)v clamp(vss)v clamp_max(vs)v clamp_min(vs)v cos(v)v cosh(v)v count_over_time(m)v
day_of_month(v?)v day_of_week(v?)v day_of_year(v?)v days_in_month(v?)v deg(v)v delta(m)v deriv(m)v
double_exponential_smoothing(mss)v! exp(v)v first_over_time(m)v! floor(v)v
histogram_avg(v)v histogram_count(v)v histogram_fraction(ssv)v histogram_quantile(sv)v histogram_quantiles(vts*)v!
histogram_stddev(v)v histogram_stdvar(v)v histogram_sum(v)v hour(v?)v
idelta(m)v increase(m)v info(vv?)v! irate(m)v label_join(vttt*)v label_replace(vtttt)v last_over_time(m)v
ln(v)v log10(v)v log2(v)v mad_over_time(m)v! max_over_time(m)v min_over_time(m)v minute(v?)v month(v?)v
pi()s predict_linear(ms)v present_over_time(m)v quantile_over_time(sm)v rad(v)v rate(m)v resets(m)v round(vs?)v
scalar(v)s sgn(v)v sin(v)v sinh(v)v sort(v)v sort_by_label(vt*)v! sort_by_label_desc(vt*)v! sort_desc(v)v sqrt(v)v
start_timestamp(v)v! stddev_over_time(m)v stdvar_over_time(m)v sum_over_time(m)v tan(v)v tanh(v)v time()s timestamp(v)v
ts_of_first_over_time(m)v! ts_of_last_over_time(m)v! ts_of_max_over_time(m)v! ts_of_min_over_time(m)v! vector(s)v
year(v?)v max_of(ss)s! min_of(ss)s! start()s! end()s! range()s! step()s!
"""


def _signature(entry: str) -> Signature:
    name, rest = entry.split("(")
    inside, result = rest.split(")")
    letters = inside.rstrip("?*")
    return Signature(
        name=name,
        parameters=tuple(_LETTERS[letter] for letter in letters),
        returns=_LETTERS[result[0]],
        optional=-1 if inside.endswith("*") else inside.count("?"),
        experimental=result.endswith("!"),
    )


SIGNATURES = {signature.name: signature for signature in map(_signature, _TABLE.split())}


# What is a query made of? The nodes of its tree; every node knows where in the text it stands.
#
# Two trees are equal if they mean the same: positions take no part in comparisons. Times are milliseconds since 1970,
# durations milliseconds. A duration that is an expression (`[2 * 5m]`, `offset step()`) stands in a field `..._expr`
# beside the number; `bind` (see `binding`) replaces all of them by numbers, so the evaluator reads numbers only.


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
class TextSpan:
    """Where in the query a node stands: offsets of bytes in its UTF-8 form, the end not included."""

    start: int
    end: int


NOWHERE = TextSpan(0, 0)


class StartOrEnd(Enum):
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
    span: TextSpan = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> ValueType:
        return ValueType.SCALAR


@dataclass(frozen=True, slots=True)
class StringLiteral:
    value: str
    span: TextSpan = field(default=NOWHERE, compare=False)

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
    span: TextSpan = field(default=NOWHERE, compare=False)


DurationNode = NumberLiteral | DurationExpr


@dataclass(frozen=True, slots=True)
class VectorSelector:
    """`name{matchers} offset … @ …`. The matchers include the one for the name."""

    name: str
    matchers: tuple[Matcher, ...]
    offset_ms: int = 0
    offset_expr: DurationExpr | None = None
    at_ms: int | None = None
    at_edge: StartOrEnd | None = None
    range_mode: RangeMode = RangeMode.PLAIN
    span: TextSpan = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> ValueType:
        return ValueType.VECTOR


@dataclass(frozen=True, slots=True)
class MatrixSelector:
    """`selector[range]`. Offset, `@` and the range's mode stand in the selector."""

    selector: VectorSelector
    range_ms: int
    range_expr: DurationExpr | None = None
    span: TextSpan = field(default=NOWHERE, compare=False)

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
    at_edge: StartOrEnd | None = None
    span: TextSpan = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> ValueType:
        return ValueType.MATRIX


@dataclass(frozen=True, slots=True)
class Paren:
    expr: Expr
    span: TextSpan = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> ValueType:
        return self.expr.type


@dataclass(frozen=True, slots=True)
class Unary:
    """`-expr` or `+expr`, of a scalar or an instant vector."""

    operator: str
    expr: Expr
    span: TextSpan = field(default=NOWHERE, compare=False)

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
    span: TextSpan = field(default=NOWHERE, compare=False)
    operator_span: TextSpan = field(default=NOWHERE, compare=False)

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
    span: TextSpan = field(default=NOWHERE, compare=False)

    @property
    def type(self) -> ValueType:
        return ValueType.VECTOR


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """`function(arguments)`; the function is one of `functions.SIGNATURES`."""

    function: str
    arguments: tuple[Expr, ...] = ()
    span: TextSpan = field(default=NOWHERE, compare=False)

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
    | FunctionCall
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
        case FunctionCall(arguments=arguments):
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

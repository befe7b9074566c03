"""What is a LogQL query made of?

Selectors with the stages of their pipelines, and aggregations over ranges of lines.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from harch.sentinel.model.labels import Matcher
from harch.sentinel.promql.syntax.nodes import NOWHERE, TextSpan, VectorMatching


class LineOperator(Enum):
    CONTAINS = "|="
    LACKS = "!="
    MATCHES = "|~"
    MATCHES_NOT = "!~"
    FITS = "|>"  # a pattern with `<_>` for any text
    FITS_NOT = "!>"

    @property
    def is_negative(self) -> bool:
        return self.value[0] == "!"


@dataclass(frozen=True, slots=True)
class LineText:
    """What a line is looked through for: a text, or addresses if `is_ip`."""

    text: str
    is_ip: bool = False


@dataclass(frozen=True, slots=True)
class LineFilterStage:
    """`|= "a" or "b"`: lines with any of them; `!= "a" or "b"`: lines with none."""

    operator: LineOperator
    strings: tuple[LineText, ...]
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Extraction:
    """`label="expression"` of json and logfmt; `label` alone names the field of that name."""

    label: str
    expression: str


@dataclass(frozen=True, slots=True)
class Json:
    extractions: tuple[Extraction, ...] = ()
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Logfmt:
    extractions: tuple[Extraction, ...] = ()
    strict: bool = False  # a mistake ends the line instead of being passed over
    keep_empty: bool = False  # keys without a value make labels, too
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class PatternParser:
    text: str
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Regexp:
    expression: str
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Unpack:
    span: TextSpan = field(default=NOWHERE, compare=False)


class Unit(Enum):
    """What a label's value is compared as."""

    NUMBER = "number"
    DURATION = "duration"  # nanoseconds
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class TextCondition:
    """`label="value"`, or with a regular expression."""

    matcher: Matcher


@dataclass(frozen=True, slots=True)
class AmountCondition:
    """`label >= 20`, `label > 10ms`, `label < 5KB`."""

    label: str
    operator: str
    amount: float
    unit: Unit


@dataclass(frozen=True, slots=True)
class AddressCondition:
    """`label = ip("10.0.0.0/8")`."""

    label: str
    is_negative: bool
    pattern: str


@dataclass(frozen=True, slots=True)
class Both:
    left: Condition
    right: Condition


@dataclass(frozen=True, slots=True)
class Either:
    left: Condition
    right: Condition


Condition = TextCondition | AmountCondition | AddressCondition | Both | Either


@dataclass(frozen=True, slots=True)
class LabelFilter:
    condition: Condition
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class LineFormat:
    template: str
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class LabelAssignment:
    """`label=other` renames, `label="template"` writes."""

    label: str
    value: str
    is_template: bool


@dataclass(frozen=True, slots=True)
class LabelFormat:
    assignments: tuple[LabelAssignment, ...]
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Decolorize:
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class DropLabels:
    """Labels that go: by name, or only where their value matches."""

    labels: tuple[str | Matcher, ...]
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class KeepLabels:
    labels: tuple[str | Matcher, ...]
    span: TextSpan = field(default=NOWHERE, compare=False)


Stage = (
    LineFilterStage
    | Json
    | Logfmt
    | PatternParser
    | Regexp
    | Unpack
    | LabelFilter
    | LineFormat
    | LabelFormat
    | Decolorize
    | DropLabels
    | KeepLabels
)


# What is a LogQL query made of? Selectors with pipelines, and numbers made from them.
#
# Two trees are equal if they mean the same: positions take no part in comparisons. Durations are nanoseconds.


@dataclass(frozen=True, slots=True)
class LogQuery:
    """`{matchers} | stages`: lines."""

    matchers: tuple[Matcher, ...]
    stages: tuple[Stage, ...] = ()
    span: TextSpan = field(default=NOWHERE, compare=False)


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
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class VectorAggregation:
    """`operator by (…) (parameter, expr)`."""

    operator: str
    expr: Metric
    parameter: int | None = None
    grouping: Grouping | None = None
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class BinaryOperation:
    """`matching` is None where a side is a number."""

    operator: str
    left: Metric
    right: Metric
    matching: VectorMatching | None = None
    return_bool: bool = False
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Number:
    value: float
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class VectorOf:
    """`vector(1)`: a number as a vector of one series without labels."""

    value: float
    span: TextSpan = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class LabelReplace:
    expr: Metric
    target: str
    replacement: str
    source: str
    expression: str
    span: TextSpan = field(default=NOWHERE, compare=False)


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

"""What may stand between the bars? The stages of a pipeline, as a query writes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from harch.sentinel.model.matchers import Matcher
from harch.sentinel.promql.syntax.nodes import NOWHERE, Span


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
class LineFilter:
    """`|= "a" or "b"`: lines with any of them; `!= "a" or "b"`: lines with none."""

    operator: LineOperator
    texts: tuple[LineText, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Extraction:
    """`label="expression"` of json and logfmt; `label` alone names the field of that name."""

    label: str
    expression: str


@dataclass(frozen=True, slots=True)
class Json:
    extractions: tuple[Extraction, ...] = ()
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Logfmt:
    extractions: tuple[Extraction, ...] = ()
    strict: bool = False  # a mistake ends the line instead of being passed over
    keep_empty: bool = False  # keys without a value make labels, too
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Pattern:
    text: str
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Regexp:
    expression: str
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Unpack:
    span: Span = field(default=NOWHERE, compare=False)


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
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class LineFormat:
    template: str
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Assignment:
    """`label=other` renames, `label="template"` writes."""

    label: str
    value: str
    is_template: bool


@dataclass(frozen=True, slots=True)
class LabelFormat:
    assignments: tuple[Assignment, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Decolorize:
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Drop:
    """Labels that go: by name, or only where their value matches."""

    labels: tuple[str | Matcher, ...]
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Keep:
    labels: tuple[str | Matcher, ...]
    span: Span = field(default=NOWHERE, compare=False)


Stage = (
    LineFilter
    | Json
    | Logfmt
    | Pattern
    | Regexp
    | Unpack
    | LabelFilter
    | LineFormat
    | LabelFormat
    | Decolorize
    | Drop
    | Keep
)

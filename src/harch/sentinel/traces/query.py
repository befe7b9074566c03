"""What is a query for traces?

Conditions on spans and on whole traces, the fields that may stand in them, and its normal form as text.
"""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from harch.base.errors import HarchError
from harch.sentinel.model.labels import whole_text_pattern
from harch.sentinel.model.spans import (
    AttributeValue,
    Comparison,
    SpanCondition,
    SpanField,
    SpanKind,
    SpanQuery,
    SpanStatus,
    TraceSummary,
)
from harch.sentinel.promql.syntax.literals import quote
from harch.sentinel.traces.durations import exact_duration

TRACE_ID_DIGITS = 32


class TraceField(Enum):
    """What a condition on a whole trace looks at."""

    DURATION = "trace:duration"  # nanoseconds, from the first start to the last end
    ROOT_NAME = "trace:rootName"
    ROOT_SERVICE = "trace:rootService"
    ID = "trace:id"


@dataclass(frozen=True, slots=True)
class TraceCondition:
    field: TraceField
    comparison: Comparison
    value: str | int


@dataclass(frozen=True, slots=True)
class Alternative:
    """One span satisfies all of `spans`, and its trace all of `traces`. Without any: every trace."""

    spans: tuple[SpanCondition, ...] = ()
    traces: tuple[TraceCondition, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceQuery:
    alternatives: tuple[Alternative, ...] = (Alternative(),)

    @property
    def trace_id(self) -> str:
        """The id, if the query asks for this one trace; else empty."""
        for alternative in self.alternatives:
            for condition in alternative.traces:
                if condition.field is TraceField.ID:
                    return str(condition.value)
        return ""


EVERY_TRACE = TraceQuery()
_OF_ROOT = {TraceField.ROOT_NAME: SpanField.NAME, TraceField.ROOT_SERVICE: SpanField.SERVICE}


def span_query(alternative: Alternative, *, start_ns: int, end_ns: int, limit: int) -> SpanQuery:
    """What a store is asked for one alternative; conditions on whole traces are for `holds`.

    Where only the root is asked for, the store looks for spans that could be it.
    """
    conditions = alternative.spans or tuple(
        SpanCondition(_OF_ROOT[one.field], one.comparison, one.value)
        for one in alternative.traces
        if one.field in _OF_ROOT and one.comparison in {Comparison.EQUAL, Comparison.REGEX}
    )
    return SpanQuery(start_ns=start_ns, end_ns=end_ns, conditions=conditions, limit=limit)


def holds(summary: TraceSummary, condition: TraceCondition) -> bool:
    """Whether the trace satisfies a condition on it as a whole."""
    wanted, comparison = condition.value, condition.comparison
    found = _FOUND[condition.field](summary)
    if comparison in {Comparison.REGEX, Comparison.NOT_REGEX}:
        matches = whole_text_pattern(str(wanted)).fullmatch(str(found)) is not None
        return matches is (comparison is Comparison.REGEX)
    return _COMPARED[comparison](found, wanted)


_FOUND: Mapping[TraceField, Callable[[TraceSummary], str | int]] = {
    TraceField.DURATION: lambda summary: summary.duration_ns,
    TraceField.ROOT_NAME: lambda summary: summary.root_name,
    TraceField.ROOT_SERVICE: lambda summary: summary.root_service,
    TraceField.ID: lambda summary: summary.trace_id,
}
# The parser lets only durations be compared by size, so both sides are numbers there.
_COMPARED: Mapping[Comparison, Callable[[str | int, str | int], bool]] = {
    Comparison.EQUAL: lambda found, wanted: found == wanted,
    Comparison.NOT_EQUAL: lambda found, wanted: found != wanted,
    Comparison.ABOVE: lambda found, wanted: int(found) > int(wanted),
    Comparison.AT_LEAST: lambda found, wanted: int(found) >= int(wanted),
    Comparison.BELOW: lambda found, wanted: int(found) < int(wanted),
    Comparison.AT_MOST: lambda found, wanted: int(found) <= int(wanted),
}


# What may stand in a condition? The names that queries know, what they mean, and what they may be compared with.


SERVICE_NAME = "service.name"
EQUALITY = frozenset({Comparison.EQUAL, Comparison.NOT_EQUAL})
PATTERNS = frozenset({Comparison.REGEX, Comparison.NOT_REGEX})

INTRINSICS: Mapping[str, SpanField | TraceField] = {
    "name": SpanField.NAME,
    "span:name": SpanField.NAME,
    "status": SpanField.STATUS,
    "span:status": SpanField.STATUS,
    "kind": SpanField.KIND,
    "span:kind": SpanField.KIND,
    "duration": SpanField.DURATION,
    "span:duration": SpanField.DURATION,
    "traceDuration": TraceField.DURATION,
    "trace:duration": TraceField.DURATION,
    "rootName": TraceField.ROOT_NAME,
    "trace:rootName": TraceField.ROOT_NAME,
    "rootServiceName": TraceField.ROOT_SERVICE,
    "trace:rootService": TraceField.ROOT_SERVICE,
    "trace:id": TraceField.ID,
}
# How plain words call them, beside the names above; Tempo's parameter `tags` has most of these.
WORDS: Mapping[str, SpanField | TraceField] = {
    "service": SpanField.SERVICE,
    SERVICE_NAME: SpanField.SERVICE,
    "status.code": SpanField.STATUS,
    "root.name": TraceField.ROOT_NAME,
    "root.service.name": TraceField.ROOT_SERVICE,
    "trace": TraceField.ID,
}
ELSEWHERE = frozenset(  # parts of TraceQL that no store here can look at
    {"statusMessage", "span:statusMessage", "span:id", "span:parentID", "childCount", "span:childCount"}
    | {"nestedSetParent", "nestedSetLeft", "nestedSetRight", "event:name", "event:timeSinceStart"}
    | {"link:traceID", "link:spanID", "instrumentation:name", "instrumentation:version", "parent"}
)
SCOPES = ("span.", "resource.", ".")
SCOPES_ELSEWHERE = ("parent.", "event.", "link.", "instrumentation.")

Condition = SpanCondition | TraceCondition


@dataclass(frozen=True, slots=True)
class ConditionSubject:
    """What a condition speaks about."""

    field: SpanField | TraceField
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class QueryLiteral:
    """A value as it was written. A duration is a number of nanoseconds; `nil` is None.

    `text` is what stood in plain words, where nothing but the field tells a number from a text.
    """

    value: AttributeValue | None
    is_duration: bool = False
    text: str | None = None

    @property
    def as_text(self) -> AttributeValue | None:
        return self.value if self.text is None else self.text


class NotSupported(Exception):
    """The sentence says which part of TraceQL."""


class FieldMismatch(Exception):
    """The sentence says what does not fit; `hint` how it would."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


def subject_of(name: str) -> ConditionSubject | None:
    """What a name means inside of braces; None: nothing. Raises NotSupported."""
    found = INTRINSICS.get(name)
    if found is not None:
        return ConditionSubject(found)
    if name in ELSEWHERE or name.startswith(SCOPES_ELSEWHERE):
        raise NotSupported(f"`{name}` is not a supported part of TraceQL")
    for scope in SCOPES:
        if name.startswith(scope) and len(name) > len(scope):
            return attribute_subject(scope, name.removeprefix(scope))
    return None


def attribute_subject(scope: str, attribute: str) -> ConditionSubject:
    """The service is a field of its own; only `span.service.name` means an attribute of that name."""
    return (
        ConditionSubject(SpanField.SERVICE)
        if attribute == SERVICE_NAME and scope != "span."
        else attribute_named(attribute)
    )


def attribute_named(attribute: str) -> ConditionSubject:
    return ConditionSubject(SpanField.ATTRIBUTE, attribute)


def condition_of(subject: ConditionSubject, comparison: Comparison, literal: QueryLiteral) -> Condition:
    """Raises Mismatch for what cannot be compared so."""
    value: str | int
    match subject.field:
        case SpanField.STATUS:
            value = _one_of(literal, comparison, [status.value for status in SpanStatus], "status")
        case SpanField.KIND:
            value = _one_of(literal, comparison, [kind.value for kind in SpanKind], "kind")
        case SpanField.DURATION | TraceField.DURATION:
            value = _duration(literal, comparison)
        case TraceField.ID:
            value = _trace_id(literal, comparison)
        case SpanField.NAME | SpanField.SERVICE | TraceField.ROOT_NAME | TraceField.ROOT_SERVICE:
            value = _text(literal, comparison, subject.field.value)
        case SpanField.ATTRIBUTE:
            return _on_attribute(subject.attribute, comparison, literal)
    if isinstance(subject.field, TraceField):
        return TraceCondition(subject.field, comparison, value)
    return SpanCondition(subject.field, comparison, value)


def _one_of(literal: QueryLiteral, comparison: Comparison, known: list[str], what: str) -> str:
    if comparison not in EQUALITY:
        raise FieldMismatch(f"`{what}` takes only `=` or `!=`", f"e.g. `{what} = {known[-1]}`")
    value = literal.as_text
    if not isinstance(value, str) or value not in known:
        raise FieldMismatch(f"not a {what}", f"one of {', '.join(known)}")
    return value


def _duration(literal: QueryLiteral, comparison: Comparison) -> int:
    if comparison in PATTERNS:
        raise FieldMismatch("a duration is not a string", "compare it with `>`, `>=`, `<`, `<=` or `=`")
    if not literal.is_duration or not isinstance(literal.value, int):
        raise FieldMismatch("not a duration", "write e.g. `10ms`, `1.5s` or `2m`")
    return literal.value


def _trace_id(literal: QueryLiteral, comparison: Comparison) -> str:
    value = trace_id_of(str(literal.as_text))
    if comparison is not Comparison.EQUAL or value is None:
        raise FieldMismatch("not a trace id", f"an id has up to {TRACE_ID_DIGITS} hexadecimal digits: `trace:id = …`")
    return value


def trace_id_of(text: str) -> str | None:
    """The id in its full length, lower case; leading zeros may have been left out. None: no id."""
    text = text.strip().lower()
    is_id = 0 < len(text) <= TRACE_ID_DIGITS and all(digit in "0123456789abcdef" for digit in text)
    return text.zfill(TRACE_ID_DIGITS) if is_id and text.strip("0") else None


def _text(literal: QueryLiteral, comparison: Comparison, what: str) -> str:
    value = literal.as_text
    if not isinstance(value, str):
        raise FieldMismatch(f"`{what}` is a string", 'quote the value: `name = "submit"`')
    return _compared_text(value, comparison)


def _compared_text(value: str, comparison: Comparison) -> str:
    if comparison in PATTERNS:
        try:
            whole_text_pattern(value)
        except HarchError as broken:
            if broken.code != "E0602":
                raise
            raise FieldMismatch(broken.message, "patterns are RE2 and match the whole value") from broken
    elif comparison not in EQUALITY:
        raise FieldMismatch("strings cannot be ordered", "compare them with `=`, `!=`, `=~` or `!~`")
    return value


def _on_attribute(attribute: str, comparison: Comparison, literal: QueryLiteral) -> SpanCondition:
    is_text = literal.text is not None and (literal.is_duration or comparison in PATTERNS)
    value = literal.text if is_text else literal.value
    if value is None:  # a span without the attribute satisfies only what is negated
        if comparison not in EQUALITY:
            raise FieldMismatch("`nil` takes only `=` or `!=`", "e.g. `.gpus != nil`: spans that have it")
        exists = Comparison.REGEX if comparison is Comparison.NOT_EQUAL else Comparison.NOT_REGEX
        return SpanCondition(SpanField.ATTRIBUTE, exists, ANY_TEXT, attribute)
    if isinstance(value, bool) and comparison not in EQUALITY:
        raise FieldMismatch("`true` and `false` cannot be ordered", "compare with `=` or `!=`")
    if isinstance(value, str):
        _compared_text(value, comparison)
    elif comparison in PATTERNS:
        raise FieldMismatch("a pattern must be a string", 'quote it: `=~ "5.."`')
    return SpanCondition(SpanField.ATTRIBUTE, comparison, value, attribute)


ANY_TEXT = ".*"


# How is a query for traces written? Its normal form: read again, it is the same query.


_PLAIN_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.\-/]*")
_EXISTS = {Comparison.REGEX: "!=", Comparison.NOT_REGEX: "="}


def print_query(query: TraceQuery) -> str:
    """`{ resource.service.name = "hub" && duration > 10ms }`; `{ }` for every trace."""
    written = [_all(alternative) for alternative in query.alternatives]
    if len(written) == 1:
        return f"{{ {written[0]} }}" if written[0] else "{ }"
    return "{ " + " || ".join(f"({one})" if " && " in one else one for one in written) + " }"


def _all(alternative: Alternative) -> str:
    spans = [print_condition(condition) for condition in alternative.spans]
    traces = [_on_trace(condition) for condition in alternative.traces]
    return " && ".join([*spans, *traces])


def print_condition(condition: SpanCondition) -> str:
    comparison, value = condition.comparison, condition.value
    match condition.field:
        case SpanField.SERVICE:
            return f"resource.{SERVICE_NAME} {comparison.value} {quote(str(value))}"
        case SpanField.NAME:
            return f"name {comparison.value} {quote(str(value))}"
        case SpanField.STATUS | SpanField.KIND:
            return f"{condition.field.value} {comparison.value} {value}"
        case SpanField.DURATION:
            return f"duration {comparison.value} {exact_duration(int(value))}"
        case SpanField.ATTRIBUTE:
            name = _attribute(condition.attribute)
            if comparison in _EXISTS and value == ANY_TEXT:
                return f"{name} {_EXISTS[comparison]} nil"
            return f"{name} {comparison.value} {_value(value)}"


def _on_trace(condition: TraceCondition) -> str:
    value = exact_duration(int(condition.value)) if condition.field is TraceField.DURATION else None
    return f"{condition.field.value} {condition.comparison.value} {value or quote(str(condition.value))}"


def _attribute(name: str) -> str:
    scope = "span" if name == SERVICE_NAME else ""
    return f"{scope}.{name}" if _PLAIN_NAME.fullmatch(name) else f"{scope}.{quote(name)}"


def _value(value: AttributeValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quote(value) if isinstance(value, str) else repr(value)

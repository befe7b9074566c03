"""What may stand in a condition? The names that queries know, what they mean, and what they may be compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harch.base.errors import HarchError
from harch.sentinel.model.matchers import whole_text_pattern
from harch.sentinel.model.spans import AttributeValue, Comparison, Field, SpanCondition, SpanKind, SpanStatus
from harch.sentinel.traces.query import TRACE_ID_DIGITS, TraceCondition, TraceField

SERVICE_NAME = "service.name"
EQUALITY = frozenset({Comparison.EQUAL, Comparison.NOT_EQUAL})
PATTERNS = frozenset({Comparison.REGEX, Comparison.NOT_REGEX})

INTRINSICS: Mapping[str, Field | TraceField] = {
    "name": Field.NAME,
    "span:name": Field.NAME,
    "status": Field.STATUS,
    "span:status": Field.STATUS,
    "kind": Field.KIND,
    "span:kind": Field.KIND,
    "duration": Field.DURATION,
    "span:duration": Field.DURATION,
    "traceDuration": TraceField.DURATION,
    "trace:duration": TraceField.DURATION,
    "rootName": TraceField.ROOT_NAME,
    "trace:rootName": TraceField.ROOT_NAME,
    "rootServiceName": TraceField.ROOT_SERVICE,
    "trace:rootService": TraceField.ROOT_SERVICE,
    "trace:id": TraceField.ID,
}
# How plain words call them, beside the names above; Tempo's parameter `tags` has most of these.
WORDS: Mapping[str, Field | TraceField] = {
    "service": Field.SERVICE,
    SERVICE_NAME: Field.SERVICE,
    "status.code": Field.STATUS,
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
class Subject:
    """What a condition speaks about."""

    field: Field | TraceField
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class Literal:
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


class Mismatch(Exception):
    """The sentence says what does not fit; `hint` how it would."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


def subject_of(name: str) -> Subject | None:
    """What a name means inside of braces; None: nothing. Raises NotSupported."""
    found = INTRINSICS.get(name)
    if found is not None:
        return Subject(found)
    if name in ELSEWHERE or name.startswith(SCOPES_ELSEWHERE):
        raise NotSupported(f"`{name}` is a part of TraceQL that is not served here")
    for scope in SCOPES:
        if name.startswith(scope) and len(name) > len(scope):
            return attribute_subject(scope, name.removeprefix(scope))
    return None


def attribute_subject(scope: str, attribute: str) -> Subject:
    """The service is a field of its own; only `span.service.name` means an attribute of that name."""
    return Subject(Field.SERVICE) if attribute == SERVICE_NAME and scope != "span." else attribute_named(attribute)


def attribute_named(attribute: str) -> Subject:
    return Subject(Field.ATTRIBUTE, attribute)


def condition_of(subject: Subject, comparison: Comparison, literal: Literal) -> Condition:
    """Raises Mismatch for what cannot be compared so."""
    value: str | int
    match subject.field:
        case Field.STATUS:
            value = _one_of(literal, comparison, [status.value for status in SpanStatus], "status")
        case Field.KIND:
            value = _one_of(literal, comparison, [kind.value for kind in SpanKind], "kind")
        case Field.DURATION | TraceField.DURATION:
            value = _duration(literal, comparison)
        case TraceField.ID:
            value = _trace_id(literal, comparison)
        case Field.NAME | Field.SERVICE | TraceField.ROOT_NAME | TraceField.ROOT_SERVICE:
            value = _text(literal, comparison, subject.field.value)
        case Field.ATTRIBUTE:
            return _on_attribute(subject.attribute, comparison, literal)
    if isinstance(subject.field, TraceField):
        return TraceCondition(subject.field, comparison, value)
    return SpanCondition(subject.field, comparison, value)


def _one_of(literal: Literal, comparison: Comparison, known: list[str], what: str) -> str:
    if comparison not in EQUALITY:
        raise Mismatch(f"`{what}` is compared with `=` or `!=` only", f"e.g. `{what} = {known[-1]}`")
    value = literal.as_text
    if not isinstance(value, str) or value not in known:
        raise Mismatch(f"this is no {what}", f"one of {', '.join(known)}")
    return value


def _duration(literal: Literal, comparison: Comparison) -> int:
    if comparison in PATTERNS:
        raise Mismatch("a duration is no text", "compare it with `>`, `>=`, `<`, `<=` or `=`")
    if not literal.is_duration or not isinstance(literal.value, int):
        raise Mismatch("this is no duration", "write e.g. `10ms`, `1.5s` or `2m`")
    return literal.value


def _trace_id(literal: Literal, comparison: Comparison) -> str:
    value = trace_id_of(str(literal.as_text))
    if comparison is not Comparison.EQUAL or value is None:
        raise Mismatch("this is no trace id", f"an id has up to {TRACE_ID_DIGITS} hexadecimal digits: `trace:id = …`")
    return value


def trace_id_of(text: str) -> str | None:
    """The id in its full length, lower case; leading zeros may have been left out. None: no id."""
    text = text.strip().lower()
    is_id = 0 < len(text) <= TRACE_ID_DIGITS and all(digit in "0123456789abcdef" for digit in text)
    return text.zfill(TRACE_ID_DIGITS) if is_id and text.strip("0") else None


def _text(literal: Literal, comparison: Comparison, what: str) -> str:
    value = literal.as_text
    if not isinstance(value, str):
        raise Mismatch(f"`{what}` is a text", 'put the value into quotes: `name = "submit"`')
    return _compared_text(value, comparison)


def _compared_text(value: str, comparison: Comparison) -> str:
    if comparison in PATTERNS:
        try:
            whole_text_pattern(value)
        except HarchError as broken:
            if broken.code != "E0602":
                raise
            raise Mismatch(broken.message, "patterns are RE2 and match the whole value") from broken
    elif comparison not in EQUALITY:
        raise Mismatch("texts have no order here", "compare them with `=`, `!=`, `=~` or `!~`")
    return value


def _on_attribute(attribute: str, comparison: Comparison, literal: Literal) -> SpanCondition:
    is_text = literal.text is not None and (literal.is_duration or comparison in PATTERNS)
    value = literal.text if is_text else literal.value
    if value is None:  # a span without the attribute satisfies only what is negated
        if comparison not in EQUALITY:
            raise Mismatch("`nil` is compared with `=` or `!=` only", "e.g. `.gpus != nil`: spans that have it")
        exists = Comparison.REGEX if comparison is Comparison.NOT_EQUAL else Comparison.NOT_REGEX
        return SpanCondition(Field.ATTRIBUTE, exists, ANY_TEXT, attribute)
    if isinstance(value, bool) and comparison not in EQUALITY:
        raise Mismatch("`true` and `false` have no order", "compare with `=` or `!=`")
    if isinstance(value, str):
        _compared_text(value, comparison)
    elif comparison in PATTERNS:
        raise Mismatch("a pattern is a text", 'put it into quotes: `=~ "5.."`')
    return SpanCondition(Field.ATTRIBUTE, comparison, value, attribute)


ANY_TEXT = ".*"

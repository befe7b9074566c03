"""How is a query for traces written? Its normal form: read again, it is the same query."""

from __future__ import annotations

import re

from harch.sentinel.model.spans import AttributeValue, Comparison, Field, SpanCondition
from harch.sentinel.promql.syntax.quoting import quote
from harch.sentinel.traces.durations import exact_duration
from harch.sentinel.traces.fields import ANY_TEXT, SERVICE_NAME
from harch.sentinel.traces.query import Alternative, TraceCondition, TraceField, TraceQuery

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
        case Field.SERVICE:
            return f"resource.{SERVICE_NAME} {comparison.value} {quote(str(value))}"
        case Field.NAME:
            return f"name {comparison.value} {quote(str(value))}"
        case Field.STATUS | Field.KIND:
            return f"{condition.field.value} {comparison.value} {value}"
        case Field.DURATION:
            return f"duration {comparison.value} {exact_duration(int(value))}"
        case Field.ATTRIBUTE:
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

"""What is a query for traces? Conditions on spans and on whole traces, in alternatives of which one must hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from harch.sentinel.model.matchers import whole_text_pattern
from harch.sentinel.model.spans import Comparison, Field, SpanCondition, SpanQuery, TraceSummary

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
_OF_ROOT = {TraceField.ROOT_NAME: Field.NAME, TraceField.ROOT_SERVICE: Field.SERVICE}


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

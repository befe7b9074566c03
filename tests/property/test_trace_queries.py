"""Queries for traces: written and read they stay the same, and no text breaks the reader."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sentinel.model.spans import Comparison, SpanCondition, SpanField, SpanKind, SpanStatus
from harch.sentinel.traces.parser import parse_query
from harch.sentinel.traces.query import Alternative, TraceCondition, TraceField, TraceQuery, print_query

EQUALITY = st.sampled_from([Comparison.EQUAL, Comparison.NOT_EQUAL])
ORDER = st.sampled_from([one for one in Comparison if "~" not in one.value])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = TEXTS.filter(bool)
DURATIONS = st.integers(0, 2**63 - 1)
NUMBERS = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)

CONDITIONS = st.one_of(
    st.builds(SpanCondition, st.sampled_from([SpanField.NAME, SpanField.SERVICE]), EQUALITY, TEXTS),
    st.builds(SpanCondition, st.just(SpanField.STATUS), EQUALITY, st.sampled_from([one.value for one in SpanStatus])),
    st.builds(SpanCondition, st.just(SpanField.KIND), EQUALITY, st.sampled_from([one.value for one in SpanKind])),
    st.builds(SpanCondition, st.just(SpanField.DURATION), ORDER, DURATIONS),
    st.builds(SpanCondition, st.just(SpanField.ATTRIBUTE), EQUALITY, TEXTS | st.booleans(), NAMES),
    st.builds(SpanCondition, st.just(SpanField.ATTRIBUTE), ORDER, NUMBERS, NAMES),
    st.builds(
        SpanCondition,
        st.just(SpanField.ATTRIBUTE),
        st.sampled_from([Comparison.REGEX, Comparison.NOT_REGEX]),
        st.sampled_from([".*", "a|b", "5..", r"\d+"]),
        NAMES,
    ),
)
ON_TRACES = st.one_of(
    st.builds(TraceCondition, st.just(TraceField.DURATION), ORDER, DURATIONS),
    st.builds(TraceCondition, st.sampled_from([TraceField.ROOT_NAME, TraceField.ROOT_SERVICE]), EQUALITY, TEXTS),
)
ALTERNATIVES = st.builds(
    Alternative,
    st.lists(CONDITIONS, max_size=3).map(tuple),
    st.lists(ON_TRACES, max_size=2).map(tuple),
)
QUERIES = st.one_of(
    ALTERNATIVES.map(lambda one: TraceQuery((one,))),
    st.lists(ALTERNATIVES.filter(lambda one: one.spans or one.traces), min_size=2, max_size=4, unique=True).map(
        lambda many: TraceQuery(tuple(many))
    ),
)
PIECES = st.sampled_from(
    [
        *("{", "}", "(", ")", "&&", "||", "=", "=~", "!=", ">", ".a", "span.", '"', "`", "name", "status", "error"),
        *("5", "10ms", "nil", "true", "trace:id", " ", "\n", "\\", "duration", "µs", "|", "\x00"),
    ]
)


@settings(max_examples=150, deadline=None)
@given(QUERIES)
def test_what_is_written_is_read_as_the_same(query: TraceQuery) -> None:
    assert parse_query(print_query(query)) == query


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=14).map("".join)))
def test_any_text_is_a_query_or_a_named_mistake(text: str) -> None:
    refused: HarchError | None = None
    try:
        query = parse_query(text)
    except HarchError as problem:
        refused = problem
    if refused is not None:
        assert refused.code in {"E0690", "E0691"}
    else:
        assert parse_query(print_query(query)) == query

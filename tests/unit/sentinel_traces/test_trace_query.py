"""Queries for traces say which spans are meant, and what is wrong with a query that says nothing."""

from __future__ import annotations

import pytest

from harch.base.errors import HarchError
from harch.sentinel.model.spans import Comparison, SpanCondition, SpanField
from harch.sentinel.traces.parser import parse_query
from harch.sentinel.traces.query import EVERY_TRACE, Alternative, TraceCondition, TraceField, TraceQuery, print_query

ID = "4bf92f3577b34da6a3ce929d0e0e4736"


def spans(text: str) -> tuple[SpanCondition, ...]:
    (only,) = parse_query(text).alternatives
    assert only.traces == ()
    return only.spans


def on(field: SpanField, comparison: str, value: str | int) -> SpanCondition:
    return SpanCondition(field, Comparison(comparison), value)


def attribute(name: str, comparison: str, value: str | bool | int | float) -> SpanCondition:
    return SpanCondition(SpanField.ATTRIBUTE, Comparison(comparison), value, name)


def test_a_selector_names_fields_and_attributes_as_traceql_does() -> None:
    text = """{ resource.service.name = "hub" && name =~ "place.*" && duration > 10ms && status = error
                && .gpus >= 8 && span.http.status_code = 500 && kind = server && resource.hub != `dakar` }"""
    assert spans(text) == (
        on(SpanField.SERVICE, "=", "hub"),
        on(SpanField.NAME, "=~", "place.*"),
        on(SpanField.DURATION, ">", 10_000_000),
        on(SpanField.STATUS, "=", "error"),
        attribute("gpus", ">=", 8),
        attribute("http.status_code", "=", 500),
        on(SpanField.KIND, "=", "server"),
        attribute("hub", "!=", "dakar"),
    )


def test_plain_words_say_the_same() -> None:
    text = 'service=hub name=~place.* duration>10ms status=error gpus>=8 http.status_code=500 kind=server note="a b"'
    assert spans(text) == (
        on(SpanField.SERVICE, "=", "hub"),
        on(SpanField.NAME, "=~", "place.*"),
        on(SpanField.DURATION, ">", 10_000_000),
        on(SpanField.STATUS, "=", "error"),
        attribute("gpus", ">=", 8),
        attribute("http.status_code", "=", 500),
        on(SpanField.KIND, "=", "server"),
        attribute("note", "=", "a b"),
    )


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("id=08", attribute("id", "=", "08")),
        ("id=1e3", attribute("id", "=", "1e3")),
        ("share=0.5", attribute("share", "=", 0.5)),
        ("wait=10ms", attribute("wait", "=", "10ms")),
        ("code=~500", attribute("code", "=~", "500")),
        ("name=500", on(SpanField.NAME, "=", "500")),
        ("service=10ms", on(SpanField.SERVICE, "=", "10ms")),
        ("done=true", attribute("done", "=", "true")),
        ("error=true", on(SpanField.STATUS, "=", "error")),
        ("error=false", on(SpanField.STATUS, "!=", "error")),
        (".error=true", attribute("error", "=", "true")),
        ("span.service.name=x", attribute("service.name", "=", "x")),
        ("name=", on(SpanField.NAME, "=", "")),
    ],
)
def test_the_field_decides_what_a_plain_word_means(word: str, expected: SpanCondition) -> None:
    assert spans(word) == (expected,)


def test_conditions_on_whole_traces_stand_apart() -> None:
    text = '{ trace:duration >= 1.5s && rootServiceName = "hub" && name = "lease" }'
    assert parse_query(text).alternatives == (
        Alternative(
            spans=(on(SpanField.NAME, "=", "lease"),),
            traces=(
                TraceCondition(TraceField.DURATION, Comparison.AT_LEAST, 1_500_000_000),
                TraceCondition(TraceField.ROOT_SERVICE, Comparison.EQUAL, "hub"),
            ),
        ),
    )
    (words,) = parse_query("minDuration=1s maxDuration=2s").alternatives
    assert [(one.comparison.value, one.value) for one in words.traces] == [(">=", 10**9), ("<=", 2 * 10**9)]


def test_alternatives_are_multiplied_out() -> None:
    query = parse_query('{ (name = "a" || name = "b") && (status = error || kind = server) }')
    assert [[one.value for one in alternative.spans] for alternative in query.alternatives] == [
        ["a", "error"],
        ["a", "server"],
        ["b", "error"],
        ["b", "server"],
    ]


@pytest.mark.parametrize("text", ["", "  ", "{}", "{ }", "{ true }", "{} | select(.gpus, name)"])
def test_nothing_asked_means_every_trace(text: str) -> None:
    assert parse_query(text) == EVERY_TRACE


@pytest.mark.parametrize("text", [ID, ID.upper(), f" {ID} ", f'{{ trace:id = "{ID}" }}', f"trace={ID}"])
def test_an_id_asks_for_one_trace(text: str) -> None:
    assert parse_query(text).trace_id == ID


def test_having_an_attribute_can_be_asked_for() -> None:
    assert spans("{ .gpus != nil }") == (attribute("gpus", "=~", ".*"),)
    assert spans("{ .gpus = nil }") == (attribute("gpus", "!~", ".*"),)


@pytest.mark.parametrize(
    ("text", "position", "part"),
    [
        ('{ name = "a', "1:10", "not closed"),
        ("{ foo = 1 }", "1:3", "`foo` is not a field"),
        ('{ name = "a" && }', "1:17", "expected a field"),
        ('{ name = "a"\n  || status = late }', "2:6", "not a status"),
        ("{ name }", "1:8", "expected a comparison"),
        ("{ name = }", "1:10", "expected a value"),
        ("{ duration > 10 }", "1:3", "not a duration"),
        ("{ name > 5 }", "1:3", "is a string"),
        ('{ name > "a" }', "1:3", "cannot be ordered"),
        ('{ name =~ "(" }', "1:3", "missing"),
        ("{ status =~ error }", "1:3", "only"),
        ('{ .x = "a" ', "1:12", "expected `&&`, `||` or `}`, found the end"),
        ("{ .x > true }", "1:3", "cannot be ordered"),
        ("{ .x = 99999999999999999999 }", "1:8", "too large"),
        ("submit", "1:7", "expected a comparison"),
        ("{} | select(", "1:13", "expected a field"),
        ("{} | select(.a .b)", "1:16", "expected `,` or `)`"),
        ("error=maybe", "1:1", "true or false"),
        (f'{{ trace:id = "{ID}" && name = "x" }}', "1:1", "the only condition"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, position: str, part: str) -> None:
    with pytest.raises(HarchError) as caught:
        parse_query(text)
    assert caught.value.code == "E0690"
    assert caught.value.message.startswith(f"{position}: ")
    assert part in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        '{ name = "a" } | count() > 2',
        '{ name = "a" } >> { name = "b" }',
        '{ parent.name = "a" }',
        "{ nestedSetParent < 0 }",
        "{ " + " || ".join(f"({' || '.join(f'.a = {i}' for i in range(5))})" for _ in range(4)) + " }",
        "{ " + " && ".join(f"(.a = {i} || .b = {i})" for i in range(8)) + " }",
        "{ " + " && ".join(f".a = {i}" for i in range(65)) + " }",
        "{ " + "(" * 40 + ".a = 1" + ")" * 40 + " }",
        "x" * 9000,
    ],
)
def test_what_is_not_served_says_so(text: str) -> None:
    with pytest.raises(HarchError) as caught:
        parse_query(text)
    assert caught.value.code == "E0691"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("service=hub duration>=90ms", '{ resource.service.name = "hub" && duration >= 90ms }'),
        ('{."odd name"=1||span.service.name="x"}', '{ ."odd name" = 1 || span.service.name = "x" }'),
        ("{ .gpus != nil && (kind = client || .a = 1.5) }", None),
        ("minDuration=1m30s", "{ trace:duration >= 1m30s }"),
        ("", "{ }"),
    ],
)
def test_a_query_is_written_in_its_normal_form(text: str, printed: str | None) -> None:
    shown = print_query(parse_query(text))
    assert printed is None or shown == printed
    assert parse_query(shown) == parse_query(text)
    assert print_query(TraceQuery()) == "{ }"

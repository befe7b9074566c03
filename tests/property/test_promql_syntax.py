"""Whatever is written: what parses is written back to the same tree, and what does not says where it stopped."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from harch.sentinel.promql.syntax.errors import PromqlSyntaxError
from harch.sentinel.promql.syntax.literals import quote, unquote
from harch.sentinel.promql.syntax.nodes import Expr, walk
from harch.sentinel.promql.syntax.parser import parse
from harch.sentinel.promql.syntax.printer import to_lines, to_text

NAMES = st.sampled_from(["a", "b:c", "sum", "offset", "up", "fill", "step", "by"])
LABELS = st.sampled_from(["x", "job", "on", "bool", '"a.b"', "group_left"])
DURATIONS = st.sampled_from(["5m", "1h30m", "300", "step()", "2 * 1m", "(1m + 5s)", "min_of(1m, step())", "-5m + 10m"])
NUMBERS = st.sampled_from(["1", "0.5", "1e3", "Inf", "NaN", "0x1f", "5m"])
OPERATORS = ["+", "-", "*", "/", "%", "^", "atan2", "==", "!=", "<", ">=", "</", ">/"]
MATCHING = ["", " on (x)", " ignoring (job, x)", " on (x) group_left (job)", " fill (0)", " on () fill_left (-1)"]


@st.composite
def selectors(draw: st.DrawFn) -> str:
    matchers = draw(
        st.lists(st.tuples(LABELS, st.sampled_from(["=", "!=", "=~", "!~"]), st.sampled_from(["", "a", "a.*", "é|b"])))
    )
    inside = ", ".join(f"{label}{kind}{quote(value)}" for label, kind, value in matchers)
    times = draw(st.sampled_from(["", " offset 5m", " offset -(1h - 30m)", " @ 12.5", " @ end() offset 1m"]))
    return f"{draw(NAMES)}{{{inside}}}{times}" if inside else f"{draw(NAMES)}{times}"


@st.composite
def ranges(draw: st.DrawFn) -> str:
    mode = draw(st.sampled_from(["", " anchored", " smoothed", " offset 1m", " @ start()"]))
    return f"{draw(NAMES)}[{draw(DURATIONS)}]{mode}"


def vectors(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        inner.map(lambda one: f"({one})"),
        inner.map(lambda one: f"-{one}"),
        st.tuples(inner, st.sampled_from(OPERATORS), st.sampled_from(MATCHING), inner).map(
            lambda parts: f"({parts[0]}) {parts[1]}{parts[2]} ({parts[3]})"
        ),
        st.tuples(inner, st.sampled_from(["and", "or", "unless"]), inner).map(" ".join),
        st.tuples(st.sampled_from(["sum", "max", "avg"]), LABELS, inner).map(
            lambda parts: f"{parts[0]}({parts[2]}) by ({parts[1]})"
        ),
        inner.map(lambda one: f"topk(3, {one})"),
        inner.map(lambda one: f"clamp({one}, 1, 2)"),
        st.tuples(inner, DURATIONS).map(lambda parts: f"max_over_time(({parts[0]})[{parts[1]}:1m])"),
        st.tuples(inner, NUMBERS).map(lambda parts: f"({parts[0]}) * {parts[1]}"),
    )


QUERIES = st.recursive(st.one_of(selectors(), ranges().map(lambda one: f"rate({one})")), vectors, max_leaves=8)


@given(QUERIES)
def test_a_tree_is_written_so_that_it_reads_the_same(query: str) -> None:
    tree = parse(query)
    assert parse(to_text(tree)) == tree
    assert parse(to_lines(tree)) == tree
    assert to_text(parse(to_text(tree))) == to_text(tree)


@given(QUERIES)
def test_spans_lie_inside_of_their_parents(query: str) -> None:
    tree = parse(query)
    length = len(query.encode())
    for node in walk(tree):
        assert 0 <= node.span.start < node.span.end <= length
        part = query.encode()[node.span.start : node.span.end].decode()
        assert part.strip() == part


FRAGMENTS = [
    "sum",
    "by",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "5m",
    "1",
    "a",
    '"x"',
    "'",
    "`",
    "=~",
    "!=",
    "@",
    "offset",
    ":",
    ",",
]


def outcome(text: str) -> Expr | str:
    try:
        return parse(text)
    except PromqlSyntaxError as wrong:
        line, column = map(int, wrong.position.split(":"))
        assert line >= 1
        assert column >= 1
        return wrong.reason


@given(st.one_of(st.text(max_size=60), st.text(string.printable, max_size=60)))
def test_any_text_is_a_query_or_a_mistake_with_a_place(text: str) -> None:
    assert outcome(text)


@given(st.lists(st.sampled_from([*FRAGMENTS, *OPERATORS, "step", "fill", "bool", "on", " ", "#", "\n"]), max_size=30))
def test_any_row_of_words_is_a_query_or_a_mistake_with_a_place(words: list[str]) -> None:
    assert outcome(" ".join(words))
    assert outcome("".join(words))


@given(st.text(max_size=20), st.binary(max_size=8))
def test_strings_survive_quoting_even_if_they_are_no_text(text: str, raw: bytes) -> None:
    for value in (text, raw.decode("utf-8", "surrogateescape")):
        clean = value.encode("utf-8", "ignore").decode()
        assert unquote(quote(clean)) == clean
    assert unquote(quote(raw.decode("utf-8", "surrogateescape"))) == raw.decode("utf-8", "surrogateescape")

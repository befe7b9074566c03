"""What does a query say? Trees, precedence, types and the messages that people see."""

from __future__ import annotations

import math

import pytest

from harch.sentinel.model.labels import Matcher, MatchKind
from harch.sentinel.promql.syntax.binding import QueryTimes, bind
from harch.sentinel.promql.syntax.cursor import Feature, ParserOptions
from harch.sentinel.promql.syntax.errors import PromqlSyntaxError
from harch.sentinel.promql.syntax.nodes import (
    Aggregate,
    Binary,
    Cardinality,
    DurationExpr,
    DurationOperator,
    FunctionCall,
    MatrixSelector,
    NumberLiteral,
    Paren,
    RangeMode,
    StartOrEnd,
    StringLiteral,
    Subquery,
    TextSpan,
    Unary,
    VectorMatching,
    VectorSelector,
)
from harch.sentinel.promql.syntax.parser import parse, parse_labels, parse_selector
from harch.sentinel.promql.syntax.printer import to_lines, to_text


def selector(name: str, **changes: object) -> VectorSelector:
    return VectorSelector(name, (Matcher(MatchKind.EQUAL, "__name__", name),), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12.34e6", 12340000.0),
        (".5", 0.5),
        ("2.", 2.0),
        ("0x1F", 31.0),
        ("010", 8.0),
        ("089", 89.0),
        ("1_000_000", 1000000.0),
        ("inF", math.inf),
        ("-Inf", -math.inf),
        ("1h30m", 5400.0),
        ("5ms", 0.005),
        ("-0.2e-6", -0.0000002),
    ],
)
def test_numbers_are_read_as_prometheus_reads_them(text: str, value: float) -> None:
    assert parse(text) == NumberLiteral(value)


def test_nan_is_a_number_and_equal_trees_are_equal() -> None:
    node = parse("NaN")
    assert isinstance(node, NumberLiteral)
    assert math.isnan(node.value)
    assert parse("-nan") == node


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"a\n\"b\""', 'a\n"b"'),
        (r"'it\'s'", "it's"),
        (r"`raw\n`", r"raw\n"),
        (r'"\u00e9\x41\101"', "éAA"),
        (r'"a\xc5z"', "a\udcc5z"),
    ],
)
def test_strings_follow_the_escapes_of_go(text: str, value: str) -> None:
    assert parse(text) == StringLiteral(value)


def test_a_sign_binds_as_multiplication_does() -> None:
    assert parse("-1 ^ 2") == Unary("-", Binary("^", NumberLiteral(1), NumberLiteral(2)))
    assert parse("-1 * 2") == Binary("*", NumberLiteral(-1), NumberLiteral(2))
    assert parse("2 ^ 3 ^ 2") == Binary("^", NumberLiteral(2), Binary("^", NumberLiteral(3), NumberLiteral(2)))


def test_operators_bind_by_their_precedence() -> None:
    node = parse("a or b and c == d + e * f ^ g")
    levels = []
    while isinstance(node, Binary):
        levels.append(node.operator)
        node = node.right
    assert levels == ["or", "and", "==", "+", "*", "^"]


def test_selectors_may_quote_names_and_labels() -> None:
    node = parse('{"my.metric", "label.name"=~"x.*", plain!="y",}')
    assert node == VectorSelector(
        "",
        (
            Matcher(MatchKind.EQUAL, "__name__", "my.metric"),
            Matcher(MatchKind.REGEX, "label.name", "x.*"),
            Matcher(MatchKind.NOT_EQUAL, "plain", "y"),
        ),
    )


def test_modifiers_may_come_in_any_order() -> None:
    expected = MatrixSelector(selector("a", offset_ms=-60_000, at_ms=1500), 300_000)
    assert parse("a[5m] offset -1m @ 1.5") == expected
    assert parse("a[5m] @ 1.5 offset -1m") == expected
    assert parse("a[300] @ end()") == MatrixSelector(selector("a", at_edge=StartOrEnd.END), 300_000)
    assert parse("a @ -1.5") == selector("a", at_ms=-1500)


def test_subqueries_nest() -> None:
    inner = FunctionCall("rate", (MatrixSelector(selector("a"), 60_000),))
    assert parse("rate(a[1m])[1h:]") == Subquery(inner, 3_600_000)
    assert parse("rate(a[1m])[1h:30s] offset 5m") == Subquery(inner, 3_600_000, step_ms=30_000, offset_ms=300_000)


def test_durations_may_be_computed() -> None:
    node = parse("a[2m * (1 + step())]")
    assert isinstance(node, MatrixSelector)
    assert node.range_ms == 0
    step = DurationExpr(DurationOperator.STEP)
    wrapped = DurationExpr(DurationOperator.ADD, NumberLiteral(1), step, is_wrapped=True)
    assert node.range_expr == DurationExpr(DurationOperator.MULTIPLY, NumberLiteral(120), wrapped)


def test_an_offset_takes_one_operand() -> None:
    assert parse("a offset 100 + 2") == Binary("+", selector("a", offset_ms=100_000), NumberLiteral(2))
    node = parse("a offset (-2 ^ 2)")
    assert isinstance(node, VectorSelector)
    power = DurationExpr(DurationOperator.POWER, NumberLiteral(2), NumberLiteral(2))
    assert node.offset_expr == DurationExpr(DurationOperator.SUBTRACT, None, power, is_wrapped=True)


def test_ranges_can_be_anchored_or_smoothed() -> None:
    assert parse("a[5m] anchored") == MatrixSelector(selector("a", range_mode=RangeMode.ANCHORED), 300_000)
    assert parse("a smoothed") == selector("a", range_mode=RangeMode.SMOOTHED)


def test_aggregations_group_before_or_after() -> None:
    expected = Aggregate("sum", selector("a"), grouping=("b", "c"), without=True)
    assert parse("sum without (b, c) (a)") == expected
    assert parse("SUM(a) WITHOUT (b, c,)") == expected
    assert parse("topk(3, a)") == Aggregate("topk", selector("a"), NumberLiteral(3))
    assert parse('count_values("v", a)') == Aggregate("count_values", selector("a"), StringLiteral("v"))


def test_matching_knows_its_sides_and_fills() -> None:
    node = parse("a / on (x) group_left (y) fill_left (0) fill_right (-1) b")
    assert isinstance(node, Binary)
    assert node.matching == VectorMatching(Cardinality.MANY_TO_ONE, ("x",), True, ("y",), 0.0, -1.0)
    sets = parse("a and on () b")
    assert isinstance(sets, Binary)
    assert sets.matching == VectorMatching(Cardinality.MANY_TO_MANY, (), True)
    scalar = parse("a > bool 1")
    assert isinstance(scalar, Binary)
    assert scalar.matching is None
    assert scalar.return_bool


@pytest.mark.parametrize("word", ["sum", "by", "offset", "and", "start", "fill", "max_of", "quantile", "step"])
def test_keywords_can_be_names(word: str) -> None:
    assert parse(word) == selector(word)
    assert parse_labels(f'x{{{word}="v"}}') == tuple(sorted((("__name__", "x"), (word, "v"))))
    assert parse(f"sum by ({word}) (a)") == Aggregate("sum", selector("a"), grouping=(word,))


def test_trims_are_operators_like_comparisons() -> None:
    assert parse("a </ 1 + 2") == Binary("</", selector("a"), Binary("+", NumberLiteral(1), NumberLiteral(2)))


def test_the_second_argument_of_info_may_take_everything() -> None:
    node = parse("info(a, {})")
    assert isinstance(node, FunctionCall)
    assert node.arguments[1] == VectorSelector("", ())
    fixed = parse("info(a @ 1, {} @ 1)")
    assert isinstance(fixed, FunctionCall)
    assert fixed.arguments[1] == VectorSelector("", (), at_ms=1000)


def test_comments_end_with_the_line() -> None:
    assert parse("a # one\n + # two\n b") == Binary("+", selector("a"), selector("b"), VectorMatching())


def test_every_node_knows_its_bytes() -> None:
    query = "sum(rate(é_is_no_name[5m]))".replace("é_is_no_name", 'x{l="é"}')
    node = parse(query)
    assert isinstance(node, Aggregate)
    assert node.span == TextSpan(0, len(query.encode()))
    assert isinstance(node.expr, FunctionCall)
    matrix = node.expr.arguments[0]
    assert query.encode()[matrix.span.start : matrix.span.end].decode() == 'x{l="é"}[5m]'
    paren = parse("1 + (2)")
    assert isinstance(paren, Binary)
    assert paren.operator_span == TextSpan(2, 3)
    assert isinstance(paren.right, Paren)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "1:1: parse error: no expression found in input"),
        ("rate(foo)", '1:6: parse error: expected type range vector in call to function "rate", got instant vector'),
        ("1 == 1", "1:3: parse error: comparisons between scalars must use BOOL modifier"),
        ("a +\n bar[5m]", "2:2: parse error: binary expression must contain only scalar and instant vector types"),
        ("a and 1", '1:1: parse error: set operator "and" not allowed in binary scalar expression'),
        ("1 + on (a) 2", "1:1: parse error: vector matching only allowed between instant vectors"),
        ("a + on (x) group_left (x) b", '1:3: parse error: label "x" must not occur in ON and GROUP clause at once'),
        ("a or group_left b", "1:6: parse error: unexpected <group_left>"),
        ("foo bar", '1:5: parse error: unexpected identifier "bar"'),
        ("sum a", '1:5: parse error: unexpected identifier "a" in aggregation'),
        ("1e999", '1:1: parse error: error parsing number: "1e999" is not a number'),
        ("a @ 1e19", "1:1: parse error: timestamp out of bounds for @ modifier: 10000000000000000000.000000"),
        ("sum(", "1:5: parse error: unclosed left parenthesis"),
        ("sum(a", "1:6: parse error: unclosed left parenthesis"),
        ("sum()", "1:1: parse error: no arguments for aggregate expression provided"),
        ("topk(a)", "1:1: parse error: wrong number of arguments for aggregate expression provided, expected 2, got 1"),
        ("abs(a,)", "1:6: parse error: trailing commas not allowed in function call args"),
        ("abs()", '1:1: parse error: expected 1 argument(s) in call to "abs", got 0'),
        ("label_join(a)", '1:1: parse error: expected at least 3 argument(s) in call to "label_join", got 1'),
        ("round(a, 1, 2)", '1:1: parse error: expected at most 2 argument(s) in call to "round", got 3'),
        ("unknown(a)", '1:1: parse error: unknown function with name "unknown"'),
        ("{}", "1:1: parse error: vector selector must contain at least one non-empty matcher"),
        ('a{__name__="b"}', '1:1: parse error: metric name must not be set twice: "a" or "b"'),
        ("a[0]", "1:3: parse error: duration must be greater than 0"),
        ("a[5m] offset 1m offset 2m", "1:1: parse error: offset may not be set multiple times"),
        ("a @ 1 @ 2", "1:1: parse error: @ <timestamp> may not be set multiple times"),
        ("a offset 1m [5m]", "1:13: parse error: no offset modifiers allowed before range"),
        ("sum(a)[5m]", "1:7: parse error: ranges only allowed for vector selectors"),
        ("a[5m][5m:]", "1:1: parse error: subquery is only allowed on instant vector, got matrix instead"),
        ("a[5m:1m] anchored", "1:1: parse error: anchored modifier is not supported for subqueries"),
        ('"a', "1:1: parse error: unterminated quoted string"),
        ('"\\q"', "1:1: parse error: unknown escape sequence"),
        ("1x", '1:1: parse error: bad number or duration syntax: "1x"'),
        ("1m1h", '1:1: parse error: not a valid duration string: "1m1h"'),
        ("a{b}", '1:4: parse error: unexpected "}" in label matching, expected label matching operator'),
        ("a $ b", "1:3: parse error: unexpected character: '$'"),
        ('é{a="\ud800"}', "1:7: parse error: invalid UTF-8 rune"),
        ("-a[5m]", "1:1: parse error: unary expression only allowed on expressions of type scalar or instant vector"),
        ("info(a, b)", "1:9: parse error: expected label selectors only, got vector selector instead"),
    ],
)
def test_mistakes_are_told_with_their_place(query: str, message: str) -> None:
    with pytest.raises(PromqlSyntaxError) as caught:
        parse(query)
    assert caught.value.message.removesuffix(', got "range vector"') == message
    assert caught.value.code == "E0620"


@pytest.mark.parametrize(
    ("query", "feature"),
    [
        ("limitk(1, a)", Feature.EXPERIMENTAL_FUNCTIONS),
        ("info(a)", Feature.EXPERIMENTAL_FUNCTIONS),
        ("a[1m + 1m]", Feature.DURATION_EXPRESSIONS),
        ("a[1m] smoothed", Feature.EXTENDED_RANGE_SELECTORS),
        ("a + fill (0) b", Feature.BINARY_FILL_MODIFIERS),
    ],
)
def test_experimental_parts_can_be_switched_off(query: str, feature: Feature) -> None:
    parse(query)
    without = ParserOptions(features=frozenset(Feature) - {feature})
    with pytest.raises(PromqlSyntaxError) as caught:
        parse(query, without)
    assert caught.value.code == "E0622"
    assert feature.value in caught.value.hint


@pytest.mark.parametrize(
    "query",
    [
        "(" * 10_000 + "1" + ")" * 10_000,
        "-" * 10_000 + "a",
        " + ".join(["1"] * 10_000),
        " ^ ".join(["1"] * 10_000),
        "(" * 100 + " + ".join(["(a)"] * 100) + ")" * 100,
        "a[" + "(" * 5_000 + "1m" + ")" * 5_000 + "]",
        "a[" + "1m+" * 5_000 + "1m]",
        "abs(" * 5_000 + "a" + ")" * 5_000,
        "a" * 200_000,
        "a" + "[1m:]" * 1_000,
        "{" + ",".join(f'a=~"{number}.{{1,1000}}"' for number in range(2_000)) + "}",
        '{a=~"' + "[a-z]{1,900}" * 8_000 + '"}',
    ],
)
def test_hostile_queries_are_refused_and_never_overflow(query: str) -> None:
    with pytest.raises(PromqlSyntaxError) as caught:
        parse(query)
    assert caught.value.code in ("E0620", "E0621")


def test_the_largest_queries_leave_room_on_the_stack() -> None:
    """Parser, printer and binding recurse; a caller may already be hundreds of frames deep."""
    deepest = "abs(" * 97 + "rate(a[" + "(" * 31 + "1m" + ")" * 31 + "])" + ")" * 97
    times = QueryTimes(0, 0)

    def at_depth(frames: int) -> str:
        if frames:
            return at_depth(frames - 1)
        tree = parse(deepest)
        return to_text(bind(deepest, tree, times)) + to_lines(tree)

    assert at_depth(300)


def test_a_query_may_not_have_too_many_parts() -> None:
    wide = "sum(" + " or ".join(["a"] * 50) + ")"
    with pytest.raises(PromqlSyntaxError) as caught:
        parse(wide, ParserOptions(nodes_max=20))
    assert caught.value.code == "E0621"


def test_selectors_of_the_api_stand_alone() -> None:
    assert parse_selector('up{job="x"}') == (
        Matcher(MatchKind.EQUAL, "job", "x"),
        Matcher(MatchKind.EQUAL, "__name__", "up"),
    )
    for wrong in ("up[5m]", "up offset 5m", "sum(up)", "{}", "up, down"):
        with pytest.raises(PromqlSyntaxError):
            parse_selector(wrong)

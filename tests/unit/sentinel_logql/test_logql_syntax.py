"""LogQL's text: what it means, how it is written back, and what is said about mistakes."""

from __future__ import annotations

import pytest

from harch.sentinel.logql.syntax import nodes
from harch.sentinel.logql.syntax.cursor import LogqlSyntaxError
from harch.sentinel.logql.syntax.nodes import BinaryOperation, LogQuery, RangeAggregation
from harch.sentinel.logql.syntax.parser import parse, parse_log_query, parse_matchers
from harch.sentinel.logql.syntax.printer import to_text
from harch.sentinel.logql.text.values import duration_ns, format_bytes, format_duration, size_bytes

NORMAL_FORMS = {
    '{a="b"}': '{a="b"}',
    '{a="b",c=~"d|e",f!="g",h!~"i"}': '{a="b", c=~"d|e", f!="g", h!~"i"}',
    '{a="b"}|="x"!="y"|~"z"!~`\\d`': '{a="b"} |= "x" != "y" |~ "z" !~ "\\\\d"',
    '{a="b"} |= "x" or `y` or "z"': '{a="b"} |= "x" or "y" or "z"',
    '{a="b"} |> "<_>x" !> `y<_>`': '{a="b"} |> "<_>x" !> "y<_>"',
    '{a="b"} |= ip("10.0.0.0/8") != ip("::1")': '{a="b"} |= ip("10.0.0.0/8") != ip("::1")',
    '{a="b"} | json | logfmt | unpack | decolorize': '{a="b"} | json | logfmt | unpack | decolorize',
    '{a="b"} | json x, y="z.w[0]"': '{a="b"} | json x="x", y="z.w[0]"',
    '{a="b"} | logfmt --keep-empty --strict x': '{a="b"} | logfmt --strict --keep-empty x="x"',
    '{a="b"} | pattern "<c> <_>" | regexp "(?P<d>.)"': '{a="b"} | pattern "<c> <_>" | regexp "(?P<d>.)"',
    '{a="b"} | c="d", e>1 f<=2.5': '{a="b"} | (c="d" and e > 1) and f <= 2.5',
    '{a="b"} | c="d" or e="f" and g="h"': '{a="b"} | c="d" or (e="f" and g="h")',
    '{a="b"} | c="d", e="f" or g="h" i="j"': '{a="b"} | (c="d" and (e="f" or g="h")) and i="j"',
    '{a="b"} | (c="d" or e="f") and g="h"': '{a="b"} | (c="d" or e="f") and g="h"',
    '{a="b"} | c > 1h30m | d >= 1.5KB | e = 5 | f != 2Ki': ('{a="b"} | c > 1h30m | d >= 1500B | e == 5 | f != 2KiB'),
    '{a="b"} | c = ip("1.2.3.4-1.2.3.9")': '{a="b"} | c = ip("1.2.3.4-1.2.3.9")',
    '{a="b"} | line_format "{{.c}}" | label_format d=e,f="{{.g}}"': (
        '{a="b"} | line_format "{{.c}}" | label_format d=e, f="{{.g}}"'
    ),
    '{a="b"} | drop c,d="e" | keep f, g=~"h"': '{a="b"} | drop c, d="e" | keep f, g=~"h"',
    '({a="b"} |= "x")': '{a="b"} |= "x"',
    '{a="b"} | json | json="x"': '{a="b"} | json | json="x"',
    '{a="b"} | duration > 5s # the rest is for people': '{a="b"} | duration > 5s',
    'rate({a="b"}[5m])': 'rate({a="b"} [5m])',
    'rate({a="b"} [1h] |= "x" offset 5m)': 'rate({a="b"} |= "x" [1h] offset 5m)',
    'rate(({a="b"} |= "x")[90s] offset -1m)': 'rate({a="b"} |= "x" [1m30s] offset -1m)',
    'sum by(c,d)(rate({a="b"}[1m]))': 'sum by (c, d) (rate({a="b"} [1m]))',
    'sum(rate({a="b"}[1m])) without(c)': 'sum without (c) (rate({a="b"} [1m]))',
    'sum by () (rate({a="b"}[1m]))': 'sum(rate({a="b"} [1m]))',
    'topk(3, rate({a="b"}[1m])) by (c)': 'topk by (c) (3, rate({a="b"} [1m]))',
    'sort_desc(rate({a="b"}[1m]))': 'sort_desc(rate({a="b"} [1m]))',
    'quantile_over_time(.99,{a="b"}|unwrap c[1m]) by (d)': 'quantile_over_time(0.99, {a="b"} | unwrap c [1m]) by (d)',
    'sum_over_time({a="b"}|json|unwrap duration_seconds(c)|__error__=""[1m])': (
        'sum_over_time({a="b"} | json | unwrap duration(c) | __error__="" [1m])'
    ),
    "1+2*3^2": "1 + (2 * (3 ^ 2))",
    "vector(-1) > bool 2": "vector(-1) > bool 2",
    'rate({a="b"}[1m]) / on(c) group_left(d) rate({a="b"}[1m])': (
        'rate({a="b"} [1m]) / on (c) group_left (d) rate({a="b"} [1m])'
    ),
    'rate({a="b"}[1m]) unless ignoring(c) vector(1) or vector(2)': (
        '(rate({a="b"} [1m]) unless ignoring (c) vector(1)) or vector(2)'
    ),
    'label_replace(vector(1),"a","$1","b","(.*)")': 'label_replace(vector(1), "a", "$1", "b", "(.*)")',
}


@pytest.mark.parametrize(("query", "normal"), NORMAL_FORMS.items())
def test_a_query_has_one_normal_form_which_means_the_same(query: str, normal: str) -> None:
    tree = parse(query)
    assert to_text(tree) == normal
    assert parse(normal) == tree


MISTAKES = {
    "": "1:1: parse error: no expression found in input",
    "{}": "empty-compatible",
    '{a=~".*"}': "empty-compatible",
    '{"b"}': "streams have labels but no name",
    "{a='b'}": "1:4: parse error: unexpected character: '''",
    '{a="b"': 'unexpected end of input in label matching, expected "," or "}"',
    '{a="b"} |= x': "1:12: parse error: unexpected identifier",
    '{a="b"} |~ "("': "error parsing regexp",
    '{a="b"} | jso': "expected a comparison",
    '{a="b"} | json | regexp "a"': "named capture",
    '{a="b"} | pattern "<a><b>"': "two captures need text between them",
    '{a="b"} | pattern "x"': "at least one capture needs a name",
    '{a="b"} | pattern "<a> <a>"': "capture names must be unique",
    '{a="b"} |> "<a>"': "takes only `<_>`",
    '{a="b"} | logfmt --what': "logfmt has no flag --what",
    '{a="b"} | json x="["': "not a path to a field",
    '{a="b"} |= ip("x")': "not an address or range",
    '{a="b"} |~ ip("1.1.1.1")': "ip() takes `|=` and `!=` only",
    '{a="b"} | c =~ 5': "a regular expression in quotes",
    '{a="b"} | c > "x"': "expected =, !=, =~ or !~",
    '{a="b"} | line_format "{{.a"': "parse error",
    '{a="b"} | line_format "{{ .a | nope }}"': "function `nope` is not defined",
    '{a="b"} | label_format c=d, c="e"': "set twice",
    '{a="b"} | label_format __error__="x"': "cannot be formatted",
    'rate({a="b"})': "rate needs a range",
    'rate({a="b"}[5m][5m])': "a range is already set",
    'rate({a="b"}[0s])': "longer than 0",
    'rate({a="b"} offset 5m)': "offset must follow the range",
    'count_over_time({a="b"} | unwrap c [5m])': "takes no unwrap",
    'sum_over_time({a="b"}[5m])': "needs values to work on",
    'sum_over_time({a="b"} | unwrap c [5m]) by (d)': "grouping not allowed for sum_over_time",
    'sum_over_time({a="b"} | unwrap c | json [5m])': "expected a comparison",
    'sum_over_time({a="b"} | unwrap c | unwrap d [5m])': "once in a pipeline",
    'sum_over_time({a="b"} | unwrap nope(c) [5m])': "duration()",
    'sum({a="b"})': "lines are not a number",
    '{a="b"} + 1': "unexpected <op:+>",
    '1 + {a="b"}': "lines are not a number",
    "sum(1)": "sum takes a vector",
    'topk(0, rate({a="b"}[1m]))': "a whole number above 0",
    'topk(1.5, rate({a="b"}[1m]))': "a whole number above 0",
    'approx_topk(1, rate({a="b"}[1m]))': "approx_topk is not supported",
    'sort(rate({a="b"}[1m])) by (c)': "takes no grouping",
    "foo(1)": "unknown function foo",
    "vector(1) and 2": "joins vectors, not numbers",
    "vector(1) + bool vector(1)": "bool may only follow a comparison",
    "vector(1) + on(a) 2": "matching labels takes vectors on both sides",
    "vector(1) and on(a) group_left vector(2)": "no grouping allowed for `and`",
    "5xyz": "bad number, duration or size",
    '{a="b"} | c > 99999999999999999999y': "bad number, duration or size",
    'label_replace(vector(1), "", "", "", "")': "needs the name of a label",
}


@pytest.mark.parametrize(("query", "sentence"), MISTAKES.items())
def test_a_mistake_is_named_with_its_place(query: str, sentence: str) -> None:
    with pytest.raises(LogqlSyntaxError) as caught:
        parse(query)
    assert caught.value.code == "E0685"
    assert sentence in caught.value.message


def test_a_mistake_in_the_second_line_is_found_there() -> None:
    with pytest.raises(LogqlSyntaxError) as caught:
        parse('{a="b"}\n  | é = 5')
    assert caught.value.position == "2:5"


def test_queries_that_could_exhaust_the_server_are_refused() -> None:
    for query in (
        "(" * 500 + "1" + ")" * 500,
        "1" + "+1" * 20_000,
        '{a="b"} ' + '|= "x"' * 200,
        '{a="b"} | ' + "(" * 300 + "c=1" + ")" * 300,
        '{a="b"} | c=1' + " or c=1" * 500,
        '{a=~"' + "x{1000}" * 50 + '"}',
        "x" * 200_000,
    ):
        with pytest.raises(LogqlSyntaxError):
            parse(query)


def test_keywords_may_be_names_of_labels() -> None:
    tree = parse('sum by (json, count) (rate({a="b"} | rate="x" | drop by | label_format keep=drop [1m]))')
    assert "json, count" in to_text(tree)


def test_the_parts_of_a_query_know_where_they_stand() -> None:
    query = 'rate({a="b"} |= "x" [5m]) + 1'
    tree = parse(query)
    assert isinstance(tree, BinaryOperation)
    assert isinstance(tree.left, RangeAggregation)
    assert query[tree.left.span.start : tree.left.span.end] == 'rate({a="b"} |= "x" [5m])'
    stage = tree.left.query.stages[0]
    assert isinstance(stage, nodes.LineFilterStage)
    assert query[stage.span.start : stage.span.end] == '|= "x"'


def test_tail_takes_lines_and_the_catalog_takes_selectors_only() -> None:
    assert isinstance(parse_log_query('{a="b"} | json'), LogQuery)
    with pytest.raises(LogqlSyntaxError, match="needs a query for lines"):
        parse_log_query("vector(1)")
    assert len(parse_matchers('{a="b", c="d"}')) == 2
    with pytest.raises(LogqlSyntaxError):
        parse_matchers('{a="b"} |= "x"')


def test_durations_and_sizes_read_back_as_they_are_written() -> None:
    for ns in (1, 1_500, 90_000_000_000, 3_661_000_000_001, 365 * 86_400_000_000_000):
        assert duration_ns(format_duration(ns)) == ns
    for size in (0, 1, 1000, 1024, 1500, 5 * 1024**3, 20 * 10**6):
        assert size_bytes(format_bytes(size)) == size
    assert duration_ns("1.5s") == 1_500_000_000
    assert duration_ns("10µs") == 10_000
    assert duration_ns("-2m") == -120_000_000_000
    assert duration_ns("5") is None
    assert size_bytes("5 MiB") == 5 * 1024**2
    assert size_bytes("1.5kB") == 1500
    assert size_bytes("x") is None

"""LogQL in general: its normal form, its answers against a plain reading of the lines, and any noise as a query."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.sentinel.logql.evaluate.context import LogQueryOptions
from harch.sentinel.logql.evaluate.engine import LogqlEngine
from harch.sentinel.logql.evaluate.lines import LineWindow
from harch.sentinel.logql.syntax import nodes
from harch.sentinel.logql.syntax.nodes import (
    BinaryOperation,
    Grouping,
    LabelReplace,
    LogQuery,
    Number,
    Query,
    RangeAggregation,
    Unwrap,
    VectorAggregation,
    VectorOf,
)
from harch.sentinel.logql.syntax.parser import is_number, parse
from harch.sentinel.logql.syntax.printer import to_text
from harch.sentinel.model.labels import Labels, Matcher, MatchKind, labels
from harch.sentinel.model.logs import LineOrder, LogBatch
from harch.sentinel.promql.evaluate.values import MatrixResult
from harch.sentinel.promql.syntax.nodes import COMPARISONS, SET_OPERATORS, Cardinality, VectorMatching
from harch.testing.telemetry_stores import MemoryLogs

S = 1_000_000_000
T0 = 1_700_000_000 * S

# Trees

names = st.sampled_from(["a", "level", "json", "rate", "by", "__error__", "logfmt", "duration", "sum", "x_1"])
plain_texts = st.text(max_size=8).filter(lambda text: text.isprintable() or "\n" in text)
expressions = st.sampled_from(["a.*", "x|y", r"\d+", "", '[^"`]', "é"])
matchers = st.one_of(
    st.builds(Matcher, st.sampled_from([MatchKind.EQUAL, MatchKind.NOT_EQUAL]), names, plain_texts),
    st.builds(Matcher, st.sampled_from([MatchKind.REGEX, MatchKind.NOT_REGEX]), names, expressions),
)
addresses = st.sampled_from(["10.0.0.1", "10.0.0.0/8", "10.0.0.1-10.0.0.9", "::1", "fe80::/10"])
patterns = st.sampled_from(["<_>x", "a <_> b", "<_>"])
templates = st.sampled_from(["", "{{.a}}", "x {{.a | upper}} y", "{{if .a}}b{{end}}", "plain"])


@st.composite
def line_filters(draw: st.DrawFn) -> nodes.LineFilterStage:
    operator = draw(st.sampled_from(nodes.LineOperator))
    if operator in (nodes.LineOperator.CONTAINS, nodes.LineOperator.LACKS):
        one = st.one_of(st.builds(nodes.LineText, plain_texts), st.builds(nodes.LineText, addresses, st.just(True)))
    elif operator in (nodes.LineOperator.FITS, nodes.LineOperator.FITS_NOT):
        one = st.builds(nodes.LineText, patterns)
    else:
        one = st.builds(nodes.LineText, expressions)
    return nodes.LineFilterStage(operator, tuple(draw(st.lists(one, min_size=1, max_size=3))))


comparisons = st.sampled_from(["==", "!=", ">", ">=", "<", "<="])
amounts = st.one_of(
    st.tuples(st.floats(allow_nan=False, allow_infinity=False).map(abs), st.just(nodes.Unit.NUMBER)),
    st.tuples(st.integers(1, 10**15).map(float), st.just(nodes.Unit.DURATION)),
    st.tuples(st.integers(1, 10**15).map(float), st.just(nodes.Unit.BYTES)),
)
conditions = st.recursive(
    st.one_of(
        st.builds(nodes.TextCondition, matchers),
        st.builds(lambda name, sign, of: nodes.AmountCondition(name, sign, *of), names, comparisons, amounts),
        st.builds(nodes.AddressCondition, names, st.booleans(), addresses),
    ),
    lambda inner: st.one_of(st.builds(nodes.Both, inner, inner), st.builds(nodes.Either, inner, inner)),
    max_leaves=4,
)
extractions = st.lists(st.builds(nodes.Extraction, names, st.sampled_from(["a", "x_1"])), max_size=2).map(tuple)
label_lists = st.lists(st.one_of(names, matchers), min_size=1, max_size=3).map(tuple)
assigned = st.sampled_from(["a", "level", "json", "rate", "x_1"])
assignments = st.lists(
    st.one_of(
        st.builds(nodes.LabelAssignment, assigned, names, st.just(False)),
        st.builds(nodes.LabelAssignment, assigned, templates, st.just(True)),
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda one: one.label,
).map(tuple)
any_stage = st.one_of(
    line_filters(),
    st.builds(nodes.Json, extractions),
    st.builds(nodes.Logfmt, extractions, st.booleans(), st.booleans()),
    st.builds(nodes.PatternParser, st.sampled_from(["<a> <_>", 'x="<a>" <b>'])),
    st.builds(nodes.Regexp, st.sampled_from(["(?P<a>.)", "(?P<a>x)|(?P<b>y)"])),
    st.builds(nodes.Unpack),
    st.builds(nodes.LabelFilter, conditions),
    st.builds(nodes.LineFormat, templates),
    st.builds(nodes.LabelFormat, assignments),
    st.builds(nodes.Decolorize),
    st.builds(nodes.DropLabels, label_lists),
    st.builds(nodes.KeepLabels, label_lists),
)
anchor = Matcher(MatchKind.EQUAL, "job", "x")
log_queries = st.builds(
    lambda more, pipeline: LogQuery((anchor, *more), pipeline),
    st.lists(matchers, max_size=2).map(tuple),
    st.lists(any_stage, max_size=4).map(tuple),
)
groupings = st.one_of(
    st.none(),
    st.builds(Grouping, st.lists(names, min_size=1, max_size=2).map(tuple), st.booleans()),
    st.just(Grouping((), without=True)),
)
spans_ns = st.integers(1, 10**16)
offsets_ns = st.integers(-(10**15), 10**15)
unwraps = st.builds(
    Unwrap,
    names,
    st.sampled_from(["", "duration", "bytes"]),
    st.lists(st.builds(nodes.LabelFilter, conditions), max_size=2).map(tuple),
)


@st.composite
def range_aggregations(draw: st.DrawFn) -> RangeAggregation:
    function = draw(
        st.sampled_from(["rate", "count_over_time", "bytes_rate", "absent_over_time", "sum_over_time"])
        | st.sampled_from(["quantile_over_time", "max_over_time", "rate_counter"])
    )
    counts = function in ("count_over_time", "bytes_rate")
    unwrap = None if counts else draw(unwraps)
    if function in ("rate", "absent_over_time"):
        unwrap = draw(st.one_of(st.none(), unwraps))
    grouping = draw(groupings) if function in ("quantile_over_time", "max_over_time") else None
    parameter = draw(st.floats(0, 1)) if function == "quantile_over_time" else None
    query = draw(log_queries)
    return RangeAggregation(function, query, draw(spans_ns), draw(offsets_ns), unwrap, parameter, grouping)


finite = st.floats(allow_nan=False, allow_infinity=False)


def _joined(operator: str, left: Query, right: Query, matching: VectorMatching, return_bool: bool) -> Query:
    """A binary operation as the parser would settle it."""
    assert not isinstance(left, LogQuery)
    assert not isinstance(right, LogQuery)
    has_number = is_number(left) or is_number(right)
    if operator in SET_OPERATORS:
        if has_number:
            return VectorOf(1.0)
        settled: VectorMatching | None = VectorMatching(Cardinality.MANY_TO_MANY, matching.labels, matching.on)
    else:
        settled = None if has_number else matching
    return BinaryOperation(operator, left, right, settled, return_bool and operator in COMPARISONS)


matchings = st.one_of(
    st.just(VectorMatching()),
    st.builds(
        VectorMatching,
        st.sampled_from([Cardinality.ONE_TO_ONE, Cardinality.MANY_TO_ONE, Cardinality.ONE_TO_MANY]),
        st.just(("a",)),
        st.booleans(),
    ),
)
operators = st.sampled_from(["+", "-", "*", "/", "%", "^", "==", "!=", ">", "<=", "and", "or", "unless"])
vectors = st.one_of(range_aggregations(), st.builds(VectorOf, finite))


def _vector(tree: Query) -> Query:
    assert not isinstance(tree, LogQuery)
    return VectorOf(1.0) if is_number(tree) else tree


metrics = st.recursive(
    st.one_of(vectors, st.builds(Number, finite)),
    lambda inner: st.one_of(
        st.builds(
            VectorAggregation, st.sampled_from(["sum", "avg", "count"]), inner.map(_vector), st.none(), groupings
        ),
        st.builds(VectorAggregation, st.just("topk"), inner.map(_vector), st.integers(1, 9), groupings),
        st.builds(VectorAggregation, st.just("sort_desc"), inner.map(_vector), st.none(), st.none()),
        st.builds(LabelReplace, inner.map(_vector), names, plain_texts, names, expressions),
        st.builds(_joined, operators, inner, inner, matchings, st.booleans()),
    ),
    max_leaves=4,
)


@given(st.one_of(log_queries, metrics))
@settings(max_examples=150, deadline=None)
def test_the_normal_form_of_any_query_means_the_same(tree: Query) -> None:
    assert parse(to_text(tree)) == tree


# Answers

apps, levels = st.sampled_from(["web", "db", "cron"]), st.sampled_from(["info", "warn", "error", ""])
stored_lines = st.lists(
    st.tuples(
        apps,
        st.integers(0, 120),
        levels,
        st.integers(0, 50),
        st.sampled_from(["alpha", "beta gamma", "10.0.0.7", ""]),
        st.sampled_from(["", "t1", "t2"]),
    ),
    max_size=60,
)
Row = dict[str, str]


def _store(rows: list[tuple[str, int, str, int, str, str]]) -> tuple[MemoryLogs, list[tuple[int, Row]]]:
    """The store, and the same lines as dictionaries with all that a query could know of them."""
    store, plain = MemoryLogs(), []
    for app, second, level, number, words, trace in rows:
        text = " ".join(
            part
            for part in (f"level={level}" if level else "", f"n={number}", f'msg="{words}"' if words else "")
            if part
        )
        metadata = labels({"trace_id": trace})
        store.append([LogBatch(labels({"app": app}), [T0 + second * S], [text], [metadata])])
        plain.append(
            (second, {"app": app, "level": level, "n": str(number), "msg": words, "trace_id": trace, "": text})
        )
    return store, plain


KEEPS: dict[str, Callable[[Row], bool]] = {
    "": lambda row: True,
    '|= "beta"': lambda row: "beta" in row[""],
    '!= "beta"': lambda row: "beta" not in row[""],
    '|~ "n=[1-3]"': lambda row: re.search("n=[1-3]", row[""]) is not None,
    '|= "alpha" or "gamma"': lambda row: "alpha" in row[""] or "gamma" in row[""],
    '|> "<_>gamma<_>"': lambda row: re.search("(?s)\\A.+gamma.+\\Z", row[""]) is not None,
    '|= ip("10.0.0.0/8")': lambda row: "10.0.0.7" in row[""],
    '| trace_id="t1"': lambda row: row["trace_id"] == "t1",
    '| logfmt | level="error"': lambda row: row["level"] == "error",
    '| logfmt | n > 10 and level!=""': lambda row: int(row["n"]) > 10 and row["level"] != "",
    '| logfmt | n <= 25 or trace_id=~"t.+"': lambda row: int(row["n"]) <= 25 or row["trace_id"] != "",
    '| logfmt | label_format m=msg | m="alpha"': lambda row: row["msg"] == "alpha",
}


@given(
    stored_lines,
    st.sampled_from(sorted(KEEPS)),
    st.integers(1, 20),
    st.sampled_from([LineOrder.OLDEST_FIRST, LineOrder.NEWEST_FIRST]),
)
@settings(max_examples=60, deadline=None)
def test_lines_are_those_that_a_plain_reading_finds(
    rows: list[tuple[str, int, str, int, str, str]], stage: str, limit: int, order: LineOrder
) -> None:
    store, plain = _store(rows)
    engine = LogqlEngine()
    tree = engine.tree(f'{{app=~"web|db"}} {stage}')
    assert isinstance(tree, LogQuery)
    window = LineWindow(T0 + 5 * S, T0 + 100 * S, order, limit)
    found = engine.lines(tree, window, store, T0, LogQueryOptions()).value
    assert isinstance(found, list)
    wanted = sorted(
        (second, row[""])
        for second, row in plain
        if row["app"] in ("web", "db") and 5 <= second < 100 and KEEPS[stage](row)
    )
    times = [second for second, _ in wanted]
    expected = times[:limit] if order is LineOrder.OLDEST_FIRST else times[::-1][:limit]
    assert [(entry.time_ns - T0) // S for entry in found] == expected
    assert {((entry.time_ns - T0) // S, entry.text) for entry in found} <= set(wanted)


FOLDS: dict[str, tuple[str, Callable[[list[float], float], float]]] = {
    "count_over_time": ("", lambda values, _: float(len(values))),
    "rate": ("", lambda values, span: len(values) / span),
    "sum_over_time": ("| unwrap n", lambda values, _: sum(values)),
    "max_over_time": ("| unwrap n", lambda values, _: max(values)),
    "avg_over_time": ("| unwrap n", lambda values, _: sum(values) / len(values)),
}


@given(
    stored_lines,
    st.sampled_from(sorted(FOLDS)),
    st.sampled_from(sorted(KEEPS)),
    st.sampled_from([(), ("app",), ("level",), ("trace_id", "app")]),
    st.integers(1, 40),
    st.integers(1, 30),
    st.integers(-20, 20),
)
@settings(max_examples=80, deadline=None)
def test_numbers_are_those_that_a_plain_reading_gives(
    rows: list[tuple[str, int, str, int, str, str]],
    function: str,
    stage: str,
    group: tuple[str, ...],
    range_s: int,
    step_s: int,
    offset_s: int,
) -> None:
    store, plain = _store(rows)
    unwrap, fold = FOLDS[function]
    parser = "" if "logfmt" in stage else "| logfmt"
    inner = f'{{app=~".+"}} {stage} {parser} {unwrap} [{range_s}s] offset {offset_s}s'
    grouped = f"by ({','.join(group)})"
    if function in ("max_over_time", "avg_over_time"):
        query = f"{function}({inner}) {grouped}"
    else:
        query = f"sum {grouped} ({function}({inner}))"
    engine, start_ms, end_ms = LogqlEngine(), T0 // 10**6, T0 // 10**6 + 100_000
    value = engine.range(engine.tree(query), start_ms, end_ms, step_s * 1000, store, T0, LogQueryOptions()).value
    assert isinstance(value, MatrixResult)
    found = {
        (value.series.labels_of(row), int(value.times[step] - start_ms) // 1000): float(value.values[row, step])
        for row in range(value.series.count)
        for step in range(len(value.times))
        if value.present[row, step]
    }
    expected: dict[tuple[Labels, int], list[float]] = defaultdict(list)
    for at_s in range(0, 101, step_s):
        for second, row in plain:
            if at_s - offset_s - range_s < second <= at_s - offset_s and KEEPS[stage](row):
                key = labels({name: row[name] for name in group})
                expected[key, at_s].append(float(row["n"]))
    plainly = {key: fold(values, range_s) for key, values in expected.items()}
    assert found.keys() == plainly.keys()
    assert all(abs(found[key] - plainly[key]) < 1e-9 for key in found)


# Noise

_WORDS = """{a="b"} { } | |= != |~ ( ) [5m] [ rate sum by json unwrap a "x" `(` 5 5m 5KB , = =~ > and or offset
line_format {{.a}} ip - # \\ " """
words = st.sampled_from(_WORDS.split())


@given(st.one_of(st.lists(words, max_size=14).map(" ".join), st.text(max_size=40)))
@settings(max_examples=200, deadline=None)
def test_any_noise_is_answered_or_refused(query: str) -> None:
    engine = LogqlEngine()
    store = MemoryLogs()
    store.append([LogBatch((("a", "b"),), [T0], ['{"a": "{{"} x=1'])])
    try:
        tree = engine.tree(query)
        if isinstance(tree, LogQuery):
            engine.lines(tree, LineWindow(T0, T0 + S, limit=5), store, T0, LogQueryOptions())
        else:
            engine.range(tree, T0 // 10**6, T0 // 10**6 + 10_000, 1000, store, T0, LogQueryOptions())
    except HarchError as error:
        status = error.kind.status
    else:
        status = 200
    assert status < 500


PIPELINES = (
    '| json | level!=""',
    '| json a="b.c[0]", d="[1]" | a > 5',
    "| logfmt --strict | n >= 1KB",
    "| logfmt | took < 5m",
    "| pattern `<a> <_>=<b>`",
    "| regexp `(?P<a>.).*(?P<b>\\d)`",
    "| unpack | decolorize",
    '|= ip("10.0.0.0/8") or ip("::/0")',
    "| logfmt | line_format `{{.a | b64dec}} {{__line__ | upper | trunc 5}} {{fromJson .b}} {{div .n 0}}`",
    '| label_format a="{{__timestamp__ | date `2006`}}" | keep a | drop a=~"2.*"',
)
odd_lines = st.one_of(
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace").decode()),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
        max_leaves=8,
    ).map(json.dumps),
    st.lists(
        st.sampled_from(['a="', '"', "=", "b=c", " ", "\\", "\\u12", "n=5", "::1", "10.1.1.1", "\x1b["]), max_size=8
    ).map("".join),
)


@given(st.lists(odd_lines, min_size=1, max_size=6), st.sampled_from(PIPELINES))
@settings(max_examples=150, deadline=None)
def test_any_line_passes_any_stage(lines: list[str], pipeline: str) -> None:
    store, engine = MemoryLogs(), LogqlEngine()
    store.append([LogBatch((("job", "x"),), [T0 + place for place in range(len(lines))], lines)])
    tree = engine.tree(f'{{job="x"}} {pipeline}')
    assert isinstance(tree, LogQuery)
    found = engine.lines(tree, LineWindow(T0, T0 + S), store, T0, LogQueryOptions()).value
    assert isinstance(found, list)
    json.dumps([[entry.text, *entry.labels] for entry in found], ensure_ascii=False).encode()

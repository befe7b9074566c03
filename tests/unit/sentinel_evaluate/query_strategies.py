"""Queries of any shape that type-check: selectors, ranges, subqueries, functions, operators, aggregations."""

from __future__ import annotations

from hypothesis import strategies as st

from harch.sentinel.promql.syntax.nodes import SIGNATURES, ValueType

_ASKS_FOR_THE_GRID = {"start", "end", "range", "step"}
_TEXTS = {
    "label_replace": ['"dst"', '"x-$1"', '"a"', '"(.*)"'],
    "label_join": ['"dst"', '"-"', '"a"', '"b"'],
    "histogram_quantiles": ['"q"'],
    "sort_by_label": ['"a"'],
    "sort_by_label_desc": ['"b"'],
}
_SMOOTH = ("rate", "increase", "delta")

_number = st.sampled_from(["0", "1", "2.5", "-3", "NaN", "Inf", "1e3", "0.9"])
_duration = st.sampled_from(["7s", "10s", "25s", "1m"])
_metric = st.sampled_from(["m", "c_total", "h", "mix", '{a="x"}', 'm{b!="y"}', "c_total{a=~'x|y'}", "none"])
_moment = st.sampled_from(["", "", "", " offset 10s", " offset -15s", " @ 40", " @ 40 offset 5s"])


def vectors() -> st.SearchStrategy[str]:
    """Instant vectors."""
    return st.recursive(st.tuples(_metric, _moment).map("".join), _larger, max_leaves=4)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    scalar = st.one_of(_number, inner.map("scalar({})".format), st.just("time()"))
    plain = st.tuples(_metric, _duration, _moment).map("{0[0]}[{0[1]}]{0[2]}".format)
    sub = st.tuples(inner, _duration, st.sampled_from(["", "5s", "10s"]), _moment).map(
        "({0[0]})[{0[1]}:{0[2]}]{0[3]}".format
    )
    ranges = st.one_of(plain, sub)
    matching = st.sampled_from(
        ["", " on (a)", " ignoring (b)", " on (a, b) group_left ()", " on (a) group_right (b)", " fill (1)"]
    )
    arithmetic = st.sampled_from(["+", "-", "*", "/", "%", "^", "atan2", "==", "!=", "<", ">", ">= bool", "<= bool"])
    sets = st.sampled_from([" and ", " or ", " unless ", " and on (a) ", " or ignoring (b) ", " unless on () "])
    clause = st.sampled_from(["", " by (a)", " without (b)", " by (a, b)", " by (__name__)"])
    simple = st.sampled_from(["sum", "avg", "min", "max", "count", "group", "stddev", "stdvar"])
    ranked = st.sampled_from(["topk", "bottomk", "limitk", "quantile", "limit_ratio"])
    return st.one_of(
        st.sampled_from(sorted(SIGNATURES)).flatmap(lambda name: _call(name, inner, scalar, ranges)),
        st.tuples(st.sampled_from(_SMOOTH), plain, st.sampled_from(["anchored", "smoothed"])).map(
            "{0[0]}({0[1]} {0[2]})".format
        ),
        st.tuples(inner, arithmetic, matching, inner).map("({0[0]}) {0[1]}{0[2]} ({0[3]})".format),
        st.tuples(inner, arithmetic, scalar).map("({0[0]}) {0[1]} {0[2]}".format),
        st.tuples(inner, sets, inner).map("({0[0]}){0[1]}({0[2]})".format),
        st.tuples(simple, clause, inner).map("{0[0]}{0[1]} ({0[2]})".format),
        st.tuples(ranked, clause, scalar, inner).map("{0[0]}{0[1]} ({0[2]}, {0[3]})".format),
        st.tuples(clause, inner).map('count_values{0[0]} ("v", {0[1]})'.format),
        inner.map("-({})".format),
    )


def _call(
    name: str, vector: st.SearchStrategy[str], scalar: st.SearchStrategy[str], ranges: st.SearchStrategy[str]
) -> st.SearchStrategy[str]:
    """One call of a function that gives a vector, with as many arguments as it must have."""
    signature = SIGNATURES[name]
    if signature.returns is not ValueType.VECTOR or name in _ASKS_FOR_THE_GRID:
        return vector
    texts = iter(_TEXTS.get(name, []))
    kinds = {ValueType.VECTOR: vector, ValueType.SCALAR: scalar, ValueType.MATRIX: ranges}
    count = max(signature.arguments_min, 1 if signature.parameters else 0)
    arguments = []
    for place in range(count):
        kind = signature.parameter(place)
        arguments.append(st.just(next(texts)) if kind is ValueType.STRING else kinds[kind])
    return st.tuples(*arguments).map(lambda given: f"{name}({', '.join(given)})")

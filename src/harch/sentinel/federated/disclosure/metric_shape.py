"""Which PromQL expressions may be asked from abroad? One aggregation over one selector, and nothing that chooses.

Whatever is applied to single values before they are summed up could tell them apart: a comparison filters, a large
number that is added rounds, a large factor overflows. So a sum is over the samples themselves or over one of a few
functions of time that treat all series alike; all else is done by the asker, with the sum.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass, replace

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.sentinel.federated.disclosure.policy import TelemetryPolicy
from harch.sentinel.model.labels import METRIC_NAME, Matcher, MatchKind
from harch.sentinel.promql.syntax.nodes import (
    Aggregate,
    Binary,
    Expr,
    FunctionCall,
    MatrixSelector,
    RangeMode,
    Subquery,
    VectorSelector,
    unwrap,
)
from harch.sentinel.promql.syntax.parser import parse

_WHY_NOT = {
    "min": "a minimum is one raw value",
    "max": "a maximum is one raw value",
    "topk": "the largest series are individual series",
    "bottomk": "the smallest series are individual series",
    "limitk": "selected series are individual series",
    "limit_ratio": "selected series are individual series",
    "quantile": "a quantile is one raw value, or two",
    "count_values": "it lists raw values",
}


@dataclass(frozen=True, slots=True)
class CrossBorderQuery:
    """`aggregate` over `inner`, which reads every series of `metric`; `matchers` choose among them."""

    aggregate: Aggregate
    inner: Expr
    metric: str
    matchers: tuple[Matcher, ...]
    window_ms: int  # how far back a value looks
    offset_ms: int


def parse_cross_border(expression: str, policy: TelemetryPolicy) -> CrossBorderQuery | Rejection:
    """The expression taken apart, or the rule that it breaks."""
    try:
        tree = unwrap(parse(expression))
    except HarchError as error:
        return Rejection(expression, "syntax", error.message, "send a PromQL expression")
    if not isinstance(tree, Aggregate):
        return _no(expression, "aggregate", "individual series do not leave the country", "sum by (job) (…)")
    if tree.operator not in policy.cross_border_aggregations:
        why = _WHY_NOT.get(tree.operator, "this hub does not disclose it to other countries")
        return _no(
            expression, "aggregate", f"{tree.operator}: {why}", ", ".join(sorted(policy.cross_border_aggregations))
        )
    if tree.without:
        return _no(expression, "grouping", "`without` keeps unnamed labels", "by (job)")
    strange = [name for name in tree.grouping if name not in policy.cross_border_labels]
    if strange:
        return _no(expression, "labels", f"groups by `{strange[0]}` are too small", _labels_fix(policy))
    return _inside(expression, tree, policy)


def _inside(expression: str, aggregate: Aggregate, policy: TelemetryPolicy) -> CrossBorderQuery | Rejection:
    inner = unwrap(aggregate.expr)
    quantum_ms = policy.quantum_s * 1000
    range_ms, ranged = 0, inner
    if isinstance(inner, FunctionCall) and inner.function in policy.cross_border_functions:
        ranged = unwrap(inner.arguments[0])
        if isinstance(ranged, MatrixSelector):
            range_ms = ranged.range_ms
            if ranged.range_expr is not None or range_ms % quantum_ms:
                return _times(expression, f"a range of {range_ms} ms", policy)
    selector = ranged.selector if isinstance(ranged, MatrixSelector) else ranged
    if not isinstance(selector, VectorSelector):
        functions = ", ".join(sorted(policy.cross_border_functions))
        return _no(expression, "function", _what(inner), f"a selector, or one of {functions} of it")
    if selector.range_mode is not RangeMode.PLAIN:
        return _no(expression, "function", f"`{selector.range_mode.value}` reads beyond the range", "remove it")
    if selector.at_ms is not None or selector.at_edge is not None:
        return _times(expression, "`@`", policy)
    if selector.offset_expr is not None or selector.offset_ms % quantum_ms:
        return _times(expression, "this offset", policy)
    rejection = _matchers(expression, selector, policy)
    if rejection is not None:
        return rejection
    everything = replace(selector, matchers=selector.matchers[-1:])
    reads: Expr = everything
    if isinstance(ranged, MatrixSelector) and isinstance(inner, FunctionCall):
        reads = replace(inner, arguments=(replace(ranged, selector=everything),))
    chosen = selector.matchers[:-1]
    window_ms = range_ms or quantum_ms
    return CrossBorderQuery(aggregate, reads, selector.name, chosen, window_ms, selector.offset_ms)


def _matchers(expression: str, selector: VectorSelector, policy: TelemetryPolicy) -> Rejection | None:
    by_name = [matcher for matcher in selector.matchers if matcher.name == METRIC_NAME]
    if not selector.name or len(by_name) != 1 or by_name[0].kind is not MatchKind.EQUAL:
        return _no(expression, "metric", "name one metric", "name{…}")
    if selector.name in policy.metrics_at_home:
        return _no(expression, "metric", f"`{selector.name}` does not leave the country", "query another metric")
    strange = [matcher.name for matcher in selector.matchers[:-1] if matcher.name not in policy.cross_border_labels]
    if strange:
        return _no(expression, "labels", f"`{strange[0]}` may not be used to select series", _labels_fix(policy))
    return None


def _what(inner: Expr) -> str:
    match inner:
        case FunctionCall(function=function):
            return f"`{function}` may not be applied before the sum"
        case Binary(operator=operator):
            return f"`{operator}` may not be applied before the sum"
        case Aggregate():
            return "an aggregation of an aggregation"
        case Subquery():
            return "a subquery"
        case _:
            return "the summed expression is not a selector"


def _no(expression: str, rule: str, detail: str, fix: str) -> Rejection:
    return Rejection(expression, rule, detail, fix)


def _labels_fix(policy: TelemetryPolicy) -> str:
    return f"allowed labels: {', '.join(sorted(policy.cross_border_labels))}"


def _times(expression: str, what: str, policy: TelemetryPolicy) -> Rejection:
    return _no(expression, "time", f"{what} could isolate a sample", f"times in multiples of {policy.quantum_s} s")

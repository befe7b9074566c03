"""Which queries describe an alert?

Its time, the curves behind its expression, and the labels that name its hub, node, workload or pipeline in metrics,
logs and traces.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from harch.base.errors import HarchError
from harch.sentinel.alerts.alert import Alert
from harch.sentinel.model.labels import METRIC_NAME, Labels, Matcher, MatchKind
from harch.sentinel.model.spans import Comparison, SpanCondition, SpanField
from harch.sentinel.promql.syntax.nodes import (
    COMPARISONS,
    SET_OPERATORS,
    Binary,
    Expr,
    FunctionCall,
    MatrixSelector,
    NumberLiteral,
    Unary,
    ValueType,
    VectorSelector,
    unwrap,
    walk,
)
from harch.sentinel.promql.syntax.parser import parse
from harch.sentinel.promql.syntax.printer import to_text

BEFORE_MS = 30 * 60_000
AFTER_MS = 30 * 60_000
SIDE_MS_MAX = 24 * 3_600_000
STEPS = 120
STEP_MS_MIN = 1000
CURVES_MAX = 6
SELECTORS_MAX = 8


@dataclass(frozen=True, slots=True)
class AlertWindow:
    """The time that is looked at. Trouble began at `began_ms`; the alert fired when its rule's `for` was over."""

    start_ms: int
    began_ms: int
    fired_ms: int
    end_ms: int

    @property
    def step_ms(self) -> int:
        return max(STEP_MS_MIN, (self.end_ms - self.start_ms) // STEPS)


@dataclass(frozen=True, slots=True)
class ExpressionCurve:
    """An expression to draw. With a threshold, the rule fires where the value is `comparison` it."""

    title: str
    expression: str
    comparison: str = ""
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class MetricQueries:
    curves: tuple[ExpressionCurve, ...] = ()
    selectors: tuple[tuple[Matcher, ...], ...] = ()
    notes: tuple[str, ...] = ()


def window_of(
    alert: Alert, *, for_ms: int, now_ms: int, before_ms: int = BEFORE_MS, after_ms: int = AFTER_MS
) -> AlertWindow:
    """From before the trouble began to after it fired, and not beyond now or (a little after) its end."""
    fired_ms = min(alert.starts_at_ms, now_ms)
    began_ms = fired_ms - for_ms
    end_ms = min(fired_ms + after_ms, now_ms)
    if alert.is_resolved(now_ms):
        end_ms = min(end_ms, alert.ends_at_ms + before_ms)
    return AlertWindow(max(0, began_ms - before_ms), max(0, began_ms), fired_ms, max(end_ms, fired_ms + STEP_MS_MIN))


def metric_queries(expression: str) -> MetricQueries:
    """The sides of its comparisons as curves, then what they are made of. An expression may be missing or not ours."""
    if not expression:
        return MetricQueries(notes=("the alert does not come from a rule of this hub: no expression to plot",))
    try:
        tree = parse(expression)
    except HarchError as problem:
        return MetricQueries(notes=(f"the rule's expression cannot be read: {problem.message}",))
    curves: dict[str, ExpressionCurve] = {}
    for curve in (*_measured(tree), *_parts(tree)):
        curves.setdefault(curve.expression, curve)
    selectors = dict.fromkeys(node.matchers for node in walk(tree) if isinstance(node, VectorSelector))
    return MetricQueries(tuple(list(curves.values())[:CURVES_MAX]), tuple(list(selectors)[:SELECTORS_MAX]))


def _measured(node: Expr) -> list[ExpressionCurve]:
    """What is compared: `a > 5` draws `a` and the line at 5, `a > 10 * b` draws both sides."""
    node = unwrap(node)
    if isinstance(node, Binary) and node.operator in SET_OPERATORS:
        return [*_measured(node.left), *_measured(node.right)]
    if isinstance(node, Binary) and node.operator in COMPARISONS and not node.return_bool:
        left, right = _number(node.left), _number(node.right)
        if right is not None and left is None:
            return [ExpressionCurve("compared by the rule", to_text(unwrap(node.left)), node.operator, right)]
        if left is not None and right is None:
            return [
                ExpressionCurve("compared by the rule", to_text(unwrap(node.right)), _MIRRORED[node.operator], left)
            ]
        sides = [unwrap(side) for side in (node.left, node.right)]
        return [
            ExpressionCurve(f"compared by the rule ({node.operator})", to_text(side))
            for side in sides
            if _is_drawn(side)
        ]
    return [ExpressionCurve("evaluated by the rule", to_text(node))] if _is_drawn(node) else []


_MIRRORED = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


def _is_drawn(node: Expr) -> bool:
    return node.type is ValueType.VECTOR


def _number(node: Expr) -> float | None:
    node = unwrap(node)
    if isinstance(node, Unary) and (inside := _number(node.expr)) is not None:
        return -inside if node.operator == "-" else inside
    return node.value if isinstance(node, NumberLiteral) else None


def _parts(tree: Expr) -> list[ExpressionCurve]:
    """The series below: as a rate or the like where the rule takes one, as they are otherwise."""
    found: list[ExpressionCurve] = []
    in_ranges: set[int] = set()
    for node in walk(tree):
        if isinstance(node, FunctionCall) and any(isinstance(one, MatrixSelector) for one in node.arguments):
            in_ranges |= {id(one.selector) for one in node.arguments if isinstance(one, MatrixSelector)}
            if node.type is ValueType.VECTOR and all(
                isinstance(one, MatrixSelector | NumberLiteral) for one in node.arguments
            ):
                found.append(ExpressionCurve("part of the expression", to_text(node)))
        elif isinstance(node, VectorSelector) and id(node) not in in_ranges:
            plain = replace(node, offset_ms=0, offset_expr=None, at_ms=None, at_edge=None)
            found.append(ExpressionCurve("part of the expression", to_text(plain)))
    return found


def belongs(series: Labels, alert: Mapping[str, str]) -> bool:
    """Whether a series is the alert's: they have no label with different values."""
    return all(alert.get(name, value) == value for name, value in series if name != METRIC_NAME)


# Whose trouble is it? The labels that name a hub, node, workload or pipeline, under the names that metrics, logs and
# spans have for them.


# What each is called. The first name is ours; the others are those of Prometheus, Loki and OpenTelemetry.
NAMES: Mapping[str, Sequence[str]] = {
    "hub": ("hub", "hub_name", "hub_id", "hub.id"),
    "agent": ("agent", "agent_id"),
    "node": ("node", "node_name", "node_id", "host", "hostname", "host_name", "host.name"),
    "workload": ("workload", "workload_name"),
    "workload_id": ("workload_id", "workload.id"),
    "pipeline": ("pipeline", "pipeline_name"),
    "stage": ("stage",),
    "service": ("service", "service_name", "service.name"),
    "job": ("job",),
    "instance": ("instance",),
}
# The same name may mean something else in logs: if these differ, nothing is wrong.
WEAK = frozenset({"job", "instance"})
WIDE = frozenset({"hub", "pipeline", "service"})

Identity = Mapping[str, Collection[str]]  # what -> its values, folded; a hub may have an id and a name


@dataclass(frozen=True, slots=True)
class Shared:
    """The labels that a stream has in common with an alert."""

    labels: Labels
    strong: int  # how many of them say for sure that they belong together


def identity_of(labels: Mapping[str, str]) -> Identity:
    found: dict[str, set[str]] = {}
    for what, names in NAMES.items():
        values = {labels[name].casefold() for name in names if labels.get(name)}
        if values:
            found[what] = values
    return found


def shared_labels(identity: Identity, stream: Labels) -> Shared | None:
    """What the stream shares; None if it is about something else, or about nothing that the alert names."""
    own = dict(stream)
    found: list[tuple[str, str]] = []
    strong = 0
    for what, names in NAMES.items():
        name = next((name for name in names if own.get(name)), None)
        if name is None or what not in identity:
            continue
        if own[name].casefold() in identity[what]:
            found.append((name, own[name]))
            strong += what not in WEAK
        elif what not in WEAK:
            return None
    return Shared(tuple(sorted(found)), strong) if found else None


def log_selectors(identity: Identity, streams: Sequence[Labels], limit: int) -> list[tuple[Matcher, ...]]:
    """Selectors of the streams that share most with the alert."""
    found = [shared for stream in streams if (shared := shared_labels(identity, stream)) is not None]
    best = max((shared.strong for shared in found), default=0)
    chosen = sorted({shared.labels for shared in found if shared.strong == best})
    return [tuple(Matcher(MatchKind.EQUAL, name, value) for name, value in labels) for labels in chosen[:limit]]


def wider_identity(identity: Identity) -> Identity:
    """The same place from farther off: a failure may be reported by another node or stage than the one that suffers."""
    return {what: values for what, values in identity.items() if what in WIDE}


def span_conditions(identity: Identity, tags: Collection[str]) -> tuple[SpanCondition, ...]:
    """Conditions on the attributes that spans have for it. A folded value is compared without regard to case."""
    found: list[SpanCondition] = []
    for what, names in NAMES.items():
        if what in WEAK or what not in identity:
            continue
        if what == "service":
            found.append(_condition(SpanField.SERVICE, "", identity[what]))
            continue
        name = next((name for name in names if name in tags), None)
        if name is not None:
            found.append(_condition(SpanField.ATTRIBUTE, name, identity[what]))
    return tuple(found)


def _condition(field: SpanField, attribute: str, values: Collection[str]) -> SpanCondition:
    pattern = "(?i)" + "|".join(_escaped(value) for value in sorted(values))
    return SpanCondition(field, Comparison.REGEX, pattern, attribute)


def _escaped(text: str) -> str:
    return "".join(c if c.isalnum() or c in "_ " else f"\\x{{{ord(c):x}}}" for c in text)

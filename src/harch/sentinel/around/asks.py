"""What should be asked about an alert? Its time, the curves behind its expression, and the series that they select."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from harch.base.errors import HarchError
from harch.sentinel.alerts.alert import Alert
from harch.sentinel.model.labels import METRIC_NAME, Labels
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.promql.syntax.nodes import (
    COMPARISONS,
    SET_OPERATORS,
    Binary,
    Call,
    Expr,
    MatrixSelector,
    NumberLiteral,
    Unary,
    VectorSelector,
    unwrap,
    walk,
)
from harch.sentinel.promql.syntax.parser import parse
from harch.sentinel.promql.syntax.printer import to_text
from harch.sentinel.promql.syntax.value_types import ValueType

BEFORE_MS = 30 * 60_000
AFTER_MS = 30 * 60_000
SIDE_MS_MAX = 24 * 3_600_000
STEPS = 120
STEP_MS_MIN = 1000
CURVES_MAX = 6
SELECTORS_MAX = 8


@dataclass(frozen=True, slots=True)
class Window:
    """The time that is looked at. Trouble began at `began_ms`; the alert fired when its rule's `for` was over."""

    start_ms: int
    began_ms: int
    fired_ms: int
    end_ms: int

    @property
    def step_ms(self) -> int:
        return max(STEP_MS_MIN, (self.end_ms - self.start_ms) // STEPS)


@dataclass(frozen=True, slots=True)
class Curve:
    """An expression to draw. With a threshold, the rule fires where the value is `comparison` it."""

    title: str
    expression: str
    comparison: str = ""
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class MetricAsks:
    curves: tuple[Curve, ...] = ()
    selectors: tuple[tuple[Matcher, ...], ...] = ()
    notes: tuple[str, ...] = ()


def window_of(
    alert: Alert, *, for_ms: int, now_ms: int, before_ms: int = BEFORE_MS, after_ms: int = AFTER_MS
) -> Window:
    """From before the trouble began to after it fired, and not beyond now or (a little after) its end."""
    fired_ms = min(alert.starts_at_ms, now_ms)
    began_ms = fired_ms - for_ms
    end_ms = min(fired_ms + after_ms, now_ms)
    if alert.is_resolved(now_ms):
        end_ms = min(end_ms, alert.ends_at_ms + before_ms)
    return Window(max(0, began_ms - before_ms), max(0, began_ms), fired_ms, max(end_ms, fired_ms + STEP_MS_MIN))


def metric_asks(expression: str) -> MetricAsks:
    """The sides of its comparisons as curves, then what they are made of. An expression may be missing or not ours."""
    if not expression:
        return MetricAsks(notes=("the alert did not come from a rule of this hub: there is no expression to draw",))
    try:
        tree = parse(expression)
    except HarchError as problem:
        return MetricAsks(notes=(f"the rule's expression cannot be read: {problem.message}",))
    curves: dict[str, Curve] = {}
    for curve in (*_measured(tree), *_parts(tree)):
        curves.setdefault(curve.expression, curve)
    selectors = dict.fromkeys(node.matchers for node in walk(tree) if isinstance(node, VectorSelector))
    return MetricAsks(tuple(list(curves.values())[:CURVES_MAX]), tuple(list(selectors)[:SELECTORS_MAX]))


def _measured(node: Expr) -> list[Curve]:
    """What is compared: `a > 5` draws `a` and the line at 5, `a > 10 * b` draws both sides."""
    node = unwrap(node)
    if isinstance(node, Binary) and node.operator in SET_OPERATORS:
        return [*_measured(node.left), *_measured(node.right)]
    if isinstance(node, Binary) and node.operator in COMPARISONS and not node.return_bool:
        left, right = _number(node.left), _number(node.right)
        if right is not None and left is None:
            return [Curve("what the rule compares", to_text(unwrap(node.left)), node.operator, right)]
        if left is not None and right is None:
            return [Curve("what the rule compares", to_text(unwrap(node.right)), _MIRRORED[node.operator], left)]
        sides = [unwrap(side) for side in (node.left, node.right)]
        return [Curve(f"what the rule compares ({node.operator})", to_text(side)) for side in sides if _is_drawn(side)]
    return [Curve("what the rule looks at", to_text(node))] if _is_drawn(node) else []


_MIRRORED = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


def _is_drawn(node: Expr) -> bool:
    return node.type is ValueType.VECTOR


def _number(node: Expr) -> float | None:
    node = unwrap(node)
    if isinstance(node, Unary) and (inside := _number(node.expr)) is not None:
        return -inside if node.operator == "-" else inside
    return node.value if isinstance(node, NumberLiteral) else None


def _parts(tree: Expr) -> list[Curve]:
    """The series below: as a rate or the like where the rule takes one, as they are otherwise."""
    found: list[Curve] = []
    in_ranges: set[int] = set()
    for node in walk(tree):
        if isinstance(node, Call) and any(isinstance(one, MatrixSelector) for one in node.arguments):
            in_ranges |= {id(one.selector) for one in node.arguments if isinstance(one, MatrixSelector)}
            if node.type is ValueType.VECTOR and all(
                isinstance(one, MatrixSelector | NumberLiteral) for one in node.arguments
            ):
                found.append(Curve("a part of it", to_text(node)))
        elif isinstance(node, VectorSelector) and id(node) not in in_ranges:
            plain = replace(node, offset_ms=0, offset_expr=None, at_ms=None, at_edge=None)
            found.append(Curve("a part of it", to_text(plain)))
    return found


def belongs(series: Labels, alert: Mapping[str, str]) -> bool:
    """Whether a series is the alert's: they have no label with different values."""
    return all(alert.get(name, value) == value for name, value in series if name != METRIC_NAME)

"""How is a tree written? Its normal form on one line, and a form of several lines for people.

The normal form parses to the same tree again. Messages show it, and hubs send it to each other.
"""

# harch: pure

from __future__ import annotations

from dataclasses import replace

from harch.sentinel.model.labels import METRIC_NAME, Matcher, MatchKind, is_plain_label_name
from harch.sentinel.promql.syntax.literals import format_duration, format_number, quote
from harch.sentinel.promql.syntax.nodes import (
    Aggregate,
    Binary,
    Cardinality,
    DurationExpr,
    DurationNode,
    DurationOperator,
    Expr,
    FunctionCall,
    MatrixSelector,
    NumberLiteral,
    Paren,
    RangeMode,
    StartOrEnd,
    StringLiteral,
    Subquery,
    Unary,
    VectorMatching,
    VectorSelector,
)


def to_text(node: Expr) -> str:
    """The normal form: one line, one space around operators, modifiers in a fixed order."""
    match node:
        case NumberLiteral():
            return number_text(node)
        case StringLiteral(value=value):
            return quote(value)
        case VectorSelector():
            return _selector_text(node) + _mode_text(node.range_mode) + times_text(node)
        case MatrixSelector(selector=selector):
            bare = _selector_text(selector)
            return f"{bare}[{range_text(node)}]{_mode_text(selector.range_mode)}{times_text(selector)}"
        case Subquery(expr=expr):
            return f"{to_text(expr)}{subquery_suffix(node)}"
        case Paren(expr=expr):
            return f"({to_text(expr)})"
        case Unary(operator=operator, expr=expr):
            return f"{operator}{to_text(expr)}"
        case Binary(left=left, right=right):
            return f"{to_text(left)} {operator_text(node)} {to_text(right)}"
        case Aggregate(parameter=parameter, expr=expr):
            inside = [expr] if parameter is None else [parameter, expr]
            return f"{aggregation_text(node)}({', '.join(map(to_text, inside))})"
        case FunctionCall(function=function, arguments=arguments):
            return f"{function}({', '.join(map(to_text, arguments))})"


def number_text(node: NumberLiteral) -> str:
    if node.is_duration and node.value * 1000 == round(node.value * 1000):
        return format_duration(round(node.value * 1000))
    return format_number(node.value).removeprefix("+")


def _selector_text(node: VectorSelector) -> str:
    matchers = node.matchers[:-1] if node.name else node.matchers
    if not matchers:
        return node.name or "{}"
    return f"{node.name}{{{','.join(map(matcher_text, matchers))}}}"


def matcher_text(matcher: Matcher) -> str:
    if matcher.name == METRIC_NAME and matcher.kind is MatchKind.EQUAL and matcher.value:
        return f"{METRIC_NAME}={quote(matcher.value)}"
    return f"{label_text(matcher.name)}{matcher.kind.value}{quote(matcher.value)}"


def label_text(name: str) -> str:
    return name if is_plain_label_name(name) else quote(name)


def _mode_text(mode: RangeMode) -> str:
    return "" if mode is RangeMode.PLAIN else f" {mode.value}"


def times_text(node: VectorSelector | Subquery) -> str:
    """` @ … offset …`, or nothing."""
    text = ""
    if node.at_ms is not None:
        sign, ms = ("-", -node.at_ms) if node.at_ms < 0 else ("", node.at_ms)
        text += f" @ {sign}{ms // 1000}.{ms % 1000:03d}"
    elif node.at_edge is not None:
        text += " @ start()" if node.at_edge is StartOrEnd.START else " @ end()"
    if node.offset_expr is not None:
        text += f" offset {duration_text(node.offset_expr)}"
    elif node.offset_ms:
        text += f" offset {format_duration(node.offset_ms)}"
    return text


def range_text(node: MatrixSelector | Subquery) -> str:
    return format_duration(node.range_ms) if node.range_expr is None else duration_text(node.range_expr)


def subquery_suffix(node: Subquery) -> str:
    step = format_duration(node.step_ms) if node.step_ms else ""
    if node.step_expr is not None:
        step = duration_text(node.step_expr)
    return f"[{range_text(node)}:{step}]{times_text(node)}"


def duration_text(node: DurationNode) -> str:
    if isinstance(node, NumberLiteral):
        return number_text(node)
    if node.is_wrapped:
        return f"({duration_text(replace(node, is_wrapped=False))})"
    match node:
        case DurationExpr(operator=DurationOperator.STEP | DurationOperator.RANGE as operator):
            return f"{operator.value}()"
        case DurationExpr(operator=operator, left=None, right=right) if right is not None:
            return ("-" if operator is DurationOperator.SUBTRACT else "") + duration_text(right)
        case DurationExpr(operator=operator, left=left, right=right) if left is not None and right is not None:
            sides = duration_text(left), duration_text(right)
            if operator in (DurationOperator.MINIMUM, DurationOperator.MAXIMUM):
                return f"{operator.value}({', '.join(sides)})"
            return f" {operator.value} ".join(sides)
    return ""


def operator_text(node: Binary) -> str:
    """The operator with everything that stands between the sides."""
    text = node.operator + (" bool" if node.return_bool else "")
    return text if node.matching is None else text + _matching_text(node.matching)


def _matching_text(matching: VectorMatching) -> str:
    text = ""
    grouped = matching.cardinality in (Cardinality.MANY_TO_ONE, Cardinality.ONE_TO_MANY)
    if matching.labels or matching.on or grouped:
        text += f" {'on' if matching.on else 'ignoring'} ({_names_text(matching.labels)})"
    if grouped:
        side = "left" if matching.cardinality is Cardinality.MANY_TO_ONE else "right"
        text += f" group_{side} ({_names_text(matching.include)})"
    left, right = matching.fill_left, matching.fill_right
    if left is not None and right is not None and (left == right or (left != left and right != right)):
        return f"{text} fill ({format_number(left)})"
    text += "" if left is None else f" fill_left ({format_number(left)})"
    return text + ("" if right is None else f" fill_right ({format_number(right)})")


def _names_text(names: tuple[str, ...]) -> str:
    return ", ".join(map(label_text, names))


def aggregation_text(node: Aggregate) -> str:
    """The aggregation up to its opening parenthesis."""
    if node.without:
        return f"{node.operator} without ({_names_text(node.grouping)}) "
    return f"{node.operator} by ({_names_text(node.grouping)}) " if node.grouping else node.operator


# How do people read a long query? Broken into lines, indented by two spaces per level.


_INDENT = "  "
LINE_CHARACTERS_MAX = 100


def to_lines(node: Expr, level: int = 0) -> str:
    """A part that fits into one line stays there; others get one line per argument or side."""
    indent = _INDENT * level
    flat = to_text(node)
    if len(indent) + len(flat) <= LINE_CHARACTERS_MAX:
        return indent + flat
    match node:
        case Binary(left=left, right=right):
            return "\n".join((to_lines(left, level + 1), f"{indent}{operator_text(node)}", to_lines(right, level + 1)))
        case Aggregate(parameter=parameter, expr=expr):
            inside = (expr,) if parameter is None else (parameter, expr)
            return _enclosed(indent, f"{aggregation_text(node)}(", inside, ")", level)
        case FunctionCall(function=function, arguments=arguments) if arguments:
            return _enclosed(indent, f"{function}(", arguments, ")", level)
        case Paren(expr=expr):
            return _enclosed(indent, "(", (expr,), ")", level)
        case Subquery(expr=expr):
            return to_lines(expr, level) + subquery_suffix(node)
        case Unary(operator=operator, expr=expr):
            return indent + operator + to_lines(expr, level).removeprefix(indent)
        case _:
            return indent + flat


def _enclosed(indent: str, opening: str, inside: tuple[Expr, ...], closing: str, level: int) -> str:
    lines = ",\n".join(to_lines(part, level + 1) for part in inside)
    return f"{indent}{opening}\n{lines}\n{indent}{closing}"

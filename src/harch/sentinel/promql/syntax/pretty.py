"""How do people read a long query? Broken into lines, indented by two spaces per level."""

from __future__ import annotations

from harch.sentinel.promql.syntax.nodes import (
    Aggregate,
    Binary,
    Call,
    Expr,
    Paren,
    Subquery,
    Unary,
)
from harch.sentinel.promql.syntax.printer import aggregation_text, operator_text, subquery_suffix, to_text

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
        case Call(function=function, arguments=arguments) if arguments:
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

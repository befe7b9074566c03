"""When does a model's output call for an action, and with which arguments?

A small expression language, never `eval`, and templates filled from a row of outputs.
"""

# harch: pure

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# When does a model's output call for an action, and with which values? A small expression language, never `eval`.
#
# An expression is read once with Python's own grammar, every node that is not on the list below is refused, and what is
# left becomes a tree of closures over columns: one evaluation serves a whole batch. A row whose inputs or results are
# not
# finite numbers fits no rule: an action never rests on NaN.


CHARS_MAX = 500
NODES_MAX = 100

Columns = Mapping[str, Any]
_Evaluate = Callable[[Columns], Any]

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
}
_FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "abs": (1, np.abs),
    "round": (1, np.rint),
    "floor": (1, np.floor),
    "ceil": (1, np.ceil),
    "min": (2, np.minimum),
    "max": (2, np.maximum),
    "clip": (3, np.clip),
}


class NotUnderstood(ValueError):
    """The text is no expression of this language. The message is for the person who wrote it."""


@dataclass(frozen=True, slots=True)
class Expression:
    """One expression, ready to be applied to columns of equal length. `names`: the columns it needs."""

    text: str
    names: frozenset[str]
    is_condition: bool
    _evaluate: _Evaluate
    _sums: tuple[_Evaluate, ...]  # every + - * / inside: a division by zero must not hide behind a comparison

    def values(self, columns: Columns, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The value per row as float64, and which rows are fit: all inputs and the result are finite."""
        fit = np.ones(count, dtype=bool)
        for name in self.names:
            fit &= np.isfinite(np.asarray(columns[name], dtype=np.float64))
        with np.errstate(all="ignore"):
            for part in self._sums:
                fit &= np.isfinite(part(columns))
            found = np.broadcast_to(np.asarray(self._evaluate(columns), dtype=np.float64), (count,))
        return found, fit & np.isfinite(found)

    def mask(self, columns: Columns, count: int) -> tuple[np.ndarray, int]:
        """The rows where the condition holds, and how many rows were not fit to be asked."""
        found, fit = self.values(columns, count)
        return (found != 0.0) & fit, int(count - fit.sum())


def read_condition(text: str) -> Expression:
    """An expression that is true or false. Raises NotUnderstood."""
    expression = read_expression(text)
    if not expression.is_condition:
        raise NotUnderstood(f"`{text}` is a number, not a condition; compare it with something")
    return expression


def read_expression(text: str) -> Expression:
    """Reads one expression. Raises NotUnderstood, with the part that is not part of the language."""
    if len(text) > CHARS_MAX:
        raise NotUnderstood(f"longer than {CHARS_MAX} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotUnderstood(f"`{text[:80]}` is not an expression") from error
    if sum(1 for _ in ast.walk(tree)) > NODES_MAX:
        raise NotUnderstood(f"has more than {NODES_MAX} parts")
    found = _Found(set(), [])
    evaluate, is_condition = _read(tree.body, found)
    return Expression(text.strip(), frozenset(found.names), is_condition, evaluate, tuple(found.sums))


@dataclass(frozen=True, slots=True)
class _Found:
    """What reading an expression comes across."""

    names: set[str]
    sums: list[_Evaluate]


def _read(node: ast.expr, found: _Found) -> tuple[_Evaluate, bool]:
    match node:
        case ast.Constant(value=bool() as flag):
            return (lambda _: flag), True
        case ast.Constant(value=int() | float() as number) if np.isfinite(float(number)):
            constant = float(number)
            return (lambda _: constant), False
        case ast.Name() | ast.Attribute() if name := _dotted(node):
            found.names.add(name)
            return (lambda columns: np.asarray(columns[name], dtype=np.float64)), False
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _number(operand, found)
            return (lambda columns: np.negative(inner(columns))), False
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _condition(operand, found)
            return (lambda columns: np.logical_not(inner(columns))), True
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            apply, a, b = _ARITHMETIC[type(op)], _number(left, found), _number(right, found)

            def calculate(columns: Columns) -> Any:
                return apply(a(columns), b(columns))

            found.sums.append(calculate)
            return calculate, False
        case ast.BoolOp(op=op, values=values):
            join = np.logical_and if isinstance(op, ast.And) else np.logical_or
            parts = [_condition(value, found) for value in values]
            return (lambda columns: join.reduce(np.broadcast_arrays(*(part(columns) for part in parts)))), True
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARE for op in ops):
            sides = [_number(side, found) for side in (left, *others)]
            tests = [_COMPARE[type(op)] for op in ops]
            return (lambda columns: _chain(tests, [side(columns) for side in sides])), True
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            wanted, function = _FUNCTIONS[name]
            if len(args) != wanted:
                raise NotUnderstood(f"`{name}` takes {wanted} values, not {len(args)}")
            inputs = [_number(arg, found) for arg in args]
            return (lambda columns: function(*(value(columns) for value in inputs))), False
    raise NotUnderstood(
        f"`{ast.unparse(node)[:80]}` is not part of the language: numbers, names of outputs, + - * /, comparisons, "
        f"and, or, not, {', '.join(_FUNCTIONS)}"
    )


def _dotted(node: ast.expr) -> str:
    """`need`, or `moisture.mean` as features are called; empty if it is neither."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=last) if not last.startswith("_") and (before := _dotted(inner)):
            return f"{before}.{last}"
    return ""


def _chain(tests: list[Callable[[Any, Any], Any]], sides: list[Any]) -> Any:
    held = tests[0](sides[0], sides[1])
    for index, test in enumerate(tests[1:], start=1):
        held = np.logical_and(held, test(sides[index], sides[index + 1]))
    return held


def _number(node: ast.expr, found: _Found) -> _Evaluate:
    evaluate, is_condition = _read(node, found)
    if is_condition:
        raise NotUnderstood(f"`{ast.unparse(node)[:80]}` is a condition where a number is needed")
    return evaluate


def _condition(node: ast.expr, found: _Found) -> _Evaluate:
    evaluate, is_condition = _read(node, found)
    if not is_condition:
        raise NotUnderstood(f"`{ast.unparse(node)[:80]}` is a number where a condition is needed")
    return evaluate


# Which arguments does a command carry? Templates with `{expression}` and `{device}`, filled from a row of outputs.


Scalar = str | int | float | bool
Args = dict[str, Scalar]

TEXT_CHARS_MAX = 1000
_SLOT = re.compile(r"\{([^{}]*)\}")
_DEVICE = "device"


class Unfillable(ValueError):
    """A template cannot be filled from this row; the message says which value is missing or not a number."""


@dataclass(frozen=True, slots=True)
class _Text:
    """Text around slots; a slot is an expression, or None for the device's name."""

    pieces: tuple[str | Expression | None, ...]


@dataclass(frozen=True, slots=True)
class ArgumentTemplate:
    """The arguments of one step, read once. `names`: the outputs it needs."""

    parts: dict[str, Scalar | Expression | _Text]
    names: frozenset[str]

    def columns(self, columns: Columns, rows: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Every expression of the template for those rows at once: text of the expression to values and fitness."""
        if missing := sorted(self.names - set(columns)):
            raise Unfillable(f"the model has no output `{missing[0]}`")
        chosen = {name: np.asarray(columns[name])[rows] for name in self.names}
        return {expression.text: expression.values(chosen, len(rows)) for expression in _expressions(self)}

    def fill(self, device: str, at: int, filled: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Args:
        """The arguments for row `at` of what `columns` gave. Raises Unfillable."""
        return {name: _fill(part, device, at, filled) for name, part in self.parts.items()}


def read_template(raw: Mapping[str, Scalar]) -> ArgumentTemplate:
    """A text that is one slot gives a number; any other text stays text. Raises NotUnderstood."""
    parts = {name: _read_text(value) if isinstance(value, str) else value for name, value in raw.items()}
    names: set[str] = set()
    for expression in _expressions(ArgumentTemplate(parts, frozenset())):
        names |= expression.names
    return ArgumentTemplate(parts, frozenset(names))


def _read_text(text: str) -> Scalar | Expression | _Text:
    if len(text) > TEXT_CHARS_MAX:
        raise NotUnderstood(f"longer than {TEXT_CHARS_MAX} characters")
    pieces: list[str | Expression | None] = []
    at = 0
    for slot in _SLOT.finditer(text):
        pieces.append(text[at : slot.start()])
        inside = slot.group(1).strip()
        pieces.append(None if inside == _DEVICE else read_expression(inside))
        at = slot.end()
    pieces.append(text[at:])
    kept = tuple(piece for piece in pieces if piece != "")
    if any("{" in piece or "}" in piece for piece in kept if isinstance(piece, str)):
        raise NotUnderstood(f"`{text[:80]}` has an unmatched brace")
    if len(kept) == 1 and isinstance(kept[0], Expression):
        return kept[0]
    return text if all(isinstance(piece, str) for piece in kept) else _Text(kept)


def _expressions(template: ArgumentTemplate) -> list[Expression]:
    found = []
    for part in template.parts.values():
        pieces = part.pieces if isinstance(part, _Text) else (part,)
        found += [piece for piece in pieces if isinstance(piece, Expression)]
    return found


def _fill(
    part: Scalar | Expression | _Text, device: str, at: int, filled: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> Scalar:
    if isinstance(part, Expression):
        return _value(part, at, filled)
    if isinstance(part, _Text):
        return "".join(
            device if piece is None else piece if isinstance(piece, str) else f"{_value(piece, at, filled):g}"
            for piece in part.pieces
        )
    return part


def _value(expression: Expression, at: int, filled: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> float | bool:
    values, fit = filled[expression.text]
    if not fit[at]:
        raise Unfillable(f"`{expression.text}` is not a finite number")
    return bool(values[at]) if expression.is_condition else float(values[at])

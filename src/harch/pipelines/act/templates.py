"""Which arguments does a command carry? Templates with `{expression}` and `{device}`, filled from a row of outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harch.pipelines.act.rules import Columns, Expression, NotUnderstood, read_expression

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
class Template:
    """The arguments of one step, read once. `names`: the outputs it needs."""

    parts: dict[str, Scalar | Expression | _Text]
    names: frozenset[str]

    def columns(self, columns: Columns, rows: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Every expression of the template for those rows at once: text of the expression to values and fitness."""
        if missing := sorted(self.names - set(columns)):
            raise Unfillable(f"the model gives no output `{missing[0]}`")
        chosen = {name: np.asarray(columns[name])[rows] for name in self.names}
        return {expression.text: expression.values(chosen, len(rows)) for expression in _expressions(self)}

    def fill(self, device: str, at: int, filled: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Args:
        """The arguments for row `at` of what `columns` gave. Raises Unfillable."""
        return {name: _fill(part, device, at, filled) for name, part in self.parts.items()}


def read_template(raw: Mapping[str, Scalar]) -> Template:
    """A text that is one slot gives a number; any other text stays text. Raises NotUnderstood."""
    parts = {name: _read(value) if isinstance(value, str) else value for name, value in raw.items()}
    names: set[str] = set()
    for expression in _expressions(Template(parts, frozenset())):
        names |= expression.names
    return Template(parts, frozenset(names))


def _read(text: str) -> Scalar | Expression | _Text:
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
        raise NotUnderstood(f"`{text[:80]}` has a brace without its partner")
    if len(kept) == 1 and isinstance(kept[0], Expression):
        return kept[0]
    return text if all(isinstance(piece, str) for piece in kept) else _Text(kept)


def _expressions(template: Template) -> list[Expression]:
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

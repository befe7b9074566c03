"""Does a value satisfy a condition? Numbers are compared as numbers, all else as text."""

# harch: pure

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from harch.sentinel.model.labels import whole_text_pattern
from harch.sentinel.model.spans import AttributeValue, Comparison

ORDERED: dict[Comparison, Callable[[Any, Any], Any]] = {
    Comparison.EQUAL: operator.eq,
    Comparison.NOT_EQUAL: operator.ne,
    Comparison.ABOVE: operator.gt,
    Comparison.AT_LEAST: operator.ge,
    Comparison.BELOW: operator.lt,
    Comparison.AT_MOST: operator.le,
}
WITHOUT = frozenset({Comparison.NOT_EQUAL, Comparison.NOT_REGEX})  # what a span without the attribute satisfies
_EXACT_MAX = 1 << 53


def holds(found: AttributeValue, comparison: Comparison, wanted: AttributeValue) -> bool:
    """Raises E0602 for an expression that is none."""
    if comparison in (Comparison.REGEX, Comparison.NOT_REGEX):
        matches = whole_text_pattern(str(wanted)).fullmatch(as_text(found)) is not None
        return matches is (comparison is Comparison.REGEX)
    if is_number(found) and is_number(wanted):
        return bool(ORDERED[comparison](found, wanted))
    return bool(ORDERED[comparison](as_text(found), as_text(wanted)))


def is_number(value: AttributeValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_text(value: AttributeValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def spellings(value: AttributeValue) -> tuple[str, ...]:
    """Texts under which a stored value can be asked for by `=`: 500.0 is also 500."""
    text = as_text(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_MAX:
        return text, str(int(value))
    return (text,)


def query_spelling(value: AttributeValue) -> str | None:
    """The text that every value equal to this one is stored under; None where there is no single one."""
    if is_number(value):
        if abs(value) >= _EXACT_MAX:  # type: ignore[arg-type]
            return None
        if float(value).is_integer():
            return str(int(value))
    return as_text(value)

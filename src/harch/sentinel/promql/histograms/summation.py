"""How are many numbers added without losing the small ones? Neumaier's variant of Kahan's summation."""

from __future__ import annotations

import math


def compensated(value: float, total: float, lost: float) -> tuple[float, float]:
    """The new total and what rounding has lost so far; their sum is the better result."""
    new = total + value
    if math.isinf(new):
        return new, 0.0
    if abs(total) >= abs(value):
        return new, lost + ((total - new) + value)
    return new, lost + ((value - new) + total)


class Total:
    """A running sum."""

    __slots__ = ("_lost", "_total")

    def __init__(self) -> None:
        self._total = 0.0
        self._lost = 0.0

    def add(self, value: float) -> None:
        self._total, self._lost = compensated(value, self._total, self._lost)

    @property
    def value(self) -> float:
        return self._total + self._lost

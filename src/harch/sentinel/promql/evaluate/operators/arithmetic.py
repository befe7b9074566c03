"""What do operators do with numbers? As Go's float64 does it: no exceptions, IEEE everywhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from harch.sentinel.promql.syntax.nodes import COMPARISONS

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_ARITHMETIC: dict[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,  # the sign of the dividend
    "^": np.power,
    "atan2": np.arctan2,
}
_COMPARISONS: dict[str, Callable[[Floats, Floats], Bools]] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    ">": np.greater,
    "<=": np.less_equal,
    ">=": np.greater_equal,
}


def computed(operator: str, left: Floats, right: Floats) -> Floats:
    """The result of an arithmetic operator."""
    with np.errstate(all="ignore"):
        return _ARITHMETIC[operator](left, right)


def compared(operator: str, left: Floats, right: Floats) -> Bools:
    """Where a comparison holds; NaN equals nothing, itself included."""
    return _COMPARISONS[operator](left, right)


def scalar_result(operator: str, left: Floats, right: Floats) -> Floats:
    """Between scalars comparisons give 1 or 0."""
    if operator in COMPARISONS:
        return compared(operator, left, right).astype(np.float64)
    return computed(operator, left, right)


def go_max(left: Floats, right: Floats) -> Floats:
    """The larger; NaN wins, unless the other is already as large as can be."""
    result = np.maximum(left, right)
    return np.where((left == np.inf) | (right == np.inf), np.inf, result)


def go_min(left: Floats, right: Floats) -> Floats:
    result = np.minimum(left, right)
    return np.where((left == -np.inf) | (right == -np.inf), -np.inf, result)

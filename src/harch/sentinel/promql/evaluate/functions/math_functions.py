"""Functions that change one float at a time: rounding, logarithms, angles, limits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harch.sentinel.promql.evaluate.operators.arithmetic import go_max, go_min
from harch.sentinel.promql.evaluate.values import Floats, Scalar, Vector


def _sign(values: Floats) -> Floats:
    return np.where(values < 0, -1.0, np.where(values > 0, 1.0, values))


ELEMENTWISE: dict[str, Callable[[Floats], Floats]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "deg": lambda values: values * 180 / np.pi,
    "exp": np.exp,
    "floor": np.floor,
    "ln": np.log,
    "log10": np.log10,
    "log2": np.log2,
    "rad": lambda values: values * np.pi / 180,
    "sgn": _sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}


def elementwise(name: str, vector: Vector) -> Vector:
    """One of `ELEMENTWISE`; histograms are left out."""
    with np.errstate(all="ignore"):
        return vector.floats_only().with_values(ELEMENTWISE[name](vector.values))


def rounded(vector: Vector, nearest: Scalar | None) -> Vector:
    """To the nearest multiple; ties go up. By the inverse, which loses fewer digits for steps such as 0.1."""
    with np.errstate(all="ignore"):
        inverse = 1.0 if nearest is None else 1.0 / nearest[np.newaxis, :]
        return vector.floats_only().with_values(np.floor(vector.values * inverse + 0.5) / inverse)


def clamped(vector: Vector, lowest: Scalar, highest: Scalar) -> Vector:
    """Between two limits; nothing is left at steps where they are the wrong way round."""
    low, high = lowest[np.newaxis, :], highest[np.newaxis, :]
    floats = vector.floats_only()
    values = go_max(np.broadcast_to(low, floats.values.shape), go_min(high, floats.values))
    possible = ~(high < low)
    result = floats.with_values(values)
    return result.only_where(np.broadcast_to(possible, floats.present.shape))

"""How does upstream write a number? Its messages and labels print floats by Go's rules."""

from __future__ import annotations

import math
from decimal import Decimal

_EXPONENT_FROM = 6


def shortest_plain(value: float) -> str:
    """The shortest digits that read back as the value, never with an exponent: what `count_values` puts in labels."""
    special = _special(value)
    if special is not None:
        return special
    text = format(Decimal(repr(value)), "f")
    return text[:-2] if text.endswith(".0") else text


def shortest_general(value: float) -> str:
    """The shortest digits, with an exponent from 1e+06 on and below 1e-04: `%g` of Go."""
    special = _special(value)
    return special if special is not None else _with_exponent(value)


def two_digits(value: float) -> str:
    """Two significant digits: `%.2g` of Go."""
    special = _special(value)
    return special if special is not None else format(value, ".2g")


def open_metrics(value: float) -> str:
    """A float as OpenMetrics writes it in labels: always recognisable as one, such as 1.0."""
    special = _special(value)
    if special is not None:
        return special
    text = _with_exponent(value)
    return text if "." in text or "e" in text else f"{text}.0"


def _special(value: float) -> str | None:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return None


def _with_exponent(value: float) -> str:
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if not isinstance(exponent, int) or value == 0:
        return "-0" if math.copysign(1.0, value) < 0 else "0"
    power = len(digits) + exponent - 1
    if -5 < power < _EXPONENT_FROM:
        return shortest_plain(value)
    mantissa = "".join(map(str, digits))
    mantissa = f"{mantissa[0]}.{mantissa[1:]}" if len(mantissa) > 1 else mantissa
    return f"{'-' if sign else ''}{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}"

"""How does Prometheus write numbers in JSON? As text: shortest digits, exponents only far from 1."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import orjson

_PLAIN_FROM, _PLAIN_BELOW = 1e-6, 1e21


def number_text(value: float) -> str:
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1.0, value) < 0 else "0"
    size = abs(value)
    digits = repr(value)
    if _PLAIN_FROM <= size < _PLAIN_BELOW:
        return _plain(digits)
    mantissa, _, power = digits.partition("e")
    sign = "-" if power[0] == "-" else "+"
    return f"{mantissa.removesuffix('.0')}e{sign}{power.lstrip('+-').zfill(2)}"


def _plain(digits: str) -> str:
    """`1e-05` as `0.00001`, `1.5e+17` as `150000000000000000`, `2.0` as `2`."""
    mantissa, _, power = digits.partition("e")
    if not power:
        return mantissa.removesuffix(".0")
    sign = "-" if mantissa[0] == "-" else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    fraction = "" if fraction == "0" else fraction
    shift = int(power)
    if shift < 0:
        return f"{sign}0.{'0' * (-shift - 1)}{whole}{fraction}"
    return f"{sign}{whole}{fraction}{'0' * (shift - len(fraction))}"


def number_texts(values: npt.NDArray[np.float64]) -> list[str]:
    """The texts of many numbers. Ordinary ones are written by the JSON encoder, ten times as fast as one by one."""
    if not len(values):
        return []
    size = np.abs(values)
    odd = ~((size >= 1e-4) & (size < 1e15))  # where the encoder and Prometheus differ: exponents, NaN, infinities, -0
    encoded = orjson.dumps(np.where(odd, 0.0, values), option=orjson.OPT_SERIALIZE_NUMPY).decode()
    texts = [text[:-2] if text[-2:] == ".0" else text for text in encoded[1:-1].split(",")]
    for place in np.flatnonzero(odd):
        texts[place] = number_text(float(values[place]))
    return texts


def time_texts(times_ms: npt.NDArray[np.int64]) -> list[str]:
    """The texts of many times. Whole seconds, which most steps are, are written by the JSON encoder."""
    if not len(times_ms):
        return []
    seconds, rest = np.divmod(times_ms, 1000)
    if rest.any():
        return [time_text(time) for time in times_ms.tolist()]
    return orjson.dumps(seconds, option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1].split(",")


def time_text(time_ms: int) -> str:
    """Seconds with up to three decimals, as a JSON number."""
    seconds, rest = divmod(abs(time_ms), 1000)
    sign = "-" if time_ms < 0 else ""
    return f"{sign}{seconds}.{rest:03}" if rest else f"{sign}{seconds}"

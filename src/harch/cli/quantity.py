"""What do `90s`, `16GB` and `A=b` mean? Values of options with a unit or a shape, with errors that show an example."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import click

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_GIGABYTES = {"": 1.0, "mb": 1e-3, "gb": 1.0, "tb": 1e3}
_QUANTITY = re.compile(r"^\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*$")


class _Quantity(click.ParamType[float]):
    def __init__(self, name: str, units: dict[str, float], example: str) -> None:
        self.name = name
        self._units = units
        self._example = example

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = _QUANTITY.match(str(value))
        factor = self._units.get(match.group(2).lower()) if match else None
        if match is None or factor is None:
            self.fail(f"`{value}` is not a {self.name}; write e.g. {self._example}", param, ctx)
        return float(match.group(1)) * factor


DURATION = _Quantity("duration", {unit: float(size) for unit, size in _SECONDS.items()}, "90s, 30m, 12h or 2d")
MEMORY = _Quantity("size", _GIGABYTES, "512MB, 16GB or 1TB")


def env_pairs(words: Iterable[str]) -> dict[str, str]:
    """`A=b`, or `A` alone to pass on the value that it has here."""
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name not in os.environ:
            raise click.BadParameter(f"`{name}` has no value here; write {name}=VALUE", param_hint="--env")
        pairs[name] = value if equals else os.environ[name]
    return pairs

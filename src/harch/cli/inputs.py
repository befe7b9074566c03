"""What do `90s`, `16GB`, `A=b` and a file of workloads mean?

Values of options and files, with limits and with errors that show an example.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError

if TYPE_CHECKING:
    from harch.workloads.spec import WorkloadSpec


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
            raise click.BadParameter(f"`{name}` is not set; write {name}=VALUE", param_hint="--env")
        pairs[name] = value if equals else os.environ[name]
    return pairs


# What does a file of workloads say? Reads it from disk or stdin, never more than its limit.


def read_workloads(file: str) -> list[WorkloadSpec]:
    """At least one workload. `-` is stdin."""
    from harch.workloads.file import FILE_BYTES_MAX, parse_workloads

    if file == "-":
        return parse_workloads(sys.stdin.buffer.read(FILE_BYTES_MAX + 1), "stdin")
    try:
        with Path(file).open("rb") as stream:
            text = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise HarchError(
            "E0202", f"{file} cannot be read: {reason}", hint="give the path of a workload file, or `-` for stdin"
        ) from error
    return parse_workloads(text, file)

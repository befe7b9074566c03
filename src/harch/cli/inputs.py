"""What do `90s`, `10m` ago, `16GB`, `A=b` and a file of workloads mean?

Values of options and files, with limits and with errors that show an example.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harch.base.errors import HarchError

if TYPE_CHECKING:
    from harch.workloads.spec import WorkloadSpec


_SECONDS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_GIGABYTES = {"": 1.0, "mb": 1e-3, "gb": 1.0, "tb": 1e3}
BYTES_BY_UNIT = {"": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*")
_UNIX_TIME_MIN = 1e9  # below that, a bare number is seconds


def quantity(text: str, units: Mapping[str, float]) -> float | None:
    """`90s`, or several that add up: `1h30m`. None for anything else."""
    total, at = 0.0, 0
    while at < len(text) or not at:
        match = _QUANTITY.match(text, at)
        factor = units.get(match.group(2).lower()) if match else None
        if match is None or factor is None:
            return None
        total, at = total + float(match.group(1)) * factor, match.end()
    return total


def duration_s(text: str) -> float | None:
    return quantity(text, _SECONDS)


class _Quantity(click.ParamType[float]):
    def __init__(
        self, name: str, units: Mapping[str, float], example: str, least: float = 0.0, most: float = math.inf
    ) -> None:
        self.name = name
        self._units = units
        self._example = example
        self._least, self._most = least, most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(value) if isinstance(value, int | float) else quantity(str(value), self._units)
        if found is None:
            self.fail(f"`{value}` is not a {self.name}; write e.g. {self._example}", param, ctx)
        if found < self._least:
            self.fail(f"must be at least {self._least:g} s", param, ctx)
        if found > self._most:
            self.fail(f"must be at most {self._most:g} s", param, ctx)
        return found


class _Moment(click.ParamType[datetime]):
    """A time: ISO 8601 (UTC unless it says otherwise), Unix time, or relative to now: `10m`."""

    name = "time"

    def __init__(self, direction: int, example: str) -> None:
        self._direction = direction
        self._example = example

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        from harch.base.clock import SystemClock

        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        moment: datetime | None = None
        with suppress(ValueError, OverflowError):
            number = duration_s(text)
            if number is None:
                moment = datetime.fromisoformat(text)
            elif number >= _UNIX_TIME_MIN and not text[-1].isalpha():
                moment = datetime.fromtimestamp(number, UTC)
            else:
                moment = SystemClock().now() + self._direction * timedelta(seconds=number)
        if moment is None:
            self.fail(f"`{value}` is not a time; write e.g. {self._example}", param, ctx)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def duration_between(least_s: float, most_s: float = math.inf) -> click.ParamType[float]:
    return _Quantity("duration", _SECONDS, _DURATION_EXAMPLE, least_s, most_s)


_DURATION_EXAMPLE = "90s, 30m, 12h or 2d"
DURATION = _Quantity("duration", _SECONDS, _DURATION_EXAMPLE)
MOMENT_AGO = _Moment(-1, "10m (that long ago) or 2026-12-24T06:00:00Z")
MOMENT_AHEAD = _Moment(1, "6h (from now) or 2026-12-24T06:00:00Z")
MEMORY = _Quantity("size", _GIGABYTES, "512MB, 16GB or 1TB")
SIZE = _Quantity("size", BYTES_BY_UNIT, "500MB or 2GB")


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

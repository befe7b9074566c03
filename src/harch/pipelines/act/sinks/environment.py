"""Where do secrets of sinks come from? From variables that the spec names as `env:NAME`, read once, never shown."""

from __future__ import annotations

import os
from collections.abc import Mapping

from harch.base.errors import HarchError

_PREFIX = "env:"


def from_environment(value: str, environment: Mapping[str, str] | None = None) -> str:
    """The value itself, or that of the variable it names. Raises E0776 where the variable is not set."""
    return variable(value[len(_PREFIX) :], environment) if value.startswith(_PREFIX) else value


def variable(name: str, environment: Mapping[str, str] | None = None) -> str:
    found = (os.environ if environment is None else environment).get(name)
    if found is None:
        raise HarchError("E0776", f"the variable `{name}` is not set", hint=f"set {name} for the ACT stage")
    return found

"""How much may those who connect ask for before anybody knows who they are? Named numbers, each with its variable."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, fields

from harch.base.errors import HarchError

PREFIX = "HARCH_LISTEN_"
DESCRIPTORS_RESERVED = 256  # for files, databases and children: connections never take the last descriptors
DESCRIPTORS_WANTED = 65_536

_HIGHEST = {"int": 2**31 - 1, "float": 86_400.0}


@dataclass(frozen=True, slots=True)
class ListenLimits:
    """Of one listener. `HARCH_LISTEN_` and the name in capitals sets a number for every listener of a process."""

    connections_max: int = 4_096  # fewer where the process may not open as many files
    connections_per_address_max: int = 1_024  # and never more than three quarters of all
    head_bytes_max: int = 32 * 1024  # request line and headers; also of trailers and of what frames chunks
    header_count_max: int = 128
    pipelined_max: int = 16  # requests sent ahead on one connection
    head_s_max: float = 20.0  # from the first byte, or from the connection, to the end of the headers
    body_s_grace: float = 30.0  # a body may take so long, and a second more for each `body_bytes_per_s_min`
    body_bytes_per_s_min: int = 4 * 1024
    body_s_max: float = 900.0  # however fast it comes
    idle_s_max: float = 75.0  # longer than the pools of the usual clients, so that they close first
    stalled_s_max: float = 120.0  # nothing of an answer is taken by the other end
    handshake_s_max: float = 5.0  # TLS

    def body_s_allowed(self, bytes_received: int) -> float:
        return min(self.body_s_grace + bytes_received / self.body_bytes_per_s_min, self.body_s_max)

    def within(self, descriptors: int) -> tuple[int, int]:
        """Connections in all and from one address, for a process that may open so many files."""
        allowed = max(1, min(self.connections_max, max(descriptors - DESCRIPTORS_RESERVED, descriptors // 2)))
        return allowed, max(1, min(self.connections_per_address_max, allowed - allowed // 4))


def limits_from_env(environment: Mapping[str, str] | None = None) -> ListenLimits:
    """Raises E0201 for a variable that is not known or not a positive number."""
    environment = os.environ if environment is None else environment
    kinds = {field.name: str(field.type) for field in fields(ListenLimits)}
    chosen: dict[str, float] = {}
    for variable in sorted(name for name in environment if name.startswith(PREFIX)):
        name = variable.removeprefix(PREFIX).lower()
        if name not in kinds:
            known = ", ".join(PREFIX + other.upper() for other in kinds)
            raise HarchError("E0201", f"{variable} is not a limit of listeners", hint=f"use one of: {known}")
        chosen[name] = _number(variable, environment[variable], kinds[name])
    return ListenLimits(**chosen)  # type: ignore[arg-type] # each is an int where the field is one


def _number(variable: str, text: str, kind: str) -> float:
    highest = _HIGHEST[kind]
    try:
        number = int(text) if kind == "int" else float(text)
    except ValueError:
        number = 0
    if not 0 < number <= highest:
        what = "a whole number" if kind == "int" else "a number"
        raise HarchError("E0201", f"{variable} is `{text[:100]}`", hint=f"use {what} above 0, up to {highest:g}")
    return number


def raise_descriptor_limit() -> None:
    """Takes as many descriptors as the system lets this process have without asking: one per connection is needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_WANTED if soft == resource.RLIM_INFINITY else soft

"""Who may connect, and how much may they send before anybody knows who they are?

So many at a time, so many from one address, named limits each with its variable; who owes us bytes goes first.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
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


# Who may connect? So many at a time, so many from one address; who owes us bytes goes first when there is no room.


SAY_EVERY_S = 10.0
_V6_NETWORK_BITS = 64  # one customer has so many addresses that each counts for nothing

_log = logging.getLogger("harch.listen")


class Ticket:
    """One connection that was let in. Whoever serves it calls `release` once when it ends.

    It is `pending` while its other end owes us something: a handshake, the rest of a request, or the next one. Pending
    connections give way when there is no room: `evict`, set by whoever serves it, closes it.
    """

    __slots__ = ("_gate", "_released", "address", "evict")

    def __init__(self, gate: ConnectionGate, address: str, evict: Callable[[], None]) -> None:
        self._gate = gate
        self._released = False
        self.address = address
        self.evict = evict

    def served(self) -> None:
        """The other end has done its part."""
        self._gate.pending.pop(self, None)

    def waits(self) -> None:
        """The other end has to do something again."""
        if not self._released:
            self._gate.pending[self] = None

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._gate.pending.pop(self, None)
            self._gate.released(self)


class ConnectionGate:
    """The connections of one listener, and what was refused to whom since the process started, by reason."""

    def __init__(
        self,
        name: str,
        limits: ListenLimits | None = None,
        *,
        descriptors: int | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.limits = limits or ListenLimits()
        most = self.limits.within(descriptor_limit() if descriptors is None else descriptors)
        self.connections_max, self.per_address_max = most
        self.open = 0
        self.pending: dict[Ticket, None] = {}  # in the order in which they began to wait
        self.refused: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        self._now_s = now_s
        self._reported_s: dict[str, float] = {}

    @property
    def by_address(self) -> Mapping[str, int]:
        return self._by_address

    def facts(self) -> Mapping[str, object]:
        """For people."""
        most = self.connections_max
        return {"name": self.name, "connections": self.open, "connections_max": most, "refused": dict(self.refused)}

    def admit(self, address: str, evict: Callable[[], None]) -> Ticket | None:
        """None if there is no room, although others that owe us something were asked to leave."""
        key = network_of(address)
        if self._by_address[key] >= self.per_address_max and not self._make_room(key):
            self.refuse("address", key)
            return None
        if self.open >= self.connections_max and not self._make_room(None):
            self.refuse("connections", key)
            return None
        ticket = Ticket(self, key, evict)
        self.open += 1
        self._by_address[key] += 1
        self.pending[ticket] = None
        return ticket

    def make_room(self) -> bool:
        """Ends the connection that has been pending for longest, if there is one."""
        return self._make_room(None)

    def refuse(self, reason: str, address: str = "") -> None:
        """Counts, and says so now and then: who attacks must not fill the log as well."""
        self.refused[reason] += 1
        now_s = self._now_s()
        if now_s - self._reported_s.get(reason, float("-inf")) >= SAY_EVERY_S:
            self._reported_s[reason] = now_s
            _log.warning(
                "%s: refused for `%s`, %d times so far; the last came from %s",
                *(self.name, reason, self.refused[reason], address or "somewhere"),
            )

    def released(self, ticket: Ticket) -> None:
        """Called by tickets."""
        self.open -= 1
        self._by_address[ticket.address] -= 1
        if not self._by_address[ticket.address]:
            del self._by_address[ticket.address]

    def _make_room(self, key: str | None) -> bool:
        oldest = next((ticket for ticket in self.pending if key is None or ticket.address == key), None)
        if oldest is None:
            return False
        self.refuse("evicted", oldest.address)
        oldest.evict()
        oldest.release()  # whatever its end takes: nobody else may be evicted for the same room
        return True


class Gates:
    """The listeners of one process, by name, under one set of limits."""

    def __init__(self, limits: ListenLimits | None = None) -> None:
        self.limits = limits or ListenLimits()
        self._gates: dict[str, ConnectionGate] = {}

    def __iter__(self) -> Iterator[ConnectionGate]:
        return iter(list(self._gates.values()))

    def gate(self, name: str) -> ConnectionGate:
        """The one of this name, made when it is first asked for."""
        if name not in self._gates:
            self._gates[name] = ConnectionGate(name, self.limits)
        return self._gates[name]


def network_of(address: str) -> str:
    """What counts as one address: an IPv4 address, or an IPv6 network of 64 bits."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, _V6_NETWORK_BITS), strict=False))

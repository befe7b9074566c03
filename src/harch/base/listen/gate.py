"""Who may connect? So many at a time, so many from one address; who owes us bytes goes first when there is no room."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from harch.base.listen.limits import ListenLimits, descriptor_limit

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
        self._said_s: dict[str, float] = {}

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
        if now_s - self._said_s.get(reason, float("-inf")) >= SAY_EVERY_S:
            self._said_s[reason] = now_s
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

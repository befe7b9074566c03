"""What happens to a packet between two hubs? Delay, jitter, loss, a rate, a cut: decided here, without any I/O.

A link is one direction. Packets of one link never overtake each other. Whoever drives it asks `accept` when a packet is
sent (it answers when the packet is due, or nothing) and `arrives` when that moment has come: a packet that was on its
way while the link was cut does not arrive, even when the link was healed before it was due.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

IN_FLIGHT_BYTES_MAX = 16 << 20  # 1 Gbit/s at 130 ms; more is dropped, as a router would
QUEUE_MS_MAX = 200.0  # what a rate limit may hold back before it drops
NS_PER_MS = 1_000_000


@dataclass(slots=True)
class LinkCounters:
    """What one link has carried since it was created. Bytes are those of whole IP packets."""

    packets_sent: int = 0
    bytes_sent: int = 0
    packets_delivered: int = 0
    bytes_delivered: int = 0
    packets_lost: int = 0  # by chance
    packets_cut: int = 0  # by a cut, those on their way at that moment included
    packets_overflowed: int = 0  # by a limit of a queue


class OneWayLink:
    """The way from one hub to another, with chances of its own: traffic of other links does not shift them."""

    __slots__ = (
        "_chance",
        "_delay_ns",
        "_free_ns",
        "_in_flight_bytes",
        "_is_cut",
        "_jitter_ns",
        "_last_due_ns",
        "_loss",
        "_ns_per_byte",
        "counters",
        "cut_count",
    )

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed).random  # noqa: S311 - chances of an experiment, not secrets
        self._delay_ns = self._jitter_ns = 0
        self._loss = self._ns_per_byte = 0.0
        self._is_cut = False
        self._free_ns = self._last_due_ns = self._in_flight_bytes = 0
        self.cut_count = 0
        self.counters = LinkCounters()

    def shape(
        self,
        *,
        delay_ms: float | None = None,
        jitter_ms: float | None = None,
        loss: float | None = None,
        rate_mbps: float | None = None,
    ) -> None:
        """Changes what is given, for packets sent from now on. A rate of infinity is no limit."""
        if delay_ms is not None:
            self._delay_ns = round(delay_ms * NS_PER_MS)
        if jitter_ms is not None:
            self._jitter_ns = round(jitter_ms * NS_PER_MS)
        if loss is not None:
            self._loss = loss
        if rate_mbps is not None:
            self._ns_per_byte = 8_000 / rate_mbps

    def cut(self) -> None:
        self._is_cut = True
        self.cut_count += 1

    def heal(self) -> None:
        self._is_cut = False

    def accept(self, packet_bytes: int, now_ns: int) -> int | None:
        """When the packet that was sent now is due, or None if it is dropped on the spot."""
        counters = self.counters
        counters.packets_sent += 1
        counters.bytes_sent += packet_bytes
        # Both chances are drawn for every packet: what happens to packet 100 depends on the seed, not on the 99 others.
        is_lost, jitter = self._chance() < self._loss, self._chance() * 2 - 1
        if self._is_cut:
            counters.packets_cut += 1
            return None
        if is_lost:
            counters.packets_lost += 1
            return None
        sent_ns = now_ns
        if self._ns_per_byte:
            start_ns = max(now_ns, self._free_ns)
            sent_ns = start_ns + round(packet_bytes * self._ns_per_byte)
            if start_ns - now_ns > QUEUE_MS_MAX * NS_PER_MS:
                counters.packets_overflowed += 1
                return None
        if self._in_flight_bytes + packet_bytes > IN_FLIGHT_BYTES_MAX:
            counters.packets_overflowed += 1
            return None
        self._free_ns = sent_ns
        self._in_flight_bytes += packet_bytes
        due_ns = sent_ns + max(0, self._delay_ns + round(jitter * self._jitter_ns))
        self._last_due_ns = max(due_ns, self._last_due_ns)
        return self._last_due_ns

    def arrives(self, packet_bytes: int, cut_count_when_sent: int) -> bool:
        """Whether an accepted packet, now due, comes out at the other end."""
        self._in_flight_bytes -= packet_bytes
        if cut_count_when_sent != self.cut_count:
            self.counters.packets_cut += 1
            return False
        self.counters.packets_delivered += 1
        self.counters.bytes_delivered += packet_bytes
        return True

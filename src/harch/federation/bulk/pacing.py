"""How fast may each connection to one peer send at this moment? As fast as others on the way do not notice.

The limits of the link are one bound. The other has to be found out: a queue on the way delays gossip as much as chunks,
so sending slows down as soon as round trips grow, whoever fills the queue, and speeds up again when they shrink.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from harch.federation.bulk.limits import UNLIMITED, Flow, TransferClass, shares

START_BYTES_PER_S = 32e6  # then a quarter more with every reading, until a queue or a limit shows
START_GROWTH = 0.25
FLOOR_BYTES_PER_S = 1e6  # of all connections together: however full the way is, a transfer ends one day
QUEUE_MS_MAX = 4.0  # what a round trip may grow by, or by the share of it that follows
QUEUE_SHARE_MAX = 0.08
DRAIN_MS = 200.0  # a queue that is too long is gone after so long
SLOWDOWN_MAX = 0.5
GROWTH = 0.08  # with every reading, while there is no queue
USED_SHARE_MIN = 0.7  # who uses less of what it may send has no use for more
HEADROOM = 1.5  # what such a connection is left, so that it can speed up again
READ_EVERY_S = 0.1
READ_EVERY_RTTS = 1.5  # what a change has done is seen one round trip later
SPARE_SHARE = 0.25  # of an equal share: what is left to one that sends nothing at the moment


class Sending(NamedTuple):
    """One connection, as its kernel sees it."""

    transfer: bytes
    transfer_class: TransferClass
    rtt_ms: float
    rtt_ms_min: float
    bytes_acknowledged: int


class Pace:
    """Of all connections to one peer, by their numbers. Rates are in bytes per second."""

    def __init__(self, bytes_per_s_max: float = UNLIMITED) -> None:
        self.bytes_per_s_max = bytes_per_s_max  # by the limits of the link
        self.bytes_per_s = START_BYTES_PER_S  # what the way seems to carry without a queue
        self.next_s = float("-inf")  # when to read again
        self._starting = True
        self._rtt_ms_base = float("inf")
        self._read_s = float("-inf")
        self._acknowledged: dict[int, int] = {}
        self._given: dict[int, float] = {}
        self._slow_from: tuple[float, float] | None = None  # rate and queue when slowing down began

    def update(self, now_s: float, sending: Mapping[int, Sending]) -> dict[int, float]:
        """What each may send from now on."""
        passed_s = now_s - self._read_s
        measured = {
            number: max(0, one.bytes_acknowledged - self._acknowledged[number]) / passed_s
            for number, one in sending.items()
            if number in self._acknowledged and passed_s > 0
        }
        for number, one in sending.items():
            if number not in self._acknowledged:
                self._rtt_ms_base = min(self._rtt_ms_base, one.rtt_ms_min)
        if sum(measured.values()):  # round trips are as old as the last data
            self._adapt(sum(measured.values()), min(sending[number].rtt_ms for number in measured))
        self._read_s = now_s
        self.next_s = now_s + max(READ_EVERY_S, READ_EVERY_RTTS * self._rtt_ms_base / 1000)
        self._acknowledged = {number: one.bytes_acknowledged for number, one in sending.items()}
        self._given = self._distribute(sending, measured)
        return self._given

    def join(self, number: int, sending: Mapping[int, Sending]) -> float:
        """What a connection may send that came between two readings."""
        flows = [Flow(one.transfer, one.transfer_class) for one in sending.values()]
        rates = shares(flows, min(self.bytes_per_s, self.bytes_per_s_max))
        return dict(zip(sending, rates, strict=True))[number]

    def _adapt(self, measured: float, rtt_ms: float) -> None:
        self._rtt_ms_base = min(self._rtt_ms_base, rtt_ms)
        queue_ms = rtt_ms - self._rtt_ms_base
        allowed_ms = max(QUEUE_MS_MAX, QUEUE_SHARE_MAX * self._rtt_ms_base)
        if queue_ms > allowed_ms:
            self._slow_down(measured, queue_ms, allowed_ms)
            return
        self._slow_from = None
        if measured >= USED_SHARE_MIN * min(self.bytes_per_s, self.bytes_per_s_max):
            growth = START_GROWTH if self._starting else GROWTH
            grown = self.bytes_per_s * (1 + growth * (1 - queue_ms / allowed_ms))
            self.bytes_per_s = min(grown, max(self.bytes_per_s_max, self.bytes_per_s))

    def _slow_down(self, measured: float, queue_ms: float, allowed_ms: float) -> None:
        self._starting = False
        if self._slow_from is None:
            self._slow_from = self.bytes_per_s, queue_ms
        began, began_ms = self._slow_from
        if self.bytes_per_s < began / 2 and queue_ms > began_ms / 2:
            # Slowing down has not helped: it is the queue of others, or the way has become longer.
            self._rtt_ms_base += queue_ms - allowed_ms / 2
            self._slow_from = None
            return
        excess = min(SLOWDOWN_MAX, (queue_ms - allowed_ms / 2) / DRAIN_MS)
        used = min(self.bytes_per_s, max(measured, SLOWDOWN_MAX * self.bytes_per_s))
        self.bytes_per_s = max(FLOOR_BYTES_PER_S, used * (1 - excess))

    def _distribute(self, sending: Mapping[int, Sending], measured: Mapping[int, float]) -> dict[int, float]:
        rate = min(self.bytes_per_s, self.bytes_per_s_max)
        flows = []
        for number, one in sending.items():
            used, given = measured.get(number), self._given.get(number)
            if used is None or given is None or used >= USED_SHARE_MIN * given:
                flows.append(Flow(one.transfer, one.transfer_class))
            else:
                spare = SPARE_SHARE * rate / len(sending)
                flows.append(Flow(one.transfer, one.transfer_class, max(HEADROOM * used, spare)))
        return dict(zip(sending, shares(flows, rate), strict=True))

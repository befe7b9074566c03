"""How fast may each connection to one peer send at this moment? As fast as others on the way do not notice.

The limits of the link are one bound. The other has to be found out: a queue on the way delays gossip as much as chunks,
so sending slows down as soon as round trips grow, whoever fills the queue, and speeds up again when they shrink. Near
the rate at which the last queue came up it does so in small steps: what is too much is too much by little.
"""

# harch: pure

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from itertools import islice
from statistics import median
from typing import NamedTuple

from harch.federation.bulk.limits import UNLIMITED, Flow, TransferClass, shares

START_BYTES_PER_S = 10e6
FLOOR_BYTES_PER_S = 1e6  # however full the way is, a transfer ends one day
QUEUE_MS_MAX = 2.0  # what a round trip may grow by, or by the share of it that follows, or by what it varies anyway
QUEUE_SHARE_MAX = 0.04
JITTERS_MAX, JITTER_READINGS = 5.0, 11
DRAIN_MS = 200.0  # a queue that is too long is gone after so long
DRAIN_READINGS = 2  # for which it may still be there before more is done
SLOWDOWN_MIN, SLOWDOWN_MAX = 0.06, 0.5
DRAINED_AT_ONCE = 1.5  # times as much as slowing down can drain
DRAINED_IN_VAIN, IN_VAIN_MAX = 0.25, 4
GROWTH = 0.25  # with every reading, while no queue has come up at that rate
NEAR_CEILING = 0.92  # of the rate at which the last queue came up: from here on growth is
GROWTH_NEAR_CEILING = 0.004
CALM_READINGS, DOUBLED_EVERY = 20, 10  # and, after so many without a queue, doubles in so many
USED_SHARE_MIN = 0.8  # who uses less of what it may send has no use for more
USED_READINGS = 3
HEADROOM = 1.5  # what a connection is left that does not use its share, so that it can speed up again
SPARE_SHARE = 0.25  # of an equal share: what is left to one that sends nothing at the moment
READ_EVERY_S = 0.1
READ_EVERY_RTTS = 1.5  # what a change has done is seen one round trip later


class _Slowdown(NamedTuple):
    at_s: float
    queue_ms: float
    share: float
    bytes_per_s_before: float
    ceiling_before: float


class DelayControl:
    """The rate at which all connections to one peer together leave no queue on the way."""

    def __init__(self) -> None:
        self.bytes_per_s = START_BYTES_PER_S
        self._ceiling = UNLIMITED  # at which the last queue came up
        self._used: deque[float] = deque(maxlen=USED_READINGS)
        self._rtt_ms_base = math.inf  # without any queue
        self._rtts_ms: deque[float] = deque(maxlen=JITTER_READINGS)
        self._queue_ms = 0.0
        self._calm = 0  # readings without a queue
        self._draining = 0  # readings for which it may still be there
        self._last: _Slowdown | None = None  # because of the queue that is there now
        self._is_first = False  # for this queue
        self._in_vain = 0  # slowdowns that did not make it shorter

    def read(self, now_s: float, used: float, rtt_ms: float, bytes_per_s_max: float) -> None:
        """`used`: bytes per second that arrived; `rtt_ms`: the shortest round trip of all connections that send."""
        self._used.append(used)
        self._rtt_ms_base = min(self._rtt_ms_base, rtt_ms)
        self._rtts_ms.append(rtt_ms)
        before_ms, self._queue_ms = self._queue_ms, rtt_ms - self._rtt_ms_base
        allowed_ms = max(QUEUE_MS_MAX, QUEUE_SHARE_MAX * self._rtt_ms_base, JITTERS_MAX * self._jitter_ms())
        if self._queue_ms <= allowed_ms:
            self._forgive(now_s)
            self._calm += 1
            if self.bytes_per_s < bytes_per_s_max and max(self._used) >= USED_SHARE_MIN * self.bytes_per_s:
                self._speed_up()
        elif self._draining and self._queue_ms <= before_ms:
            self._draining -= 1
            self._is_first = False
        else:
            self._slow_down(now_s, allowed_ms)

    def resume(self) -> None:
        """After a time in which nothing was sent: what was known to fit is tried again, and no more."""
        known = NEAR_CEILING * self._ceiling if self._ceiling < UNLIMITED else START_BYTES_PER_S
        self.bytes_per_s = max(min(self.bytes_per_s, known), START_BYTES_PER_S)

    def _forgive(self, now_s: float) -> None:
        """A queue that is gone sooner than slowing down can drain it was a hiccup, or a burst of others."""
        last, self._last = self._last, None
        if last is not None and self._is_first:
            drained_ms = last.queue_ms - self._queue_ms
            if drained_ms > DRAINED_AT_ONCE * last.share * (now_s - last.at_s) * 1000:
                self.bytes_per_s, self._ceiling = last.bytes_per_s_before, last.ceiling_before
        self._draining = self._in_vain = 0

    def _jitter_ms(self) -> float:
        """How much round trips vary from one reading to the next. A queue that grows or shrinks evenly is no jitter."""
        later, latest = islice(self._rtts_ms, 1, None), islice(self._rtts_ms, 2, None)
        bends = [abs(a - 2 * b + c) / 2 for a, b, c in zip(self._rtts_ms, later, latest, strict=False)]
        return median(bends) if bends else 0.0

    def _speed_up(self) -> None:
        near = NEAR_CEILING * self._ceiling
        if self.bytes_per_s < near:
            self.bytes_per_s = min(self.bytes_per_s * (1 + GROWTH), near)
        else:
            doubled = min(max(0.0, (self._calm - CALM_READINGS) / DOUBLED_EVERY), 16.0)
            self.bytes_per_s *= 1 + min(GROWTH, GROWTH_NEAR_CEILING * 2**doubled)

    def _slow_down(self, now_s: float, allowed_ms: float) -> None:
        last = self._last
        if last is not None:
            drainable_ms = last.share * (now_s - last.at_s) * 1000
            helped = last.queue_ms - self._queue_ms > DRAINED_IN_VAIN * drainable_ms
            self._in_vain = 0 if helped else self._in_vain + 1
        if self._in_vain > IN_VAIN_MAX:
            # It is the queue of others, or the way has become longer: that is how it is now.
            self._rtt_ms_base += self._queue_ms
            self._last, self._in_vain, self._draining = None, 0, 0
            return
        share = min(SLOWDOWN_MAX, max(SLOWDOWN_MIN, (self._queue_ms - allowed_ms / 2) / DRAIN_MS))
        self._is_first = last is None
        self._last = _Slowdown(now_s, self._queue_ms, share, self.bytes_per_s, self._ceiling)
        # With a queue on the way, what is used is what it carries; with little to send it is not.
        self._ceiling = min(self.bytes_per_s, max(*self._used, SLOWDOWN_MAX * self.bytes_per_s))
        self._calm = 0
        self._draining = DRAIN_READINGS
        self.bytes_per_s = max(FLOOR_BYTES_PER_S, self._ceiling * (1 - share))


class Sending(NamedTuple):
    """One connection, as its kernel sees it."""

    transfer: bytes
    transfer_class: TransferClass
    rtt_ms: float
    bytes_acknowledged: int


class Pace:
    """The rates of all connections to one peer, by their numbers, in bytes per second."""

    def __init__(self, bytes_per_s_max: float = UNLIMITED) -> None:
        self.bytes_per_s_max = bytes_per_s_max  # by the limits of the link
        self.control = DelayControl()
        self.next_s = -math.inf  # when to read again
        self._read_s = -math.inf
        self._acknowledged: dict[int, int] = {}
        self._given: dict[int, float] = {}

    @property
    def bytes_per_s(self) -> float:
        """Of all together."""
        return min(self.control.bytes_per_s, self.bytes_per_s_max)

    def update(self, now_s: float, sending: Mapping[int, Sending]) -> dict[int, float]:
        """What each may send from now on."""
        passed_s = now_s - self._read_s
        used = {
            number: max(0, one.bytes_acknowledged - self._acknowledged[number]) / passed_s
            for number, one in sending.items()
            if number in self._acknowledged and passed_s > 0
        }
        moving = [sending[number].rtt_ms for number, bytes_per_s in used.items() if bytes_per_s]
        if moving:  # round trips are as old as the last data
            self.control.read(now_s, sum(used.values()), min(moving), self.bytes_per_s_max)
        self._read_s = now_s
        rtt_ms = min((one.rtt_ms for one in sending.values()), default=0.0)
        self.next_s = now_s + max(READ_EVERY_S, READ_EVERY_RTTS * rtt_ms / 1000)
        self._acknowledged = {number: one.bytes_acknowledged for number, one in sending.items()}
        self._given = self._distribute(sending, used)
        return self._given

    def join(self, number: int, sending: Mapping[int, Sending]) -> float:
        """What a connection may send that has come between two readings."""
        flows = [Flow(one.transfer, one.transfer_class) for one in sending.values()]
        return dict(zip(sending, shares(flows, self.bytes_per_s), strict=True))[number]

    def _distribute(self, sending: Mapping[int, Sending], used: Mapping[int, float]) -> dict[int, float]:
        flows = []
        for number, one in sending.items():
            mine, given = used.get(number), self._given.get(number)
            if mine is None or given is None or mine >= USED_SHARE_MIN * given:
                flows.append(Flow(one.transfer, one.transfer_class))
            else:
                spare = SPARE_SHARE * self.bytes_per_s / len(sending)
                flows.append(Flow(one.transfer, one.transfer_class, max(HEADROOM * mine, spare)))
        return dict(zip(sending, shares(flows, self.bytes_per_s), strict=True))

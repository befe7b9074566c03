"""Is a hub alive? Suspicion from missed heartbeats: relative to its rhythm, its link, and our own slowness.

phi = time since its last heartbeat / mean interval between them. Above 8 it is suspected: after about 1.6 s at 200 ms.
Suspicion is not death: it stops new offers and evicts nothing.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from harch.federation.gossip.settings import GossipSettings

_RELAXATION_PER_TICK = 0.9  # how fast patience ends once the own loop is on time again


class Standing(StrEnum):
    UNHEARD = "unheard"  # its heart has not been seen to beat since this hub started
    ALIVE = "alive"
    SUSPECTED = "suspected"


class _Pulse:
    """The heartbeats of one hub."""

    def __init__(self, now_s: float, settings: GossipSettings) -> None:
        self.standing = Standing.UNHEARD
        self.heard_at_s = now_s
        self.deaf_s = 0.0  # the longest time since then that this hub itself stood still and could hear nobody
        self.round_trip_s: float | None = None
        self._round_trip_spread_s = 0.0
        self._settings = settings
        self._intervals_s: deque[float] = deque(maxlen=settings.intervals_kept)
        self._sum_s = 0.0

    def silence_s(self, now_s: float) -> float:
        return max(0.0, now_s - self.heard_at_s - self.deaf_s)

    def hear(self, now_s: float) -> None:
        self.heard_at_s, self.deaf_s = now_s, 0.0

    def record_interval(self, now_s: float) -> None:
        if len(self._intervals_s) == self._intervals_s.maxlen:
            self._sum_s -= self._intervals_s[0]
        interval_s = self.silence_s(now_s)
        self._intervals_s.append(interval_s)
        self._sum_s += interval_s

    @property
    def mean_interval_s(self) -> float:
        """Never below the agreed interval: relays deliver in bursts, and a burst is no promise of a faster rhythm."""
        settings = self._settings
        assumed = settings.intervals_assumed
        mean_s = (self._sum_s + assumed * settings.interval_s) / (len(self._intervals_s) + assumed)
        return max(settings.interval_s, mean_s)

    def note_round_trip(self, round_trip_s: float) -> None:
        """Smoothed as TCP does it (RFC 6298)."""
        if self.round_trip_s is None:
            self.round_trip_s, self._round_trip_spread_s = round_trip_s, round_trip_s / 2
            return
        difference_s = abs(self.round_trip_s - round_trip_s)
        self._round_trip_spread_s += (difference_s - self._round_trip_spread_s) / 4
        self.round_trip_s += (round_trip_s - self.round_trip_s) / 8

    @property
    def latency_allowance_s(self) -> float:
        if self.round_trip_s is None:
            return 0.0
        return min(self._settings.latency_s_max, self.round_trip_s + self._round_trip_spread_s)


class Liveness:
    """The pulses of all peers, and how far this hub can trust its own judgement (Lifeguard)."""

    def __init__(self, settings: GossipSettings) -> None:
        self._settings = settings
        self._pulses: dict[str, _Pulse] = {}
        self.stretch = 1.0

    def watch(self, hub: str, now_s: float) -> None:
        self._pulses[hub] = _Pulse(now_s, self._settings)

    def unwatch(self, hub: str) -> None:
        del self._pulses[hub]

    def seen_first(self, hub: str, now_s: float) -> None:
        """A heartbeat of a life that was unknown so far. A relay may have kept it long after the hub's death,
        so it is no sign of life yet: only a heart that goes on beating is.
        """
        self._pulses[hub].hear(now_s)

    def heard(self, hub: str, now_s: float) -> Standing:
        """A further heartbeat. Answers how the hub stood until now."""
        pulse = self._pulses[hub]
        before = pulse.standing
        if before is Standing.ALIVE:  # an interval across a suspicion says nothing about its rhythm
            pulse.record_interval(now_s)
        pulse.hear(now_s)
        pulse.standing = Standing.ALIVE
        return before

    def note_round_trip(self, hub: str, round_trip_s: float) -> None:
        self._pulses[hub].note_round_trip(round_trip_s)

    def note_own_lateness(self, late_s: float) -> None:
        """Called once per tick: how much later it came than planned.

        What came in meanwhile is read only after this tick, so that time is not held against anyone. After a delay of
        more than an interval this hub may be slow for a while, so thresholds are stretched until it is on time again.
        """
        stretch = max(self.stretch * _RELAXATION_PER_TICK, late_s / self._settings.interval_s)
        self.stretch = min(self._settings.stretch_max, max(1.0, stretch))
        for pulse in self._pulses.values():
            pulse.deaf_s = max(pulse.deaf_s, late_s)

    def newly_suspected(self, now_s: float) -> list[str]:
        found = []
        for hub, pulse in self._pulses.items():
            if pulse.standing is Standing.ALIVE and self.phi(hub, now_s) > self._settings.phi_max:
                pulse.standing = Standing.SUSPECTED
                found.append(hub)
        return found

    def phi(self, hub: str, now_s: float) -> float:
        pulse = self._pulses[hub]
        silence_s = pulse.silence_s(now_s) - pulse.latency_allowance_s
        return max(0.0, silence_s) / (pulse.mean_interval_s * self.stretch)

    def standing(self, hub: str) -> Standing:
        return self._pulses[hub].standing

    def age_s(self, hub: str, now_s: float) -> float:
        """Since its last heartbeat, by the clock: whoever looks at figures wants to know how old they are."""
        return max(0.0, now_s - self._pulses[hub].heard_at_s)

    def round_trip_s(self, hub: str) -> float | None:
        return self._pulses[hub].round_trip_s

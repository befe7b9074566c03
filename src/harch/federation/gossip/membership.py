"""Is a hub alive, and what does the gossip report to its own hub?

Suspicion from missed heartbeats, changes as they happen, and a view of every hub at any time.
"""

# harch: pure

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from harch.federation.gossip.state import GossipSettings

# Is a hub alive? Suspicion from missed heartbeats: relative to its rhythm, its link, and our own slowness.
#
# phi = time since its last heartbeat / mean interval between them. Above 8 it is suspected: after about 1.6 s at 200
# ms.
# Suspicion is not death: it stops new offers and evicts nothing.


_RELAXATION_PER_TICK = 0.9  # how fast patience ends once the own loop is on time again


class LivenessState(StrEnum):
    UNHEARD = "unheard"  # its heart has not been seen to beat since this hub started
    ALIVE = "alive"
    SUSPECTED = "suspected"


class _Pulse:
    """The heartbeats of one hub."""

    def __init__(self, now_s: float, settings: GossipSettings) -> None:
        self.standing = LivenessState.UNHEARD
        self.last_beat_s = now_s
        self.deaf_s = 0.0  # the longest time since then that this hub itself stood still and could hear nobody
        self.round_trip_s: float | None = None
        self._round_trip_spread_s = 0.0
        self._settings = settings
        self._intervals_s: deque[float] = deque(maxlen=settings.intervals_kept)
        self._sum_s = 0.0

    def silence_s(self, now_s: float) -> float:
        return max(0.0, now_s - self.last_beat_s - self.deaf_s)

    def hear(self, now_s: float) -> None:
        self.last_beat_s, self.deaf_s = now_s, 0.0

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

    def note_heartbeat(self, hub: str, now_s: float) -> LivenessState:
        """A further heartbeat. Answers how the hub stood until now."""
        pulse = self._pulses[hub]
        before = pulse.standing
        if before is LivenessState.ALIVE:  # an interval across a suspicion says nothing about its rhythm
            pulse.record_interval(now_s)
        pulse.hear(now_s)
        pulse.standing = LivenessState.ALIVE
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
            if pulse.standing is LivenessState.ALIVE and self.phi(hub, now_s) > self._settings.phi_max:
                pulse.standing = LivenessState.SUSPECTED
                found.append(hub)
        return found

    def phi(self, hub: str, now_s: float) -> float:
        pulse = self._pulses[hub]
        silence_s = pulse.silence_s(now_s) - pulse.latency_allowance_s
        return max(0.0, silence_s) / (pulse.mean_interval_s * self.stretch)

    def standing(self, hub: str) -> LivenessState:
        return self._pulses[hub].standing

    def age_s(self, hub: str, now_s: float) -> float:
        """Since its last heartbeat, by the clock: whoever looks at figures wants to know how old they are."""
        return max(0.0, now_s - self._pulses[hub].last_beat_s)

    def round_trip_s(self, hub: str) -> float | None:
        return self._pulses[hub].round_trip_s


# What does the gossip tell its hub? News as they happen, and a view of every hub at any time.


NEWS_MAX = 10_000
REFUSALS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Appeared:
    """A hub is heard for the first time, or for the first time since it started again."""

    hub: str
    generation: int


@dataclass(frozen=True, slots=True)
class Suspected:
    hub: str
    silence_s: float


@dataclass(frozen=True, slots=True)
class Recovered:
    hub: str


@dataclass(frozen=True, slots=True)
class StateChanged:
    """These keys of a hub have new values, or are gone."""

    hub: str
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class IdentityCloned:
    """Somebody else signs with this hub's key, under a later generation: others believe them and not us."""

    generation: int
    via: str


class Reason(StrEnum):
    NO_MEMBER = "it is not a member of this federation"
    BAD_SIGNATURE = "its signature is wrong"
    BAD_ORDER = "its versions are not in order"
    TOO_LARGE = "it publishes more about itself than is allowed"
    LEFT_OUT = "entries were left out on the way"


@dataclass(frozen=True, slots=True)
class Forged:
    """Something about `hub` came from `via` and was not believed. Told at the 1st, 2nd, 4th, 8th ... time.

    `via` is empty when entries were left out: that shows only later, and not by whom.
    """

    hub: str
    via: str
    reason: Reason
    times: int


News = Appeared | Suspected | Recovered | StateChanged | IdentityCloned | Forged


@dataclass(frozen=True, slots=True)
class GossipView:
    """What is known of one hub, how old it is and from whom it came."""

    hub: str
    standing: LivenessState
    generation: int
    version: int
    values: Mapping[str, bytes]
    complete: bool  # False: the hub has said more than has arrived
    age_s: float | None  # since its last heartbeat; None: there was none
    direct_age_s: float | None  # since the last message over the link to it, whatever it was about
    via: str  # who brought the last heartbeat
    phi: float
    round_trip_s: float | None

    @property
    def is_alive(self) -> bool:
        return self.standing is LivenessState.ALIVE


@dataclass(slots=True)
class NewsQueue:
    """Collects until somebody reads: changes of one hub in one piece, repeated refusals more and more rarely."""

    refusals: Counter[tuple[str, str, Reason]] = field(default_factory=Counter)
    _news: list[News] = field(default_factory=list)
    _changed: dict[str, set[str]] = field(default_factory=dict)

    def publish(self, news: News) -> None:
        if len(self._news) >= NEWS_MAX:  # nobody reads; the newest matter more than the oldest
            del self._news[: NEWS_MAX // 2]
        self._news.append(news)

    def changed(self, hub: str, keys: set[str]) -> None:
        if keys:
            self._changed.setdefault(hub, set()).update(keys)

    def refuse(self, hub: str, via: str, reason: Reason) -> None:
        subject = (hub, via, reason)
        if subject not in self.refusals and len(self.refusals) >= REFUSALS_MAX:
            subject = ("(many)", via, reason)  # names can be invented without end; members cannot
        self.refusals[subject] += 1
        times = self.refusals[subject]
        if times & (times - 1) == 0:
            self.publish(Forged(*subject, times))

    def take(self) -> list[News]:
        changes = [StateChanged(hub, frozenset(keys)) for hub, keys in self._changed.items()]
        news, self._news, self._changed = [*self._news, *changes], [], {}
        return news

"""What does the gossip tell its hub? News as they happen, and a view of every hub at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from harch.federation.gossip.liveness import Standing

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
    NO_MEMBER = "it is no member of this federation"
    BAD_SIGNATURE = "its signature is wrong"
    BAD_ORDER = "its versions are not in order"
    TOO_LARGE = "it says more about itself than is allowed"
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
class HubView:
    """What is known of one hub, how old it is and from whom it came."""

    hub: str
    standing: Standing
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
        return self.standing is Standing.ALIVE


@dataclass(slots=True)
class NewsDesk:
    """Collects until somebody reads: changes of one hub in one piece, repeated refusals more and more rarely."""

    refusals: Counter[tuple[str, str, Reason]] = field(default_factory=Counter)
    _news: list[News] = field(default_factory=list)
    _changed: dict[str, set[str]] = field(default_factory=dict)

    def tell(self, news: News) -> None:
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
            self.tell(Forged(*subject, times))

    def take(self) -> list[News]:
        changes = [StateChanged(hub, frozenset(keys)) for hub, keys in self._changed.items()]
        news, self._news, self._changed = [*self._news, *changes], [], {}
        return news

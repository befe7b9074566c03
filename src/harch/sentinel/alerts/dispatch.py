"""Which alerts are told together, and when? Groups of alerts, each with its timer. No I/O: `now_ms` comes in.

A group waits `group_wait` after its first alert, so that what belongs together comes together, and is then looked at
every `group_interval`. Whether a look becomes a notification is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.config import Route
from harch.sentinel.alerts.routes import all_routes, group_key, group_labels, matching_routes
from harch.sentinel.model.labels import Labels

GROUPS_MAX = 20_000


@dataclass(slots=True)
class Group:
    """Alerts with equal group labels under one route."""

    route: Route
    labels: Labels
    next_flush_ms: int
    alerts: dict[str, Alert] = field(default_factory=dict)  # by fingerprint
    has_flushed: bool = False

    @property
    def key(self) -> str:
        return group_key(self.route, self.labels)


class Flush(Struct, frozen=True, kw_only=True):
    """A look at a group. Alerts that are firing now have no end, so that they do not resolve on their way out."""

    group_key: str
    route: Route
    labels: Labels
    alerts: tuple[Alert, ...]
    at_ms: int


class Dispatcher:
    def __init__(self, route: Route) -> None:
        self.root = route
        self._places = {id(one): place for place, one in enumerate(all_routes(route))}
        self._groups: dict[tuple[int, Labels], Group] = {}

    @property
    def groups(self) -> Iterable[Group]:
        return self._groups.values()

    def insert(self, alert: Alert, *, now_ms: int) -> None:
        """Puts the alert into the groups of all its routes. Raises E0649 when there are too many groups."""
        own = dict(alert.labels)
        for route in matching_routes(self.root, own):
            address = (self._places[id(route)], group_labels(route, own))
            group = self._groups.get(address)
            if group is None:
                if len(self._groups) >= GROUPS_MAX:
                    raise HarchError(
                        "E0649", f"there are {GROUPS_MAX} groups of alerts", hint="group by fewer labels in the route"
                    )
                group = Group(route, address[1], now_ms + route.group_wait_ms)
                self._groups[address] = group
            group.alerts[alert.fingerprint] = alert
            if not group.has_flushed and alert.starts_at_ms + route.group_wait_ms < now_ms:
                group.next_flush_ms = now_ms  # it has waited elsewhere, e.g. before a restart

    def due(self, now_ms: int) -> list[Flush]:
        """The groups whose time has come; each gets its next time. Empty groups are forgotten."""
        found: list[Flush] = []
        for address, group in list(self._groups.items()):
            longest_ms = max(group.route.group_wait_ms, group.route.group_interval_ms)
            # A time further away than any pause was set before the clock was set back: it would never come.
            if now_ms < group.next_flush_ms <= now_ms + longest_ms:
                continue
            if not group.alerts:
                del self._groups[address]
                continue
            # Not from the old time on: what was late, e.g. after a suspend, must not be made up for in a burst.
            group.next_flush_ms = now_ms + group.route.group_interval_ms
            group.has_flushed = True
            found.append(_flush(group, now_ms))
        return found

    def next_ms(self) -> int | None:
        return min((group.next_flush_ms for group in self._groups.values()), default=None)

    def settle(self, flush: Flush) -> None:
        """The flush was dealt with: resolved alerts leave the group, unless they changed meanwhile."""
        group = self._groups.get((self._places.get(id(flush.route), -1), flush.labels))
        for alert in flush.alerts if group is not None else ():
            if group is not None and alert.is_resolved(flush.at_ms) and group.alerts.get(alert.fingerprint) == alert:
                del group.alerts[alert.fingerprint]


def _flush(group: Group, now_ms: int) -> Flush:
    alerts = sorted(group.alerts.values(), key=lambda alert: (alert.starts_at_ms, alert.labels))
    firing_open = (alert if alert.is_resolved(now_ms) else replace(alert, ends_at_ms=0) for alert in alerts)
    return Flush(group_key=group.key, route=group.route, labels=group.labels, alerts=tuple(firing_open), at_ms=now_ms)

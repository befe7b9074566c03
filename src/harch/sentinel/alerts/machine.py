"""Which notification goes to whom, now?

Alerts in, groups with their timers, deliveries out. No I/O: time, position and outcomes come in.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.sentinel.alerts.alert import Alert, check, joined
from harch.sentinel.alerts.config import AlertConfig, AlertRoute, Integration
from harch.sentinel.alerts.delivery import Delivery, receiver_key, why_notify
from harch.sentinel.alerts.routing import Inhibitor, all_routes, group_key, group_labels, matching_routes, muted_by
from harch.sentinel.alerts.shared_state import Notified, SharedState
from harch.sentinel.alerts.templates import Notice
from harch.sentinel.model.labels import Labels

# Which alerts are notified together, and when? Groups of alerts, each with its timer. No I/O: `now_ms` comes in.
#
# A group waits `group_wait` after its first alert, so that what belongs together comes together, and is then looked at
# every `group_interval`. Whether a look becomes a notification is decided elsewhere.


GROUPS_MAX = 20_000


@dataclass(slots=True)
class AlertGroup:
    """Alerts with equal group labels under one route."""

    route: AlertRoute
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
    route: AlertRoute
    labels: Labels
    alerts: tuple[Alert, ...]
    at_ms: int


class Dispatcher:
    def __init__(self, route: AlertRoute) -> None:
        self.root = route
        self._places = {id(one): place for place, one in enumerate(all_routes(route))}
        self._groups: dict[tuple[int, Labels], AlertGroup] = {}

    @property
    def groups(self) -> Iterable[AlertGroup]:
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
                group = AlertGroup(route, address[1], now_ms + route.group_wait_ms)
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


def _flush(group: AlertGroup, now_ms: int) -> Flush:
    alerts = sorted(group.alerts.values(), key=lambda alert: (alert.starts_at_ms, alert.labels))
    firing_open = (alert if alert.is_resolved(now_ms) else replace(alert, ends_at_ms=0) for alert in alerts)
    return Flush(group_key=group.key, route=group.route, labels=group.labels, alerts=tuple(firing_open), at_ms=now_ms)


# Who has to be notified of what, now? Alerts in, deliveries out. No I/O: time, position and outcomes come in.
#
# 1. `put` takes alerts and sorts them into groups.
# 2. `tick` looks at groups whose time has come: what is inhibited, silenced or outside of its hours is left out.
# 3. With several hubs, the one at position n waits n times the peers' patience, and meanwhile hears what others sent.
# 4. What the log does not know yet becomes a delivery, and is in doubt from then on: store `shared` before it is sent.
#    `delivered` ends the doubt; after `not_delivered` or a crash the next look at the group tries again.


ALERTS_MAX = 50_000
RESOLVED_KEPT_MS = 30 * 60_000  # as long as Alertmanager keeps them at most
PEER_DELAY_MS = 15_000
DELIVERY_MS_MIN = 10_000
DELIVERY_MS_LATE = 60_000
COLLECT_EVERY_MS = 30_000


@dataclass(slots=True)
class _Look:
    """A look at a group, until all integrations of its receiver have dealt with it."""

    flush: Flush
    alerts: tuple[Alert, ...]  # those that nothing mutes
    left: int = 0
    has_failed: bool = False


@dataclass(slots=True)
class _Waiting:
    """A look on its way to one integration: waiting for peers, or under way."""

    look: _Look
    integration: Integration
    due_ms: int
    deadline_ms: int
    is_under_way: bool = False


class AlertMachine:
    """The state of one Alertmanager. `shared` is gossiped, alerts are not: every hub hears its own rules."""

    def __init__(self, config: AlertConfig, shared: SharedState, *, external_url: str = "") -> None:
        self.config, self.shared, self.external_url = config, shared, external_url
        self.alerts: dict[str, Alert] = {}
        self.dispatcher = Dispatcher(config.route)
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        self._unsaved: dict[str, Alert | None] = {}
        self._collected_ms = 0

    # Alerts

    def put(self, alerts: Iterable[Alert], *, now_ms: int) -> list[HarchError]:
        """Takes what is valid; answers what is wrong with the rest."""
        problems: list[HarchError] = []
        for alert in alerts:
            try:
                check(alert)
                self._put_one(alert, now_ms)
            except HarchError as error:
                problems.append(error)
        return problems

    def _put_one(self, alert: Alert, now_ms: int) -> None:
        known = self.alerts.get(alert.fingerprint)
        if known is not None:
            alert = joined(known, alert, now_ms=now_ms)
        elif len(self.alerts) >= ALERTS_MAX:
            raise HarchError("E0649", f"there are {ALERTS_MAX} alerts already", hint="give rules fewer labels")
        self.dispatcher.insert(alert, now_ms=now_ms)
        self.alerts[alert.fingerprint] = alert
        self._unsaved[alert.fingerprint] = alert

    def restore(self, alerts: Iterable[Alert], *, now_ms: int) -> None:
        """What was known before a restart. The log says what of it was sent.

        What was firing gets time to be sent again: that we were away does not mean that it is over.
        """
        for alert in alerts:
            if alert.ends_at_ms > alert.updated_at_ms:
                alert = replace(alert, ends_at_ms=max(alert.ends_at_ms, now_ms + self.config.resolve_timeout_ms))
            if alert.ends_at_ms > now_ms - RESOLVED_KEPT_MS:
                self.alerts[alert.fingerprint] = alert
            else:
                self._unsaved[alert.fingerprint] = None
        self._sort_anew(now_ms)

    def reconfigure(self, config: AlertConfig, *, now_ms: int) -> None:
        """Groups begin anew under the new routes; silences, log and alerts stay."""
        self.config, self.dispatcher = config, Dispatcher(config.route)
        self._waiting = {key: one for key, one in self._waiting.items() if one.is_under_way}
        self._sort_anew(now_ms)

    def _sort_anew(self, now_ms: int) -> None:
        for alert in self.alerts.values():
            with suppress(HarchError):  # too many groups; the alerts are shown, and sent when there is room
                self.dispatcher.insert(alert, now_ms=now_ms)

    def inhibitor(self, now_ms: int) -> Inhibitor:
        return Inhibitor(self.config.inhibit_rules, self.alerts.values(), now_ms=now_ms)

    # Time

    def tick(self, now_ms: int, *, position: int = 0) -> list[Delivery]:
        """What is to be sent now. `position` is this hub's place among those that share the log; 0 goes first."""
        self._collect_garbage(now_ms)
        inhibitor: Inhibitor | None = None
        for flush in self.dispatcher.due(now_ms):
            inhibitor = inhibitor or self.inhibitor(now_ms)
            self._look_at(flush, inhibitor, now_ms + position * PEER_DELAY_MS)
        return [
            delivery
            for key, waiting in list(self._waiting.items())
            if not waiting.is_under_way
            and waiting.due_ms <= now_ms
            and (delivery := self._decide(key, waiting, now_ms)) is not None
        ]

    def next_ms(self) -> int | None:
        """When there is something to do next, if nothing comes in before."""
        times = [waiting.due_ms for waiting in self._waiting.values() if not waiting.is_under_way]
        flush_ms = self.dispatcher.next_ms()
        return min([*times, *([flush_ms] if flush_ms is not None else [])], default=None)

    def _look_at(self, flush: Flush, inhibitor: Inhibitor, due_ms: int) -> None:
        if muted_by(self.config, flush.route, flush.at_ms):
            return  # not settled: what ends meanwhile is sent when the time is over
        look = _Look(flush, tuple(alert for alert in flush.alerts if not self._is_muted(alert, inhibitor, flush.at_ms)))
        integrations = self.config.receivers[flush.route.receiver].integrations if look.alerts else ()
        if not integrations:
            self.dispatcher.settle(flush)
            return
        retry_ms = max(flush.route.group_interval_ms, DELIVERY_MS_MIN)
        for place, integration in enumerate(integrations):
            key = (receiver_key(flush.route.receiver, integration, place), flush.group_key)
            earlier = self._waiting.get(key)
            if earlier is not None and earlier.is_under_way:
                look.has_failed = True  # it cannot be sent now, so nothing of it may be forgotten
                continue
            look.left += 1
            self._waiting[key] = _Waiting(look, integration, due_ms, due_ms + retry_ms)

    def _is_muted(self, alert: Alert, inhibitor: Inhibitor, now_ms: int) -> bool:
        own = dict(alert.labels)
        return bool(inhibitor.inhibited_by(own) or self.shared.silenced_by(own, now_ms=now_ms))

    def _decide(self, key: tuple[str, str], waiting: _Waiting, now_ms: int) -> Delivery | None:
        receiver, group_key = key
        look, integration = waiting.look, waiting.integration
        flush = look.flush
        firing = tuple(a.fingerprint for a in look.alerts if not a.is_resolved(flush.at_ms))
        resolved = tuple(a.fingerprint for a in look.alerts if a.is_resolved(flush.at_ms))
        last = self.shared.notified(receiver, group_key)
        why = why_notify(
            last,
            firing,
            resolved,
            sends_resolved=integration.send_resolved,
            acknowledged=self._acknowledged(look.alerts, now_ms),
            repeat_interval_ms=flush.route.repeat_interval_ms,
            now_ms=flush.at_ms,  # not now: a hub that waits for others must not find a repeat due before they do
        )
        if why is None:
            self._remember(last if firing else None, flush.route.repeat_interval_ms, now_ms)
            self._done(key)
            return None
        sent_alerts = tuple(a for a in look.alerts if integration.send_resolved or not a.is_resolved(flush.at_ms))
        delivery = Delivery(
            receiver=receiver,
            integration=integration,
            notice=Notice(
                receiver=flush.route.receiver,
                group_key=group_key,
                group_labels=flush.labels,
                alerts=sent_alerts,
                now_ms=flush.at_ms,
                external_url=self.external_url,
                definitions=self.config.templates,
            ),
            firing=firing,
            resolved=resolved,
            why=why,
            repeat_interval_ms=flush.route.repeat_interval_ms,
            deadline_ms=waiting.deadline_ms,
        )
        if not sent_alerts:  # all is resolved, and this receiver does not want to hear of it
            self.delivered(delivery, now_ms=now_ms)
            return None
        self._log(delivery, (*firing, *(last.firing if last is not None else ())), now_ms, in_doubt=True)
        waiting.is_under_way = True
        return delivery

    def _remember(self, last: Notified | None, repeat_interval_ms: int, now_ms: int) -> None:
        """What is acknowledged for long must not leave the log: it would be sent as if it were new."""
        if last is not None and last.expires_at_ms < now_ms + repeat_interval_ms:
            expires_at_ms = now_ms + 2 * repeat_interval_ms
            longer = replace(last, updated_at_ms=last.updated_at_ms + 1, expires_at_ms=expires_at_ms)
            self.shared.put(longer, now_ms=now_ms)

    def _acknowledged(self, alerts: Iterable[Alert], now_ms: int) -> set[str]:
        acks = ((alert, self.shared.ack(alert.fingerprint)) for alert in alerts)
        return {alert.fingerprint for alert, ack in acks if ack is not None and ack.covers(alert.starts_at_ms, now_ms)}

    # Outcomes

    def delivered(self, delivery: Delivery, *, now_ms: int) -> None:
        """The receiver has it. From now on the log says so, here and, after gossip, elsewhere."""
        self._log(delivery, delivery.firing, now_ms, in_doubt=False)
        self._done((delivery.receiver, delivery.notice.group_key))

    def _log(self, delivery: Delivery, firing: Iterable[str], now_ms: int, *, in_doubt: bool) -> None:
        entry = Notified(
            receiver=delivery.receiver,
            group_key=delivery.notice.group_key,
            firing=tuple(sorted(set(firing))),
            resolved=delivery.resolved,
            updated_at_ms=now_ms,
            expires_at_ms=now_ms + 2 * delivery.repeat_interval_ms,
            in_doubt=in_doubt,
        )
        with suppress(HarchError):  # the log is full: this may be sent again, which is better than to stop sending
            self.shared.put(entry, now_ms=now_ms)

    def not_delivered(self, delivery: Delivery) -> None:
        """Given up; the group's next look tries again, because the log says that it is in doubt."""
        self._done((delivery.receiver, delivery.notice.group_key), has_failed=True)

    def _done(self, key: tuple[str, str], *, has_failed: bool = False) -> None:
        """When all integrations have dealt with the look, resolved alerts may leave the group."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return
        look = waiting.look
        look.left -= 1
        look.has_failed = look.has_failed or has_failed
        if look.left == 0 and not look.has_failed:
            self.dispatcher.settle(look.flush)

    def receiver_keys(self) -> list[str]:
        """The log's names of all integrations."""
        return [
            receiver_key(receiver.name, integration, place)
            for receiver in self.config.receivers.values()
            for place, integration in enumerate(receiver.integrations)
        ]

    # Storage

    def take_unsaved(self) -> dict[str, Alert | None]:
        unsaved, self._unsaved = self._unsaved, {}
        return unsaved

    def _collect_garbage(self, now_ms: int) -> None:
        if abs(now_ms - self._collected_ms) < COLLECT_EVERY_MS:
            return
        self._collected_ms = now_ms
        old = [name for name, alert in self.alerts.items() if alert.ends_at_ms <= now_ms - RESOLVED_KEPT_MS]
        for fingerprint in old:
            del self.alerts[fingerprint]
            self._unsaved[fingerprint] = None
        self.shared.collect_garbage(now_ms=now_ms)
        for key, waiting in list(self._waiting.items()):
            if waiting.is_under_way and waiting.deadline_ms + DELIVERY_MS_LATE < now_ms:
                self._done(key, has_failed=True)  # whoever carried it is gone

"""Which way does an alert go, and does a larger trouble explain it?

Down the tree of routes, to the deepest that match; quiet while a source alert fires.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.config import AlertConfig, AlertRoute, InhibitRule
from harch.sentinel.alerts.matchers import all_match
from harch.sentinel.model.labels import Labels, labels


def matching_routes(route: AlertRoute, alert_labels: Mapping[str, str]) -> list[AlertRoute]:
    """In the order of the file. A child that matches ends the search among its siblings, unless it says `continue`."""
    if not all_match(route.matchers, alert_labels):
        return []
    found: list[AlertRoute] = []
    for child in route.routes:
        matches = matching_routes(child, alert_labels)
        found += matches
        if matches and not child.goes_on:
            break
    return found or [route]


def group_labels(route: AlertRoute, alert_labels: Mapping[str, str]) -> Labels:
    """The labels that one notification has in common."""
    if route.groups_by_all:
        return labels(alert_labels)
    return labels({name: alert_labels[name] for name in route.group_by if name in alert_labels})


def group_key(route: AlertRoute, own: Labels) -> str:
    """The name of a group, in logs and in webhooks, as Alertmanager writes it."""
    return f"{route.key}:{{{', '.join(f'{name}={_quoted(value)}' for name, value in own)}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def all_routes(route: AlertRoute) -> Iterator[AlertRoute]:
    yield route
    for child in route.routes:
        yield from all_routes(child)


def muted_by(config: AlertConfig, route: AlertRoute, now_ms: int) -> list[str]:
    """The time intervals that keep this route silent now; for active times, those that it is outside of."""
    muting = [name for name in route.mute_times if config.time_intervals[name].contains(now_ms)]
    if route.active_times and not any(config.time_intervals[name].contains(now_ms) for name in route.active_times):
        muting += route.active_times
    return muting


# Does a larger trouble explain this one? Alerts that are quiet while a source alert fires.


class Inhibitor:
    """The sources that fire at one moment, by rule and by the labels that have to be equal."""

    def __init__(self, rules: Iterable[InhibitRule], alerts: Iterable[Alert], *, now_ms: int) -> None:
        self._rules = tuple(rules)
        self._sources: list[dict[tuple[str, ...], list[tuple[str, bool]]]] = [{} for _ in self._rules]
        if not self._rules:
            return
        for alert in alerts:
            if alert.is_resolved(now_ms):
                continue
            own = dict(alert.labels)
            for rule, sources in zip(self._rules, self._sources, strict=True):
                if all_match(rule.source, own):
                    also_target = all_match(rule.target, own)
                    sources.setdefault(_equal_part(rule, own), []).append((alert.fingerprint, also_target))

    def inhibited_by(self, labels: Mapping[str, str]) -> list[str]:
        """The fingerprint of one source for the first rule that mutes it; empty: it is not muted.

        An alert that is source and target of a rule is not muted by another one that is both, so that two equal alerts
        cannot silence each other.
        """
        for rule, sources in zip(self._rules, self._sources, strict=True):
            if not all_match(rule.target, labels):
                continue
            is_source = all_match(rule.source, labels)
            for fingerprint, also_target in sources.get(_equal_part(rule, labels), ()):
                if not (is_source and also_target):
                    return [fingerprint]
        return []


def _equal_part(rule: InhibitRule, labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in rule.equal)

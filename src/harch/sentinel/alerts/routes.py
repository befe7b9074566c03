"""Which way does an alert go? Down the tree of routes, to the deepest that match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harch.sentinel.alerts.config import AlertConfig, Route
from harch.sentinel.alerts.matchers import all_match
from harch.sentinel.model.labels import Labels, labels


def matching_routes(route: Route, alert_labels: Mapping[str, str]) -> list[Route]:
    """In the order of the file. A child that matches ends the search among its siblings, unless it says `continue`."""
    if not all_match(route.matchers, alert_labels):
        return []
    found: list[Route] = []
    for child in route.routes:
        matches = matching_routes(child, alert_labels)
        found += matches
        if matches and not child.goes_on:
            break
    return found or [route]


def group_labels(route: Route, alert_labels: Mapping[str, str]) -> Labels:
    """The labels that one notification has in common."""
    if route.groups_by_all:
        return labels(alert_labels)
    return labels({name: alert_labels[name] for name in route.group_by if name in alert_labels})


def group_key(route: Route, own: Labels) -> str:
    """The name of a group, in logs and in webhooks, as Alertmanager writes it."""
    return f"{route.key}:{{{', '.join(f'{name}={_quoted(value)}' for name, value in own)}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def all_routes(route: Route) -> Iterator[Route]:
    yield route
    for child in route.routes:
        yield from all_routes(child)


def muted_by(config: AlertConfig, route: Route, now_ms: int) -> list[str]:
    """The time intervals that keep this route silent now; for active times, those that it is outside of."""
    muting = [name for name in route.mute_times if config.time_intervals[name].contains(now_ms)]
    if route.active_times and not any(config.time_intervals[name].contains(now_ms) for name in route.active_times):
        muting += route.active_times
    return muting

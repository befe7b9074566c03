"""What does an Alertmanager configuration say? The file, with every mistake and its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import yaml

from harch.base.errors import HarchError
from harch.sentinel.alerts import time_intervals as times
from harch.sentinel.alerts.config import (
    GROUP_BY_ALL,
    RESOLVE_TIMEOUT_MS,
    AlertConfig,
    InhibitRule,
    Receiver,
    Route,
)
from harch.sentinel.alerts.matchers import matcher, parse_matchers, shown
from harch.sentinel.alerts.notification_text import check_notification_text
from harch.sentinel.alerts.receiver_file import GLOBAL_FIELDS, SECRET_FIELDS, Globals, read_receiver
from harch.sentinel.model.labels import is_plain_label_name
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.rules.yaml_places import Value, read_yaml

ROUTES_MAX = 2_000
ROUTES_DEEP_MAX = 20

_FIELDS = (
    "global",
    "route",
    "receivers",
    "inhibit_rules",
    "time_intervals",
    "mute_time_intervals",
    "templates",
    "template_text",
)
_ROUTE_FIELDS = (
    *("receiver", "group_by", "group_wait", "group_interval", "repeat_interval", "continue", "routes"),
    *("matchers", "match", "match_re", "mute_time_intervals", "active_time_intervals"),
)
_INHIBIT_FIELDS = (
    *("name", "source_matchers", "target_matchers", "source_match", "source_match_re"),
    *("target_match", "target_match_re", "equal"),
)
_TIME_FIELDS = ("times", "weekdays", "days_of_month", "months", "years", "location")

Span = tuple[int, int]
_START = Route(key="", receiver="")  # what the first route has from nobody: the defaults


def parse_config(text: str, *, name: str = "alertmanager.yml") -> AlertConfig:
    """Raises E0643 with all mistakes."""
    try:
        root = read_yaml(text)
    except HarchError as error:
        raise HarchError("E0643", f"{name}: {error.message}", hint=error.hint) from error
    if root is None:
        raise HarchError("E0643", f"{name}: the file is empty", hint="it needs at least `route` and `receivers`")
    config = _Reader(root).config(text)
    if root.reading.problems:
        raise HarchError("E0643", f"{name}: {root.reading.problems}", hint="mend these places")
    return config


def hidden(text: str) -> str:
    """The configuration for others to see: every value that is or may hold a secret is `<secret>`."""

    def hide(value: object) -> object:
        if isinstance(value, dict):
            return {
                key: "<secret>" if key in SECRET_FIELDS and isinstance(found, str) else hide(found)
                for key, found in value.items()
            }
        return [hide(found) for found in value] if isinstance(value, list) else value

    return yaml.safe_dump(hide(yaml.safe_load(text)), sort_keys=False)


class _Reader:
    def __init__(self, root: Value) -> None:
        self.root = root
        self.routes = 0

    def config(self, text: str) -> AlertConfig:
        fields = self.root.mapping(_FIELDS)
        for needed in ("route", "receivers"):
            if needed not in fields:
                self.root.wrong(f"`{needed}` is missing")
        shared_value = fields.get("global")
        shared = shared_value.mapping(GLOBAL_FIELDS) if shared_value is not None else {}
        receivers = self.receivers(fields, Globals(shared))
        named = {**self.intervals(fields, "time_intervals"), **self.intervals(fields, "mute_time_intervals")}
        route = self.root_route(fields["route"], receivers, named) if "route" in fields else _START
        if "templates" in fields and list(fields["templates"].sequence()):
            fields["templates"].wrong("template files are not read here; put definitions into `template_text`")
        return AlertConfig(
            route=route,
            receivers=receivers,
            inhibit_rules=tuple(self.inhibit_rule(value) for value in _items(fields, "inhibit_rules")),
            time_intervals=named,
            resolve_timeout_ms=_duration(shared, "resolve_timeout", RESOLVE_TIMEOUT_MS),
            templates=self.templates(fields),
            original="" if self.root.reading.problems else hidden(text),
        )

    def templates(self, fields: dict[str, Value]) -> str:
        if "template_text" not in fields:
            return ""
        fields["template_text"].parsed(check_notification_text, None)
        return fields["template_text"].text()

    def receivers(self, fields: dict[str, Value], shared: Globals) -> dict[str, Receiver]:
        found: dict[str, Receiver] = {}
        for value in _items(fields, "receivers"):
            receiver = read_receiver(value, shared)
            if receiver.name in found:
                value.wrong(f"receiver `{receiver.name}` is there twice")
            found[receiver.name] = receiver
        return found

    # Routes

    def root_route(self, value: Value, receivers: dict[str, Receiver], named: dict[str, times.TimeInterval]) -> Route:
        route = self.route(value, _START, receivers, named, depth=0)
        if not route.receiver:
            value.wrong("the first route needs a receiver")
        if route.matchers:
            value.wrong("the first route must match everything; give matchers to routes below it")
        if route.goes_on:
            value.wrong("the first route has nothing to continue with")
        if route.mute_times or route.active_times:
            value.wrong("the first route must not have times; give them to routes below it")
        return route

    def route(
        self,
        value: Value,
        parent: Route,
        receivers: dict[str, Receiver],
        named: dict[str, times.TimeInterval],
        *,
        depth: int,
    ) -> Route:
        self.routes += 1
        if depth > ROUTES_DEEP_MAX or self.routes > ROUTES_MAX:
            value.wrong(f"more than {ROUTES_MAX} routes, or deeper than {ROUTES_DEEP_MAX}")
            return parent
        fields = value.mapping(_ROUTE_FIELDS)
        receiver = fields["receiver"].text() if "receiver" in fields else parent.receiver
        if receiver and receiver not in receivers:
            fields.get("receiver", value).wrong(f"receiver `{receiver}` is not defined")
        group_by, by_all = self.group_by(fields, parent)
        matchers = self.matchers(fields, "matchers", "match", "match_re")
        own_key = shown(matchers)
        own = Route(
            key=f"{parent.key}/{own_key}" if depth else own_key,
            receiver=receiver,
            matchers=matchers,
            group_by=group_by,
            groups_by_all=by_all,
            group_wait_ms=_duration(fields, "group_wait", parent.group_wait_ms),
            group_interval_ms=_positive(fields, "group_interval", parent.group_interval_ms),
            repeat_interval_ms=_positive(fields, "repeat_interval", parent.repeat_interval_ms),
            goes_on="continue" in fields and fields["continue"].flag(),
            mute_times=self.time_names(fields, "mute_time_intervals", named),
            active_times=self.time_names(fields, "active_time_intervals", named),
        )
        children = tuple(
            self.route(child, own, receivers, named, depth=depth + 1) for child in _items(fields, "routes")
        )
        return Route(
            **{name: getattr(own, name) for name in own.__struct_fields__ if name != "routes"}, routes=children
        )

    def group_by(self, fields: dict[str, Value], parent: Route) -> tuple[tuple[str, ...], bool]:
        if "group_by" not in fields:
            return parent.group_by, parent.groups_by_all
        names = fields["group_by"].texts()
        by_all = GROUP_BY_ALL in names
        if by_all and len(names) > 1:
            fields["group_by"].wrong("`...` groups by all labels, so no other can be named beside it")
        if len(set(names)) != len(names):
            fields["group_by"].wrong("a label is named twice")
        for name in names:
            if name != GROUP_BY_ALL and not is_plain_label_name(name):
                fields["group_by"].wrong(f"`{name}` is not the name of a label")
        return (() if by_all else tuple(names)), by_all

    def matchers(self, fields: dict[str, Value], plain: str, equal: str, regex: str) -> tuple[Matcher, ...]:
        """All three ways to write matchers, sorted as Alertmanager does for the key of the route."""
        found: list[Matcher] = []
        for value in _items(fields, plain):
            found += value.parsed(parse_matchers, [])
        for name, is_regex in ((equal, False), (regex, True)):
            for label, value in fields[name].text_map().items() if name in fields else ():
                parsed = value.parsed(_matcher_of(label, is_regex=is_regex), None)
                found += [parsed] if parsed is not None else []
        return tuple(sorted(found, key=lambda one: (one.name, one.value, one.kind.value)))

    def time_names(self, fields: dict[str, Value], field: str, named: dict[str, times.TimeInterval]) -> tuple[str, ...]:
        names = fields[field].texts() if field in fields else []
        for name in names:
            if name not in named:
                fields[field].wrong(f"time interval `{name}` is not defined")
        return tuple(names)

    # Inhibition and times

    def inhibit_rule(self, value: Value) -> InhibitRule:
        fields = value.mapping(_INHIBIT_FIELDS)
        return InhibitRule(
            source=self.matchers(fields, "source_matchers", "source_match", "source_match_re"),
            target=self.matchers(fields, "target_matchers", "target_match", "target_match_re"),
            equal=tuple(fields["equal"].texts()) if "equal" in fields else (),
        )

    def intervals(self, fields: dict[str, Value], field: str) -> dict[str, times.TimeInterval]:
        found: dict[str, times.TimeInterval] = {}
        for value in _items(fields, field):
            own = value.mapping(("name", "time_intervals"))
            name = own["name"].text() if "name" in own else ""
            if not name or name in found:
                value.wrong("a time interval needs a name of its own")
            specs = tuple(self.time_spec(spec) for spec in _items(own, "time_intervals"))
            found[name] = times.TimeInterval(name=name, specs=specs)
        return found

    def time_spec(self, value: Value) -> times.TimeSpec:
        fields = value.mapping(_TIME_FIELDS)
        zone = fields["location"].text() if "location" in fields else "UTC"
        if "location" in fields:
            fields["location"].parsed(times.zone_of, None)
        return times.TimeSpec(
            minutes=tuple(self.minutes(one) for one in _items(fields, "times")),
            weekdays=_spans(fields, "weekdays", times.parse_weekdays),
            days=_spans(fields, "days_of_month", times.parse_days),
            months=_spans(fields, "months", times.parse_months),
            years=_spans(fields, "years", times.parse_years),
            zone=zone,
        )

    def minutes(self, value: Value) -> Span:
        fields = value.mapping(("start_time", "end_time"))
        if len(fields) != 2:
            value.wrong("a time needs `start_time` and `end_time`")
            return (0, 1)
        end = fields["end_time"].text()
        return fields["start_time"].parsed(lambda start: times.parse_minutes(start, end), (0, 1))


def _matcher_of(label: str, *, is_regex: bool) -> Callable[[str], Matcher | None]:
    return lambda text: matcher(label, text, is_regex=is_regex)


def _items(fields: dict[str, Value], name: str) -> Iterator[Value]:
    return fields[name].sequence() if name in fields else iter(())


def _spans(fields: dict[str, Value], name: str, parse: Callable[[str], Span]) -> tuple[Span, ...]:
    return tuple(value.parsed(parse, (0, 0)) for value in _items(fields, name))


def _duration(fields: dict[str, Value], name: str, otherwise: int) -> int:
    return fields[name].duration_ms() if name in fields else otherwise


def _positive(fields: dict[str, Value], name: str, otherwise: int) -> int:
    found = _duration(fields, name, otherwise)
    if found <= 0 and name in fields:
        fields[name].wrong(f"`{name}` must not be zero")
    return found

"""What does Alertmanager's API v2 answer? Parsed requests in, status and JSON out. No I/O.

Whoever wires this to HTTP stores the desk's changes before it answers a request that changed something. Shapes are
those of Alertmanager's OpenAPI description; acknowledgements are our addition and appear beside its fields.

`tenant` says whose alerts and silences a call is about; None: all of them. `author` is who calls, for the record; empty
where nobody knows, and then it is who the request says.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from harch.base.errors import HarchError
from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.machine import AlertMachine
from harch.sentinel.alerts.matchers import matcher, parse_matcher
from harch.sentinel.alerts.routing import Inhibitor, matching_routes, muted_by
from harch.sentinel.alerts.silences import acknowledge
from harch.sentinel.model.labels import Matcher, MatchKind, labels

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO_TIME = "0001-01-01T00:00:00"


def format_time(at_ms: int) -> str:
    return f"{(_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec='milliseconds')[:-6]}Z"


def read_time_ms(value: object, field: str) -> int:
    """0 for no time and for Go's zero time. Raises E0201."""
    if value is None or value == "":
        return 0
    if isinstance(value, str):
        if value.startswith(_ZERO_TIME):
            return 0
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return (moment - _EPOCH) // timedelta(milliseconds=1)
    raise HarchError(
        "E0201",
        f"`{str(value)[:40]}` is not a time in RFC 3339",
        hint="write e.g. `2026-01-01T12:00:00Z`",
        field=field,
    )


ALERTS_PER_REQUEST_MAX = 10_000

Json = object
Answer = tuple[int, Json]  # status and body; None: no body


class AlertFilter(Struct, frozen=True, kw_only=True):
    """The query of `/alerts` and `/alerts/groups`."""

    filter: tuple[str, ...] = ()
    receiver: str = ""
    active: bool = True
    silenced: bool = True
    inhibited: bool = True
    unprocessed: bool = True
    muted: bool = True


def answered(handle: Callable[[], Json]) -> Answer:
    """The handler's answer, or its refusal as Alertmanager writes one: a JSON text."""
    try:
        return 200, handle()
    except HarchError as error:
        return refusal(error)


def refusal(error: HarchError) -> Answer:
    return error.kind.status, f"{error.code}: {error.message}; {error.hint}"


def get_alerts(machine: AlertMachine, query: AlertFilter, *, now_ms: int, tenant: str | None = None) -> Json:
    """Alerts that are not resolved, sorted by fingerprint. Raises E0644 for a bad filter."""
    matchers, receiver = _read(query)
    inhibitor = machine.inhibitor(now_ms)
    visible = (one for one in machine.alerts.values() if is_visible(one, tenant) and not one.is_resolved(now_ms))
    rendered = (_alert_view(machine, alert, inhibitor, now_ms, tenant) for alert in visible)
    return [
        view.json
        for view in sorted(rendered, key=lambda view: view.alert.fingerprint)
        if _is_wanted(view, matchers, query) and (receiver is None or any(map(receiver.matches, view.receivers)))
    ]


def is_visible(alert: Alert, tenant: str | None) -> bool:
    return tenant is None or alert.tenant == tenant


def get_alert(
    machine: AlertMachine, fingerprint: str, *, now_ms: int, tenant: str | None = None
) -> tuple[Alert, dict[str, Json]]:
    """Our addition: one alert, also for a while after it was resolved, and how it is shown. Raises E0648."""
    alert = machine.alerts.get(fingerprint)
    if alert is None or not is_visible(alert, tenant):
        raise _not_known(fingerprint)
    return alert, _alert_view(machine, alert, machine.inhibitor(now_ms), now_ms, tenant).json


def _not_known(fingerprint: str) -> HarchError:
    return HarchError("E0648", f"no alert `{fingerprint[:32]}` is firing", hint="list alerts with their fingerprints")


def get_alert_groups(machine: AlertMachine, query: AlertFilter, *, now_ms: int, tenant: str | None = None) -> Json:
    matchers, receiver = _read(query)
    inhibitor = machine.inhibitor(now_ms)
    found: list[tuple[object, dict[str, Json]]] = []
    for group in machine.dispatcher.groups:
        if receiver is not None and not receiver.matches(group.route.receiver):
            continue
        views = [
            _alert_view(machine, alert, inhibitor, now_ms, tenant)
            for alert in group.alerts.values()
            if is_visible(alert, tenant) and not alert.is_resolved(now_ms)
        ]
        alerts = [view.json for view in sorted(views, key=_by_start) if _is_wanted(view, matchers, query)]
        if alerts:
            rendered: dict[str, Json] = {
                "labels": dict(group.labels),
                "receiver": {"name": group.route.receiver if tenant is None else ""},
                "alerts": alerts,
            }
            found.append(((group.labels, group.route.receiver), rendered))
    return [rendered for _, rendered in sorted(found, key=lambda pair: repr(pair[0]))]


def post_alerts(machine: AlertMachine, body: Json, *, now_ms: int) -> Json:
    """Stores the valid ones. Raises E0647 if others were not valid."""
    if not isinstance(body, list) or len(body) > ALERTS_PER_REQUEST_MAX:
        raise HarchError("E0647", "expected a list of alerts", hint=f"at most {ALERTS_PER_REQUEST_MAX} at once")
    problems: list[HarchError] = []
    alerts: list[Alert] = []
    for item in body:
        try:
            alerts.append(_posted(item, machine.config.resolve_timeout_ms, now_ms))
        except HarchError as error:
            problems.append(error)
    problems += machine.put(alerts, now_ms=now_ms)
    if problems:
        limit = next((problem for problem in problems if problem.code == "E0649"), None)
        text = "; ".join(problem.message for problem in problems[:5])
        raise HarchError(limit.code if limit else "E0647", text, hint="the valid alerts were accepted")
    return None


def _posted(item: Json, resolve_timeout_ms: int, now_ms: int) -> Alert:
    if not isinstance(item, dict):
        raise HarchError("E0647", "an alert is not an object", hint="see Alertmanager's API v2")
    starts_at_ms = read_time_ms(item.get("startsAt"), "startsAt")
    ends_at_ms = read_time_ms(item.get("endsAt"), "endsAt")
    return Alert(
        labels=labels(_strings(item.get("labels"), "labels")),
        annotations={name: text for name, text in _strings(item.get("annotations"), "annotations").items() if text},
        starts_at_ms=starts_at_ms or ends_at_ms or now_ms,
        ends_at_ms=ends_at_ms or max(now_ms, starts_at_ms) + resolve_timeout_ms,
        updated_at_ms=now_ms,
        generator_url=str(item.get("generatorURL") or ""),
        is_timeout=ends_at_ms == 0,
    )


def _strings(value: Json, field: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise HarchError("E0647", f"`{field}` must be strings", hint="names and values are strings", field=field)
    return {str(name): text for name, text in value.items()}


def post_ack(
    machine: AlertMachine, fingerprint: str, body: Json, *, now_ms: int, tenant: str | None = None, author: str = ""
) -> Json:
    """Our addition: `{"by": …, "comment": …, "endsAt": …, "withdraw": false}`. Raises E0645 and E0648."""
    alert = machine.alerts.get(fingerprint)
    if alert is None or not is_visible(alert, tenant) or alert.is_resolved(now_ms):
        raise _not_known(fingerprint)
    fields = body if isinstance(body, dict) else {}
    acknowledge(
        machine.shared,
        alert,
        by=author or str(fields.get("by") or ""),
        why=str(fields.get("comment") or ""),
        until_ms=read_time_ms(fields.get("endsAt"), "endsAt"),
        withdraw=fields.get("withdraw") is True,
        now_ms=now_ms,
    )
    return _alert_view(machine, alert, machine.inhibitor(now_ms), now_ms, tenant).json


def get_receivers(machine: AlertMachine) -> Json:
    return [{"name": name} for name in machine.config.receivers]


def get_status(
    machine: AlertMachine, *, started_at_ms: int, version: str, name: str = "", peers: Sequence[tuple[str, str]] = ()
) -> Json:
    """`peers` are names and addresses of the hubs that share silences and log; without any there is no cluster."""
    cluster: dict[str, Json] = {"status": "ready" if peers else "disabled", "peers": []}
    if peers:
        cluster = {
            "name": name,
            "status": "ready",
            "peers": [{"name": peer, "address": address} for peer, address in peers],
        }
    return {
        "cluster": cluster,
        "config": {"original": machine.config.original},
        "uptime": format_time(started_at_ms),
        "versionInfo": {
            "branch": "",
            "buildDate": "",
            "buildUser": "",
            "goVersion": "",
            "revision": "",
            "version": version,
        },
    }


# How an alert is shown


class _View(Struct, frozen=True, kw_only=True):
    alert: Alert
    receivers: tuple[str, ...]
    silenced_by: tuple[str, ...]
    inhibited_by: tuple[str, ...]
    muted_by: tuple[str, ...]
    json: dict[str, Json]


def _alert_view(machine: AlertMachine, alert: Alert, inhibitor: Inhibitor, now_ms: int, tenant: str | None) -> _View:
    """Receivers and the rule's expression, which is in the address of its graph, are for operators."""
    own = dict(alert.labels)
    routes = matching_routes(machine.config.route, own)
    receivers = tuple(dict.fromkeys(route.receiver for route in routes))
    silenced = tuple(machine.shared.silenced_by(own, now_ms=now_ms))
    inhibited = tuple(inhibitor.inhibited_by(own))
    muting = [muted_by(machine.config, route, now_ms) for route in routes]
    muted = tuple(sorted({name for names in muting for name in names})) if all(muting) else ()
    json: dict[str, Json] = {
        "annotations": alert.annotations,
        "endsAt": format_time(alert.ends_at_ms),
        "fingerprint": alert.fingerprint,
        "receivers": [{"name": receiver} for receiver in receivers] if tenant is None else [],
        "startsAt": format_time(alert.starts_at_ms),
        "status": {
            "inhibitedBy": list(inhibited),
            "mutedBy": list(muted),
            "silencedBy": list(silenced),
            "state": "suppressed" if silenced or inhibited or muted else "active",
        },
        "updatedAt": format_time(alert.updated_at_ms),
        "labels": own,
    }
    if alert.generator_url and tenant is None:
        json["generatorURL"] = alert.generator_url
    ack = machine.shared.ack(alert.fingerprint)
    if ack is not None and ack.covers(alert.starts_at_ms, now_ms):
        json["acknowledgedBy"] = {"by": ack.by, "comment": ack.why, "at": format_time(ack.at_ms)}
    return _View(
        alert=alert, receivers=receivers, silenced_by=silenced, inhibited_by=inhibited, muted_by=muted, json=json
    )


def _by_start(view: _View) -> tuple[int, str]:
    return view.alert.starts_at_ms, view.alert.fingerprint


def _read(query: AlertFilter) -> tuple[list[Matcher], Matcher | None]:
    receiver = matcher("receiver", query.receiver, is_regex=True) if query.receiver else None
    return [parse_matcher(text) for text in query.filter], receiver


def _is_wanted(view: _View, matchers: Sequence[Matcher], query: AlertFilter) -> bool:
    if not matches_filter(matchers, dict(view.alert.labels)):
        return False
    suppressed = view.silenced_by or view.inhibited_by or view.muted_by
    hidden = (
        (not query.active and not suppressed)
        or (not query.silenced and view.silenced_by)
        or (not query.inhibited and view.inhibited_by)
        or (not query.muted and view.muted_by)
    )
    return not hidden


def matches_filter(matchers: Sequence[Matcher], own: dict[str, str]) -> bool:
    """As `all_match`, except that `name=""` asks for the absence and `name!=""` for the presence of a label."""
    for one in matchers:
        if one.value == "" and one.kind in (MatchKind.EQUAL, MatchKind.NOT_EQUAL):
            if (one.name in own) is (one.kind is MatchKind.EQUAL):
                return False
        elif not one.matches(own.get(one.name, "")):
            return False
    return True

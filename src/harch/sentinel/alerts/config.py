"""Who is told, and how? The configuration of notifications: routes, receivers, inhibition, time intervals."""

from __future__ import annotations

from msgspec import Struct, field

from harch.sentinel.alerts.secrets import Secret
from harch.sentinel.alerts.time_intervals import TimeInterval
from harch.sentinel.model.matchers import Matcher

GROUP_WAIT_MS, GROUP_INTERVAL_MS, REPEAT_INTERVAL_MS = 30_000, 5 * 60_000, 4 * 3_600_000
RESOLVE_TIMEOUT_MS = 5 * 60_000
GROUP_BY_ALL = "..."


class HttpOptions(Struct, frozen=True, kw_only=True):
    user: str = ""
    password: Secret = Secret()
    token: Secret = Secret()
    token_type: str = "Bearer"  # noqa: S105  # the scheme's name
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    insecure: bool = False
    follows_redirects: bool = True


class WebhookTo(Struct, frozen=True, kw_only=True, tag="webhook"):
    url: Secret  # may carry a token
    send_resolved: bool = True
    max_alerts: int = 0
    timeout_ms: int = 0
    http: HttpOptions = HttpOptions()


class EmailTo(Struct, frozen=True, kw_only=True, tag="email"):
    to: str
    sender: str
    smarthost: str
    send_resolved: bool = False
    hello: str = "localhost"
    user: str = ""
    password: Secret = Secret()
    require_tls: bool = True
    ca_file: str = ""
    insecure: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    html: str = ""
    text: str = ""


class SlackTo(Struct, frozen=True, kw_only=True, tag="slack"):
    url: Secret
    send_resolved: bool = False
    channel: str = ""
    username: str = ""
    color: str = ""
    title: str = ""
    title_link: str = ""
    pretext: str = ""
    text: str = ""
    fallback: str = ""
    footer: str = ""
    icon_emoji: str = ""
    icon_url: str = ""
    short_fields: bool = False
    fields: tuple[tuple[str, str, bool], ...] = ()  # title, value, short
    timeout_ms: int = 0
    http: HttpOptions = HttpOptions()


Integration = WebhookTo | EmailTo | SlackTo


class Receiver(Struct, frozen=True, kw_only=True):
    name: str
    integrations: tuple[Integration, ...] = ()


class Route(Struct, frozen=True, kw_only=True):
    """One node of the tree. What a child does not say it has from its parent, except times."""

    key: str  # the matchers on the way to it
    receiver: str
    matchers: tuple[Matcher, ...] = ()
    group_by: tuple[str, ...] = ()
    groups_by_all: bool = False
    group_wait_ms: int = GROUP_WAIT_MS
    group_interval_ms: int = GROUP_INTERVAL_MS
    repeat_interval_ms: int = REPEAT_INTERVAL_MS
    goes_on: bool = False  # `continue`: siblings after it are tried too
    mute_times: tuple[str, ...] = ()
    active_times: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()


class InhibitRule(Struct, frozen=True, kw_only=True):
    source: tuple[Matcher, ...]
    target: tuple[Matcher, ...]
    equal: tuple[str, ...] = ()


class AlertConfig(Struct, frozen=True, kw_only=True):
    route: Route
    receivers: dict[str, Receiver]
    inhibit_rules: tuple[InhibitRule, ...] = ()
    time_intervals: dict[str, TimeInterval] = field(default_factory=dict)
    resolve_timeout_ms: int = RESOLVE_TIMEOUT_MS
    templates: str = ""  # definitions that texts of receivers may use
    original: str = ""  # with every secret hidden


def default_config() -> AlertConfig:
    """Nobody is told, and nothing leaves the hub; alerts are kept, shown and grouped."""
    route = Route(key="{}", receiver="nobody", group_by=("alertname",))
    original = "route:\n  receiver: nobody\n  group_by: [alertname]\nreceivers:\n- name: nobody\n"
    return AlertConfig(route=route, receivers={"nobody": Receiver(name="nobody")}, original=original)

"""What does an Alertmanager configuration say? The file, with every mistake and its place."""

# harch: pure

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import yaml

from harch.base.errors import HarchError
from harch.sentinel.alerts import config as times
from harch.sentinel.alerts.config import (
    GROUP_BY_ALL,
    RESOLVE_TIMEOUT_MS,
    AlertConfig,
    AlertRoute,
    EmailTo,
    HttpOptions,
    InhibitRule,
    Integration,
    Receiver,
    Secret,
    SlackTo,
    WebhookTo,
)
from harch.sentinel.alerts.matchers import format_matchers, matcher, parse_matchers
from harch.sentinel.alerts.templates import EMAIL_SUBJECT, EMAIL_TEXT, SLACK, check_notification_text
from harch.sentinel.model.labels import Matcher, is_plain_label_name
from harch.sentinel.rules.yaml_positions import YamlValue, read_yaml

INTEGRATIONS_MAX = 100
SMTP_FIELDS = (
    *("smtp_from", "smtp_smarthost", "smtp_hello", "smtp_auth_username", "smtp_require_tls"),
    *("smtp_auth_password", "smtp_auth_password_file", "smtp_auth_password_env"),
)
GLOBAL_FIELDS = (
    *("resolve_timeout", "http_config", "slack_api_url", "slack_api_url_file", "slack_api_url_env"),
    *SMTP_FIELDS,
)
# Fields whose text is, or may carry, a secret.
SECRET_FIELDS = frozenset(
    (
        "url",
        "api_url",
        "slack_api_url",
        "auth_password",
        "smtp_auth_password",
        "password",
        "credentials",
        "bearer_token",
    )
)
_HTTP_FIELDS = (
    *("authorization", "basic_auth", "bearer_token", "bearer_token_file", "bearer_token_env"),
    *("tls_config", "follow_redirects"),
)
_WEBHOOK_FIELDS = ("url", "url_file", "url_env", "send_resolved", "max_alerts", "timeout", "http_config")
_EMAIL_FIELDS = (
    *("to", "from", "smarthost", "hello", "auth_username", "auth_password", "auth_password_file", "auth_password_env"),
    *("send_resolved", "require_tls", "tls_config", "headers", "html", "text"),
)
_SLACK_TEMPLATES = (
    *("channel", "username", "color", "title", "title_link", "pretext", "text", "fallback", "footer"),
    *("icon_emoji", "icon_url"),
)
_SLACK_FIELDS = (
    *("api_url", "api_url_file", "api_url_env", "send_resolved", "fields", "short_fields", "timeout", "http_config"),
    *_SLACK_TEMPLATES,
)
_TLS_FIELDS = ("ca_file", "cert_file", "key_file", "server_name", "insecure_skip_verify")
_KINDS = ("webhook_configs", "email_configs", "slack_configs")
_NOT_HERE = (
    *("pagerduty_configs", "opsgenie_configs", "victorops_configs", "pushover_configs", "sns_configs"),
    *("telegram_configs", "webex_configs", "discord_configs", "msteams_configs", "wechat_configs", "jira_configs"),
)

Fields = Mapping[str, YamlValue]


class Globals:
    """What `global` says for all receivers."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.slack_url = secret_of(fields, "slack_api_url")
        self.http = read_http(fields["http_config"]) if "http_config" in fields else HttpOptions()

    def text(self, name: str, otherwise: str = "") -> str:
        return self.fields[name].text() if name in self.fields else otherwise


def read_receiver(value: YamlValue, shared: Globals) -> Receiver:
    fields = value.mapping((*("name",), *_KINDS, *_NOT_HERE))
    name = fields["name"].text() if "name" in fields else ""
    if not name:
        value.wrong("the receiver has no name")
    for kind in _NOT_HERE:
        if kind in fields:
            fields[kind].wrong(f"`{kind}` is not supported; use webhook_configs, email_configs or slack_configs")
    found: list[Integration] = []
    readers: tuple[Callable[[YamlValue, Globals], Integration], ...] = (read_webhook, read_email, read_slack)
    for kind, read in zip(_KINDS, readers, strict=True):
        if kind in fields:
            found += [read(one, shared) for one in fields[kind].sequence()]
    if len(found) > INTEGRATIONS_MAX:
        value.wrong(f"more than {INTEGRATIONS_MAX} integrations")
    return Receiver(name=name, integrations=tuple(found))


def read_webhook(value: YamlValue, shared: Globals) -> WebhookTo:
    fields = value.mapping(_WEBHOOK_FIELDS)
    url = secret_of(fields, "url")
    _need(value, url.is_set, "`url`, `url_file` or `url_env`")
    _check_url(fields, "url")
    return WebhookTo(
        url=url,
        send_resolved=_flag(fields, "send_resolved", otherwise=True),
        max_alerts=fields["max_alerts"].whole_number() if "max_alerts" in fields else 0,
        timeout_ms=fields["timeout"].duration_ms() if "timeout" in fields else 0,
        http=read_http(fields["http_config"]) if "http_config" in fields else shared.http,
    )


def read_email(value: YamlValue, shared: Globals) -> EmailTo:
    fields = value.mapping(_EMAIL_FIELDS)
    sender = _text(fields, "from", shared.text("smtp_from"))
    smarthost = _text(fields, "smarthost", shared.text("smtp_smarthost"))
    _need(value, "to" in fields, "`to`")
    _need(value, bool(sender), "`from`, or `smtp_from` in `global`")
    _need(value, smarthost.rpartition(":")[2].isdecimal(), "`smarthost` as host:port, or `smtp_smarthost` in `global`")
    password = secret_of(fields, "auth_password")
    tls = fields["tls_config"].mapping(_TLS_FIELDS) if "tls_config" in fields else {}
    headers = (
        {name: _template(one) for name, one in fields["headers"].text_map().items()} if "headers" in fields else {}
    )
    if not any(name.lower() == "subject" for name in headers):
        headers["Subject"] = EMAIL_SUBJECT
    for name, text in headers.items():
        if "\n" in name or "\r" in name or ":" in name or "\n" in text:
            value.wrong(f"header `{name[:40]}` contains a line break or a colon")
    shared_tls = shared.fields["smtp_require_tls"].flag() if "smtp_require_tls" in shared.fields else True
    return EmailTo(
        to=_template(fields["to"]) if "to" in fields else "",
        sender=sender,
        smarthost=smarthost,
        send_resolved=_flag(fields, "send_resolved", otherwise=False),
        hello=_text(fields, "hello", shared.text("smtp_hello", "localhost")),
        user=_text(fields, "auth_username", shared.text("smtp_auth_username")),
        password=password if password.is_set else secret_of(shared.fields, "smtp_auth_password"),
        require_tls=_flag(fields, "require_tls", otherwise=shared_tls),
        ca_file=_text(tls, "ca_file", ""),
        insecure=_flag(tls, "insecure_skip_verify", otherwise=False),
        headers=headers,
        html=_template(fields["html"]) if "html" in fields else "",
        text=_template(fields["text"]) if "text" in fields else EMAIL_TEXT,
    )


def read_slack(value: YamlValue, shared: Globals) -> SlackTo:
    fields = value.mapping(_SLACK_FIELDS)
    url = secret_of(fields, "api_url")
    _check_url(fields, "api_url")
    if not url.is_set:
        url = shared.slack_url
    _need(value, url.is_set, "`api_url`, `api_url_file` or `api_url_env`, or `slack_api_url` in `global`")
    templates = {name: _template(fields[name]) if name in fields else SLACK.get(name, "") for name in _SLACK_TEMPLATES}
    short = _flag(fields, "short_fields", otherwise=False)
    extra: list[tuple[str, str, bool]] = []
    for one in fields["fields"].sequence() if "fields" in fields else ():
        own = one.mapping(("title", "value", "short"))
        _need(one, {"title", "value"} <= set(own), "`title` and `value`")
        field_templates = {name: _template(own[name]) if name in own else "" for name in ("title", "value")}
        extra.append((field_templates["title"], field_templates["value"], _flag(own, "short", otherwise=short)))
    return SlackTo(
        url=url,
        send_resolved=_flag(fields, "send_resolved", otherwise=False),
        short_fields=short,
        fields=tuple(extra),
        timeout_ms=fields["timeout"].duration_ms() if "timeout" in fields else 0,
        http=read_http(fields["http_config"]) if "http_config" in fields else shared.http,
        **templates,
    )


def read_http(value: YamlValue) -> HttpOptions:
    fields = value.mapping(_HTTP_FIELDS)
    authorization = (
        fields["authorization"].mapping(("type", "credentials", "credentials_file", "credentials_env"))
        if ("authorization" in fields)
        else {}
    )
    basic = (
        fields["basic_auth"].mapping(("username", "password", "password_file", "password_env"))
        if ("basic_auth" in fields)
        else {}
    )
    tls = fields["tls_config"].mapping(_TLS_FIELDS) if "tls_config" in fields else {}
    if authorization and basic:
        value.wrong("only one of `authorization` and `basic_auth` may be set")
    token = secret_of(authorization, "credentials")
    return HttpOptions(
        user=_text(basic, "username", ""),
        password=secret_of(basic, "password"),
        token=token if token.is_set else secret_of(fields, "bearer_token"),
        token_type=_text(authorization, "type", "Bearer"),
        ca_file=_text(tls, "ca_file", ""),
        certificate_file=_text(tls, "cert_file", ""),
        key_file=_text(tls, "key_file", ""),
        insecure=_flag(tls, "insecure_skip_verify", otherwise=False),
        follows_redirects=_flag(fields, "follow_redirects", otherwise=True),
    )


def secret_of(fields: Fields, name: str) -> Secret:
    """`name_file` and `name_env` refer to a secret, `name` is one."""
    given = [suffix for suffix in ("", "_file", "_env") if f"{name}{suffix}" in fields]
    if len(given) > 1:
        fields[f"{name}{given[1]}"].wrong(f"only one of `{name}`, `{name}_file` and `{name}_env` may be set")
    return Secret(
        literal=_text(fields, name, ""),
        file=_text(fields, f"{name}_file", ""),
        variable=_text(fields, f"{name}_env", ""),
    )


def _check_url(fields: Fields, name: str) -> None:
    if name in fields and not fields[name].text().startswith(("http://", "https://")):
        fields[name].wrong("the address must begin with http:// or https://")


def _need(value: YamlValue, is_there: bool, what: str) -> None:
    if not is_there:
        value.wrong(f"{what} is missing")


def _text(fields: Fields, name: str, otherwise: str) -> str:
    return fields[name].text() if name in fields else otherwise


def _flag(fields: Fields, name: str, *, otherwise: bool) -> bool:
    return fields[name].flag() if name in fields else otherwise


def _template(value: YamlValue) -> str:
    value.parsed(check_notification_text, None)
    return value.text()


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
_START = AlertRoute(key="", receiver="")  # what the first route has from nobody: the defaults


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
        raise HarchError("E0643", f"{name}: {root.reading.problems}", hint="fix these places")
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
    def __init__(self, root: YamlValue) -> None:
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
            fields["templates"].wrong("template files are not supported; put definitions into `template_text`")
        return AlertConfig(
            route=route,
            receivers=receivers,
            inhibit_rules=tuple(self.inhibit_rule(value) for value in _items(fields, "inhibit_rules")),
            time_intervals=named,
            resolve_timeout_ms=_duration(shared, "resolve_timeout", RESOLVE_TIMEOUT_MS),
            templates=self.templates(fields),
            original="" if self.root.reading.problems else hidden(text),
        )

    def templates(self, fields: dict[str, YamlValue]) -> str:
        if "template_text" not in fields:
            return ""
        fields["template_text"].parsed(check_notification_text, None)
        return fields["template_text"].text()

    def receivers(self, fields: dict[str, YamlValue], shared: Globals) -> dict[str, Receiver]:
        found: dict[str, Receiver] = {}
        for value in _items(fields, "receivers"):
            receiver = read_receiver(value, shared)
            if receiver.name in found:
                value.wrong(f"receiver `{receiver.name}` occurs twice")
            found[receiver.name] = receiver
        return found

    # Routes

    def root_route(
        self, value: YamlValue, receivers: dict[str, Receiver], named: dict[str, times.TimeInterval]
    ) -> AlertRoute:
        route = self.route(value, _START, receivers, named, depth=0)
        if not route.receiver:
            value.wrong("the first route needs a receiver")
        if route.matchers:
            value.wrong("the first route must match everything; set matchers on routes below it")
        if route.goes_on:
            value.wrong("the first route cannot have `continue`")
        if route.mute_times or route.active_times:
            value.wrong("the first route must not have time intervals; set them on routes below it")
        return route

    def route(
        self,
        value: YamlValue,
        parent: AlertRoute,
        receivers: dict[str, Receiver],
        named: dict[str, times.TimeInterval],
        *,
        depth: int,
    ) -> AlertRoute:
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
        own_key = format_matchers(matchers)
        own = AlertRoute(
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
        return AlertRoute(
            **{name: getattr(own, name) for name in own.__struct_fields__ if name != "routes"}, routes=children
        )

    def group_by(self, fields: dict[str, YamlValue], parent: AlertRoute) -> tuple[tuple[str, ...], bool]:
        if "group_by" not in fields:
            return parent.group_by, parent.groups_by_all
        names = fields["group_by"].strings()
        by_all = GROUP_BY_ALL in names
        if by_all and len(names) > 1:
            fields["group_by"].wrong("`...` groups by all labels and excludes other names")
        if len(set(names)) != len(names):
            fields["group_by"].wrong("a label is named twice")
        for name in names:
            if name != GROUP_BY_ALL and not is_plain_label_name(name):
                fields["group_by"].wrong(f"`{name}` is not the name of a label")
        return (() if by_all else tuple(names)), by_all

    def matchers(self, fields: dict[str, YamlValue], plain: str, equal: str, regex: str) -> tuple[Matcher, ...]:
        """All three ways to write matchers, sorted as Alertmanager does for the key of the route."""
        found: list[Matcher] = []
        for value in _items(fields, plain):
            found += value.parsed(parse_matchers, [])
        for name, is_regex in ((equal, False), (regex, True)):
            for label, value in fields[name].text_map().items() if name in fields else ():
                parsed = value.parsed(_matcher_of(label, is_regex=is_regex), None)
                found += [parsed] if parsed is not None else []
        return tuple(sorted(found, key=lambda one: (one.name, one.value, one.kind.value)))

    def time_names(
        self, fields: dict[str, YamlValue], field: str, named: dict[str, times.TimeInterval]
    ) -> tuple[str, ...]:
        names = fields[field].strings() if field in fields else []
        for name in names:
            if name not in named:
                fields[field].wrong(f"time interval `{name}` is not defined")
        return tuple(names)

    # Inhibition and times

    def inhibit_rule(self, value: YamlValue) -> InhibitRule:
        fields = value.mapping(_INHIBIT_FIELDS)
        return InhibitRule(
            source=self.matchers(fields, "source_matchers", "source_match", "source_match_re"),
            target=self.matchers(fields, "target_matchers", "target_match", "target_match_re"),
            equal=tuple(fields["equal"].strings()) if "equal" in fields else (),
        )

    def intervals(self, fields: dict[str, YamlValue], field: str) -> dict[str, times.TimeInterval]:
        found: dict[str, times.TimeInterval] = {}
        for value in _items(fields, field):
            own = value.mapping(("name", "time_intervals"))
            name = own["name"].text() if "name" in own else ""
            if not name or name in found:
                value.wrong("a time interval needs a unique name")
            specs = tuple(self.time_spec(spec) for spec in _items(own, "time_intervals"))
            found[name] = times.TimeInterval(name=name, specs=specs)
        return found

    def time_spec(self, value: YamlValue) -> times.TimeSpec:
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

    def minutes(self, value: YamlValue) -> Span:
        fields = value.mapping(("start_time", "end_time"))
        if len(fields) != 2:
            value.wrong("a time needs `start_time` and `end_time`")
            return (0, 1)
        end = fields["end_time"].text()
        return fields["start_time"].parsed(lambda start: times.parse_minutes(start, end), (0, 1))


def _matcher_of(label: str, *, is_regex: bool) -> Callable[[str], Matcher | None]:
    return lambda text: matcher(label, text, is_regex=is_regex)


def _items(fields: dict[str, YamlValue], name: str) -> Iterator[YamlValue]:
    return fields[name].sequence() if name in fields else iter(())


def _spans(fields: dict[str, YamlValue], name: str, parse: Callable[[str], Span]) -> tuple[Span, ...]:
    return tuple(value.parsed(parse, (0, 0)) for value in _items(fields, name))


def _duration(fields: dict[str, YamlValue], name: str, otherwise: int) -> int:
    return fields[name].duration_ms() if name in fields else otherwise


def _positive(fields: dict[str, YamlValue], name: str, otherwise: int) -> int:
    found = _duration(fields, name, otherwise)
    if found <= 0 and name in fields:
        fields[name].wrong(f"`{name}` must not be zero")
    return found

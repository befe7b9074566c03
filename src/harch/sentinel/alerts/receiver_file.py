"""How is a receiver reached? Webhooks, mail and Slack, with what the file says once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harch.sentinel.alerts.config import EmailTo, HttpOptions, Integration, Receiver, SlackTo, WebhookTo
from harch.sentinel.alerts.default_texts import EMAIL_SUBJECT, EMAIL_TEXT, SLACK
from harch.sentinel.alerts.notification_text import check_notification_text
from harch.sentinel.alerts.secrets import Secret
from harch.sentinel.rules.yaml_places import Value

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
_SLACK_TEXTS = (
    *("channel", "username", "color", "title", "title_link", "pretext", "text", "fallback", "footer"),
    *("icon_emoji", "icon_url"),
)
_SLACK_FIELDS = (
    *("api_url", "api_url_file", "api_url_env", "send_resolved", "fields", "short_fields", "timeout", "http_config"),
    *_SLACK_TEXTS,
)
_TLS_FIELDS = ("ca_file", "cert_file", "key_file", "server_name", "insecure_skip_verify")
_KINDS = ("webhook_configs", "email_configs", "slack_configs")
_NOT_HERE = (
    *("pagerduty_configs", "opsgenie_configs", "victorops_configs", "pushover_configs", "sns_configs"),
    *("telegram_configs", "webex_configs", "discord_configs", "msteams_configs", "wechat_configs", "jira_configs"),
)

Fields = Mapping[str, Value]


class Globals:
    """What `global` says for all receivers."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.slack_url = secret_of(fields, "slack_api_url")
        self.http = read_http(fields["http_config"]) if "http_config" in fields else HttpOptions()

    def text(self, name: str, otherwise: str = "") -> str:
        return self.fields[name].text() if name in self.fields else otherwise


def read_receiver(value: Value, shared: Globals) -> Receiver:
    fields = value.mapping((*("name",), *_KINDS, *_NOT_HERE))
    name = fields["name"].text() if "name" in fields else ""
    if not name:
        value.wrong("the receiver has no name")
    for kind in _NOT_HERE:
        if kind in fields:
            fields[kind].wrong(f"`{kind}` is not supported; use webhook_configs, email_configs or slack_configs")
    found: list[Integration] = []
    readers: tuple[Callable[[Value, Globals], Integration], ...] = (read_webhook, read_email, read_slack)
    for kind, read in zip(_KINDS, readers, strict=True):
        if kind in fields:
            found += [read(one, shared) for one in fields[kind].sequence()]
    if len(found) > INTEGRATIONS_MAX:
        value.wrong(f"more than {INTEGRATIONS_MAX} integrations")
    return Receiver(name=name, integrations=tuple(found))


def read_webhook(value: Value, shared: Globals) -> WebhookTo:
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


def read_email(value: Value, shared: Globals) -> EmailTo:
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
            value.wrong(f"header `{name[:40]}` holds a line end or a colon")
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


def read_slack(value: Value, shared: Globals) -> SlackTo:
    fields = value.mapping(_SLACK_FIELDS)
    url = secret_of(fields, "api_url")
    _check_url(fields, "api_url")
    if not url.is_set:
        url = shared.slack_url
    _need(value, url.is_set, "`api_url`, `api_url_file` or `api_url_env`, or `slack_api_url` in `global`")
    texts = {name: _template(fields[name]) if name in fields else SLACK.get(name, "") for name in _SLACK_TEXTS}
    short = _flag(fields, "short_fields", otherwise=False)
    extra: list[tuple[str, str, bool]] = []
    for one in fields["fields"].sequence() if "fields" in fields else ():
        own = one.mapping(("title", "value", "short"))
        _need(one, {"title", "value"} <= set(own), "`title` and `value`")
        shown = {name: _template(own[name]) if name in own else "" for name in ("title", "value")}
        extra.append((shown["title"], shown["value"], _flag(own, "short", otherwise=short)))
    return SlackTo(
        url=url,
        send_resolved=_flag(fields, "send_resolved", otherwise=False),
        short_fields=short,
        fields=tuple(extra),
        timeout_ms=fields["timeout"].duration_ms() if "timeout" in fields else 0,
        http=read_http(fields["http_config"]) if "http_config" in fields else shared.http,
        **texts,
    )


def read_http(value: Value) -> HttpOptions:
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


def _need(value: Value, is_there: bool, what: str) -> None:
    if not is_there:
        value.wrong(f"{what} is missing")


def _text(fields: Fields, name: str, otherwise: str) -> str:
    return fields[name].text() if name in fields else otherwise


def _flag(fields: Fields, name: str, *, otherwise: bool) -> bool:
    return fields[name].flag() if name in fields else otherwise


def _template(value: Value) -> str:
    value.parsed(check_notification_text, None)
    return value.text()

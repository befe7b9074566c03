"""What is sent? The webhook's JSON, Slack's attachment and the mail, made from a notice."""

# harch: pure

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime

import msgspec

from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.config import EmailTo, SlackTo
from harch.sentinel.alerts.templates import Notice, notification_text
from harch.sentinel.rules.views import rfc3339

WEBHOOK_VERSION = "4"
SLACK_TITLE_CHARS_MAX = 1_024
MAIL_CHARS_MAX = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEADER_CHARS_MAX = 900

Json = dict[str, object]


def webhook_body(notice: Notice, *, max_alerts: int = 0) -> bytes:
    """Version 4 of Alertmanager's webhook. With `max_alerts`, the rest is only counted."""
    listed = notice.alerts[:max_alerts] if max_alerts else notice.alerts
    body: Json = {
        "receiver": notice.receiver,
        "status": notice.status,
        "alerts": [_alert(alert, notice.now_ms) for alert in listed],
        "groupLabels": dict(notice.group_labels),
        "commonLabels": notice.common_labels,
        "commonAnnotations": notice.common_annotations,
        "externalURL": notice.external_url,
        "version": WEBHOOK_VERSION,
        "groupKey": notice.group_key,
        "truncatedAlerts": len(notice.alerts) - len(listed),
    }
    return msgspec.json.encode(body)


def _alert(alert: Alert, now_ms: int) -> Json:
    return {
        "status": "resolved" if alert.is_resolved(now_ms) else "firing",
        "labels": dict(alert.labels),
        "annotations": alert.annotations,
        "startsAt": rfc3339(alert.starts_at_ms),
        "endsAt": rfc3339(alert.ends_at_ms),
        "generatorURL": alert.generator_url,
        "fingerprint": alert.fingerprint,
    }


def slack_body(target: SlackTo, notice: Notice) -> bytes:
    """Raises E0641 when a text of the receiver fails."""

    def filled(text: str) -> str:
        return notification_text(text, notice)

    attachment: Json = {
        "title": filled(target.title)[:SLACK_TITLE_CHARS_MAX],
        "title_link": filled(target.title_link),
        "pretext": filled(target.pretext),
        "text": filled(target.text),
        "fallback": filled(target.fallback),
        "footer": filled(target.footer),
        "color": filled(target.color),
        "fields": [{"title": filled(t), "value": filled(v), "short": short} for t, v, short in target.fields],
        "mrkdwn_in": ["fallback", "pretext", "text"],
    }
    body: Json = {
        "channel": filled(target.channel),
        "username": filled(target.username),
        "icon_emoji": filled(target.icon_emoji),
        "icon_url": filled(target.icon_url),
        "attachments": [{name: value for name, value in attachment.items() if value}],
    }
    return msgspec.json.encode({name: value for name, value in body.items() if value})


def mail(target: EmailTo, notice: Notice, *, message_id: str) -> EmailMessage:
    """Raises E0641 when a text of the receiver fails. Line ends in headers become spaces: nobody adds headers."""
    message = EmailMessage()

    def set_header(name: str, text: str) -> None:
        message[name] = " ".join(text.split())[:_HEADER_CHARS_MAX]

    set_header("From", target.sender)
    set_header("To", notification_text(target.to, notice))
    for name, text in target.headers.items():
        if name.lower() not in ("from", "to", "date", "message-id"):
            set_header(name, notification_text(text, notice))
    set_header("Date", format_datetime(_EPOCH + timedelta(milliseconds=notice.now_ms)))
    set_header("Message-Id", message_id)
    message.set_content(notification_text(target.text, notice)[:MAIL_CHARS_MAX])
    if target.html:
        html = notification_text(target.html, notice)[:MAIL_CHARS_MAX]
        message.add_alternative(html, subtype="html")
    return message

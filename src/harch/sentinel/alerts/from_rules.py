"""How does an alert leave its rule? With the hub's labels, a link to its expression, and a time until it is valid."""

from __future__ import annotations

from collections.abc import Mapping

from harch.sentinel.alerts.alert import Alert
from harch.sentinel.model.labels import labels
from harch.sentinel.rules.evaluation import SentAlert
from harch.sentinel.rules.templates.alert_functions import link


def alert_of(sent: SentAlert, *, now_ms: int, external_labels: Mapping[str, str], external_url: str = "") -> Alert:
    """Labels of the alert win over those of the hub, as in Prometheus."""
    active = sent.alert
    return Alert(
        labels=labels({**external_labels, **dict(active.labels)}),
        annotations=active.annotations,
        starts_at_ms=active.fired_at_ms,
        ends_at_ms=active.resolved_at_ms or active.valid_until_ms,
        updated_at_ms=now_ms,
        generator_url=external_url.rstrip("/") + link(sent.rule.expression, 1),
    )

"""Is it wrong, and for how long?

The life of alerts of one rule: pending, firing, resolved, as in Prometheus; and what was pending before a restart.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.sentinel.model.labels import METRIC_NAME, Labels, labels
from harch.sentinel.rules.definitions import Rule, RuleSample, Vector
from harch.sentinel.rules.templates.expansion import TemplateContext, alert_text

# Is it wrong, and for how long? The life of alerts of one rule: pending, firing, resolved. As in Prometheus.
#
# A result of the expression makes an alert pending; after `for` it fires. When the result is gone a pending alert is
# forgotten, a firing one goes on for `keep_firing_for`, is then resolved, and stays known for 15 minutes, so that its
# end
# is sent even if the first attempts fail.


RESOLVED_RETENTION_MS = 15 * 60_000
RESEND_DELAY_MS = 60_000
VALID_RESENDS = 4  # an alert is taken for resolved when this many rounds of sending failed

ALERT_NAME, ALERT_STATE = "alertname", "alertstate"
ALERTS, ALERTS_FOR_STATE = "ALERTS", "ALERTS_FOR_STATE"


class AlertState(StrEnum):
    PENDING = "pending"
    FIRING = "firing"
    INACTIVE = "inactive"


class ActiveAlert(Struct, frozen=True, kw_only=True):
    """One alert of a rule. Times are 0 while they have not come."""

    labels: Labels
    annotations: dict[str, str] = field(default_factory=dict)
    value: float = 0.0
    state: AlertState = AlertState.PENDING
    active_at_ms: int = 0
    fired_at_ms: int = 0
    resolved_at_ms: int = 0
    keep_firing_since_ms: int = 0
    last_sent_ms: int = 0
    valid_until_ms: int = 0

    @property
    def is_active(self) -> bool:
        return self.state is not AlertState.INACTIVE


Alerts = Mapping[Labels, ActiveAlert]


def advanced(rule: Rule, alerts: Alerts, vector: Vector, *, at_ms: int, limit: int, world: TemplateContext) -> Alerts:
    """The rule's alerts after an evaluation. Raises E0642: two results with the same labels, or more than `limit`."""
    results = _results(rule, vector, at_ms=at_ms, world=world)
    merged: dict[Labels, ActiveAlert] = dict(alerts)
    for key, fresh in results.items():
        known = alerts.get(key)
        if known is not None and known.is_active:
            merged[key] = replace(known, value=fresh.value, annotations=fresh.annotations)
        else:
            merged[key] = fresh
    after: dict[Labels, ActiveAlert] = {}
    for key, alert in merged.items():
        moved = _present(rule, alert, at_ms) if key in results else _absent(rule, alert, at_ms)
        if moved is not None:
            after[key] = moved
    active = sum(alert.is_active for alert in after.values())
    if 0 < limit < active:
        raise HarchError(
            "E0642",
            f"`{rule.name}` has {active} alerts, but its group allows {limit}",
            hint="raise the group's `limit`, or aggregate labels away; the rule's alerts were dropped",
            meta={"dropped": True},
        )
    return after


def _results(rule: Rule, vector: Vector, *, at_ms: int, world: TemplateContext) -> dict[Labels, ActiveAlert]:
    found: dict[Labels, ActiveAlert] = {}
    for metric, value in vector:
        given = {name: text for name, text in metric.items() if name != METRIC_NAME}
        for name, text in rule.labels.items():
            given[name] = alert_text(text, metric, value, at_ms=at_ms, world=world)
        given[ALERT_NAME] = rule.name
        key = labels(given)
        if key in found:
            raise HarchError(
                "E0642",
                f"two results of `{rule.name}` have the same labels once the rule's labels are set",
                hint="keep a label in the expression that distinguishes them",
            )
        annotations = {
            name: alert_text(text, metric, value, at_ms=at_ms, world=world) for name, text in rule.annotations.items()
        }
        found[key] = ActiveAlert(labels=key, annotations=annotations, value=value, active_at_ms=at_ms)
    return found


def _present(rule: Rule, alert: ActiveAlert, at_ms: int) -> ActiveAlert:
    alert = replace(alert, keep_firing_since_ms=0)
    return _fired(rule, alert, at_ms)


def _absent(rule: Rule, alert: ActiveAlert, at_ms: int) -> ActiveAlert | None:
    """None: forgotten."""
    if alert.state is AlertState.PENDING:
        return None
    if alert.state is AlertState.INACTIVE:
        return None if at_ms - alert.resolved_at_ms > RESOLVED_RETENTION_MS else alert
    if rule.keep_firing_for_ms:
        since_ms = alert.keep_firing_since_ms or at_ms
        if at_ms - since_ms < rule.keep_firing_for_ms:
            return replace(alert, keep_firing_since_ms=since_ms)
        alert = replace(alert, keep_firing_since_ms=since_ms)
    return replace(alert, state=AlertState.INACTIVE, resolved_at_ms=at_ms)


def _fired(rule: Rule, alert: ActiveAlert, at_ms: int) -> ActiveAlert:
    if alert.state is AlertState.PENDING and at_ms - alert.active_at_ms >= rule.for_ms:
        return replace(alert, state=AlertState.FIRING, fired_at_ms=at_ms)
    return alert


def state_samples(alerts: Iterable[ActiveAlert], *, at_ms: int) -> list[RuleSample]:
    """ALERTS and ALERTS_FOR_STATE of what is pending or firing."""
    samples: list[RuleSample] = []
    for alert in alerts:
        if alert.is_active:
            pairs = dict(alert.labels)
            samples.append(RuleSample(labels({**pairs, METRIC_NAME: ALERTS, ALERT_STATE: alert.state}), at_ms, 1.0))
            for_state = labels({**pairs, METRIC_NAME: ALERTS_FOR_STATE})
            samples.append(RuleSample(for_state, at_ms, float(alert.active_at_ms // 1000)))
    return samples


def marked_sent(
    alerts: Alerts, *, at_ms: int, interval_ms: int, resend_delay_ms: int = RESEND_DELAY_MS
) -> tuple[Alerts, list[ActiveAlert]]:
    """What is to be sent now: news at once, the rest again when the delay is over. The alerts remember it."""
    due = [alert for alert in alerts.values() if _needs_sending(alert, at_ms, resend_delay_ms)]
    valid_until_ms = at_ms + VALID_RESENDS * max(resend_delay_ms, interval_ms)
    sent = [replace(alert, last_sent_ms=at_ms, valid_until_ms=valid_until_ms) for alert in due]
    return {**alerts, **{alert.labels: alert for alert in sent}}, sent


def _needs_sending(alert: ActiveAlert, at_ms: int, resend_delay_ms: int) -> bool:
    if alert.state is AlertState.PENDING:
        return False
    if alert.resolved_at_ms > alert.last_sent_ms:
        return True
    return alert.last_sent_ms + resend_delay_ms < at_ms


# What was pending before the restart? An alert that waited for 50 of 60 minutes does not wait for 60 again.
#
# Time that nobody watched does not count as waiting, and of long waits a grace period is always left: after a restart a
# query may look wrong for a while. These are the rules of Prometheus, with one addition: it lets waits below the grace
# period begin anew, so that a process that crashes every four minutes never fires what waits for five. Here they go on.


OUTAGE_MS_MAX = 60 * 60_000  # what lies further back says nothing about now
GRACE_MS = 10 * 60_000


class KeptRule(Struct, frozen=True, kw_only=True):
    """The alerts of one rule as they were after an evaluation; what the state file holds."""

    group: str  # the group's key
    rule: str  # see `group_state.rule_keys`
    evaluated_at_ms: int
    alerts: tuple[ActiveAlert, ...] = ()


def restored_from_state(rule: Rule, kept: KeptRule, *, now_ms: int) -> dict[Labels, ActiveAlert]:
    """Alerts of our own state file. Firing ones keep firing: their start is known, and nobody is notified twice."""
    if now_ms - kept.evaluated_at_ms > OUTAGE_MS_MAX:
        return {}
    found: dict[Labels, ActiveAlert] = {}
    for alert in kept.alerts:
        if alert.state is AlertState.PENDING:
            active_at_ms = restored_start_ms(rule, alert.active_at_ms, kept.evaluated_at_ms, now_ms=now_ms)
            alert = replace(alert, active_at_ms=active_at_ms)
        found[alert.labels] = alert
    return found


def restored_from_series(rule: Rule, alerts: Alerts, samples: Iterable[RuleSample], *, now_ms: int) -> Alerts:
    """Alerts that are active again, with the start that ALERTS_FOR_STATE tells."""
    after = dict(alerts)
    for sample in samples:
        key = tuple(pair for pair in sample.labels if pair[0] != METRIC_NAME)
        known = alerts.get(key)
        if known is not None and known.is_active and now_ms - sample.at_ms <= OUTAGE_MS_MAX:
            started_ms = restored_start_ms(rule, int(sample.value) * 1000, sample.at_ms, now_ms=now_ms)
            after[key] = replace(known, active_at_ms=started_ms)
    return after


def restored_start_ms(rule: Rule, active_at_ms: int, down_at_ms: int, *, now_ms: int) -> int:
    """From when the wait counts, such that only watched time counts and at least the grace period remains."""
    remaining_ms = rule.for_ms - (down_at_ms - active_at_ms)
    if remaining_ms <= 0:
        return active_at_ms
    if remaining_ms < GRACE_MS <= rule.for_ms:
        return now_ms + GRACE_MS - rule.for_ms
    return active_at_ms + (now_ms - down_at_ms)

"""What was pending before the restart? An alert that waited for 50 of 60 minutes does not wait for 60 again.

Time that nobody watched does not count as waiting, and of long waits a grace period is always left: after a restart a
query may look wrong for a while. These are the rules of Prometheus, with one addition: it lets waits below the grace
period begin anew, so that a process that crashes every four minutes never fires what waits for five. Here they go on.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from harch.sentinel.model.labels import METRIC_NAME, Labels
from harch.sentinel.rules.alerting import ActiveAlert, Alerts, AlertState
from harch.sentinel.rules.definitions import Rule
from harch.sentinel.rules.ports import Sample

OUTAGE_MS_MAX = 60 * 60_000  # what lies further back says nothing about now
GRACE_MS = 10 * 60_000


class KeptRule(Struct, frozen=True, kw_only=True):
    """The alerts of one rule as they were after an evaluation; what the state file holds."""

    group: str  # the group's key
    rule: str  # see `group_state.rule_keys`
    evaluated_at_ms: int
    alerts: tuple[ActiveAlert, ...] = ()


def restored_from_state(rule: Rule, kept: KeptRule, *, now_ms: int) -> dict[Labels, ActiveAlert]:
    """Alerts of our own state file. Firing ones keep firing: their start is known, and nobody is told twice."""
    if now_ms - kept.evaluated_at_ms > OUTAGE_MS_MAX:
        return {}
    found: dict[Labels, ActiveAlert] = {}
    for alert in kept.alerts:
        if alert.state is AlertState.PENDING:
            active_at_ms = restored_start_ms(rule, alert.active_at_ms, kept.evaluated_at_ms, now_ms=now_ms)
            alert = replace(alert, active_at_ms=active_at_ms)
        found[alert.labels] = alert
    return found


def restored_from_series(rule: Rule, alerts: Alerts, samples: Iterable[Sample], *, now_ms: int) -> Alerts:
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

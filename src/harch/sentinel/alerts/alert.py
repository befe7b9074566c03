"""What is an alert, after it left its rule?

Labels, annotations, and a time in which it is active; with the hub's labels and a link to its expression.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.sentinel.model.labels import Labels, labels
from harch.sentinel.rules.definitions import fingerprint_of
from harch.sentinel.rules.evaluation import SentAlert
from harch.sentinel.rules.templates.alert_functions import link

LABELS_MAX = 128
TEXT_CHARS_MAX = 65_536  # of one label or annotation
ALERT_CHARS_MAX = 262_144
TENANT_LABEL = "tenant"  # whose alert it is; without one it is the operators'


class Alert(Struct, frozen=True, kw_only=True):
    labels: Labels
    annotations: dict[str, str] = field(default_factory=dict)
    starts_at_ms: int
    ends_at_ms: int
    updated_at_ms: int
    generator_url: str = ""
    is_timeout: bool = False  # the end is only a guess: whoever sent it gave none

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.labels)

    @property
    def name(self) -> str:
        return dict(self.labels).get("alertname", "")

    @property
    def tenant(self) -> str:
        return dict(self.labels).get(TENANT_LABEL, "")

    def is_resolved(self, now_ms: int) -> bool:
        return 0 < self.ends_at_ms <= now_ms


def check(alert: Alert) -> None:
    """Raises E0647."""
    if not alert.labels:
        raise _invalid("an alert has no label", "add at least one label with a value")
    if alert.ends_at_ms < alert.starts_at_ms:
        raise _invalid(f"`{alert.name}` ends before it starts", "`endsAt` must not be before `startsAt`")
    if len(alert.labels) > LABELS_MAX or len(alert.annotations) > LABELS_MAX:
        raise _invalid(f"`{alert.name}` has more than {LABELS_MAX} labels or annotations", "send fewer")
    strings = [text for pair in (*alert.labels, *alert.annotations.items()) for text in pair]
    if max(map(len, strings)) > TEXT_CHARS_MAX or sum(map(len, strings)) > ALERT_CHARS_MAX:
        raise _invalid(
            f"the labels or annotations of `{alert.name[:100]}` are too long",
            f"at most {TEXT_CHARS_MAX} characters each",
        )
    if not all(name for name, _ in (*alert.labels, *alert.annotations.items())):
        raise _invalid(f"`{alert.name}` has a label without a name", "name every label and annotation")


def _invalid(message: str, hint: str) -> HarchError:
    return HarchError("E0647", message, hint=hint)


def joined(old: Alert, new: Alert, *, now_ms: int) -> Alert:
    """One alert of two reports, as Alertmanager does: the younger rules, the earliest start is kept."""
    touches = (old.starts_at_ms < at_ms < old.ends_at_ms for at_ms in (new.starts_at_ms, new.ends_at_ms))
    if not any(touches):
        return new
    if new.updated_at_ms < old.updated_at_ms:
        old, new = new, old
    ends_at_ms = new.ends_at_ms
    if new.is_resolved(now_ms):
        if old.is_resolved(now_ms):
            ends_at_ms = max(old.ends_at_ms, new.ends_at_ms)
    elif not old.is_timeout:
        ends_at_ms = max(old.ends_at_ms, new.ends_at_ms)
    return replace(new, starts_at_ms=min(old.starts_at_ms, new.starts_at_ms), ends_at_ms=ends_at_ms)


# How does an alert leave its rule? With the hub's labels, a link to its expression, and a time until it is valid.


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

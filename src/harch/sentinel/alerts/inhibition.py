"""Does a larger trouble explain this one? Alerts that are quiet while a source alert fires."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.config import InhibitRule
from harch.sentinel.alerts.matchers import all_match


class Inhibitor:
    """The sources that fire at one moment, by rule and by the labels that have to be equal."""

    def __init__(self, rules: Iterable[InhibitRule], alerts: Iterable[Alert], *, now_ms: int) -> None:
        self._rules = tuple(rules)
        self._sources: list[dict[tuple[str, ...], list[tuple[str, bool]]]] = [{} for _ in self._rules]
        if not self._rules:
            return
        for alert in alerts:
            if alert.is_resolved(now_ms):
                continue
            own = dict(alert.labels)
            for rule, sources in zip(self._rules, self._sources, strict=True):
                if all_match(rule.source, own):
                    also_target = all_match(rule.target, own)
                    sources.setdefault(_equal_part(rule, own), []).append((alert.fingerprint, also_target))

    def inhibited_by(self, labels: Mapping[str, str]) -> list[str]:
        """The fingerprint of one source for the first rule that mutes it; empty: it is not muted.

        An alert that is source and target of a rule is not muted by another one that is both, so that two equal alerts
        cannot silence each other.
        """
        for rule, sources in zip(self._rules, self._sources, strict=True):
            if not all_match(rule.target, labels):
                continue
            is_source = all_match(rule.source, labels)
            for fingerprint, also_target in sources.get(_equal_part(rule, labels), ()):
                if not (is_source and also_target):
                    return [fingerprint]
        return []


def _equal_part(rule: InhibitRule, labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in rule.equal)

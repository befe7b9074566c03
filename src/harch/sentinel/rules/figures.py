"""How are the rules themselves? Their counters as series, under Prometheus' names, so that rules can watch rules."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from harch.sentinel.model.labels import METRIC_NAME, labels
from harch.sentinel.rules.definitions import RuleGroup
from harch.sentinel.rules.group_state import GroupState
from harch.sentinel.rules.ports import Sample


class Figure(Struct, frozen=True):
    """A number of SENTINEL about itself."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()

    def at(self, at_ms: int) -> Sample:
        return Sample(labels([(METRIC_NAME, self.name), *self.labels]), at_ms, self.value)


def group_figures(groups: Iterable[tuple[RuleGroup, GroupState]]) -> list[Figure]:
    found: list[Figure] = []
    for group, state in groups:
        own = (("rule_group", group.key),)
        found += [
            Figure("prometheus_rule_evaluations_total", float(state.evaluations * len(group.rules)), own),
            Figure("prometheus_rule_evaluation_failures_total", float(state.failures), own),
            Figure("prometheus_rule_group_iterations_total", float(state.evaluations), own),
            Figure("prometheus_rule_group_iterations_missed_total", float(state.missed), own),
            Figure("prometheus_rule_group_last_duration_seconds", state.evaluation_s, own),
            Figure("prometheus_rule_group_interval_seconds", group.interval_ms / 1000, own),
            Figure("prometheus_rule_group_rules", float(len(group.rules)), own),
        ]
    return found

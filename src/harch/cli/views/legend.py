"""What is a series called beside others? By the labels that tell it from them, not by all that it has."""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations

LABELS_TOGETHER_MAX = 3
LABELS_TRIED_MAX = 12
SERIES_COMPARED_MAX = 500
UNITS = (
    ("_bytes", "B"),
    ("_celsius", "°C"),
    ("_ms", "ms"),
    ("_percent", "%"),
    ("_seconds", "s"),
    ("_watts", "W"),
)
_NAME = "__name__"
_PLACEHOLDER = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")

Labels = Mapping[str, str]


def name_of(metric: Labels) -> str:
    """A series as PromQL writes it."""
    rest = ", ".join(f'{name}="{value}"' for name, value in sorted(metric.items()) if name != _NAME)
    return f"{metric.get(_NAME, '')}{{{rest}}}" if rest else metric.get(_NAME, "{}")


def legend_names(metrics: Sequence[Labels], template: str = "", alone: str = "") -> list[str]:
    """One name per series, different for all. `template` names them, as `{{hub_name}}`, unless two would get the same
    name; `alone` is for a single series that has no labels."""
    if template:
        named = [_filled(template, metric) for metric in metrics]
        if len(set(named)) == len(named) and all(named):
            return named
    if len(metrics) == 1:
        (metric,) = metrics
        return [metric.get(_NAME) or _pairs(metric, sorted(metric)) or alone or name_of(metric)]
    labels = distinguishing_labels(metrics)
    return [_pairs(metric, labels) or name_of(metric) for metric in metrics]


def unit_of(metrics: Sequence[Labels]) -> str:
    """What the names of metrics say of their unit. Series that a query has computed have no name, and no unit."""
    names = {metric.get(_NAME, "") for metric in metrics}
    units = {next((unit for suffix, unit in UNITS if name.endswith(suffix)), "") for name in names}
    return units.pop() if len(units) == 1 else ""


def distinguishing_labels(metrics: Sequence[Labels]) -> tuple[str, ...]:
    """The labels that tell all series apart in the fewest characters: `hub_name`, and not a UUID."""
    compared = metrics[:SERIES_COMPARED_MAX]
    different = [
        label
        for label in sorted({label for metric in compared for label in metric})
        if len({metric.get(label, "") for metric in compared}) > 1
    ]
    cost = {label: sum(len(_pairs(metric, (label,))) + 1 for metric in compared) for label in different}
    cheap = sorted(different, key=lambda label: (cost[label], label))[:LABELS_TRIED_MAX]
    found = [
        chosen
        for size in range(1, LABELS_TOGETHER_MAX + 1)
        for chosen in combinations(cheap, size)
        if len({tuple(metric.get(label, "") for label in chosen) for metric in compared}) == len(compared)
    ]
    best = min(found, key=lambda chosen: sum(cost[label] for label in chosen), default=tuple(different))
    return tuple(sorted(best))


def _pairs(metric: Labels, labels: Sequence[str]) -> str:
    return " ".join(
        metric[label] if label == _NAME else f"{label}={metric[label] or '-'}" for label in labels if label in metric
    )


def _filled(template: str, metric: Labels) -> str:
    return " ".join(_PLACEHOLDER.sub(lambda found: metric.get(found[1], ""), template).split())

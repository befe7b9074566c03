"""What was read from a sensor? A name, labels and a value; the names are those that dashboards know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from harch.sentinel.model.labels import METRIC_NAME, Labels, labels


class Reading(NamedTuple):
    labels: Labels
    value: float


def series(name: str, pairs: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> Labels:
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return labels([(METRIC_NAME, name), *items])

"""How is a series named? By its labels, sorted by name; the metric's name is one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

Labels = tuple[tuple[str, str], ...]  # sorted by name, no name twice, no empty value: an empty value means no label

METRIC_NAME = "__name__"
BUCKET_LABEL = "le"
QUANTILE_LABEL = "quantile"

_LEGACY_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_LEGACY_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def labels(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> Labels:
    """The labels of these pairs; those with empty values name nothing and are left out."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return tuple(sorted((name, value) for name, value in items if value))


def is_plain_label_name(name: str) -> bool:
    """True for names that need no quotes in PromQL. Others are allowed too, as in Prometheus 3."""
    return _LEGACY_LABEL.fullmatch(name) is not None


def is_plain_metric_name(name: str) -> bool:
    return _LEGACY_METRIC.fullmatch(name) is not None

"""What does a metric measure? Its type, its unit, and a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    GAUGE_HISTOGRAM = "gaugehistogram"
    SUMMARY = "summary"
    INFO = "info"
    STATESET = "stateset"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Metadata:
    type: MetricType = MetricType.UNKNOWN
    unit: str = ""
    help: str = ""

"""How do the rooms of HarchOS emit metrics? Through the OpenTelemetry API; who reads them is decided at the edge."""

from __future__ import annotations

from opentelemetry import metrics

_meter = metrics.get_meter("harch")


def counter(name: str, description: str, unit: str = "1") -> metrics.Counter:
    return _meter.create_counter(name, unit=unit, description=description)


def histogram(name: str, description: str, unit: str) -> metrics.Histogram:
    return _meter.create_histogram(name, unit=unit, description=description)


def gauge(name: str, description: str, observe: metrics.CallbackT, unit: str = "1") -> None:
    """A value read when somebody asks, not when it changes."""
    _meter.create_observable_gauge(name, callbacks=[observe], unit=unit, description=description)

"""How do the rooms of HarchOS emit metrics? Through an OpenTelemetry meter; each process decides who reads it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_TYPE = openmetrics.CONTENT_TYPE_LATEST
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Collected(Protocol):
    """Metrics that are kept elsewhere and read when somebody asks."""

    def collect(self) -> Iterable[Metric]: ...


class Telemetry:
    """One process's instruments, readable in the Prometheus text format. Nothing is sent anywhere."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=self._registry)
        self._provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
        self.meter: Meter = self._provider.get_meter("harch")

    def add(self, collected: Collected) -> None:
        self._registry.register(collected)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def openmetrics(self) -> bytes:
        """With exemplars, for readers that accept it."""
        page: bytes = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
        return page

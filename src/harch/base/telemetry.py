"""How do the rooms of HarchOS emit metrics? Through an OpenTelemetry meter; each process decides who reads it."""

from __future__ import annotations

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest


class Telemetry:
    """One process's instruments, readable in the Prometheus text format. Nothing is sent anywhere."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=self._registry)
        self._provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
        self.meter: Meter = self._provider.get_meter("harch")

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

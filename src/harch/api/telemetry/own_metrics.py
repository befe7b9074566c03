"""How is SENTINEL doing, for other collectors? `/metrics`: its stores, rules, notifications, requests and process.

Names are Prometheus' own wherever they mean the same, so that its dashboards and rules fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from harch.api.telemetry.answer import Answer
from harch.api.telemetry.ports import Tenants
from harch.api.telemetry.request import TelemetryRequest
from harch.sentinel.rules.figures import Figure

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

_STORE = {  # fact of a store, summed over tenants -> name, what it is
    "series_in_memory": ("prometheus_tsdb_head_series", "Series with samples in memory."),
    "samples_in_memory": ("harch_sentinel_head_samples", "Samples in memory, not yet in blocks."),
    "exemplars": ("prometheus_tsdb_exemplar_exemplars_in_storage", "Exemplars in memory."),
    "log_segments": ("harch_sentinel_log_segments", "Segments of the log on disk."),
    "blocks": ("prometheus_tsdb_blocks_loaded", "Blocks on disk."),
}
_TOTALS = {
    "samples_taken": ("prometheus_tsdb_head_samples_appended", "Samples stored since the process began."),
    "samples_refused": ("harch_sentinel_samples_refused", "Samples refused since the process began."),
}


class OwnMetrics:
    """`figures` are those of rules and notifications; `requests` counts answers by route and status."""

    def __init__(
        self,
        tenants: Tenants,
        figures: Callable[[], Iterable[Figure]],
        requests: Callable[[], Mapping[tuple[str, int], int]],
    ) -> None:
        self._tenants, self._figures, self._requests = tenants, figures, requests
        self._registry: CollectorRegistry | None = None

    def page(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        # Loaded with the first scrape: a SENTINEL that nobody scrapes keeps the memory.
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import choose_encoder

        if self._registry is None:
            self._registry = CollectorRegistry()
            self._registry.register(self)
            ProcessCollector(registry=self._registry)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Answer(body=encode(self._registry), content_type=content_type)

    def collect(self) -> Iterable[Metric]:
        """Called by the exposition."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        build = GaugeMetricFamily("harch_sentinel_build_info", "The version that runs.", labels=("version",))
        build.add_metric((version("harch"),), 1.0)
        yield build
        yield GaugeMetricFamily("harch_sentinel_tenants", "Tenants with a store.", value=len(self._tenants.names()))
        facts = [self._tenants.store(name).facts() for name in self._tenants.names()]
        for fact, (name, text) in _STORE.items():
            yield GaugeMetricFamily(name, text, value=_sum_of(facts, fact))
        for fact, (name, text) in _TOTALS.items():
            yield CounterMetricFamily(name, text, value=_sum_of(facts, fact))
        served = CounterMetricFamily(
            "prometheus_http_requests", "Requests answered, by route and status.", labels=("handler", "code")
        )
        for (handler, code), count in sorted(self._requests().items()):
            served.add_metric((handler, str(code)), count)
        yield served
        yield from _families(self._figures())


def _families(figures: Iterable[Figure]) -> Iterable[Metric]:
    """Figures of one name are one family, with the labels that they have."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    by_name: dict[str, list[Figure]] = {}
    for figure in figures:
        by_name.setdefault(figure.name, []).append(figure)
    for name, same in by_name.items():
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(name.removesuffix("_total"), "", labels=[label for label, _ in same[0].labels])
        for figure in same:
            family.add_metric([value for _, value in figure.labels], figure.value)
        yield family


def _sum_of(facts: Sequence[Mapping[str, object]], name: str) -> float:
    return float(sum(value for one in facts if isinstance(value := one.get(name), int | float)))

"""How is SENTINEL doing, for other collectors and for its own rules?

`/metrics`, files set aside as damaged, and redactions by rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from harch.base.clock import Clock, epoch_ms
from harch.base.state_files import SUFFIX
from harch.sentinel.archive.folder import ArchiveFolder
from harch.sentinel.collect.redaction.redactor import Redactor
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, success
from harch.sentinel.http.routing import HttpRoute, WorkClass
from harch.sentinel.http.tenants import Tenants
from harch.sentinel.model.labels import METRIC_NAME, labels
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.rules.views import SelfMetric
from harch.sentinel.store.tenants import StoreFolder

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


# How is SENTINEL doing, for other collectors? `/metrics`: its stores, rules, notifications, requests and process.
#
# Names are Prometheus' own wherever they mean the same, so that its dashboards and rules fit.


_STORE = {  # fact of a store, summed over tenants -> name, what it is
    "series_in_memory": ("prometheus_tsdb_head_series", "Series with samples in memory."),
    "samples_in_memory": ("harch_sentinel_head_samples", "Samples in memory, not yet in blocks."),
    "exemplars": ("prometheus_tsdb_exemplar_exemplars_in_storage", "Exemplars in memory."),
    "log_segments": ("harch_sentinel_log_segments", "Segments of the log on disk."),
    "blocks": ("prometheus_tsdb_blocks_loaded", "Blocks on disk."),
}
_TOTALS = {
    "samples_taken": ("prometheus_tsdb_head_samples_appended", "Samples stored since start."),
    "samples_refused": ("harch_sentinel_samples_refused", "Samples refused since start."),
}


class OwnMetrics:
    """`figures` are those of rules and notifications; `requests` counts answers by route and status."""

    def __init__(
        self,
        tenants: Tenants,
        self_metrics: Callable[[], Iterable[SelfMetric]],
        requests: Callable[[], Mapping[tuple[str, int], int]],
    ) -> None:
        self._tenants, self._self_metrics, self._requests = tenants, self_metrics, requests
        self._registry: CollectorRegistry | None = None

    def page(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        # Loaded with the first scrape: a SENTINEL that nobody scrapes keeps the memory.
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import choose_encoder

        if self._registry is None:
            self._registry = CollectorRegistry()
            self._registry.register(self)
            ProcessCollector(registry=self._registry)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return HttpReply(body=encode(self._registry), content_type=content_type)

    def collect(self) -> Iterable[Metric]:
        """Called by the exposition."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        build = GaugeMetricFamily("harch_sentinel_build_info", "Running version.", labels=("version",))
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
        yield from _families(self._self_metrics())


def _families(self_metrics: Iterable[SelfMetric]) -> Iterable[Metric]:
    """Figures of one name are one family, with the labels that they have."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    by_name: dict[str, list[SelfMetric]] = {}
    for figure in self_metrics:
        by_name.setdefault(figure.name, []).append(figure)
    for name, same in by_name.items():
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(name.removesuffix("_total"), "", labels=[label for label, _ in same[0].labels])
        for figure in same:
            family.add_metric([value for _, value in figure.labels], figure.value)
        yield family


def _sum_of(facts: Sequence[Mapping[str, object]], name: str) -> float:
    return float(sum(value for one in facts if isinstance(value := one.get(name), int | float)))


# Does anything that was set aside as damaged wait for somebody? Counts as series, so that an alert can say so.


DAMAGE_SERIES = "harchos_sentinel_damaged_files"


class DamageMetrics:
    """Counts what is on disk, of all tenants together: so the alert outlives a restart, and ends when it is deleted."""

    EVERY_S = 30.0

    def __init__(self, folder: StoreFolder, archive: ArchiveFolder, data: Path, clock: Clock) -> None:
        self._folder, self._archive, self._data, self._clock = folder, archive, data, clock

    def series(self) -> Sequence[SeriesBatch]:
        """Looks into folders, so it belongs into a thread."""
        counts = {
            "metrics": len(self._folder.refused)
            + sum(len(self._folder.store(name).damaged_files()) for name in self._folder.names()),
            **self._archive.damaged(),
            "state": sum(1 for _ in self._data.glob(f"*{SUFFIX}")),
        }
        now_ms = epoch_ms(self._clock.now())
        return [
            SeriesBatch(labels({METRIC_NAME: DAMAGE_SERIES, "store": store}), (now_ms,), (float(count),))
            for store, count in counts.items()
        ]


# What was taken out, and by which rule? Counts for people, and as series for dashboards and alerts.


REDACTION_SERIES = "harchos_sentinel_redactions_total"


class RedactionMetrics:
    """Counts are of all tenants together, so operators see them; they begin anew with the process, as counters do."""

    EVERY_S = 30.0

    def __init__(self, redactor: Redactor, clock: Clock) -> None:
        self._redactor, self._clock = redactor, clock

    def routes(self) -> list[HttpRoute]:
        return [HttpRoute(("GET",), "/api/v1/status/redaction", self.counts, WorkClass.QUICK)]

    def counts(self, *_: object) -> HttpReply:
        hits = self._redactor.hits
        rules = [
            {"name": rule.name, "where": sorted(one.value for one in rule.where), "hits": hits[rule.name]}
            for rule in self._redactor.rules
        ]
        return success({"rules": rules})

    def series(self) -> list[SeriesBatch]:
        now_ms = epoch_ms(self._clock.now())
        return [
            SeriesBatch(labels({METRIC_NAME: REDACTION_SERIES, "rule": name}), (now_ms,), (float(count),))
            for name, count in self._redactor.hits.items()
        ]

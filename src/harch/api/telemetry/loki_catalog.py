"""Which logs are there? Labels, values, series, sizes and fields, as Grafana's editors and Logs Drilldown ask."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from harch.api.telemetry.answer import Answer, plain_json, success
from harch.api.telemetry.loki_fields import detected_fields
from harch.api.telemetry.loki_queries import query_options
from harch.api.telemetry.loki_request import MS_NS, grid_of, limit_of, now_ns, window_of
from harch.api.telemetry.loki_results import log_answer
from harch.api.telemetry.ports import LogTenants
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.routing import Route, Work
from harch.base.errors import HarchError
from harch.sentinel.logql.evaluate.engine import LogqlEngine
from harch.sentinel.logql.evaluate.lines import Entry, Window
from harch.sentinel.logql.syntax.nodes import Grouping, LogQuery, RangeAggregation, VectorAggregation, log_queries
from harch.sentinel.logql.syntax.parser import parse_matchers
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import Order
from harch.sentinel.model.matchers import Matcher
from harch.sentinel.promql.evaluate.results import VectorResult

SELECTORS_MAX = 50
SERIES_MAX = 100_000
VOLUME_LIMIT = 100
LINES_LOOKED_AT = 1_000
_SPOKEN_VERSION = "3.2.0"  # of Loki: whose API is spoken
_SINCE_NS = 6 * 3600 * 1_000_000_000  # what Loki's catalog looks back by default


class LokiCatalog:
    """What can be asked for."""

    def __init__(self, tenants: LogTenants, engine: LogqlEngine) -> None:
        self._tenants = tenants
        self._engine = engine

    def routes(self) -> list[Route]:
        both = ("GET", "POST")
        base = "/loki/api/v1"
        return [
            Route(both, f"{base}/labels", self.label_names),
            Route(both, f"{base}/label", self.label_names),
            Route(both, f"{base}/label/{{name}}/values", self.label_values),
            Route(both, f"{base}/series", self.series),
            Route(both, f"{base}/index/stats", self.stats),
            Route(both, f"{base}/index/volume", self.volume),
            Route(both, f"{base}/index/volume_range", self.volume_range),
            Route(both, f"{base}/detected_labels", self.detected_labels),
            Route(both, f"{base}/detected_fields", self.detected_fields),
            Route(both, f"{base}/detected_field/{{name}}/values", self.field_values),
            Route(both, f"{base}/patterns", self.patterns),
            Route(("GET",), f"{base}/status/buildinfo", self.build, Work.QUICK),
            Route(("GET", "HEAD"), "/ready", self.ready, Work.QUICK),
        ]

    def label_names(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        return success(sorted({name for labels in self._streams(request) for name, _ in labels}))

    def label_values(self, request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        found = {value for labels in self._streams(request) for name, value in labels if name == names["name"]}
        return success(sorted(found))

    def series(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        found = self._streams(request)
        if len(found) > SERIES_MAX:
            raise HarchError("E0687", f"{len(found)} streams match, {SERIES_MAX} may be listed", hint="match fewer")
        return success([dict(labels) for labels in found])

    def stats(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        """Counted from the lines themselves, without their texts."""
        matchers = self._one_selector(request)
        start_ns, end_ns = window_of(request)
        store = self._tenants.logs(request.tenant)
        found = self._engine.counted(matchers, start_ns, end_ns, store, now_ns(request), query_options(request))
        streams = len(store.streams(matchers, start_ns, end_ns))
        told = {"streams": streams, "chunks": found.chunks, "entries": found.lines, "bytes": found.text_bytes}
        return plain_json(told)

    def volume(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        start_ns, end_ns = window_of(request)
        tree = self._volume_query(request, end_ns - start_ns)
        store, options = self._tenants.logs(request.tenant), query_options(request)
        answer = self._engine.instant(tree, end_ns // MS_NS, store, now_ns(request), options)
        if isinstance(answer.value, VectorResult) and request.one("aggregateBy") == "labels":
            return success(_by_name(answer.value))
        return log_answer(answer, 0.0, categorized=False)

    def volume_range(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        start_ns, end_ns = window_of(request)
        grid, warnings = grid_of(request, start_ns, end_ns)
        tree = self._volume_query(request, grid.step_ms * MS_NS)
        store, options = self._tenants.logs(request.tenant), query_options(request)
        answer = self._engine.range(tree, grid.start_ms, grid.end_ms, grid.step_ms, store, now_ns(request), options)
        return log_answer(answer, 0.0, categorized=False, warnings=warnings)

    def _volume_query(self, request: TelemetryRequest, range_ns: int) -> VectorAggregation:
        """The largest of `sum by (labels) (bytes_over_time({…}[range]))`; by the labels of the selector unless told."""
        matchers = self._one_selector(request)
        asked = [name for text in request.all("targetLabels") for name in text.split(",") if name]
        names = asked or sorted({matcher.name for matcher in matchers})
        counted = RangeAggregation("bytes_over_time", LogQuery(matchers), max(range_ns, 1))
        summed = VectorAggregation("sum", counted, grouping=Grouping(tuple(names)))
        return VectorAggregation("topk", summed, parameter=limit_of(request, VOLUME_LIMIT))

    def detected_labels(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        values: dict[str, set[str]] = {}
        for labels in self._streams(request):
            for name, value in labels:
                values.setdefault(name, set()).add(value)
        told = [{"label": name, "cardinality": len(found)} for name, found in sorted(values.items())]
        return plain_json({"detectedLabels": told})

    def detected_fields(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        limit = request.count("limit", LINES_LOOKED_AT) or LINES_LOOKED_AT
        fields = detected_fields(self._sampled(request))
        told = [field.told() for _, field in sorted(fields.items())][:limit]
        return plain_json({"fields": told, "limit": limit})

    def field_values(self, request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        limit = request.count("limit", LINES_LOOKED_AT) or LINES_LOOKED_AT
        field = detected_fields(self._sampled(request)).get(names["name"])
        return plain_json({"values": sorted(field.values)[:limit] if field is not None else [], "limit": limit})

    def _sampled(self, request: TelemetryRequest) -> list[Entry]:
        """The newest lines that a query finds, to look for fields in."""
        trees = log_queries(self._engine.tree(request.needed("query")))
        if not trees:
            raise HarchError("E0689", "the query reads no lines")
        start_ns, end_ns = window_of(request)
        lines_max = self._engine.options.limits.entries_max
        wanted = min(request.count("line_limit", LINES_LOOKED_AT) or LINES_LOOKED_AT, lines_max)
        window = Window(start_ns, end_ns, Order.NEWEST_FIRST, wanted)
        store = self._tenants.logs(request.tenant)
        answer = self._engine.lines(trees[0], window, store, now_ns(request), query_options(request))
        return answer.value if isinstance(answer.value, list) else []

    def patterns(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        """None are looked for while lines come in; docs/sentinel/logql.md says so."""
        self._one_selector(request)
        return success([])

    def build(self, *_: object) -> Answer:
        return plain_json(
            {
                "version": _SPOKEN_VERSION,
                "application": "HarchOS SENTINEL",
                "harchosVersion": version("harch"),
                "revision": "",
                "branch": "",
                "buildUser": "",
                "buildDate": "",
                "goVersion": f"none; Python {platform.python_version()}",
            }
        )

    def ready(self, *_: object) -> Answer:
        return Answer(body=b"ready\n", content_type="text/plain")

    def _one_selector(self, request: TelemetryRequest) -> tuple[Matcher, ...]:
        """The streams of a query; of a whole query only its selector counts. `{}` means all."""
        text = request.needed("query").strip()
        if text.replace(" ", "") == "{}":
            return ()
        trees = log_queries(self._engine.tree(text))
        if not trees:
            raise HarchError("E0689", "the query reads no lines", hint='write a selector such as {job="hub"}')
        return trees[0].matchers

    def _streams(self, request: TelemetryRequest) -> Sequence[Labels]:
        """The streams that a request means: of `query`, of every `match[]`, or all."""
        texts = [*request.all("match"), *([request.one("query")] if request.one("query") else [])]
        if len(texts) > SELECTORS_MAX:
            raise HarchError("E0201", f"at most {SELECTORS_MAX} selectors may be given at once", field="match[]")
        start_ns, end_ns = self._catalog_window(request)
        chosen: list[Sequence[Matcher]] = [self._matchers(text) for text in texts] or [()]
        store = self._tenants.logs(request.tenant)
        found = {labels for matchers in chosen for labels in store.streams(matchers, start_ns, end_ns)}
        return sorted(found)

    def _catalog_window(self, request: TelemetryRequest) -> tuple[int, int]:
        if request.one("start") or request.one("since"):
            return window_of(request)
        _, end_ns = window_of(request)
        return end_ns - _SINCE_NS, end_ns

    def _matchers(self, text: str) -> Sequence[Matcher]:
        if text.replace(" ", "") in ("{}", ""):
            return ()
        trees = log_queries(self._engine.tree(text)) if "|" in text else []
        return trees[0].matchers if trees else parse_matchers(text)


def _by_name(vector: VectorResult) -> dict[str, object]:
    """Bytes by the names of labels, whatever their values."""
    sizes: dict[str, float] = {}
    for place in range(vector.series.count):
        for name, _ in vector.series.labels_of(place):
            sizes[name] = sizes.get(name, 0.0) + float(vector.values[place])
    ordered = sorted(sizes.items(), key=lambda one: -one[1])
    result = [{"metric": {name: ""}, "value": [vector.time_ms / 1000, f"{size:.0f}"]} for name, size in ordered]
    return {"resultType": "vector", "result": result}

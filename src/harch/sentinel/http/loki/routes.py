"""How is Loki's API answered?

Queries in LogQL, and the catalog that Grafana's editors and Logs Drilldown read, around one engine.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.sentinel.http.loki.messages import (
    HOUR_NS,
    MS_NS,
    duration_of,
    grid_of,
    limit_of,
    log_answer,
    now_ns,
    order_of,
    time_ns,
    wants_categories,
    window_of,
)
from harch.sentinel.http.loki.tail import LokiTail
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, plain_json, success
from harch.sentinel.http.routing import HttpRoute, SocketRoute, WorkClass
from harch.sentinel.http.tenants import LogTenants
from harch.sentinel.logql.evaluate.context import LogqlOptions, LogQueryLimits, LogQueryOptions
from harch.sentinel.logql.evaluate.engine import LogAnswer, LogqlEngine
from harch.sentinel.logql.evaluate.lines import LineWindow, LogEntry
from harch.sentinel.logql.stages.page import pages
from harch.sentinel.logql.stages.parsers import parse_json, parse_logfmt
from harch.sentinel.logql.syntax.nodes import (
    Grouping,
    Json,
    Logfmt,
    LogQuery,
    RangeAggregation,
    VectorAggregation,
    log_queries,
)
from harch.sentinel.logql.syntax.parser import parse_matchers
from harch.sentinel.logql.syntax.printer import to_text
from harch.sentinel.logql.text.values import duration_ns, size_bytes
from harch.sentinel.model.labels import Labels, Matcher
from harch.sentinel.model.logs import LineOrder, chunk_of
from harch.sentinel.promql.evaluate.context import QueryLimits
from harch.sentinel.promql.evaluate.values import VectorResult

TIMEOUT_S_MAX = 600.0


class LokiQueries:
    """Questions about logs."""

    def __init__(self, tenants: LogTenants, engine: LogqlEngine, clock: Clock) -> None:
        self._tenants = tenants
        self._engine = engine
        self._clock = clock

    def routes(self) -> list[HttpRoute]:
        both = ("GET", "POST")
        return [
            HttpRoute(both, "/loki/api/v1/query", self.instant),
            HttpRoute(both, "/loki/api/v1/query_range", self.range),
            HttpRoute(both, "/loki/api/v1/format_query", self.formatted),
        ]

    def instant(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        began_s = self._clock.monotonic_s()
        tree = self._engine.tree(request.needed("query"))
        # The public plugin sends `start` and `end` and no `time` with instant queries, for lines too.
        at_ns = time_ns(request, "time", time_ns(request, "end", now_ns(request)))
        if isinstance(tree, LogQuery):
            start_ns = time_ns(request, "start", at_ns - duration_of(request, "since", HOUR_NS))
            return self._lines(tree, request, min(start_ns, at_ns), at_ns + 1, began_s)
        store = self._tenants.logs(request.tenant)
        answer = self._engine.instant(tree, at_ns // MS_NS, store, now_ns(request), query_options(request))
        return self._reply(answer, request, began_s)

    def range(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        began_s = self._clock.monotonic_s()
        tree = self._engine.tree(request.needed("query"))
        start_ns, end_ns = window_of(request)
        if isinstance(tree, LogQuery):
            return self._lines(tree, request, start_ns, end_ns, began_s)
        grid, warnings = grid_of(request, start_ns, end_ns)
        store = self._tenants.logs(request.tenant)
        answer = self._engine.range(
            tree, grid.start_ms, grid.end_ms, grid.step_ms, store, now_ns(request), query_options(request)
        )
        return self._reply(answer, request, began_s, warnings)

    def _lines(
        self, query: LogQuery, request: TelemetryRequest, start_ns: int, end_ns: int, began_s: float
    ) -> HttpReply:
        window = LineWindow(
            start_ns,
            end_ns,
            order_of(request),
            limit_of(request, self._engine.options.limits.entries_default),
            duration_of(request, "interval", 0),
        )
        store = self._tenants.logs(request.tenant)
        answer = self._engine.lines(query, window, store, now_ns(request), query_options(request))
        return self._reply(answer, request, began_s)

    def _reply(
        self, answer: LogAnswer, request: TelemetryRequest, began_s: float, warnings: tuple[str, ...] = ()
    ) -> HttpReply:
        took_s = self._clock.monotonic_s() - began_s
        return log_answer(answer, took_s, categorized=wants_categories(request), warnings=warnings)

    def formatted(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        return success(to_text(self._engine.tree(request.needed("query"))))


def query_options(request: TelemetryRequest) -> LogQueryOptions:
    timeout_ns = duration_of(request, "timeout", 0)
    return LogQueryOptions(
        timeout_s=min(timeout_ns / 1e9, TIMEOUT_S_MAX) if timeout_ns else None,
        is_cancelled=request.is_gone,
    )


# Which fields do lines have? Metadata and what json or logfmt find in a sample of them, with a guess of the type.


FIELDS_MAX = 1_000


@dataclass(slots=True)
class DetectedField:
    """One field, the parsers that find it, and its values in the sample."""

    name: str
    parsers: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)

    def view(self) -> dict[str, Any]:
        return {
            "label": self.name,
            "type": _type_of(next(iter(self.values), "")),
            "cardinality": len(self.values),
            "parsers": sorted(self.parsers) or None,
        }


def detected_fields(entries: Iterable[LogEntry]) -> dict[str, DetectedField]:
    """Fields by name. Lines that look like JSON are read as JSON, others as logfmt."""
    found: dict[str, DetectedField] = {}

    def note(name: str, value: str, parser: str) -> None:
        known = found.get(name)
        if known is None:
            if len(found) >= FIELDS_MAX:
                return
            known = found[name] = DetectedField(name)
        known.values.add(value)
        if parser:
            known.parsers.add(parser)

    listed = list(entries)
    for entry in listed:
        for name, value in entry.metadata:
            note(name, value, "")
    for parser in ("json", "logfmt"):
        chosen = [entry for entry in listed if entry.text.lstrip().startswith("{") is (parser == "json")]
        for page in pages(chunk_of([(one.stream, one.time_ns, one.text, ()) for one in chosen]), None, whole=False):
            if parser == "json":
                parse_json(page, Json(), None)
            else:
                parse_logfmt(page, Logfmt(), None)
            for name, column in page.parsed.items():
                if not name.startswith("__error"):
                    for text in filter(None, column):
                        note(name, text, parser)
    return found


def _type_of(value: str) -> str:
    if value in ("true", "false"):
        return "boolean"
    try:
        return "int" if value.lstrip("-").isdecimal() else ("float" if float(value) is not None else "")
    except ValueError:
        pass
    if duration_ns(value) is not None:
        return "duration"
    return "bytes" if size_bytes(value) is not None else "string"


# Which logs are there? Labels, values, series, sizes and fields, as Grafana's editors and Logs Drilldown ask.


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

    def routes(self) -> list[HttpRoute]:
        both = ("GET", "POST")
        base = "/loki/api/v1"
        return [
            HttpRoute(both, f"{base}/labels", self.label_names),
            HttpRoute(both, f"{base}/label", self.label_names),
            HttpRoute(both, f"{base}/label/{{name}}/values", self.label_values),
            HttpRoute(both, f"{base}/series", self.series),
            HttpRoute(both, f"{base}/index/stats", self.stats),
            HttpRoute(both, f"{base}/index/volume", self.volume),
            HttpRoute(both, f"{base}/index/volume_range", self.volume_range),
            HttpRoute(both, f"{base}/detected_labels", self.detected_labels),
            HttpRoute(both, f"{base}/detected_fields", self.detected_fields),
            HttpRoute(both, f"{base}/detected_field/{{name}}/values", self.field_values),
            HttpRoute(both, f"{base}/patterns", self.patterns),
            HttpRoute(("GET",), f"{base}/status/buildinfo", self.build, WorkClass.QUICK),
            HttpRoute(("GET", "HEAD"), "/ready", self.ready, WorkClass.QUICK),
        ]

    def label_names(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        return success(sorted({name for labels in self._streams(request) for name, _ in labels}))

    def label_values(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        found = {value for labels in self._streams(request) for name, value in labels if name == names["name"]}
        return success(sorted(found))

    def series(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        found = self._streams(request)
        if len(found) > SERIES_MAX:
            raise HarchError(
                "E0687", f"{len(found)} streams match, at most {SERIES_MAX} can be listed", hint="narrow the selector"
            )
        return success([dict(labels) for labels in found])

    def stats(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        """Counted from the lines themselves, without their texts."""
        matchers = self._one_selector(request)
        start_ns, end_ns = window_of(request)
        store = self._tenants.logs(request.tenant)
        found = self._engine.counted(matchers, start_ns, end_ns, store, now_ns(request), query_options(request))
        streams = len(store.streams(matchers, start_ns, end_ns))
        view = {"streams": streams, "chunks": found.chunks, "entries": found.lines, "bytes": found.text_bytes}
        return plain_json(view)

    def volume(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        start_ns, end_ns = window_of(request)
        tree = self._volume_query(request, end_ns - start_ns)
        store, options = self._tenants.logs(request.tenant), query_options(request)
        answer = self._engine.instant(tree, end_ns // MS_NS, store, now_ns(request), options)
        if isinstance(answer.value, VectorResult) and request.one("aggregateBy") == "labels":
            return success(_by_name(answer.value))
        return log_answer(answer, 0.0, categorized=False)

    def volume_range(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        start_ns, end_ns = window_of(request)
        grid, warnings = grid_of(request, start_ns, end_ns)
        tree = self._volume_query(request, grid.step_ms * MS_NS)
        store, options = self._tenants.logs(request.tenant), query_options(request)
        answer = self._engine.range(tree, grid.start_ms, grid.end_ms, grid.step_ms, store, now_ns(request), options)
        return log_answer(answer, 0.0, categorized=False, warnings=warnings)

    def _volume_query(self, request: TelemetryRequest, range_ns: int) -> VectorAggregation:
        """The largest of `sum by (labels) (bytes_over_time({…}[range]))`; by the labels of the selector unless told."""
        matchers = self._one_selector(request)
        wanted = [name for text in request.all("targetLabels") for name in text.split(",") if name]
        names = wanted or sorted({matcher.name for matcher in matchers})
        counted = RangeAggregation("bytes_over_time", LogQuery(matchers), max(range_ns, 1))
        summed = VectorAggregation("sum", counted, grouping=Grouping(tuple(names)))
        return VectorAggregation("topk", summed, parameter=limit_of(request, VOLUME_LIMIT))

    def detected_labels(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        values: dict[str, set[str]] = {}
        for labels in self._streams(request):
            for name, value in labels:
                values.setdefault(name, set()).add(value)
        view = [{"label": name, "cardinality": len(found)} for name, found in sorted(values.items())]
        return plain_json({"detectedLabels": view})

    def detected_fields(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        limit = request.count("limit", LINES_LOOKED_AT) or LINES_LOOKED_AT
        fields = detected_fields(self._sampled(request))
        view = [field.view() for _, field in sorted(fields.items())][:limit]
        return plain_json({"fields": view, "limit": limit})

    def field_values(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        limit = request.count("limit", LINES_LOOKED_AT) or LINES_LOOKED_AT
        field = detected_fields(self._sampled(request)).get(names["name"])
        return plain_json({"values": sorted(field.values)[:limit] if field is not None else [], "limit": limit})

    def _sampled(self, request: TelemetryRequest) -> list[LogEntry]:
        """The newest lines that a query finds, to look for fields in."""
        trees = log_queries(self._engine.tree(request.needed("query")))
        if not trees:
            raise HarchError("E0689", "the query reads no lines")
        start_ns, end_ns = window_of(request)
        lines_max = self._engine.options.limits.entries_max
        wanted = min(request.count("line_limit", LINES_LOOKED_AT) or LINES_LOOKED_AT, lines_max)
        window = LineWindow(start_ns, end_ns, LineOrder.NEWEST_FIRST, wanted)
        store = self._tenants.logs(request.tenant)
        answer = self._engine.lines(trees[0], window, store, now_ns(request), query_options(request))
        return answer.value if isinstance(answer.value, list) else []

    def patterns(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        """None are looked for while lines come in; docs/sentinel/logql.md says so."""
        self._one_selector(request)
        return success([])

    def build(self, *_: object) -> HttpReply:
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

    def ready(self, *_: object) -> HttpReply:
        return HttpReply(body=b"ready\n", content_type="text/plain")

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
        written = [*request.all("match"), *([request.one("query")] if request.one("query") else [])]
        if len(written) > SELECTORS_MAX:
            raise HarchError("E0201", f"at most {SELECTORS_MAX} selectors may be given at once", field="match[]")
        start_ns, end_ns = self._catalog_window(request)
        chosen: list[Sequence[Matcher]] = [self._matchers(text) for text in written] or [()]
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


# Who answers what Loki would be asked? Queries, catalog and tail around one engine.


POINTS_MAX = 10_000_000  # of any one value on the way: its JSON takes some 250 MB


class Loki:
    """Loki's read API over the logs of all tenants."""

    def __init__(self, tenants: LogTenants, clock: Clock, limits: QueryLimits | None = None) -> None:
        values = limits or QueryLimits()
        values = replace(values, points_max=min(values.points_max, POINTS_MAX))
        engine = LogqlEngine(LogqlOptions(LogQueryLimits(values=values)), clock)
        self._queries = LokiQueries(tenants, engine, clock)
        self._catalog = LokiCatalog(tenants, engine)
        self._tail = LokiTail(tenants, engine, clock)

    def routes(self) -> list[HttpRoute]:
        return [*self._queries.routes(), *self._catalog.routes(), *self._tail.routes()]

    def sockets(self) -> list[SocketRoute]:
        return self._tail.sockets()

"""Which series are there? Labels, their values, series, metadata and exemplars, for those who write queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, success
from harch.sentinel.http.prometheus.results import number_text
from harch.sentinel.http.routing import HttpRoute
from harch.sentinel.http.tenants import Tenants, TenantStore
from harch.sentinel.model.labels import Labels, Matcher
from harch.sentinel.model.selection import SeriesTable
from harch.sentinel.promql.syntax.nodes import VectorSelector, walk
from harch.sentinel.promql.syntax.parser import parse, parse_selector

SELECTORS_MAX = 50
SERIES_MAX = 100_000  # of one answer, about 30 MB
_BEGINNING, _END = -(2**53), 2**53


class MetricCatalog:
    """What can be asked for."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def routes(self) -> list[HttpRoute]:
        both = ("GET", "POST")
        return [
            HttpRoute(both, "/api/v1/labels", self.label_names),
            HttpRoute(("GET",), "/api/v1/label/{name}/values", self.label_values),
            HttpRoute(both, "/api/v1/series", self.series),
            HttpRoute(("GET",), "/api/v1/metadata", self.metadata),
            HttpRoute(both, "/api/v1/query_exemplars", self.exemplars),
        ]

    def label_names(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        names: set[str] = set()
        for table in self._tables(request):
            names.update(name for name, column in table.columns.items() if column.codes.any())
        return _listed(sorted(names), request)

    def label_values(self, request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        values: set[str] = set()
        for table in self._tables(request):
            column = table.columns.get(_plain_name(names["name"]))
            if column is not None:
                values.update(column.values[code] for code in np.unique(column.codes) if code)
        return _listed(sorted(values), request)

    def series(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        if not request.all("match"):
            raise HarchError("E0201", "`match[]` is missing: select the series", field="match[]")
        found: dict[Labels, None] = {}
        limit = min(request.count("limit") or SERIES_MAX, SERIES_MAX)
        for table in self._tables(request):
            for place in range(min(table.count, limit + 1)):  # one more shows that there are more
                found[table.labels_of(place)] = None
        listed = [dict(labels) for labels in sorted(found)]
        return success(listed[:limit], warnings=_cut(len(listed), limit))

    def metadata(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        wanted, limit = request.one("metric"), request.count("limit")
        known = self._tenants.store(request.tenant).metadata()
        entries = {
            name: [{"type": one.type.value, "help": one.help, "unit": one.unit}]
            for name, one in sorted(known.items())
            if not wanted or name == wanted
        }
        return success(dict(list(entries.items())[:limit]) if limit else entries)

    def exemplars(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        store = self._tenants.store(request.tenant)
        start, end = request.time_ms("start", _BEGINNING), request.time_ms("end", _END)
        entries = []
        for node in walk(parse(request.needed("query"))):
            if isinstance(node, VectorSelector):
                for found in store.exemplars(node.matchers, start, end):
                    listed = [
                        {
                            "labels": dict(one.labels),
                            "value": number_text(one.value),
                            "timestamp": one.timestamp / 1000,
                        }
                        for one in found.exemplars
                    ]
                    entries.append({"seriesLabels": dict(found.series), "exemplars": listed})
        return success(entries)

    def _tables(self, request: TelemetryRequest) -> list[SeriesTable]:
        """The series that the request means, one table for each of its selectors; all without any."""
        selectors = request.all("match")
        if len(selectors) > SELECTORS_MAX:
            raise HarchError("E0201", f"at most {SELECTORS_MAX} selectors may be given at once", field="match[]")
        chosen: list[Sequence[Matcher]] = [parse_selector(text) for text in selectors] or [()]
        start, end = request.time_ms("start", _BEGINNING), request.time_ms("end", _END)
        store: TenantStore = self._tenants.store(request.tenant)
        return [store.series(matchers, start, end) for matchers in chosen]


def _listed(values: list[str], request: TelemetryRequest) -> HttpReply:
    limit = request.count("limit")
    return success(values[:limit] if limit else values, warnings=_cut(len(values), limit))


def _cut(count: int, limit: int) -> tuple[str, ...]:
    return ("results truncated due to limit",) if limit and count > limit else ()


def _plain_name(name: str) -> str:
    """Names that are no plain text come escaped in addresses: `U__http_2e_status` is `http.status`."""
    if not name.startswith("U__"):
        return name
    out, rest = [], name[3:]
    while rest:
        if rest.startswith("__"):
            out.append("_")
            rest = rest[2:]
        elif rest[0] == "_" and "_" in rest[1:]:
            code, _, rest = rest[1:].partition("_")
            try:
                out.append(chr(int(code, 16)))
            except (ValueError, OverflowError):
                return name
        else:
            out.append(rest[0])
            rest = rest[1:]
    return "".join(out)

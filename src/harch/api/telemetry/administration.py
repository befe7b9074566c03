"""How is telemetry erased? By selector and time, for the law; gone from answers at once, from the disk with `purge`."""

from __future__ import annotations

from collections.abc import Mapping

from harch.api.telemetry.answer import Answer
from harch.api.telemetry.ports import Tenants
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.routing import Route, Work
from harch.base.errors import HarchError
from harch.sentinel.promql.syntax.parser import parse_selector

_BEGINNING, _END = -(2**53), 2**53


class Administration:
    """Prometheus' `admin/tsdb` calls."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def routes(self) -> list[Route]:
        both = ("POST", "PUT")
        return [
            Route(both, "/api/v1/admin/tsdb/delete_series", self.delete, Work.QUERY),
            Route(both, "/api/v1/admin/tsdb/clean_tombstones", self.purge, Work.QUERY),
        ]

    def delete(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        selectors = [parse_selector(text) for text in request.all("match")]
        if not selectors:
            raise HarchError("E0201", "`match[]` is missing: say what to erase", field="match[]")
        start, end = request.time_ms("start", _BEGINNING), request.time_ms("end", _END)
        store = self._tenants.store(request.tenant)
        for matchers in selectors:
            store.delete(matchers, start, end)
        return Answer(204)

    def purge(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        self._tenants.store(request.tenant).purge()
        return Answer(204)

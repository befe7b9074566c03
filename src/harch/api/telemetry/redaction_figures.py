"""What was taken out, and by which rule? Counts for people, and as series for dashboards and alerts."""

from __future__ import annotations

from harch.api.telemetry.answer import Answer, success
from harch.api.telemetry.routing import Route, Work
from harch.base.clock import Clock, epoch_ms
from harch.sentinel.collect.redaction.redactor import Redactor
from harch.sentinel.model.labels import METRIC_NAME, labels
from harch.sentinel.model.selection import SeriesBatch

SERIES = "harchos_sentinel_redactions_total"


class RedactionFigures:
    """Counts are of all tenants together, so operators see them; they begin anew with the process, as counters do."""

    EVERY_S = 30.0

    def __init__(self, redactor: Redactor, clock: Clock) -> None:
        self._redactor, self._clock = redactor, clock

    def routes(self) -> list[Route]:
        return [Route(("GET",), "/api/v1/status/redaction", self.shown, Work.QUICK)]

    def shown(self, *_: object) -> Answer:
        hits = self._redactor.hits
        rules = [
            {"name": rule.name, "where": sorted(one.value for one in rule.where), "hits": hits[rule.name]}
            for rule in self._redactor.rules
        ]
        return success({"rules": rules})

    def series(self) -> list[SeriesBatch]:
        now_ms = epoch_ms(self._clock.now())
        return [
            SeriesBatch(labels({METRIC_NAME: SERIES, "rule": name}), (now_ms,), (float(count),))
            for name, count in self._redactor.hits.items()
        ]

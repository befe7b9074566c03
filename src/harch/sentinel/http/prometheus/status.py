"""How is SENTINEL itself? Health, versions, figures of the store, targets, and a page for other collectors."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from itertools import islice

from harch.base.clock import iso
from harch.base.errors import HarchError
from harch.sentinel.collect.scrape.loop import TargetHealth
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, plain_json, success
from harch.sentinel.http.prometheus.results import format_numbers
from harch.sentinel.http.routing import HttpRoute, WorkClass
from harch.sentinel.http.tenants import Tenants
from harch.sentinel.model.labels import METRIC_NAME, Labels, is_plain_label_name, is_plain_metric_name
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import VectorResult
from harch.sentinel.promql.syntax.parser import parse_selector

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(time_ms: int) -> datetime:
    """A time in milliseconds as a moment; also before 1970."""
    return _EPOCH + timedelta(milliseconds=time_ms)


TARGET_METADATA_MAX = 100_000  # of one answer, about 30 MB
_SPOKEN_VERSION = "3.1.0"  # of Prometheus: whose API is spoken; Grafana chooses its questions by it


class StatusRoutes:
    """What others ask before they trust the answers."""

    def __init__(
        self,
        tenants: Tenants,
        engine: QueryEngine,
        targets: Callable[[], Sequence[TargetHealth]],
        why_not_ready: Callable[[], str],
        flags: Mapping[str, str],
        listener: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        self._tenants = tenants
        self._engine = engine
        self._targets = targets
        self._why_not_ready = why_not_ready
        self._flags = flags
        self._listener = listener

    def routes(self) -> list[HttpRoute]:
        quick = WorkClass.QUICK
        return [
            HttpRoute(("GET", "HEAD"), "/-/healthy", self.healthy, quick),
            HttpRoute(("GET", "HEAD"), "/-/ready", self.ready, quick),
            HttpRoute(("GET",), "/api/v1/status/buildinfo", self.build, quick),
            HttpRoute(("GET",), "/api/v1/status/runtimeinfo", self.runtime),
            HttpRoute(("GET",), "/api/v1/status/flags", lambda *_: success(dict(self._flags)), quick),
            HttpRoute(("GET",), "/api/v1/status/config", lambda *_: success({"yaml": ""}), quick),
            HttpRoute(("GET",), "/api/v1/status/tsdb", self.store),
            HttpRoute(("GET",), "/api/v1/status/walreplay", self.replay, quick),
            HttpRoute(("GET",), "/version", lambda *_: plain_json(_build()), quick),
            HttpRoute(("GET",), "/api/v1/targets", self.targets, quick),
            HttpRoute(("GET",), "/api/v1/targets/metadata", self.target_metadata),
            HttpRoute(("GET",), "/api/v1/scrape_pools", self.pools, quick),
            HttpRoute(("GET",), "/federate", self.federate),
        ]

    def healthy(self, *_: object) -> HttpReply:
        return HttpReply(body=b"SENTINEL is healthy.\n", content_type="text/plain")

    def ready(self, *_: object) -> HttpReply:
        if why := self._why_not_ready():
            raise HarchError("E0801", why, retry_after_s=1)
        return HttpReply(body=b"SENTINEL is ready.\n", content_type="text/plain")

    def build(self, *_: object) -> HttpReply:
        return success(_build())

    def replay(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        """SENTINEL listens when its logs are read: whoever can ask gets the end of it."""
        last = self._tenants.store(request.tenant).facts()["log_segment_replayed"]
        return success({"min": 0, "max": last, "current": last, "state": "done"})

    def runtime(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        return success({**self._tenants.store(request.tenant).facts(), "listener": self._listener()})

    def store(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        facts = dict(self._tenants.store(request.tenant).facts())
        head = {
            "numSeries": facts["series_in_memory"],
            "numSamples": facts["samples_in_memory"],
        }
        return success({"headStats": head, "facts": facts})

    def targets(self, *_: object) -> HttpReply:
        listed = [
            {
                "discoveredLabels": dict(one.target.discovered),
                "labels": dict(one.target.labels),
                "scrapePool": one.target.job,
                "scrapeUrl": one.target.url,
                "globalUrl": one.target.url,
                "lastError": one.failure,
                "lastScrape": iso(moment(one.last_scrape_ms)),
                "lastScrapeDuration": one.took_s,
                "health": one.health,
                "scrapeInterval": f"{one.interval_ms / 1000:g}s",
                "scrapeTimeout": f"{one.timeout_ms / 1000:g}s",
            }
            for one in self._targets()
        ]
        return success({"activeTargets": listed, "droppedTargets": [], "droppedTargetCounts": {}})

    def target_metadata(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        """HELP, TYPE and UNIT as each target reported them last."""
        wanted, limit = request.one("metric"), request.count("limit") or TARGET_METADATA_MAX
        matchers = parse_selector(text) if (text := request.one("match_target")) else ()
        found = (
            {
                "target": dict(one.target.labels),
                **({} if wanted else {"metric": name}),
                "type": known.type.value,
                "help": known.help,
                "unit": known.unit,
            }
            for one in self._targets()
            if all(matcher.matches(dict(one.target.labels).get(matcher.name, "")) for matcher in matchers)
            for name, known in sorted(one.metadata.items())
            if not wanted or name == wanted
        )
        return success(list(islice(found, min(limit, TARGET_METADATA_MAX))))

    def pools(self, *_: object) -> HttpReply:
        return success({"scrapePools": sorted({one.target.job for one in self._targets()})})

    def federate(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        """The newest value of each chosen series, as a page that Prometheus can scrape."""
        store = self._tenants.store(request.tenant)
        lines: list[str] = []
        for text in request.all("match"):
            parse_selector(text)  # a selector and nothing else: no query may hide here
            result = self._engine.instant(text, request.now_ms, store)
            if isinstance(result.value, VectorResult):
                lines.extend(_page_lines(result.value))
        return HttpReply(body="".join(sorted(set(lines))).encode(), content_type="text/plain; version=0.0.4")


def _build() -> dict[str, str]:
    return {
        "version": _SPOKEN_VERSION,
        "application": "HarchOS SENTINEL",
        "harchosVersion": version("harch"),
        "revision": "",
        "branch": "",
        "buildUser": "",
        "buildDate": "",
        "goVersion": f"none; Python {platform.python_version()}",
    }


def _page_lines(vector: VectorResult) -> list[str]:
    lines = []
    for place, text in enumerate(format_numbers(vector.values)):
        if vector.histograms is None or vector.histograms[place] is None:
            lines.append(f"{_series_text(vector.series.labels_of(place))} {text} {vector.time_ms}\n")
    return lines


def _series_text(labels: Labels) -> str:
    """A series as a page of metrics writes it; names that are not plain stand in quotes inside the braces."""
    name = dict(labels).get(METRIC_NAME, "")
    inside = [f"{_label_name(key)}={_quoted(value)}" for key, value in labels if key != METRIC_NAME]
    if not is_plain_metric_name(name):
        return f"{{{','.join([_quoted(name), *inside])}}}"
    return f"{name}{{{','.join(inside)}}}" if inside else name


def _label_name(name: str) -> str:
    return name if is_plain_label_name(name) else _quoted(name)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

"""How do rules become notifications in this process? Runner and alert service put together, and their routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import orjson

from harch.api.telemetry.alert_page import AlertPage, Stores
from harch.api.telemetry.answer import Answer, plain_json, success
from harch.api.telemetry.peers import AlertPeers
from harch.api.telemetry.ports import Tenants
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.routing import Route, Work
from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.tenants import DEFAULT_TENANT
from harch.sentinel.alerts import api
from harch.sentinel.alerts.alert import TENANT_LABEL
from harch.sentinel.alerts.alertmanagers import Alertmanagers
from harch.sentinel.alerts.config import AlertConfig, default_config
from harch.sentinel.alerts.config_file import parse_config
from harch.sentinel.alerts.from_rules import alert_of
from harch.sentinel.alerts.notify.senders import Sender
from harch.sentinel.alerts.service import AlertService
from harch.sentinel.alerts.store import AlertStore
from harch.sentinel.collect.scrape.config import AlertingConfig, SentinelConfig
from harch.sentinel.model.histograms import stale_mask
from harch.sentinel.model.labels import METRIC_NAME
from harch.sentinel.model.matchers import Matcher, MatchKind
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.promql.evaluate.engine import Engine
from harch.sentinel.promql.evaluate.results import ScalarResult, VectorResult
from harch.sentinel.promql.syntax.parser import parse, parse_selector
from harch.sentinel.rules.alerting import ActiveAlert
from harch.sentinel.rules.definitions import RuleFile
from harch.sentinel.rules.evaluation import SentAlert, Tools
from harch.sentinel.rules.figures import Figure, group_figures
from harch.sentinel.rules.loading import default_pack, read_rule_files
from harch.sentinel.rules.ports import Sample, Vector
from harch.sentinel.rules.runner import RuleRunner
from harch.sentinel.rules.views import alerts_view, rules_view

_SAMPLES_MAX = 1_000_000
_FLAGS = ("active", "silenced", "inhibited", "unprocessed", "muted")


class Alerting:
    """Rules of the operator's tenant, and the Alertmanager that they talk to."""

    def __init__(
        self,
        tenants: Tenants,
        engine: Engine,
        configs: Sequence[tuple[SentinelConfig, Path]],
        alert_file: Path | None,
        data: Path,
        clock: Clock,
        peers: AlertPeers | None = None,
    ) -> None:
        self._tenants = tenants
        self._engine = engine
        self._external = {name: text for config, _ in configs for name, text in config.global_.external_labels.items()}
        self._service = AlertService(
            _config_of(alert_file),
            AlertStore(data / "alerts.sqlite"),
            Sender(),
            clock,
            version=version("harch"),
            position=(lambda: peers.position) if peers is not None else (lambda: 0),
        )
        self._peers = peers
        self._alertmanagers = Alertmanagers(clock)
        self._configs = configs
        self._runner = RuleRunner(
            Tools(
                evaluate=self._evaluate,
                append=self._append,
                elapsed_s=clock.monotonic_s,
                for_states=self._for_states,
                external_labels=self._external,
            ),
            clock,
            notify=self._notify,
            keep=self._service.keep_rules,
            kept=self._service.kept_rules,
            figures=self.figures,
        )
        self._runner.load(_rules_of(configs))

    async def reload(self, configs: Sequence[tuple[SentinelConfig, Path]], alert_file: Path | None) -> None:
        """Other rules and receivers from now on. Raises HarchError for a mistake, before anything changes."""
        rules = _rules_of(configs)
        receivers = _config_of(alert_file)
        self._runner.load(rules)
        await self._service.reconfigure(receivers)
        await self._alertmanagers.apply(_alertmanagers_of(configs))

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._service.run())
            group.create_task(self._runner.run())
            group.create_task(self._tell_alertmanagers())
            if self._peers is not None:
                group.create_task(self._peers.run(self._service))

    def routes(self) -> list[Route]:
        get, quick = ("GET",), Work.QUICK
        service = self._service
        return [
            Route(get, "/api/v1/rules", self._rules, quick),
            Route(get, "/api/v1/alerts", self._active, quick),
            Route(get, "/api/v2/alerts", lambda ask, _: _told(service.get_alerts(_filter(ask), _whose(ask))), quick),
            Route(
                get,
                "/api/v2/alerts/groups",
                lambda ask, _: _told(service.get_alert_groups(_filter(ask), _whose(ask))),
                quick,
            ),
            Route(
                get,
                "/api/v2/silences",
                lambda ask, _: _told(service.get_silences(ask.all("filter"), _whose(ask))),
                quick,
            ),
            Route(
                get,
                "/api/v2/silence/{id}",
                lambda ask, names: _told(service.get_silence(names["id"], _whose(ask))),
                quick,
            ),
            Route(get, "/api/v2/receivers", lambda *_: _told(service.get_receivers()), quick),
            Route(get, "/api/v2/status", lambda *_: _told(service.get_status()), quick),
            _change(("POST",), "/api/v2/alerts", lambda body, _ask, _names: service.post_alerts(body)),
            _change(
                ("POST",),
                "/api/v2/silences",
                lambda body, ask, _: service.post_silence(body, _whose(ask), ask.caller.author),
            ),
            _change(
                ("DELETE",),
                "/api/v2/silence/{id}",
                lambda _, ask, names: service.delete_silence(names["id"], _whose(ask)),
            ),
            _change(
                ("POST",),
                "/api/v2/alert/{id}/ack",
                lambda body, ask, names: service.post_ack(names["id"], body, _whose(ask), ask.caller.author),
            ),
        ]

    def figures(self) -> list[Figure]:
        return [*self._service.figures(), *self._alertmanagers.figures()]

    def all_figures(self) -> list[Figure]:
        """Those of the rules as well, for `/metrics`."""
        return [*group_figures(self._runner.groups), *self.figures()]

    async def _tell_alertmanagers(self) -> None:
        try:
            await self._alertmanagers.apply(_alertmanagers_of(self._configs))
            await asyncio.Event().wait()
        finally:
            await self._alertmanagers.close()

    def page(self, engine: Engine, stores: Stores, clock: Clock) -> AlertPage:
        """The page around each of these alerts."""
        return AlertPage(self._service.desk, lambda: self._runner.groups, engine, stores, clock)

    def _active(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        tenant = _whose(request)

        def is_wanted(alert: ActiveAlert) -> bool:
            return tenant is None or dict(alert.labels).get(TENANT_LABEL, "") == tenant

        return success(alerts_view(self._runner.groups, is_wanted))

    def _rules(self, request: TelemetryRequest, _: Mapping[str, str]) -> Answer:
        return success(
            rules_view(
                self._runner.groups,
                kind=request.one("type"),
                rule_names=request.all("rule_name"),
                group_names=request.all("rule_group"),
                files=request.all("file"),
                matchers=[parse_selector(text) for text in request.all("match")],
                without_alerts=request.flag("exclude_alerts"),
                group_limit=request.count("group_limit"),
                group_next_token=request.one("group_next_token"),
            )
        )

    # What rules need

    def _evaluate(self, expression: str, at_ms: int, /) -> Vector:
        value = self._engine.instant(expression, at_ms, self._tenants.store(DEFAULT_TENANT)).value
        if isinstance(value, ScalarResult):
            return [({}, value.value)]
        if not isinstance(value, VectorResult):
            raise HarchError("E0201", "a rule needs a vector or a scalar")
        return [
            (dict(value.series.labels_of(place)), float(value.values[place]))
            for place in range(value.series.count)
            if value.histograms is None or value.histograms[place] is None
        ]

    def _append(self, samples: Sequence[Sample], /) -> None:
        batches = [SeriesBatch(one.labels, (one.at_ms,), (one.value,)) for one in samples]
        self._tenants.store(DEFAULT_TENANT).append(batches)

    def _for_states(self, alertname: str, since_ms: int, /) -> Sequence[Sample]:
        chosen = (
            Matcher(MatchKind.EQUAL, METRIC_NAME, "ALERTS_FOR_STATE"),
            Matcher(MatchKind.EQUAL, "alertname", alertname),
        )
        found = self._tenants.store(DEFAULT_TENANT).select(chosen, since_ms, 2**53, limit=_SAMPLES_MAX)
        samples = found.samples
        told = []
        for place in range(found.series.count):
            region = slice(int(samples.first[place]), int(samples.first[place] + samples.count[place]))
            values = samples.values[region]
            if len(values) and not stale_mask(values[-1:])[0]:
                at_ms = int(samples.timestamps[region][-1])
                told.append(Sample(found.series.labels_of(place), at_ms, float(values[-1])))
        return told

    async def _notify(self, sent: list[SentAlert]) -> None:
        now_ms = self._service.now_ms()
        alerts = [alert_of(one, now_ms=now_ms, external_labels=self._external) for one in sent]
        self._alertmanagers.send(alerts)
        await self._service.put_alerts(alerts)


def _whose(request: TelemetryRequest) -> str | None:
    """The tenant whose alerts and silences a caller may see and change; None for operators: all of them."""
    return None if request.caller.is_operator else request.caller.tenant


def _change(
    methods: Sequence[str],
    path: str,
    handle: Callable[[object, TelemetryRequest, Mapping[str, str]], Awaitable[api.Answer]],
) -> Route:
    """A route that changes something: its body is JSON, and the answer comes when the change is on disk."""

    async def answer(request: TelemetryRequest, names: Mapping[str, str]) -> Answer:
        body: object = None
        if request.body:
            try:
                body = orjson.loads(request.body)
            except ValueError as problem:
                raise HarchError("E0202", f"the body is no JSON: {problem}") from problem
        return _told(await handle(body, request, names))

    return Route(methods, path, answer, Work.LOOP, is_form=False)


def _told(answer: api.Answer) -> Answer:
    status, body = answer
    return plain_json(body, status)


def _filter(request: TelemetryRequest) -> api.AlertFilter:
    flags = {name: request.one(name, "true").lower() != "false" for name in _FLAGS}
    return api.AlertFilter(filter=tuple(request.all("filter")), receiver=request.one("receiver"), **flags)


def _alertmanagers_of(configs: Sequence[tuple[SentinelConfig, Path]]) -> list[tuple[AlertingConfig, Path]]:
    return [(config.alerting, base) for config, base in configs]


def _rules_of(configs: Sequence[tuple[SentinelConfig, Path]]) -> list[RuleFile]:
    patterns = [str(base / pattern) for config, base in configs for pattern in config.rule_files]
    return [*default_pack(check_expression=parse), *read_rule_files(patterns, check_expression=parse)]


def _config_of(alert_file: Path | None) -> AlertConfig:
    return parse_config(_read(alert_file), name=str(alert_file)) if alert_file is not None else default_config()


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise HarchError("E0643", f"{path} cannot be read: {problem}") from problem

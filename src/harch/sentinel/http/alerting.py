"""How do rules become notifications in this process?

Runner and alert service put together, their routes, and the exchange of silences with other hubs.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import httpx
import msgspec
import orjson

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.ids import DEFAULT_TENANT
from harch.sentinel.alerts import api
from harch.sentinel.alerts.alert import TENANT_LABEL, alert_of
from harch.sentinel.alerts.alertmanagers import Alertmanagers
from harch.sentinel.alerts.config import AlertConfig, default_config
from harch.sentinel.alerts.config_file import parse_config
from harch.sentinel.alerts.notify.senders import NotificationSender
from harch.sentinel.alerts.service import AlertService
from harch.sentinel.alerts.shared_state import EXPORT_RECORDS_MAX, SharedState, decode_records, encode_records
from harch.sentinel.alerts.store import AlertStore
from harch.sentinel.collect.scrape.config import AlertingConfig, SentinelConfig
from harch.sentinel.http.alert_context import AlertPage, Stores
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, plain_json, success
from harch.sentinel.http.routing import HttpRoute, WorkClass
from harch.sentinel.http.tenants import Tenants
from harch.sentinel.model.histograms import stale_mask
from harch.sentinel.model.labels import METRIC_NAME, Matcher, MatchKind
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.promql.evaluate.values import ScalarResult, VectorResult
from harch.sentinel.promql.syntax.parser import parse, parse_selector
from harch.sentinel.rules.alert_state import ActiveAlert
from harch.sentinel.rules.definitions import RuleFile, RuleSample, Vector
from harch.sentinel.rules.evaluation import SentAlert, Tools
from harch.sentinel.rules.loader import default_pack, read_rule_files
from harch.sentinel.rules.runner import RuleRunner
from harch.sentinel.rules.views import SelfMetric, alerts_view, group_metrics, rules_view

EVERY_S = 1.0  # how soon own news are sent, and a hub that failed is asked again
WAIT_S = 10.0  # how long the hub may keep a question open until it has an answer
ANSWER_S = 5.0
ALL_AGAIN_S = 600.0  # everything is sent again, so that what got lost on the way is lost for minutes at most
PIECE_BYTES_MAX = 256 * 1024  # of one exchange; what does not fit follows with the next
_log = logging.getLogger("harch.sentinel")


class AlertPeers:
    """Keeps the shared state of alerts alike at all hubs of a country. `position` says who notifies first."""

    def __init__(
        self,
        hub_url: str,
        token: str,
        clock: Clock,
        transport: httpx.AsyncBaseTransport | None = None,
        on_answer: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """`on_heard` is called with each answer of the hub how many keys it has revoked so far."""
        self._url = f"{hub_url}/v1/sentinel/alert-records"
        self._clock, self._on_answer = clock, on_answer
        self._client = httpx.AsyncClient(
            timeout=ANSWER_S, trust_env=False, transport=transport, headers={"X-API-Key": token}
        )
        self._sent_number, self._sent_life = 0, 0  # up to which number of our records the others know; begun how often
        self._sent_all_s = clock.monotonic_s()
        self._revoked = 0  # keys that the hub had revoked when it answered last
        self.position = 0
        self.answered_s = clock.monotonic_s()  # when the hub answered last

    async def run(self, service: AlertService) -> None:
        """Until cancelled: asks the hub, which answers when it has news, and sends own news beside that.

        A hub that does not answer is asked again; nothing is lost meanwhile.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen(service))
                group.create_task(self._publish(service))
        finally:
            await self._client.aclose()

    async def _listen(self, service: AlertService) -> None:
        while True:
            began_s = self._clock.monotonic_s()
            answered = await self._survived(self.receive(service))
            if not answered or self._clock.monotonic_s() - began_s < EVERY_S:  # an older hub does not wait
                await self._clock.sleep(EVERY_S)

    async def _publish(self, service: AlertService) -> None:
        while True:
            await self._clock.sleep(EVERY_S)
            await self._survived(self.publish(service))

    async def _survived(self, call: Coroutine[None, None, None]) -> bool:
        try:
            await call
        except (httpx.HTTPError, msgspec.ValidationError, HarchError, ValueError) as problem:
            _log.debug("could not exchange alert records: %s", problem)
            return False
        return True

    async def receive(self, service: AlertService) -> None:
        """Waits for what is new at the hub."""
        await self._request(service, {"wait_s": WAIT_S, "position": self.position, "revoked": self._revoked}, WAIT_S)

    async def publish(self, service: AlertService) -> None:
        """Sends what is new here, as much of it as fits into one request; nothing if nothing is."""
        if self._clock.monotonic_s() - self._sent_all_s > ALL_AGAIN_S:
            self._begin_anew()
        life = self._sent_life
        piece, number = _news(service.machine.shared, self._sent_number)
        if not piece:
            return
        await self._request(service, {"records": base64.b64encode(piece).decode()}, 0.0)
        if life == self._sent_life:  # or everything is to be sent again
            self._sent_number = number

    async def _request(self, service: AlertService, request: dict[str, object], wait_s: float) -> None:
        answer = await self._client.post(self._url, json=request, timeout=ANSWER_S + wait_s)
        answer.raise_for_status()
        reply = answer.json()
        self.answered_s = self._clock.monotonic_s()
        revoked = int(reply.get("revoked", 0))
        if self._on_answer is not None:
            await self._on_answer(revoked)
        self._revoked = revoked
        for text in reply["records"]:
            await service.merge(decode_records(base64.b64decode(text)))
            await asyncio.sleep(0)
        self.position = int(reply["position"])
        if reply["tell_all"]:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Sends everything again, from the first record on."""
        self._sent_life += 1
        self._sent_number, self._sent_all_s = 0, self._clock.monotonic_s()


def _news(shared: SharedState, after: int) -> tuple[bytes, int]:
    """As many changes as fit into one exchange, and the number to go on from."""
    limit = EXPORT_RECORDS_MAX
    while True:
        records, number = shared.export_changes(after, limit=limit)
        body = encode_records(records) if records else b""
        if len(body) <= PIECE_BYTES_MAX or limit == 1:
            return body, number
        limit //= 2


# How do rules become notifications in this process? Runner and alert service put together, and their routes.


_SAMPLES_MAX = 1_000_000
_FLAGS = ("active", "silenced", "inhibited", "unprocessed", "muted")


class Alerting:
    """Rules of the operator's tenant, and the Alertmanager that they talk to."""

    def __init__(
        self,
        tenants: Tenants,
        engine: QueryEngine,
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
            NotificationSender(),
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
            self_metrics=self.self_metrics,
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
            group.create_task(self._send_to_alertmanagers())
            if self._peers is not None:
                group.create_task(self._peers.run(self._service))

    def routes(self) -> list[HttpRoute]:
        get, quick = ("GET",), WorkClass.QUICK
        service = self._service
        return [
            HttpRoute(get, "/api/v1/rules", self._rules, quick),
            HttpRoute(get, "/api/v1/alerts", self._active, quick),
            HttpRoute(
                get,
                "/api/v2/alerts",
                lambda request, _: _reply(service.get_alerts(_filter(request), _tenant_scope(request))),
                quick,
            ),
            HttpRoute(
                get,
                "/api/v2/alerts/groups",
                lambda request, _: _reply(service.get_alert_groups(_filter(request), _tenant_scope(request))),
                quick,
            ),
            HttpRoute(
                get,
                "/api/v2/silences",
                lambda request, _: _reply(service.get_silences(request.all("filter"), _tenant_scope(request))),
                quick,
            ),
            HttpRoute(
                get,
                "/api/v2/silence/{id}",
                lambda request, names: _reply(service.get_silence(names["id"], _tenant_scope(request))),
                quick,
            ),
            HttpRoute(get, "/api/v2/receivers", lambda *_: _reply(service.get_receivers()), quick),
            HttpRoute(get, "/api/v2/status", lambda *_: _reply(service.get_status()), quick),
            _change(("POST",), "/api/v2/alerts", lambda body, _request, _names: service.post_alerts(body)),
            _change(
                ("POST",),
                "/api/v2/silences",
                lambda body, request, _: service.post_silence(body, _tenant_scope(request), request.caller.author),
            ),
            _change(
                ("DELETE",),
                "/api/v2/silence/{id}",
                lambda _, request, names: service.delete_silence(names["id"], _tenant_scope(request)),
            ),
            _change(
                ("POST",),
                "/api/v2/alert/{id}/ack",
                lambda body, request, names: service.post_ack(
                    names["id"], body, _tenant_scope(request), request.caller.author
                ),
            ),
        ]

    def self_metrics(self) -> list[SelfMetric]:
        return [*self._service.self_metrics(), *self._alertmanagers.self_metrics()]

    def all_self_metrics(self) -> list[SelfMetric]:
        """Those of the rules as well, for `/metrics`."""
        return [*group_metrics(self._runner.groups), *self.self_metrics()]

    async def _send_to_alertmanagers(self) -> None:
        try:
            await self._alertmanagers.apply(_alertmanagers_of(self._configs))
            await asyncio.Event().wait()
        finally:
            await self._alertmanagers.close()

    def page(self, engine: QueryEngine, stores: Stores, clock: Clock) -> AlertPage:
        """The page around each of these alerts."""
        return AlertPage(self._service.machine, lambda: self._runner.groups, engine, stores, clock)

    def _active(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
        tenant = _tenant_scope(request)

        def is_wanted(alert: ActiveAlert) -> bool:
            return tenant is None or dict(alert.labels).get(TENANT_LABEL, "") == tenant

        return success(alerts_view(self._runner.groups, is_wanted))

    def _rules(self, request: TelemetryRequest, _: Mapping[str, str]) -> HttpReply:
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

    def _append(self, samples: Sequence[RuleSample], /) -> None:
        batches = [SeriesBatch(one.labels, (one.at_ms,), (one.value,)) for one in samples]
        self._tenants.store(DEFAULT_TENANT).append(batches)

    def _for_states(self, alertname: str, since_ms: int, /) -> Sequence[RuleSample]:
        chosen = (
            Matcher(MatchKind.EQUAL, METRIC_NAME, "ALERTS_FOR_STATE"),
            Matcher(MatchKind.EQUAL, "alertname", alertname),
        )
        found = self._tenants.store(DEFAULT_TENANT).select(chosen, since_ms, 2**53, limit=_SAMPLES_MAX)
        samples = found.samples
        converted = []
        for place in range(found.series.count):
            region = slice(int(samples.first[place]), int(samples.first[place] + samples.count[place]))
            values = samples.values[region]
            if len(values) and not stale_mask(values[-1:])[0]:
                at_ms = int(samples.timestamps[region][-1])
                converted.append(RuleSample(found.series.labels_of(place), at_ms, float(values[-1])))
        return converted

    async def _notify(self, sent: list[SentAlert]) -> None:
        now_ms = self._service.now_ms()
        alerts = [alert_of(one, now_ms=now_ms, external_labels=self._external) for one in sent]
        self._alertmanagers.send(alerts)
        await self._service.put_alerts(alerts)


def _tenant_scope(request: TelemetryRequest) -> str | None:
    """The tenant whose alerts and silences a caller may see and change; None for operators: all of them."""
    return None if request.caller.is_operator else request.caller.tenant


def _change(
    methods: Sequence[str],
    path: str,
    handle: Callable[[object, TelemetryRequest, Mapping[str, str]], Awaitable[api.Answer]],
) -> HttpRoute:
    """A route that changes something: its body is JSON, and the answer comes when the change is on disk."""

    async def answer(request: TelemetryRequest, names: Mapping[str, str]) -> HttpReply:
        body: object = None
        if request.body:
            try:
                body = orjson.loads(request.body)
            except ValueError as problem:
                raise HarchError("E0202", f"the body is not JSON: {problem}") from problem
        return _reply(await handle(body, request, names))

    return HttpRoute(methods, path, answer, WorkClass.LOOP, is_form=False)


def _reply(answer: api.Answer) -> HttpReply:
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

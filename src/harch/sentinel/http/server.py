"""How does SENTINEL run as a process? `harch sentinel serve`: stores, collectors, rules, API, an orderly end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from harch.base.clock import Clock, SteadyClock, SystemClock
from harch.base.errors import HarchError
from harch.base.http.server import serve_api
from harch.base.ids import DEFAULT_TENANT
from harch.base.listen.gate import ConnectionGate, limits_from_env, raise_descriptor_limit
from harch.sentinel.archive.folder import ArchiveFolder
from harch.sentinel.collect.scrape.config import SentinelConfig, read_config
from harch.sentinel.collect.scrape.loop import NO_METADATA, ScrapePool
from harch.sentinel.http.access import Authenticator, HubAuthenticator, OpenAuthenticator, TokenAuthenticator
from harch.sentinel.http.alert_context import Stores
from harch.sentinel.http.alerting import Alerting, AlertPeers
from harch.sentinel.http.app import TelemetryApp
from harch.sentinel.http.erasure import Administration, Erasing
from harch.sentinel.http.federated.disclosure import readers_of
from harch.sentinel.http.federated.routes import Federated
from harch.sentinel.http.ingest.logs_and_traces import Incoming, hub_of
from harch.sentinel.http.ingest.metrics import MetricWrites
from harch.sentinel.http.loki.routes import Loki
from harch.sentinel.http.messages import HttpReply, TelemetryRequest
from harch.sentinel.http.prometheus.catalog import MetricCatalog
from harch.sentinel.http.prometheus.queries import PublicPlugin, Queries
from harch.sentinel.http.prometheus.status import StatusRoutes
from harch.sentinel.http.routing import HttpRoute, Routes, WorkClass
from harch.sentinel.http.self_metrics import DamageMetrics, OwnMetrics
from harch.sentinel.http.settings import SentinelSettings, read_settings
from harch.sentinel.http.traces import Tempo, Traces
from harch.sentinel.model.labels import MetricMetadata
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.promql.evaluate.engine import QueryEngine
from harch.sentinel.store.tenants import StoreFolder
from harch.sentinel.warmup import warm_all

LOOK_EVERY_S = 5.0
WITHOUT_HUB_S_MAX = 24 * 3600.0  # the alert about the hub was sent many times by then, by peers, too


async def until_not_needed(held: Path, answered_s: Callable[[], float], clock: Clock) -> str:
    """Returns why. `held` is a file that this process has locked; `heard_s` says when the hub answered last."""
    before = _inode(held)
    while True:
        await clock.sleep(LOOK_EVERY_S)
        if _inode(held) != before:
            return f"{held.parent} is gone"
        if clock.monotonic_s() - answered_s() > WITHOUT_HUB_S_MAX:
            return f"its hub has not responded for {WITHOUT_HUB_S_MAX / 3600:.0f} hours"


def _inode(path: Path) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


UPKEEP_EVERY_S = 30.0
SWITCH_S = 0.0005  # how long a thread of Python may hold up others: a write waits for no long answer
_LOOPBACK = ("127.", "::1", "localhost")
_log = logging.getLogger("harch.sentinel")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the command line says."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 9090
    configs: Sequence[Path] = ()
    alerts: Path | None = None
    settings: Path | None = None
    token_file: Path | None = None
    hub_url: str = ""


async def serve_sentinel(
    options: ServeOptions,
    *,
    write_record: Callable[[Path], bool] = lambda _data: False,
    listening: Callable[[int], None] | None = None,
    recorded: Callable[[], None] | None = None,
) -> None:
    """Until SIGTERM or SIGINT. Raises HarchError for what people can mend.

    `write_record` leaves a record of this process beside its data, if a hub started it; `recorded` is called when a
    hub that starts anew would find it.
    """
    clock = SteadyClock(SystemClock())
    sys.setswitchinterval(SWITCH_S)
    raise_descriptor_limit()
    gate = ConnectionGate("telemetry", limits_from_env())
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    settings = read_settings(options.settings)
    configs = read_configs(options)
    authenticator = authenticator_for(options, clock)
    async with AsyncExitStack() as closing:
        if isinstance(authenticator, HubAuthenticator):
            closing.push_async_callback(authenticator.close)
        await asyncio.to_thread(warm_all)
        folder = await asyncio.to_thread(StoreFolder, options.data, clock, settings.store, settings.retention)
        closing.callback(folder.close)
        archive = await asyncio.to_thread(ArchiveFolder, options.data, clock, settings.archive)
        closing.callback(archive.close)
        sentinel = Sentinel(folder, archive, settings, configs, options, authenticator, clock, gate)
        closing.push_async_callback(sentinel.close)
        loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(_reload(sentinel)))
        if write_record(options.data):
            if recorded is not None:
                recorded()
            ending = asyncio.create_task(_end_when_not_needed(sentinel, folder.lock_file, stop, clock))
            closing.callback(ending.cancel)
        await sentinel.run_until(stop, options, listening)


async def _end_when_not_needed(sentinel: Sentinel, held: Path, stop: asyncio.Event, clock: Clock) -> None:
    why = await until_not_needed(held, sentinel.hub_answered_s, clock)
    _log.warning("SENTINEL is stopping: %s", why)
    stop.set()


def read_configs(options: ServeOptions) -> list[tuple[SentinelConfig, Path]]:
    """What the files name, each with the folder that its own paths start from."""
    return [(read_config(path), path.parent) for path in options.configs]


async def _reload(sentinel: Sentinel) -> None:
    try:
        await sentinel.reload()
        _log.info("configuration reloaded")
    except HarchError as problem:
        _log.error("keeping the previous configuration: %s", problem.message)


class Sentinel:
    """The parts of one process, put together."""

    def __init__(
        self,
        folder: StoreFolder,
        archive: ArchiveFolder,
        settings: SentinelSettings,
        configs: Sequence[tuple[SentinelConfig, Path]],
        options: ServeOptions,
        authenticator: Authenticator,
        clock: Clock,
        gate: ConnectionGate | None = None,
    ) -> None:
        self._folder = folder
        self._gate = gate or ConnectionGate("telemetry")
        self._archive = archive
        self._clock = clock
        engine = QueryEngine(settings.engine, clock)
        self._options = options
        self._damage = DamageMetrics(folder, archive, options.data, clock)
        self._configs = configs
        self._scraping = ScrapePool(clock, self._keep)
        self._peers: AlertPeers | None = None
        if isinstance(authenticator, HubAuthenticator):
            self._peers = AlertPeers(options.hub_url, token_of(options), clock, on_answer=authenticator.hub_answered)
        self._alerting = Alerting(folder, engine, configs, options.alerts, options.data, clock, self._peers)
        self._federated: Federated | None = None
        if options.hub_url:
            self._federated = Federated(
                options.hub_url,
                token_of(options),
                settings.federated,
                readers_of(folder, archive),
                engine,
                options.data,
                clock,
            )
        hub_id = hub_of(configs) if options.hub_url else ""
        self._incoming = Incoming(archive, settings.redaction, hub_id, clock)
        loki = Loki(archive, clock, settings.engine.limits)
        traces = Traces(archive, archive)
        self._page = self._alerting.page(engine, Stores(folder, archive, archive), clock)
        queries = Queries(folder, engine)
        routes = [
            *MetricWrites(folder).routes(),
            *self._incoming.routes(),
            *queries.routes(),
            *PublicPlugin(folder, engine, queries).routes(),
            *MetricCatalog(folder).routes(),
            *StatusRoutes(
                folder,
                engine,
                self._scraping.health,
                lambda: "",
                {"storage.path": str(options.data)},
                self._gate.facts,
            ).routes(),
            HttpRoute(("POST", "PUT"), "/-/reload", self._reloaded, WorkClass.LOOP),
            *Administration(folder).routes(),
            *Erasing(archive).routes(),
            *loki.routes(),
            *traces.routes(),
            *Tempo(archive, traces).routes(),
            *self._alerting.routes(),
            *self._page.routes(),
        ]
        if self._federated is not None:
            routes = [*self._federated.over_hubs(routes), *self._federated.routes()]
        requests: Counter[tuple[str, int]] = Counter()
        own = OwnMetrics(folder, self._alerting.all_self_metrics, lambda: requests)
        routes.append(HttpRoute(("GET",), "/metrics", own.page))
        self.routes, self.sockets = routes, loki.sockets()
        self.app = TelemetryApp(Routes(routes), authenticator, clock, self.sockets, requests)

    async def run_until(
        self, stop: asyncio.Event, options: ServeOptions, listening: Callable[[int], None] | None
    ) -> None:
        async def wait_for_stop() -> None:
            await stop.wait()
            raise _Stopped

        self._incoming.keep_own_lines(options.data)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(serve_api(self.app, options.host, options.port, gate=self._gate, listening=listening))
                group.create_task(self._upkeep())
                group.create_task(self._report_damage())
                group.create_task(self._incoming.run(self._keep))
                group.create_task(self._alerting.run())
                group.create_task(self._scrape())
                group.create_task(wait_for_stop())
        except* _Stopped:
            _log.info("SENTINEL is stopping")
        except* HarchError as errors:
            found: BaseException = errors
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            raise found from None

    def hub_answered_s(self) -> float:
        """When the hub beside it answered last, or this process began."""
        return self._peers.answered_s if self._peers is not None else self._clock.monotonic_s()

    async def close(self) -> None:
        await self._incoming.close()
        self.app.close()
        self._page.close()
        if self._federated is not None:
            await self._federated.close()

    async def reload(self) -> None:
        """Reads all files again. Raises HarchError for a mistake in any of them; what ran before goes on then."""
        configs = read_configs(self._options)
        await self._alerting.reload(configs, self._options.alerts)
        await self._scraping.apply(configs)

    async def _reloaded(self, _request: TelemetryRequest, _names: Mapping[str, str]) -> HttpReply:
        await self.reload()
        return HttpReply(204)

    async def _scrape(self) -> None:
        try:
            await self._scraping.apply(self._configs)
            await asyncio.Event().wait()
        finally:
            await self._scraping.close()

    async def _keep(
        self, batches: Sequence[SeriesBatch], metadata: Mapping[str, MetricMetadata] = NO_METADATA, /
    ) -> None:
        """What is scraped belongs to the operator's tenant."""
        store = self._folder.store(DEFAULT_TENANT)
        store.describe(metadata)  # before the samples: it is durable with the write that follows
        await asyncio.to_thread(store.append, batches)

    async def _report_damage(self) -> None:
        while True:
            try:
                await self._keep(await asyncio.to_thread(self._damage.series))
            except (HarchError, OSError) as problem:
                _log.warning("could not save counts of damaged files: %s", problem)
            await self._clock.sleep(DamageMetrics.EVERY_S)

    async def _upkeep(self) -> None:
        """Blocks, compaction and retention, in a thread of their own: neither writes nor queries wait for it."""
        while True:
            await self._clock.sleep(UPKEEP_EVERY_S)
            for name in self._folder.names():
                try:
                    await asyncio.to_thread(self._folder.store(name).maintain)
                except (HarchError, OSError) as problem:
                    _log.error("maintenance of tenant %s failed, will retry: %s", name, problem)
            for name in self._archive.names():
                try:
                    await asyncio.to_thread(self._archive.maintain, name)
                except (HarchError, OSError) as problem:
                    _log.error("maintenance of logs and traces of %s failed, will retry: %s", name, problem)


def token_of(options: ServeOptions) -> str:
    """What the token file says; empty without one. Raises E0101 for a file that says nothing."""
    if options.token_file is None:
        return ""
    try:
        token = options.token_file.read_text("utf-8").strip()
    except OSError as problem:
        raise HarchError("E0101", f"cannot read {options.token_file}: {problem.strerror}") from problem
    if not token:
        raise HarchError("E0101", f"{options.token_file} is empty", hint="put a long random string into it")
    return token


def authenticator_for(options: ServeOptions, clock: Clock) -> Authenticator:
    token = token_of(options)
    if options.hub_url:
        return HubAuthenticator(options.hub_url, token, clock.monotonic_s)
    if token:
        return TokenAuthenticator(token)
    if not options.host.startswith(_LOOPBACK):
        raise HarchError(
            "E0101",
            f"any client that reaches {options.host} could read and write all telemetry",
            hint="pass --token-file, or listen on 127.0.0.1",
        )
    return OpenAuthenticator()


class _Stopped(Exception):
    """Ends the task group: somebody asked the process to stop."""

"""How does SENTINEL run as a process? `harch sentinel serve`: stores, collectors, rules, API, an orderly end."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from harch.api.sentinel_child import write_own_record
from harch.api.server import serve_api
from harch.api.telemetry.access import Doorkeeper, HubDoor, OpenDoor, TokenDoor
from harch.api.telemetry.administration import Administration
from harch.api.telemetry.alert_page import Stores
from harch.api.telemetry.alerting import Alerting
from harch.api.telemetry.answer import Answer
from harch.api.telemetry.app import TelemetryApp
from harch.api.telemetry.catalog import Catalog
from harch.api.telemetry.damage_figures import DamageFigures
from harch.api.telemetry.erasing import Erasing
from harch.api.telemetry.federated import Federated
from harch.api.telemetry.incoming import Incoming, hub_of
from harch.api.telemetry.loki import Loki
from harch.api.telemetry.orphan import until_not_needed
from harch.api.telemetry.own_metrics import OwnMetrics
from harch.api.telemetry.peers import AlertPeers
from harch.api.telemetry.public_plugin import PublicPlugin
from harch.api.telemetry.queries import Queries
from harch.api.telemetry.readers import readers_of
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.routing import Route, Routes, Work
from harch.api.telemetry.settings import SentinelSettings, read_settings
from harch.api.telemetry.status import Status
from harch.api.telemetry.tempo import Tempo
from harch.api.telemetry.traces import Traces
from harch.api.telemetry.writes import Writes
from harch.base.clock import Clock, SystemClock
from harch.base.errors import HarchError
from harch.base.listen.gate import ConnectionGate
from harch.base.listen.limits import limits_from_env, raise_descriptor_limit
from harch.base.steady import SteadyClock
from harch.base.tenants import DEFAULT_TENANT
from harch.sentinel.archive.folder import ArchiveFolder
from harch.sentinel.collect.scrape.config import SentinelConfig, read_config
from harch.sentinel.collect.scrape.loop import NO_METADATA
from harch.sentinel.collect.scrape.pool import ScrapePool
from harch.sentinel.model.metadata import Metadata
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.promql.evaluate.engine import Engine
from harch.sentinel.store.tenants import StoreFolder
from harch.sentinel.warming import warm_all

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
    listening: Callable[[int], None] | None = None,
    recorded: Callable[[], None] | None = None,
) -> None:
    """Until SIGTERM or SIGINT. Raises HarchError for what people can mend.

    `recorded` is called when a hub that starts anew would find this process.
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
    door = door_of(options, clock)
    async with AsyncExitStack() as closing:
        if isinstance(door, HubDoor):
            closing.push_async_callback(door.close)
        await asyncio.to_thread(warm_all)
        folder = await asyncio.to_thread(StoreFolder, options.data, clock, settings.store, settings.retention)
        closing.callback(folder.close)
        archive = await asyncio.to_thread(ArchiveFolder, options.data, clock, settings.archive)
        closing.callback(archive.close)
        sentinel = Sentinel(folder, archive, settings, configs, options, door, clock, gate)
        closing.push_async_callback(sentinel.close)
        loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(_reload(sentinel)))
        if write_own_record(options.data):
            if recorded is not None:
                recorded()
            ending = asyncio.create_task(_end_when_not_needed(sentinel, folder.lock_file, stop, clock))
            closing.callback(ending.cancel)
        await sentinel.run_until(stop, options, listening)


async def _end_when_not_needed(sentinel: Sentinel, held: Path, stop: asyncio.Event, clock: Clock) -> None:
    why = await until_not_needed(held, sentinel.hub_heard_s, clock)
    _log.warning("SENTINEL ends: %s", why)
    stop.set()


def read_configs(options: ServeOptions) -> list[tuple[SentinelConfig, Path]]:
    """What the files name, each with the folder that its own paths start from."""
    return [(read_config(path), path.parent) for path in options.configs]


async def _reload(sentinel: Sentinel) -> None:
    try:
        await sentinel.reload()
        _log.info("files were read again")
    except HarchError as problem:
        _log.error("what ran before goes on: %s", problem.message)


class Sentinel:
    """The parts of one process, put together."""

    def __init__(
        self,
        folder: StoreFolder,
        archive: ArchiveFolder,
        settings: SentinelSettings,
        configs: Sequence[tuple[SentinelConfig, Path]],
        options: ServeOptions,
        door: Doorkeeper,
        clock: Clock,
        gate: ConnectionGate | None = None,
    ) -> None:
        self._folder = folder
        self._gate = gate or ConnectionGate("telemetry")
        self._archive = archive
        self._clock = clock
        engine = Engine(settings.engine, clock)
        self._options = options
        self._damage = DamageFigures(folder, archive, options.data, clock)
        self._configs = configs
        self._scraping = ScrapePool(clock, self._keep)
        self._peers: AlertPeers | None = None
        if isinstance(door, HubDoor):
            self._peers = AlertPeers(options.hub_url, token_of(options), clock, on_heard=door.hub_heard)
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
            *Writes(folder).routes(),
            *self._incoming.routes(),
            *queries.routes(),
            *PublicPlugin(folder, engine, queries).routes(),
            *Catalog(folder).routes(),
            *Status(
                folder,
                engine,
                self._scraping.health,
                lambda: "",
                {"storage.path": str(options.data)},
                self._gate.facts,
            ).routes(),
            Route(("POST", "PUT"), "/-/reload", self._reloaded, Work.LOOP),
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
        own = OwnMetrics(folder, self._alerting.all_figures, lambda: requests)
        routes.append(Route(("GET",), "/metrics", own.page))
        self.routes, self.sockets = routes, loki.sockets()
        self.app = TelemetryApp(Routes(routes), door, clock, self.sockets, requests)

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
            _log.info("SENTINEL stops")
        except* HarchError as errors:
            found: BaseException = errors
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            raise found from None

    def hub_heard_s(self) -> float:
        """When the hub beside it answered last, or this process began."""
        return self._peers.heard_s if self._peers is not None else self._clock.monotonic_s()

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

    async def _reloaded(self, _request: TelemetryRequest, _names: Mapping[str, str]) -> Answer:
        await self.reload()
        return Answer(204)

    async def _scrape(self) -> None:
        try:
            await self._scraping.apply(self._configs)
            await asyncio.Event().wait()
        finally:
            await self._scraping.close()

    async def _keep(self, batches: Sequence[SeriesBatch], metadata: Mapping[str, Metadata] = NO_METADATA, /) -> None:
        """What is scraped belongs to the operator's tenant."""
        store = self._folder.store(DEFAULT_TENANT)
        store.describe(metadata)  # before the samples: it is durable with the write that follows
        await asyncio.to_thread(store.append, batches)

    async def _report_damage(self) -> None:
        while True:
            try:
                await self._keep(await asyncio.to_thread(self._damage.series))
            except (HarchError, OSError) as problem:
                _log.warning("counts of damaged files are not kept now: %s", problem)
            await self._clock.sleep(DamageFigures.EVERY_S)

    async def _upkeep(self) -> None:
        """Blocks, compaction and retention, in a thread of their own: neither writes nor queries wait for it."""
        while True:
            await self._clock.sleep(UPKEEP_EVERY_S)
            for name in self._folder.names():
                try:
                    await asyncio.to_thread(self._folder.store(name).maintain)
                except (HarchError, OSError) as problem:
                    _log.error("upkeep of tenant %s failed and is tried again: %s", name, problem)
            for name in self._archive.names():
                try:
                    await asyncio.to_thread(self._archive.maintain, name)
                except (HarchError, OSError) as problem:
                    _log.error("upkeep of logs and traces of %s failed and is tried again: %s", name, problem)


def token_of(options: ServeOptions) -> str:
    """What the token file says; empty without one. Raises E0101 for a file that says nothing."""
    if options.token_file is None:
        return ""
    try:
        token = options.token_file.read_text("utf-8").strip()
    except OSError as problem:
        raise HarchError("E0101", f"cannot read {options.token_file}: {problem.strerror}") from problem
    if not token:
        raise HarchError("E0101", f"{options.token_file} is empty", hint="put a long random text into it")
    return token


def door_of(options: ServeOptions, clock: Clock) -> Doorkeeper:
    token = token_of(options)
    if options.hub_url:
        return HubDoor(options.hub_url, token, clock.monotonic_s)
    if token:
        return TokenDoor(token)
    if not options.host.startswith(_LOOPBACK):
        raise HarchError(
            "E0101",
            f"whoever reaches {options.host} could read and write all telemetry",
            hint="give --token-file, or listen on 127.0.0.1",
        )
    return OpenDoor()


class _Stopped(Exception):
    """Ends the task group: somebody asked the process to stop."""

"""How does a hub run as a process? `harch hub serve`: state folder, control plane, API, an orderly end."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from harch.api.app import create_app
from harch.api.sentinel_process import SENTINEL_KEY, SentinelChild, is_kept, stop_left_over
from harch.base.clock import SystemClock
from harch.base.config import Home, Ports
from harch.base.errors import HarchError, InvariantBroken
from harch.base.fork_server import next_server
from harch.base.http.server import serve_api
from harch.base.ids import DEFAULT_TENANT
from harch.base.listen.gate import ConnectionGate, Gates, limits_from_env, raise_descriptor_limit
from harch.base.tracing.exporter import ProcessTracing, open_tracing
from harch.base.tracing.spans import Attributes
from harch.base.tracing.tracer import Tracing
from harch.execution.isolation.sandbox import workers_mode
from harch.federation.identity.folder import identity_folder
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.offers import LeaseTerms
from harch.fleet.model import Fleet
from harch.hub.keys import ensure_key_file
from harch.hub.sentinel_access import SentinelClient
from harch.hub.service import HubService, build_hub
from harch.hub.views import Role
from harch.placement.queueing.settings import FILE_NAME, QueueSettings, parse_settings

if TYPE_CHECKING:
    from harch.sentinel.log_shipper.shipper import Shipper

EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 (what people write to listen on all of them)

_log = logging.getLogger("harch.hub")


@dataclass(frozen=True, slots=True)
class HubConfig:
    """Which hub of which fleet, where its state lives, where it listens, and where its peers do."""

    fleet: Fleet
    hub_id: str
    home: Home
    ports: Ports
    host: str = "127.0.0.1"
    scheduling: Path | None = None  # a scheduling file; None: the one in the state folder, if there is one
    peer_listen: tuple[str, int] | None = None  # where peers are accepted; None: at the address of its member record
    leases: LeaseTerms | None = None  # of work that other hubs run for this one; None: as usual

    @property
    def index(self) -> int:
        return [hub.id for hub in self.fleet.hubs].index(self.hub_id)

    @property
    def port(self) -> int:
        return self.ports.api(self.index)

    def url_of(self, hub_id: str, identity: HubIdentity | None = None) -> str:
        """Of another hub it is a guess, until that hub says so itself.

        A hub that listens on every address is reached where its peers reach it.
        """
        index = [hub.id for hub in self.fleet.hubs].index(hub_id)
        host = self.host
        if host in EVERY_ADDRESS:
            host = identity.member.address.host if identity is not None else "127.0.0.1"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.ports.api(index)}"

    @property
    def telemetry_url(self) -> str:
        """Where the hub itself reaches its SENTINEL."""
        host = "127.0.0.1" if self.host in EVERY_ADDRESS else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.ports.telemetry(self.index)}"

    @property
    def state_dir(self) -> Path:
        return self.home.hub(self.hub_id)

    def identity(self) -> HubIdentity | None:
        """None if nobody has made this hub part of a federation."""
        folder = identity_folder(self.home, self.hub_id)
        return HubIdentity(folder) if folder.is_complete else None

    @property
    def agent_key(self) -> Path:
        return self.state_dir / "agent.key"

    def turn_settings(self) -> QueueSettings:
        """Raises E0201 with every mistake of the file, E0202 if it cannot be read."""
        path = self.scheduling or self.state_dir / FILE_NAME
        if self.scheduling is None and not path.exists():
            return QueueSettings()
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise HarchError("E0202", f"{path} cannot be read: {error}", hint="give the path of a TOML file") from error
        return parse_settings(text, str(path))


async def serve_hub(config: HubConfig, *, listening: Callable[[int], None] | None = None) -> None:
    """Until SIGTERM or SIGINT. Raises `HarchError` for what people can mend, `InvariantBroken` for what they cannot."""
    hub = config.fleet.hub(config.hub_id)
    if hub is None:
        names = ", ".join(hub.id for hub in config.fleet.hubs)
        raise HarchError("E0305", f"the fleet has no hub `{config.hub_id}`", hint=f"use one of: {names}")
    workers_mode(os.environ)  # a mistake in it is reported now, and not when the first pipeline comes
    stop = asyncio.Event()
    broken: list[InvariantBroken] = []

    def on_broken(error: InvariantBroken) -> None:
        _log.critical("%s: stopping to prevent damage; the state on disk is intact", error)
        broken.append(error)
        stop.set()

    def is_stop_requested() -> bool:
        return stop.is_set() and not broken

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    raise_descriptor_limit()
    gates = Gates(limits_from_env())
    with_lock = _lock(config.state_dir)
    tracing = None
    try:
        identity, tracing = config.identity(), _tracing(config)
        service = build_hub(
            fleet=config.fleet,
            hub=hub,
            state_dir=config.state_dir,
            clock=SystemClock(),
            version=version("harch"),
            url=config.url_of(hub.id, identity),
            peer_urls={other.id: config.url_of(other.id) for other in config.fleet.hubs if other.id != hub.id},
            on_broken=on_broken,
            settings=config.turn_settings(),
            identity=identity,
            listen=config.peer_listen,
            bulk_port=config.ports.bulk(config.index),
            leases=config.leases,
            sentinel=SentinelClient(config.telemetry_url, config.state_dir / SENTINEL_KEY),
            tracing=tracing,
            gates=gates,
        )
        shipper = _own_logs(config, service)
        try:
            await _adopt_keys(service, config)
            await _serve_until(stop, service, config, listening, tracing, gates.gate("api"), is_stop_requested)
            if is_stop_requested():
                await stop_left_over(config.state_dir)  # one that this hub had no time to take over
        finally:
            await service.close()
            if shipper is not None:
                await asyncio.to_thread(shipper.close)
    finally:
        if tracing is not None:
            tracing.close()
        os.close(with_lock)
    if broken:
        raise broken[0]


async def _adopt_keys(service: HubService, config: HubConfig) -> None:
    admin, agent = ensure_key_file(config.home.admin_key), ensure_key_file(config.agent_key)
    await service.credentials.adopt_key(admin, name="admin", tenant=DEFAULT_TENANT, role=Role.ADMIN)
    await service.credentials.adopt_key(agent, name="agent", tenant=DEFAULT_TENANT, role=Role.AGENT)
    sentinel = ensure_key_file(config.state_dir / SENTINEL_KEY)
    await service.credentials.adopt_key(sentinel, name="sentinel", tenant=DEFAULT_TENANT, role=Role.OPERATOR)


async def _serve_until(
    stop: asyncio.Event,
    service: HubService,
    config: HubConfig,
    listening: Callable[[int], None] | None,
    tracing: Tracing | None,
    gate: ConnectionGate,
    is_stop_requested: Callable[[], bool],
) -> None:
    listens = asyncio.Event()

    def on_listening(port: int) -> None:
        listens.set()
        if listening is not None:
            listening(port)

    async def wait_for_stop() -> None:
        await stop.wait()
        raise _Stopped

    async def keep_sentinel() -> None:
        await listens.wait()  # a hub whose port is taken leaves nothing behind
        await _sentinel(config, is_stop_requested).run()

    try:
        async with asyncio.TaskGroup() as group:
            app = create_app(service, tracing=tracing, clock=service.clock)
            group.create_task(serve_api(app, config.host, config.port, gate=gate, listening=on_listening))
            group.create_task(service.run())
            group.create_task(keep_sentinel())
            group.create_task(wait_for_stop())
    except* _Stopped:
        _log.info("hub %s is stopping", config.hub_id)
    except* HarchError as errors:
        raise _first(errors) from None


def _tracing(config: HubConfig) -> ProcessTracing | None:
    """None for a hub without a SENTINEL of its own: spans go nowhere else."""
    if not is_kept():
        return None
    about: Attributes = {"hub": config.hub_id, "service.version": version("harch")}
    key = config.state_dir / SENTINEL_KEY
    url = config.telemetry_url
    return open_tracing("harchos-hub", about, url=url, token=lambda: key.read_text().strip(), clock=SystemClock())


def _own_logs(config: HubConfig, service: HubService) -> Shipper | None:
    """The logs of this process and its pipelines' workers, shipped to its SENTINEL."""
    if not is_kept():
        return None
    from harch.sentinel.log_shipper.attach import ship_hub_logs

    key = config.state_dir / SENTINEL_KEY
    shipper = ship_hub_logs(
        config.state_dir,
        config.hub_id,
        config.telemetry_url,
        lambda: key.read_text().strip(),
        service.pipelines.worker_logs,
    )
    service.watch_lines(lambda: shipper.counts.by_outcome)
    return shipper


def _sentinel(config: HubConfig, is_stop_requested: Callable[[], bool]) -> SentinelChild:
    hub = config.fleet.hub(config.hub_id)
    name = hub.name if hub is not None else config.hub_id
    listen = (config.host, config.ports.telemetry(config.index))
    return SentinelChild(
        config.state_dir,
        config.hub_id,
        name,
        config.url_of(config.hub_id),
        listen,
        SystemClock(),
        is_wanted_no_more=is_stop_requested,
        preloaded=next_server(),
    )


def _first(errors: BaseExceptionGroup[HarchError]) -> HarchError:
    """Task groups inside task groups: what a person needs is the error at the bottom."""
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found if isinstance(found, HarchError) else HarchError("E1001", str(found))


class _Stopped(Exception):
    """Ends the task group: somebody asked the process to stop."""


def _lock(state_dir: Path) -> int:
    """Two control planes on one state folder would each believe to be alone."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(state_dir / "hub.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise HarchError(
            "E1005", f"cannot use {state_dir}: {error.strerror}", hint="set HARCH_HOME to a folder you may write"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise HarchError(
            "E1005",
            f"another process serves the hub in {state_dir}",
            hint="stop it first, or use another HARCH_HOME and HARCH_PORT_BASE",
        ) from error
    return descriptor

"""Which message engines does a pipeline on one machine use? One for features and state, and one that syncs every write
for outputs and the ledger; both supervised, on loopback, with the streams and users of the pipeline and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from harch.base.clock import Clock, SystemClock
from harch.base.errors import HarchError
from harch.base.state_files import read_sealed
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import NatsError, as_harch_error
from harch.pipelines.client.options import ClientOptions, Credentials
from harch.pipelines.engine.config import server_config
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin
from harch.pipelines.engine.keys import KeyFolder, write_state
from harch.pipelines.engine.layout import (
    CONTROLLER,
    Domain,
    EngineLayout,
    Server,
    ServerLimits,
    StageGrant,
    controller_user,
    inbox_of,
    stage_user,
)
from harch.pipelines.engine.log_lines import EngineEvent
from harch.pipelines.engine.server import EngineServer, find_nats_server, free_ports, user_names
from harch.pipelines.engine.streams import DesiredStreams, check_streams, plan_streams
from harch.pipelines.sense.settings import NatsSource
from harch.pipelines.workers.config import EngineAccess, WorkerStage
from harch.pipelines.workers.deployment import act_grants, act_streams, main_grants, main_streams, merged
from harch.pipelines.workers.parts import PipelineParts

CONNECT_TIMEOUT_S = 30.0
_PORTS = 4


class _Ports(Struct, frozen=True):
    """Kept in a file, so that workers find the engine again after its supervisor was started anew."""

    main: tuple[int, int]
    act: tuple[int, int]


class LocalMessageEngine:
    """The engines of one pipeline. `start`, then `admin` administers the main one and `act_admin` the other."""

    def __init__(
        self,
        parts: PipelineParts,
        folder: Path,
        *,
        synced_act: bool = True,
        limits: ServerLimits | None = None,
        clock: Clock | None = None,
        on_event: Callable[[EngineEvent], None] = lambda event: None,
    ) -> None:
        self._parts = parts
        self._folder = folder
        self._clock = clock or SystemClock()
        self._keys = KeyFolder(folder / "keys")
        self._limits = limits or ServerLimits()
        self._country = parts.country
        ports = _ports(folder / "ports.json")
        name = parts.country.lower()
        route = parts.route
        main, act = _with_inputs(parts, main_grants(parts.names, route)), act_grants(parts.names, route)
        synced_act = synced_act and route.acts
        if not route.acts:
            act = ()
        self._synced_act = synced_act
        domains: tuple[Domain, ...]
        if synced_act:
            domains = (self._domain(name, ports.main, main), self._domain(f"{name}-act", ports.act, act, synced=True))
        else:
            domains = (self._domain(name, ports.main, merged(main, act)),)
        self._layout = EngineLayout(domains=domains, limits=self._limits)
        self._servers = [self._server(domain.servers[0], on_event) for domain in domains]
        self._clients: list[AioClient] = []

    @property
    def main(self) -> EngineServer:
        return self._servers[0]

    @property
    def act(self) -> EngineServer:
        return self._servers[-1]

    @property
    def admin(self) -> JetStreamAdmin:
        return JetStreamAdmin(self._clients[0])

    @property
    def act_admin(self) -> JetStreamAdmin:
        return JetStreamAdmin(self._clients[-1])

    async def start(self) -> None:
        """Returns when the engines are ready and have the streams of the pipeline. Raises E0702 to E0706."""
        await asyncio.gather(*(server.start() for server in self._servers))
        for server in self._servers:
            client = AioClient(self._controller(server.url), clock=self._clock)
            await connect(client, self._clock, CONNECT_TIMEOUT_S)
            self._clients.append(client)
        names, sizes = self._parts.names, self._parts.sizes
        main = main_streams(names, sizes, self._parts.route)
        if self._parts.act is None:
            await self._apply(self.admin, main)
            return
        act = act_streams(names, sizes, shares_server=not self._synced_act)
        if self._synced_act:
            await self._apply(self.admin, main)
            await self._apply(self.act_admin, act)
        else:
            both = DesiredStreams(streams=(*main.streams, *act.streams), consumers=(*main.consumers, *act.consumers))
            await self._apply(self.admin, both)

    async def stop(self) -> None:
        for client in self._clients:
            await client.close()
        self._clients = []
        await asyncio.gather(*(server.stop() for server in self._servers))

    def access(self, stage: WorkerStage) -> tuple[EngineAccess, EngineAccess]:
        """How the workers of a stage reach the main engine, and the one of outputs."""
        user = StageGrant(country=self._country, pipeline=self._parts.name, stage=stage).user_name
        seed = self._keys.seed(user)
        return (
            EngineAccess(servers=(self.main.url,), user=user, seed=seed),
            EngineAccess(servers=(self.act.url,), user=user, seed=seed),
        )

    def _controller(self, url: str) -> ClientOptions:
        return ClientOptions(
            servers=(url,),
            name=CONTROLLER,
            credentials=Credentials(seed=self._keys.seed(self._controller_key)),
            inbox_prefix=inbox_of(CONTROLLER),
            reconnect_attempts_max=1_000_000_000,
            backoff_s_max=1.0,
        )

    @property
    def _controller_key(self) -> str:
        return f"{self._country.lower()}-{CONTROLLER}"

    def _domain(
        self, name: str, ports: tuple[int, int], grants: tuple[StageGrant, ...], *, synced: bool = False
    ) -> Domain:
        server = Server(
            name=f"{name}-1",
            hub=self._parts.site.hub,
            client_port=ports[0],
            monitor_port=ports[1],
            store=str(self._folder / name / "store"),
            log_file=str(self._folder / name / "nats.log"),
        )
        users = [controller_user(self._country, self._keys.public_key(self._controller_key))]
        users += [stage_user(grant, self._keys.public_key(grant.user_name)) for grant in grants]
        return Domain(country=self._country, name=name, servers=(server,), users=tuple(users), synced=synced)

    def _server(self, server: Server, on_event: Callable[[EngineEvent], None]) -> EngineServer:
        return EngineServer(
            server,
            server_config(self._layout, server.name),
            self._folder / server.name,
            find_nats_server(),
            users=user_names(self._layout),
            on_event=on_event,
            clock=self._clock,
        )

    async def _apply(self, admin: JetStreamAdmin, wanted: DesiredStreams) -> None:
        if refused := check_streams(wanted, self._limits, servers=1):
            first = refused[0]
            raise HarchError("E0705", f"{first.subject}: {first.detail}", hint=first.nearest_fix)
        try:
            await admin.apply(plan_streams(wanted, await admin.found()))
        except NatsError as error:
            raise as_harch_error(error, "creating the pipeline streams") from error


async def connect(client: AioClient, clock: Clock, timeout_s: float) -> None:
    """Tries again while the engine is not there yet. Raises E0701 when time is up."""
    until_s = clock.monotonic_s() + timeout_s
    while True:
        try:
            await client.connect()
            return
        except NatsError as error:
            if clock.monotonic_s() >= until_s:
                raise as_harch_error(error, f"connecting to {client.options.servers[0]}") from error
        await clock.sleep(0.2)


def _with_inputs(parts: PipelineParts, grants: tuple[StageGrant, ...]) -> tuple[StageGrant, ...]:
    """Subjects that the pipeline's own NATS sources read."""
    inputs = tuple(source.subject for source in parts.sense.sources if isinstance(source, NatsSource))
    return tuple(
        structs.replace(grant, listens=(*grant.listens, *inputs)) if grant.stage == "source" else grant
        for grant in grants
    )


def _ports(path: Path) -> _Ports:
    try:
        return msgspec.json.decode(read_sealed(path), type=_Ports)
    except (FileNotFoundError, msgspec.MsgspecError, HarchError):
        pass
    numbers = free_ports(_PORTS)
    ports = _Ports((numbers[0], numbers[1]), (numbers[2], numbers[3]))
    write_state(path, msgspec.json.encode(ports))
    return ports

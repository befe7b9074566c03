"""Who runs the message engine of a hub?

Its own supervised servers, or a cluster by URL that is checked before it is used; both behind the same few
operations.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from harch.base.clock import Clock
from harch.base.counting import counted
from harch.base.errors import HarchError
from harch.base.state_files import read_sealed
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import NatsError
from harch.pipelines.engine.config import EngineSecrets, server_config
from harch.pipelines.engine.external import PROBE, EngineCluster, check_cluster
from harch.pipelines.engine.keys import LIFE, KeyFolder, user_token, write_state
from harch.pipelines.engine.layout import (
    CONTROLLER,
    EngineLayout,
    EngineUser,
    Server,
    ServerLimits,
    StageGrant,
    controller_user,
    stage_user,
)
from harch.pipelines.engine.log_lines import EngineEvent
from harch.pipelines.engine.server import EngineServer, find_nats_server, free_ports, user_names
from harch.pipelines.engine.settings import SYNCED, EngineSettings, ExternalSettings
from harch.pipelines.spec.deployment import controller_name
from harch.pipelines.workers.config import EngineAccess


class EnginePlace(Protocol):
    """Domains are called after the country: `ma`, and `ma-act` for the one that syncs every write."""

    access_life_s: float | None  # after which what `access` gives is good no longer; None: never

    @property
    def where(self) -> str:
        """Which engine it is: streams of one are not in another."""

    @property
    def limits(self) -> ServerLimits: ...

    @property
    def replicas(self) -> int:
        """Copies of every stream."""

    @property
    def servers(self) -> int:
        """How many there are to keep them, in each domain."""

    def check(self, domain: str) -> None:
        """Raises E0747 if there is no such engine here."""

    def servers_of(self, domain: str) -> tuple[Server, ...]:
        """Those that are configured by us; none of a cluster that others run."""

    async def ready(self, layout: EngineLayout) -> None:
        """Returns when every domain of the layout runs and knows its users. Raises E0701 to E0704, E0746."""

    def doubt(self, domain: str) -> None:
        """It has refused the controller: the next `ready` looks at it anew."""

    def access(self, domain: str, user: EngineUser) -> EngineAccess:
        """How this user reaches the engine; good for a worker's file."""

    def controller(self, domain: str) -> EngineAccess:
        """How HarchOS itself does; never written anywhere."""

    def storage_servers(self, domain: str) -> frozenset[str]:
        """Names of the servers that may keep streams: they stand in the country."""

    def stores(self, domain: str) -> tuple[Path, ...]:
        """Folders of their disks, where those can be looked at."""

    async def stop(self) -> None: ...


# Does the hub run its message engine itself? One supervised server per domain, or three with copies on three disks.


CLUSTER_WORD = "cluster-word"


class _Ports(Struct, frozen=True):
    """Kept in a file, so that workers find the engine again after the hub was started anew."""

    client: int
    monitor: int
    cluster: int = 0


class OwnServers:
    """An EnginePlace on this machine. Everything is on loopback; three servers outlive a process and a disk, and not
    the machine."""

    access_life_s: float | None = None
    where = "the hub's own"

    def __init__(
        self,
        hub_id: str,
        country: str,
        folder: Path,
        *,
        settings: EngineSettings,
        keys: KeyFolder,
        clock: Clock,
        on_event: Callable[[EngineEvent], None],
        limits: ServerLimits | None = None,
    ) -> None:
        self.limits = limits or ServerLimits()
        self.replicas, self.servers = settings.replicas, settings.servers
        self._hub_id, self._country, self._folder, self._stores = hub_id, country, folder, settings.stores
        self._keys, self._clock, self._on_event = keys, clock, on_event
        self._running: dict[str, EngineServer] = {}

    def check(self, domain: str) -> None:
        """Raises E0747 where the engine was made with another number of servers: streams cannot be carried over."""
        self._ports(domain)

    def servers_of(self, domain: str) -> tuple[Server, ...]:
        return tuple(self._server(domain, number, ports) for number, ports in enumerate(self._ports(domain)))

    async def ready(self, layout: EngineLayout) -> None:
        """Starts servers that do not run, and tells the others of new users. Raises E0702 to E0704."""
        users = user_names(layout)
        secrets = EngineSecrets(cluster_word=self._keys.word(CLUSTER_WORD) if self.servers > 1 else "")
        starting = []
        for domain in layout.domains:
            for server in domain.servers:
                text = server_config(layout, server.name, secrets)
                known = self._running.get(server.name)
                if known is not None:
                    await known.reload(text, users)
                else:
                    starting.append(self._start(domain.name, server, text, users))
        await asyncio.gather(*starting)

    def doubt(self, domain: str) -> None:
        """Its users come from here with every `ready`."""

    def access(self, domain: str, user: EngineUser) -> EngineAccess:
        return EngineAccess(servers=self._urls(domain), user=user.name, seed=self._keys.seed(user.name))

    def controller(self, domain: str) -> EngineAccess:
        seed = self._keys.seed(controller_name(self._country))
        return EngineAccess(servers=self._urls(domain), user=CONTROLLER, seed=seed)

    def storage_servers(self, domain: str) -> frozenset[str]:
        return frozenset(server.name for server in self.servers_of(domain))

    def stores(self, domain: str) -> tuple[Path, ...]:
        return tuple(Path(server.store) for server in self.servers_of(domain))

    async def stop(self) -> None:
        running, self._running = self._running, {}
        await asyncio.gather(*(server.stop() for server in running.values()))

    async def _start(self, domain: str, server: Server, text: str, users: dict[str, str]) -> None:
        engine = EngineServer(
            server,
            text,
            self._folder / domain,
            find_nats_server(),
            users=users,
            on_event=self._on_event,
            clock=self._clock,
        )
        await engine.start()
        self._running[server.name] = engine

    def _urls(self, domain: str) -> tuple[str, ...]:
        return tuple(f"nats://127.0.0.1:{ports.client}" for ports in self._ports(domain))

    def _server(self, domain: str, number: int, ports: _Ports) -> Server:
        name = f"{domain}-{self._hub_id}" + (f"-{number + 1}" if self.servers > 1 else "")
        home = Path(self._stores[number]) / domain if self._stores else self._folder / domain
        suffix = f"-{number + 1}" if self.servers > 1 else ""
        return Server(
            name=name,
            hub=self._hub_id,
            client_port=ports.client,
            monitor_port=ports.monitor,
            cluster_port=ports.cluster,
            store=str(home / f"store{suffix}"),
            log_file=str(self._folder / domain / f"nats{suffix}.log"),
        )

    def _ports(self, domain: str) -> tuple[_Ports, ...]:
        path = self._folder / domain / "ports.json"
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            found = msgspec.json.decode(read_sealed(path), type=tuple[_Ports, ...] | _Ports)
            kept = (found,) if isinstance(found, _Ports) else found
            if len(kept) == self.servers:
                return kept
            raise HarchError(
                "E0747",
                f"the engine `{domain}` was created with {counted(len(kept), 'server')}, "
                f"but engine.toml has {self.servers}",
                hint=f"remove the pipelines and {path.parent}, then apply them again; streams are not kept",
            )
        each = 3 if self.servers > 1 else 2
        numbers = free_ports(each * self.servers)
        made = tuple(_Ports(*numbers[first : first + each]) for first in range(0, len(numbers), each))
        write_state(path, msgspec.json.encode(made if self.servers > 1 else made[0]))
        return made


# Does somebody else run the message engine? A cluster by URL, looked at before it is used; users are signed here.


PAYLOAD_BYTES_MAX = 8 << 20


class OutsideCluster:
    """An EnginePlace at the addresses that `engine.toml` names. Nothing is started or configured from here."""

    access_life_s: float | None = LIFE.total_seconds()

    def __init__(
        self, country: str, *, settings: EngineSettings, external: ExternalSettings, keys: KeyFolder, clock: Clock
    ) -> None:
        """Raises E0745 without the key that signs users."""
        self.limits = ServerLimits(file_bytes_max=external.file_bytes_max, payload_bytes_max=PAYLOAD_BYTES_MAX)
        self.replicas, self.servers = settings.replicas, len(external.server_names)
        self._country, self._external, self._keys, self._clock = country, external, keys, clock
        self.where = f"the account {external.account}"
        self._account = external.account_key()
        self._checked: set[str] = set()

    def check(self, domain: str) -> None:
        """Raises E0747 if a pipeline wants the engine that syncs, and none is named."""
        self._cluster(domain)

    def servers_of(self, domain: str) -> tuple[Server, ...]:
        return ()

    async def ready(self, layout: EngineLayout) -> None:
        """Looks at each cluster once in the life of this process. Raises E0701 if it is not there, E0746 if it is not
        as it has to be."""
        for domain in layout.domains:
            await self.look(domain.name)

    async def look(self, domain: str) -> None:
        if domain in self._checked:
            return
        cluster = self._cluster(domain)
        grant = StageGrant(country=self._country, pipeline="harch", stage="probe")
        probe = stage_user(grant, self._keys.public_key(grant.user_name))
        controller = AioClient(self.controller(domain).options(CONTROLLER), clock=self._clock)
        worker = AioClient(self.access(domain, probe).options(PROBE), clock=self._clock)
        try:
            for client in (controller, worker):
                await self._connect(client, domain)
            found = await check_cluster(
                cluster, controller, worker, country=self._country, replicas=self.replicas, clock=self._clock
            )
        finally:
            await controller.close()
            await worker.close()
        if found:
            reasons = "; ".join(f"{one.rule}: {one.detail}" for one in found)
            raise HarchError(
                "E0746",
                f"the message engine `{domain}` at {', '.join(cluster.servers)} is not suitable for streams: {reasons}",
                hint=found[0].nearest_fix or "see docs/pipelines/engine-settings.md for the requirements",
                meta={"rules": [one.rule for one in found]},
            )
        self._checked.add(domain)

    def doubt(self, domain: str) -> None:
        self._checked.discard(domain)

    def access(self, domain: str, user: EngineUser) -> EngineAccess:
        return self._access(domain, user.name, user.name, user_token(self._account, user, now=self._clock.now()))

    def controller(self, domain: str) -> EngineAccess:
        """Its token stays in memory, so it need not run out."""
        name = controller_name(self._country)
        user = controller_user(self._country, self._keys.public_key(name))
        return self._access(domain, CONTROLLER, name, user_token(self._account, user, now=self._clock.now(), life=None))

    def storage_servers(self, domain: str) -> frozenset[str]:
        return frozenset(self._cluster(domain).server_names)

    def stores(self, domain: str) -> tuple[Path, ...]:
        return ()

    async def stop(self) -> None:
        self._checked.clear()

    def _access(self, domain: str, user: str, key: str, token: str) -> EngineAccess:
        cluster = self._cluster(domain)
        return EngineAccess(servers=cluster.servers, user=user, seed=self._keys.seed(key), token=token, tls=cluster.tls)

    def _cluster(self, domain: str) -> EngineCluster:
        found = self._external.cluster(self._country, synced=domain.endswith(f"-{SYNCED}"))
        if found is None:
            raise HarchError(
                "E0747",
                "the pipeline needs `durability.act: synced`, but engine.toml names no engine that syncs every write",
                hint="name one in [external.synced], or write `durability: {act: stored}` with three copies",
            )
        return found

    async def _connect(self, client: AioClient, domain: str) -> None:
        try:
            await client.connect()
        except NatsError as error:
            raise HarchError(
                "E0701",
                f"the message engine `{domain}` at {', '.join(client.options.servers)} is not reachable: {error}",
                hint="check that it runs and has the account of engine.toml",
            ) from error

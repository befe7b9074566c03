"""Does the hub run its message engine itself? One supervised server per domain, or three with copies on three disks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.sealed import read_sealed
from harch.pipelines.engine.binary import find_nats_server
from harch.pipelines.engine.config import EngineSecrets, server_config
from harch.pipelines.engine.keys import KeyFolder, write_state
from harch.pipelines.engine.layout import Layout, Limits, Server
from harch.pipelines.engine.log_lines import EngineEvent
from harch.pipelines.engine.ports import free_ports
from harch.pipelines.engine.server import EngineServer, user_names
from harch.pipelines.engine.settings import EngineSettings
from harch.pipelines.engine.users import CONTROLLER, EngineUser
from harch.pipelines.spec.assembly import controller_name
from harch.pipelines.workers.config import EngineAccess

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
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.replicas, self.servers = settings.replicas, settings.servers
        self._hub_id, self._country, self._folder, self._stores = hub_id, country, folder, settings.stores
        self._keys, self._clock, self._on_event = keys, clock, on_event
        self._running: dict[str, EngineServer] = {}

    def check(self, domain: str) -> None:
        """Raises E0747 where the engine was made with another number of servers: streams cannot be carried over."""
        self._ports(domain)

    def servers_of(self, domain: str) -> tuple[Server, ...]:
        return tuple(self._server(domain, number, ports) for number, ports in enumerate(self._ports(domain)))

    async def ready(self, layout: Layout) -> None:
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

    def keepers(self, domain: str) -> frozenset[str]:
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
                f"the engine `{domain}` was made with {len(kept)} server(s), and engine.toml wants {self.servers}",
                hint=f"remove the pipelines and {path.parent}, then apply them again; streams are not carried over",
            )
        each = 3 if self.servers > 1 else 2
        numbers = free_ports(each * self.servers)
        made = tuple(_Ports(*numbers[first : first + each]) for first in range(0, len(numbers), each))
        write_state(path, msgspec.json.encode(made if self.servers > 1 else made[0]))
        return made

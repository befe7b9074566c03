"""Which server stands at the border of a hub? One without streams, on loopback, that knows named aggregates only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from harch.base.clock import Clock
from harch.base.sealed import read_sealed
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.options import ClientOptions, Credentials
from harch.pipelines.engine.binary import find_nats_server
from harch.pipelines.engine.borders import USER, HubBorder, LinkPlan, border_layout
from harch.pipelines.engine.config import EngineSecrets, server_config
from harch.pipelines.engine.keys import KeyFolder, write_state
from harch.pipelines.engine.layout import Server
from harch.pipelines.engine.log_lines import EngineEvent
from harch.pipelines.engine.ports import free_ports
from harch.pipelines.engine.server import EngineServer, user_names
from harch.pipelines.engine.users import inbox_of
from harch.pipelines.workers.local_engine import connect

CONNECT_TIMEOUT_S = 30.0
_FOREVER = 1_000_000_000


class _Ports(Struct, frozen=True):
    client: int
    monitor: int
    border: int


class BorderServer:
    """`become` makes it what the links need. Changing a link restarts it, which the engine of the hub never notices."""

    def __init__(
        self,
        hub_id: str,
        folder: Path,
        keys: KeyFolder,
        *,
        clock: Clock,
        on_event: Callable[[EngineEvent], None],
    ) -> None:
        self._hub_id, self._folder, self._keys, self._clock, self._on_event = hub_id, folder, keys, clock, on_event
        self._ports = self._kept_ports()
        self._running: EngineServer | None = None
        self._was_connected = False
        self.key = keys.public_key(USER)
        self.client = AioClient(
            ClientOptions(
                servers=(f"nats://127.0.0.1:{self._ports.client}",),
                name=USER,
                credentials=Credentials(seed=keys.seed(USER)),
                inbox_prefix=inbox_of(USER),
                reconnect_attempts_max=_FOREVER,
                backoff_s_max=1.0,
            ),
            clock=clock,
        )

    @property
    def border_port(self) -> int:
        return self._ports.border

    async def become(self, own: HubBorder, plans: tuple[LinkPlan, ...], doors: Mapping[str, int]) -> None:
        """Raises E0702 to E0704."""
        server = Server(
            name=f"border-{self._hub_id}",
            hub=self._hub_id,
            client_port=self._ports.client,
            monitor_port=self._ports.monitor,
            border_port=self._ports.border,
            store=str(self._folder / "store"),
            log_file=str(self._folder / "nats.log"),
        )
        layout = border_layout(self._hub_id, own, server, plans, doors)
        secrets = EngineSecrets(link_seeds={self.key: self._keys.seed(USER)})
        text, users = server_config(layout, server.name, secrets), user_names(layout)
        if self._running is None:
            running = EngineServer(
                server, text, self._folder, find_nats_server(), users=users, on_event=self._on_event, clock=self._clock
            )
            await running.start()
            self._running = running
        else:
            await self._running.reload(text, users)
        if not self._was_connected:  # from then on the client keeps its connection up by itself
            await connect(self.client, self._clock, CONNECT_TIMEOUT_S)
            self._was_connected = True

    async def stop(self) -> None:
        await self.client.close()
        if self._running is not None:
            await self._running.stop()
        self._running = None

    def _kept_ports(self) -> _Ports:
        path = self._folder / "ports.json"
        try:
            return msgspec.json.decode(read_sealed(path), type=_Ports)
        except (FileNotFoundError, msgspec.MsgspecError):
            ports = _Ports(*free_ports(3))
            write_state(path, msgspec.json.encode(ports))
            return ports

"""Which server stands at the border of a hub, and how do two of them reach each other?

One on loopback without streams, and a tunnel over the federation's own TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.listen.accept import Listener, listen_for_streams
from harch.base.listen.gate import Gates
from harch.base.state_files import read_sealed
from harch.federation.identity.certificates import Certificate, read_certificate
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.identity.members import Address
from harch.federation.links import tls_connection
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.options import ClientOptions, Credentials
from harch.pipelines.engine.borders import USER, HubBorder, LinkPlan, border_layout
from harch.pipelines.engine.config import EngineSecrets, server_config
from harch.pipelines.engine.keys import KeyFolder, write_state
from harch.pipelines.engine.layout import Server, inbox_of
from harch.pipelines.engine.log_lines import EngineEvent
from harch.pipelines.engine.server import EngineServer, find_nats_server, free_ports, user_names
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

    async def become(self, own: HubBorder, plans: tuple[LinkPlan, ...], tunnel_ports: Mapping[str, int]) -> None:
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
        layout = border_layout(self._hub_id, own, server, plans, tunnel_ports)
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


# How do the border servers of two hubs reach each other? Through a tunnel over the federation's own TLS.
#
# Both servers listen on loopback only. A hub's door accepts TLS from members of the federation and leads to its border
# server; on the other side, a port of the loopback leads to that door. Who is at the other end is proved by the
# certificate, as on every link between hubs, and looked at again while the tunnel is open.


CONNECTIONS_MAX = 256
CONNECT_WITHIN_S = 5.0
LOOK_AGAIN_S = 30.0
_PIECE_BYTES = 64 * 1024

log = logging.getLogger("harch.hub")


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    hub_id: str
    certificate: Certificate
    writer: asyncio.StreamWriter


class BorderTunnel:
    """One hub's door, and its ways to others' doors. `welcome` says why a hub may not be linked; empty: it may."""

    def __init__(
        self, identity: HubIdentity, clock: Clock, *, welcome: Callable[[str], str], gates: Gates | None = None
    ) -> None:
        self._identity, self._clock, self._welcome = identity, clock, welcome
        gates = gates or Gates()
        self._gate, self._way_gate = gates.gate("border"), gates.gate("border ways")
        self._open: set[_Open] = set()
        self._handling: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None
        self._ways: dict[str, Listener] = {}
        self._addresses: dict[str, Address] = {}
        self._watch_task: asyncio.Task[None] | None = None
        self.refusals: dict[str, str] = {}  # why the last attempt with each hub failed

    async def listen(self, host: str, port: int, leads_to: int) -> int:
        """Opens the door; answers its port. Raises E1004 if it is taken."""
        self._listener = listen_for_streams(
            tls_connection.listen(Address(host, port)),
            self._gate,
            lambda reader, writer: self._begin(self._accept(reader, writer, leads_to), writer),
            tls=self._identity.server_context(),
        )
        self._watch_task = asyncio.create_task(self._watch_peers(), name="border-tunnel")
        return self._listener.port

    async def way_to(self, hub_id: str, address: Address) -> int:
        """The port of the loopback behind which that hub's border is."""
        self._addresses[hub_id] = address
        if hub_id not in self._ways:
            self._ways[hub_id] = listen_for_streams(
                tls_connection.listen(Address("127.0.0.1", 0)),
                self._way_gate,
                lambda reader, writer: self._begin(self._lead(reader, writer, hub_id), writer),
            )
        return self._ways[hub_id].port

    async def close_way(self, hub_id: str) -> None:
        listener = self._ways.pop(hub_id, None)
        if listener is not None:
            listener.close()
        self._end(lambda one: one.hub_id == hub_id)

    def ways(self) -> tuple[str, ...]:
        return tuple(self._ways)

    async def close(self) -> None:
        for listener in (self._listener, *self._ways.values()):
            if listener is not None:
                listener.close()
        tasks = [*self._handling, *((self._watch_task,) if self._watch_task is not None else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener, self._watch_task, self._ways = None, None, {}

    def look_again(self) -> None:
        """Ends what is open with hubs that are welcome no longer, or whose certificate has run out."""
        now = self._clock.now()
        self._end(lambda one: not one.certificate.is_valid(now) or bool(self._welcome(one.hub_id)))

    def _begin(self, work: Coroutine[None, None, None], writer: asyncio.StreamWriter) -> None:
        if len(self._handling) >= CONNECTIONS_MAX:
            work.close()
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, leads_to: int) -> None:
        try:
            certificate = self._peer(writer)
            if why := self._welcome(certificate.name.hub_id):
                raise HarchError("E0110", why)
            async with asyncio.timeout(CONNECT_WITHIN_S):
                onwards = await asyncio.open_connection("127.0.0.1", leads_to)
        except (HarchError, OSError, TimeoutError) as error:
            log.info("border link refused: %s", error)
            writer.transport.abort()
            return
        await self._join(certificate, (reader, writer), onwards)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hub_id: str) -> None:
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                there = await self._dial(hub_id)
        except (HarchError, OSError, TimeoutError) as error:
            self.refusals[hub_id] = str(error) or type(error).__name__
            writer.transport.abort()
            return
        self.refusals.pop(hub_id, None)
        await self._join(self._peer(there[1]), (reader, writer), there)

    async def _dial(self, hub_id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to exactly this hub."""
        if why := self._welcome(hub_id):
            raise HarchError("E0110", why)
        address = self._addresses[hub_id]
        raw = await tls_connection.connect(address)
        context = self._identity.client_context()
        there = await asyncio.open_connection(sock=raw, ssl=context, server_hostname="")
        name = self._peer(there[1]).name
        if name.hub_id != hub_id:
            there[1].transport.abort()
            raise HarchError("E0110", f"{address} is {name.hub_id}, not {hub_id}")
        return there

    def _peer(self, writer: asyncio.StreamWriter) -> Certificate:
        """Who is at the other end. Raises E0110 for whom the federation does not know."""
        presented = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if not presented:
            raise HarchError("E0110", "no certificate presented")
        certificate = read_certificate(presented)
        if certificate.name.trust_domain != self._identity.trust_domain:
            raise HarchError("E0110", "the certificate belongs to another federation")
        return certificate

    async def _join(
        self,
        certificate: Certificate,
        one: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        other: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        known = _Open(certificate.name.hub_id, certificate, one[1])
        self._open.add(known)
        ways = (asyncio.create_task(_copy(one[0], other[1])), asyncio.create_task(_copy(other[0], one[1])))
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(known)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for _, writer in (one, other):
                writer.transport.abort()

    def _end(self, which: Callable[[_Open], bool]) -> None:
        for one in list(self._open):
            if which(one):
                one.writer.transport.abort()

    async def _watch_peers(self) -> None:
        while True:
            await self._clock.sleep(LOOK_AGAIN_S)
            self.look_again()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until either side ends; whoever reads slowly slows the other down."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_PIECE_BYTES):
            writer.write(data)
            await writer.drain()

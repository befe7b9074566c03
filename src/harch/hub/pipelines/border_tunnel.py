"""How do the border servers of two hubs reach each other? Through a tunnel over the federation's own TLS.

Both servers listen on loopback only. A hub's door accepts TLS from members of the federation and leads to its border
server; on the other side, a port of the loopback leads to that door. Who is at the other end is proved by the
certificate, as on every link between hubs, and looked at again while the tunnel is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.listen.accept import Listener, listen_for_streams
from harch.base.listen.gate import Gates
from harch.federation.identity.certificates import Certificate, read_certificate
from harch.federation.identity.identity import HubIdentity
from harch.federation.identity.members import Address
from harch.federation.links import sockets

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
        self._door: Listener | None = None
        self._ways: dict[str, Listener] = {}
        self._addresses: dict[str, Address] = {}
        self._looking: asyncio.Task[None] | None = None
        self.refusals: dict[str, str] = {}  # why the last attempt with each hub failed

    async def listen(self, host: str, port: int, leads_to: int) -> int:
        """Opens the door; answers its port. Raises E1004 if it is taken."""
        self._door = listen_for_streams(
            sockets.listen(Address(host, port)),
            self._gate,
            lambda reader, writer: self._begin(self._accept(reader, writer, leads_to), writer),
            tls=self._identity.server_context(),
        )
        self._looking = asyncio.create_task(self._keep_looking(), name="border-tunnel")
        return self._door.port

    async def way_to(self, hub_id: str, address: Address) -> int:
        """The port of the loopback behind which that hub's border is."""
        self._addresses[hub_id] = address
        if hub_id not in self._ways:
            self._ways[hub_id] = listen_for_streams(
                sockets.listen(Address("127.0.0.1", 0)),
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
        for listener in (self._door, *self._ways.values()):
            if listener is not None:
                listener.close()
        tasks = [*self._handling, *((self._looking,) if self._looking is not None else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._door, self._looking, self._ways = None, None, {}

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
            log.info("a border link was not let in: %s", error)
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
        raw = await sockets.connect(address)
        context = self._identity.client_context()
        there = await asyncio.open_connection(sock=raw, ssl=context, server_hostname="")
        name = self._peer(there[1]).name
        if name.hub_id != hub_id:
            there[1].transport.abort()
            raise HarchError("E0110", f"{address} is {name.hub_id}, not {hub_id}")
        return there

    def _peer(self, writer: asyncio.StreamWriter) -> Certificate:
        """Who is at the other end. Raises E0110 for whom the federation does not know."""
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if not shown:
            raise HarchError("E0110", "no certificate was shown")
        certificate = read_certificate(shown)
        if certificate.name.trust_domain != self._identity.trust_domain:
            raise HarchError("E0110", "the certificate is of another federation")
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

    async def _keep_looking(self) -> None:
        while True:
            await self._clock.sleep(LOOK_AGAIN_S)
            self.look_again()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until either side ends; whoever reads slowly slows the other down."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_PIECE_BYTES):
            writer.write(data)
            await writer.drain()

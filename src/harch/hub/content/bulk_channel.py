"""How does content travel between this hub and others? One bulk server, and pulls within what the fleet file allows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from harch.base.clock import Clock
from harch.base.listen.gate import ConnectionGate
from harch.content.frames import ChunkFrame
from harch.content.model import ChunkRef
from harch.federation.bulk.fetch import fetch
from harch.federation.bulk.limits import TransferClass, limits_of, require
from harch.federation.bulk.server import BulkServer, SentTraffic
from harch.federation.identity.hub_identity import HubIdentity
from harch.fleet.model import Fleet
from harch.hub.content.peers import ContentSource
from harch.hub.federation.questions import no_answer


class BulkChannel:
    """Of a hub that is part of a federation. `listen`: port 0 takes any free one; peers are reported which."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        identity: HubIdentity,
        listen: tuple[str, int],
        source: ContentSource,
        clock: Clock,
        gate: ConnectionGate,
    ) -> None:
        self._identity, self._source = identity, source
        self._limits = limits_of(fleet, identity.hub_id)
        self._server = BulkServer(
            identity=identity,
            listen=listen,
            source=source,
            limits_to=self._limits.get,
            clock=clock,
            gate=gate,
        )
        self._is_open = False

    def open(self) -> None:
        """Raises E1004 if the port is taken."""
        self._source.port = self._server.start()
        self._source.on_revoked = self._server.end_transfer
        self._is_open = True

    def close(self) -> None:
        if self._is_open:
            self._server.close()

    def traffic(self) -> dict[str, SentTraffic]:
        return self._server.traffic()

    def pull(
        self,
        hub_id: str,
        port: int,
        ticket: bytes,
        wanted: Sequence[ChunkRef],
        *,
        store: Callable[[list[ChunkFrame]], None],
        progress: Callable[[int], None],
        cancelled: threading.Event,
    ) -> None:
        """Blocks until all are stored. Raises E1140, and E1141 if no link may carry it."""
        require(self._limits.get(hub_id), TransferClass.CONTENT, peer=hub_id)
        member = self._identity.roster.get(hub_id)
        if member is None:
            raise no_answer(hub_id, "it is no member of the federation")
        reported = 0

        def report(done: int, total: int) -> None:
            nonlocal reported
            progress(done - reported)
            reported = done

        fetch(
            (member.address.host, port),
            self._identity,
            hub_id,
            ticket,
            wanted,
            store=store,
            progress=report,
            cancelled=cancelled,
        )

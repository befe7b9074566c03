"""How does content travel between this hub and others? One bulk server, and pulls within what the fleet file allows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import astuple

from harch.base.clock import Clock
from harch.base.listen.gate import ConnectionGate
from harch.content.frames import ChunkFrame
from harch.content.model import ChunkRef
from harch.federation.bulk.fetch import TransferReport, fetch
from harch.federation.bulk.limits import TransferClass, limits_of, require
from harch.federation.bulk.server import BulkServer, SentTraffic
from harch.federation.identity.hub_identity import HubIdentity
from harch.fleet.model import Fleet
from harch.hub.content.peers import ContentSource
from harch.hub.federation.questions import no_answer
from harch.hub.views import BulkTraffic

NOTHING_SENT, NOTHING_RECEIVED = SentTraffic(), TransferReport(0, 0, 0, 0, 0, 0, 0, 0.0)
_log = logging.getLogger("harch.bulk")


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
        self._received: dict[str, TransferReport] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        """Raises E1004 if the port is taken."""
        self._source.port = self._server.start()
        self._source.on_revoked = self._server.end_transfer
        self._is_open = True

    def close(self) -> None:
        if self._is_open:
            self._server.close()

    def traffic(self) -> dict[str, BulkTraffic]:
        """By peer, since the start."""
        with self._lock:
            received = dict(self._received)
        found = {}
        sent = self._server.traffic()
        for hub_id in sorted({*sent, *received} - {""}):
            there, here = sent.get(hub_id, NOTHING_SENT), received.get(hub_id, NOTHING_RECEIVED)
            found[hub_id] = BulkTraffic(
                bytes_sent=there.bytes,
                bytes_received=here.bytes_received,
                bytes_repeated=here.bytes_repeated,
                cuts=here.cuts,
                refused=sum(there.refused.values()),
            )
        return found

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
        counted = 0

        def count(done: int, total: int) -> None:
            nonlocal counted
            progress(done - counted)
            counted = done

        report = fetch(
            (member.address.host, port),
            self._identity,
            hub_id,
            ticket,
            wanted,
            store=store,
            progress=count,
            cancelled=cancelled,
        )
        with self._lock:
            self._received[hub_id] = _added(self._received.get(hub_id, NOTHING_RECEIVED), report)
        _log.info(
            "%d chunks, %d bytes from %s in %.1f s over %d connections, %d of which were cut; %d bytes came twice",
            report.chunks,
            report.bytes_received,
            hub_id,
            report.seconds,
            report.connections,
            report.cuts,
            report.bytes_repeated,
        )


def _added(one: TransferReport, other: TransferReport) -> TransferReport:
    return TransferReport(*(mine + theirs for mine, theirs in zip(astuple(one), astuple(other), strict=True)))

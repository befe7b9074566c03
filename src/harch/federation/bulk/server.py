"""How does a hub send chunks to others? In threads with blocking sockets, so that its event loop never waits for them.

One thread accepts, one watches (members, certificates, limits, speed), and each connection has its own. What a peer may
read is what its ticket says: a name beyond that ends the connection.
"""

from __future__ import annotations

import itertools
import logging
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from harch.base.clock import Clock
from harch.base.errors import HarchError, InvariantBroken
from harch.base.listen.gate import ConnectionGate, ListenLimits, Ticket
from harch.content.frames import ChunkFrame
from harch.federation.bulk import sockets
from harch.federation.bulk.limits import UNLIMITED, BulkLimits, refusal
from harch.federation.bulk.pacing import Pace, Sending
from harch.federation.bulk.protocol import (
    BULK_VERSION,
    CHUNK_HEAD_BYTES,
    BulkFault,
    BulkHello,
    BulkRefused,
    SenderSession,
    encode_hello,
    encode_refused,
)
from harch.federation.bulk.sockets import BulkIdentity, TlsContexts
from harch.federation.bulk.tickets import BulkGrant
from harch.federation.identity.members import Address
from harch.federation.links.frames import PROTOCOL_VERSION, LinkHello
from harch.federation.links.tls_connection import PeerCertificate

CONNECTIONS_MAX = 64
PER_PEER_MAX = 16
UNIDENTIFIED_MAX = 32
ACCEPTED_LIMITS = ListenLimits(connections_max=CONNECTIONS_MAX + UNIDENTIFIED_MAX, connections_per_address_max=64)
HELLO_WITHIN_S = 5.0  # handshake included
IDLE_S_MAX = 60.0  # a receiver that stores slowly, or has nothing to request for the moment
STALLED_S_MAX = 30.0  # nothing is taken of what was sent
WATCH_EVERY_S = 0.1  # while there are connections
CHECK_EVERY_S = 1.0
KEEP_PACE_S = 300.0  # the next transfer starts about where the last one ended
ACCEPT_AGAIN_S = 0.5  # out of descriptors: trying at once would only burn the processor
READ_BYTES = 64 * 1024

_log = logging.getLogger("harch.bulk")


class BulkSource(Protocol):
    """Who has the chunks, and knows what a ticket permits. Called by many threads."""

    def open(self, hub_id: str, ticket: bytes) -> BulkGrant:
        """Raises HarchError for a ticket that does not hold, or not for this hub."""
        ...

    def read(self, grant: BulkGrant, ids: Sequence[bytes]) -> list[ChunkFrame]:
        """In this order. Raises HarchError if one is missing or damaged."""
        ...


@dataclass(slots=True)
class SentTraffic:
    """To one peer, since the start. Bytes are those of payloads, as they travel."""

    bytes: int = 0
    chunks: int = 0
    connections: int = 0
    seconds: float = 0.0  # of connections, added up
    refused: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class _Connection:
    number: int
    sock: ssl.SSLSocket
    gate_ticket: Ticket
    opened_s: float
    moved_s: float  # when anything was last sent or received
    is_sending: bool = False  # inside of a write: the other end has to take it
    is_reading: bool = True  # the other end has to say something
    peer: str = ""  # whom its certificate names
    hub_id: str = ""  # once it is identified
    certificate: PeerCertificate | None = None
    ticket: bytes = b""
    grant: BulkGrant | None = None
    why: str = ""


class BulkServer:
    """Listens from `start` to `close`. `limits_to` answers what the way to a peer carries; None: nothing is known."""

    def __init__(
        self,
        *,
        identity: BulkIdentity,
        listen: tuple[str, int],
        source: BulkSource,
        limits_to: Callable[[str], BulkLimits | None],
        clock: Clock,
        gate: ConnectionGate | None = None,
        per_peer_max: int = PER_PEER_MAX,
    ) -> None:
        self._identity = identity
        self._tls = TlsContexts(identity)
        self._listen = Address(*listen)
        self._source = source
        self._limits_to = limits_to
        self._clock = clock
        self._gate = gate or ConnectionGate("bulk", ACCEPTED_LIMITS)
        self._per_peer_max = per_peer_max
        self._sock: socket.socket | None = None
        self._lock = threading.RLock()  # the gate evicts from inside
        self._changed = threading.Condition(self._lock)
        self._connections: dict[int, _Connection] = {}
        self._paces: dict[str, Pace] = {}
        self._traffic: dict[str, SentTraffic] = {}
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._checked_s = float("-inf")
        self.port = self._listen.port  # the real one once it listens on port 0

    def start(self) -> int:
        """The port. Raises E1004 if it is taken."""
        self._sock = sockets.listen(self._listen)
        self.port = int(self._sock.getsockname()[1])
        for name, run in (("accept", self._accept), ("watch", self._watch)):
            self._threads.append(threading.Thread(target=run, name=f"bulk-{name}", daemon=True))
        for thread in self._threads:
            thread.start()
        return self.port

    def close(self) -> None:
        """Ends every connection and waits for the threads."""
        self._closed.set()
        if self._sock is not None:
            sockets.end(self._sock)  # wakes the thread that accepts
        with self._lock:
            for connection in self._connections.values():
                self._end(connection, "this hub stops")
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()
        if self._sock is not None:
            self._sock.close()

    def drop(self, hub_id: str, why: str) -> None:
        """Ends what this peer has open."""
        with self._lock:
            for connection in self._connections.values():
                if connection.hub_id == hub_id:
                    self._end(connection, why)

    def end_transfer(self, ticket: bytes, why: str) -> None:
        """Ends the connections of one transfer."""
        with self._lock:
            for connection in self._connections.values():
                if connection.ticket == ticket:
                    self._end(connection, why)

    def traffic(self) -> dict[str, SentTraffic]:
        """By peer; a peer that could not be identified has no name."""
        with self._lock:
            return {
                hub_id: SentTraffic(one.bytes, one.chunks, one.connections, one.seconds, Counter(one.refused))
                for hub_id, one in self._traffic.items()
            }

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._connections)

    # The thread that accepts

    def _accept(self) -> None:
        listening = self._sock
        while listening is not None and not self._closed.is_set():
            try:
                sock, address = listening.accept()
            except OSError:
                if self._closed.wait(ACCEPT_AGAIN_S):
                    return
                continue
            self._admit(sock, str(address[0]))

    def _admit(self, sock: socket.socket, address: str) -> None:
        """Whoever has not said who it is for longest gives way to newcomers: nobody can lock peers out by waiting."""
        with self._lock:
            number = next(self._numbers)
            ticket = self._gate.admit(address, lambda: self._end(self._connections.get(number), "evicted"))
            if ticket is None or self._closed.is_set():
                sock.close()
                return
            now_s = self._clock.monotonic_s()
            try:
                sockets.set_options(sock)
                sockets.set_sending_options(sock)
                secured = self._tls.server().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            except (OSError, HarchError):
                ticket.release()
                sock.close()
                return
            connection = _Connection(number, secured, ticket, now_s, now_s)
            self._connections[number] = connection
            unidentified = [one for one in self._connections.values() if not one.hub_id and not one.why]
            for oldest in unidentified[:-UNIDENTIFIED_MAX]:
                self._end(oldest, "too many unidentified connections")
            thread = threading.Thread(target=self._serve, args=(connection,), name="bulk-send", daemon=True)
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
            self._changed.notify_all()
            thread.start()

    # The thread of one connection

    def _serve(self, connection: _Connection) -> None:
        sockets.lower_priority()
        try:
            self._shake_hands(connection)
            refused = self._converse(connection)
        except BulkFault as fault:
            refused = BulkRefused(rule="protocol", reason=str(fault))
        except HarchError as error:
            refused = BulkRefused(rule="content", reason=error.message, code=error.code)
        except OSError as error:  # TLS errors are OSErrors
            refused = None
            connection.why = connection.why or str(error)
        except Exception:  # noqa: BLE001 - a fault of the source: the connection ends, and the peer hears of a fault
            _log.exception("sending chunks to %s failed", connection.peer or "an unknown peer")
            refused = BulkRefused(rule="fault", reason="the sending hub has stumbled")
        try:
            if refused is not None:
                self._refuse(connection, refused)
        finally:
            self._remove(connection)

    def _shake_hands(self, connection: _Connection) -> None:
        try:
            connection.sock.do_handshake()
        except OSError:
            with self._lock:
                self._gate.refuse("handshake", connection.gate_ticket.address)
            raise
        connection.certificate = sockets.certificate_of(connection.sock)

    def _converse(self, connection: _Connection) -> BulkRefused | None:
        """Until the peer has what it wants, or is refused."""
        session = SenderSession()
        while session.hello is None:
            if not self._read(connection, session):
                return None
        refused = self._identify(connection, session.hello)
        if refused is not None:
            return refused
        self._write(connection, encode_hello(self._hello()))
        while True:
            while not len(session):
                if not self._read(connection, session):
                    return None
            self._answer(connection, session)

    def _identify(self, connection: _Connection, hello: BulkHello) -> BulkRefused | None:
        """Who is it, is it welcome, what does its ticket permit, and is there room?"""
        connection.peer = connection.certificate.name.hub_id if connection.certificate else ""
        if hello.version != BULK_VERSION:
            return BulkRefused(rule="version", reason=f"version {hello.version}; this hub knows {BULK_VERSION}")
        unwelcome = sockets.peer_refusal(hello.hub, self._identity, connection.certificate, None)
        if unwelcome is not None:
            return BulkRefused(rule=unwelcome[0], reason=unwelcome[1])
        hub_id = hello.hub.hub_id
        try:
            grant = self._source.open(hub_id, hello.ticket)
        except HarchError as error:
            return BulkRefused(rule="ticket", reason=error.message, code=error.code)
        limits = self._limits_to(hub_id)
        why = refusal(limits, grant.transfer_class) if limits is not None else ""
        if why:
            return BulkRefused(rule="class", reason=why, code="E1141")
        with self._lock:
            others = [one.hub_id for one in self._connections.values() if one.hub_id]
            if others.count(hub_id) >= self._per_peer_max or len(others) >= CONNECTIONS_MAX:
                return BulkRefused(rule="busy", reason="too many bulk connections at once")
            connection.hub_id, connection.ticket, connection.grant = hub_id, hello.ticket, grant
            connection.gate_ticket.served()
            self._traffic_of(hub_id).connections += 1
            self._join_pace(connection)
        return None

    def _answer(self, connection: _Connection, session: SenderSession) -> None:
        grant = connection.grant
        requests = session.next_batch()
        if grant is None or not all(request.id in grant.ids for request in requests):
            raise BulkFault("requested a chunk that its ticket does not permit")
        frames = self._source.read(grant, [request.id for request in requests])
        for request, frame in zip(requests, frames, strict=True):
            if frame.id != request.id:
                raise InvariantBroken("the source answers with the chunks it was asked for", frame.id.hex())
            head, rest = session.encode(request, frame)
            self._write(connection, head)
            self._write(connection, rest)
            with self._lock:
                traffic = self._traffic_of(connection.hub_id)
                traffic.chunks += 1
                traffic.bytes += len(head) + len(rest) - CHUNK_HEAD_BYTES

    def _read(self, connection: _Connection, session: SenderSession) -> bool:
        connection.is_reading = True
        data = connection.sock.recv(READ_BYTES)
        connection.is_reading = False
        connection.moved_s = self._clock.monotonic_s()
        session.feed(data)
        return bool(data)

    def _write(self, connection: _Connection, data: bytes | memoryview) -> None:
        view = memoryview(data)
        connection.is_sending = True
        while len(view):
            view = view[connection.sock.send(view) :]  # a TLS record at a time
            connection.moved_s = self._clock.monotonic_s()
        connection.is_sending = False

    def _hello(self) -> BulkHello:
        name = self._identity.name
        hub = LinkHello(protocol_version=PROTOCOL_VERSION, hub_id=name.hub_id, trust_domain=name.trust_domain)
        return BulkHello(version=BULK_VERSION, hub=hub)

    def _refuse(self, connection: _Connection, refused: BulkRefused) -> None:
        with self._lock:
            self._traffic_of(connection.hub_id or connection.peer).refused[refused.rule] += 1
        connection.why = connection.why or refused.reason
        _log.info("bulk connection of %s refused: %s", connection.peer or "an unknown peer", refused.reason)
        sockets.send_last(connection.sock, encode_refused(refused))

    def _remove(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.pop(connection.number, None)
            connection.gate_ticket.release()
            if connection.hub_id:
                self._traffic_of(connection.hub_id).seconds += self._clock.monotonic_s() - connection.opened_s
        connection.sock.close()

    # The thread that watches

    def _watch(self) -> None:
        while not self._closed.wait(WATCH_EVERY_S):
            with self._lock:
                while not self._connections and not self._closed.is_set():
                    self._changed.wait()
                try:
                    self._look_after_all()
                except Exception:  # noqa: BLE001 - whatever one look runs into, retired hubs have to be noticed by the next
                    _log.exception("watching bulk connections failed")

    def _look_after_all(self) -> None:
        now_s = self._clock.monotonic_s()
        self._set_paces(now_s)
        if now_s - self._checked_s < CHECK_EVERY_S:
            return
        self._checked_s = now_s
        for connection in self._connections.values():
            why = self._ending(connection, now_s)
            if why and not connection.why:
                self._traffic_of(connection.peer).refused[why[0]] += 1
                self._end(connection, why[1])

    def _ending(self, connection: _Connection, now_s: float) -> tuple[str, str] | None:
        """Why it has to end, rule and reason: what held when it was opened need not hold forever."""
        if not connection.hub_id:
            return ("idle", "does not greet") if now_s - connection.opened_s > HELLO_WITHIN_S else None
        unwelcome = self._identity.refusal(connection.hub_id, b"")
        if unwelcome:
            return "member", unwelcome
        certificate = connection.certificate
        if certificate is None or self._clock.now() >= certificate.not_after:
            return "certificate", f"the certificate of {connection.hub_id} has expired"
        silent_s = now_s - connection.moved_s
        if (connection.is_sending and silent_s > STALLED_S_MAX) or (connection.is_reading and silent_s > IDLE_S_MAX):
            return "idle", f"nothing has moved for {silent_s:.0f} s"
        return None

    def _set_paces(self, now_s: float) -> None:
        by_peer: dict[str, list[_Connection]] = {}
        for connection in self._connections.values():
            if connection.hub_id and not connection.why:
                by_peer.setdefault(connection.hub_id, []).append(connection)
        for hub_id, connections in by_peer.items():
            pace = self._paces[hub_id]
            if now_s >= pace.next_s:
                rates = pace.update(now_s, self._sending(connections))
                for connection in connections:
                    if connection.number in rates:
                        sockets.set_pacing(connection.sock, rates[connection.number])

    def _join_pace(self, connection: _Connection) -> None:
        limits = self._limits_to(connection.hub_id)
        of_peer = [one for one in self._connections.values() if one.hub_id == connection.hub_id]
        pace = self._paces.setdefault(connection.hub_id, Pace())
        if len(of_peer) == 1 and self._clock.monotonic_s() - pace.next_s > KEEP_PACE_S:
            pace = self._paces[connection.hub_id] = Pace()
        elif len(of_peer) == 1:
            pace.control.resume()
        pace.bytes_per_s_max = limits.bytes_per_s if limits is not None else UNLIMITED
        sending = self._sending(of_peer)
        if connection.number in sending:
            sockets.set_pacing(connection.sock, pace.join(connection.number, sending))

    def _sending(self, connections: Sequence[_Connection]) -> dict[int, Sending]:
        """What the kernel knows of them; those that it says nothing of are not paced."""
        found: dict[int, Sending] = {}
        for one in connections:
            reading = sockets.read_tcp(one.sock)
            if reading is not None and one.grant is not None:
                found[one.number] = Sending(one.ticket, one.grant.transfer_class, *reading)
        return found

    def _end(self, connection: _Connection | None, why: str) -> None:
        """From another thread: whatever its own one waits for ends."""
        if connection is not None:
            connection.why = connection.why or why
            sockets.end(connection.sock)

    def _traffic_of(self, hub_id: str) -> SentTraffic:
        return self._traffic.setdefault(hub_id, SentTraffic())

"""How does a hub fetch chunks from another one? Over several connections, until all are stored or there is no point.

Each connection has a thread; the calling thread stores what they bring, and ends those that stall. A connection that
was cut is made anew, and nothing that had arrived on it is fetched again.
"""

from __future__ import annotations

import random
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from harch.base.clock import Clock, SystemClock
from harch.base.errors import REGISTRY, HarchError
from harch.content.frames import ChunkFrame, unpack_chunk
from harch.content.model import ChunkRef
from harch.federation.bulk import sockets
from harch.federation.bulk.plan import WINDOW_BYTES, FetchPlan
from harch.federation.bulk.protocol import (
    BULK_VERSION,
    BulkFault,
    BulkHello,
    BulkRefused,
    ReceiverSession,
    encode_hello,
)
from harch.federation.bulk.sockets import BulkIdentity, TlsContexts
from harch.federation.identity.members import Address, HubName
from harch.federation.links.frames import PROTOCOL_VERSION, LinkHello
from harch.federation.links.tls_connection import PeerCertificate

BYTES_PER_CONNECTION_MIN = 2 * 1024 * 1024  # a handshake is not worth it for less
WATCH_EVERY_S = 0.25
PROGRESS_BYTES = 64 * 1024  # less than that in a while is no progress: who drips does not hold a transfer forever
FAULTS_MAX = 3
REDIAL_S_MIN, REDIAL_S_MAX = 0.1, 5.0
# What another attempt would not change. The rest (too many connections, a certificate that is being renewed) may pass.
FINAL_RULES = frozenset(("version", "trust_domain", "itself", "member", "ticket", "class", "content", "protocol"))


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Limits of one transfer."""

    connections: int = 4
    window_bytes: int = WINDOW_BYTES  # requested by one connection
    store_bytes: int = 8 * 1024 * 1024  # stored together, or what has arrived after `store_every_s`
    store_every_s: float = 1.0
    unstored_bytes_max: int = 32 * 1024 * 1024  # then nothing more is read
    silence_s_max: float = 15.0  # of one connection that owes chunks
    give_up_s: float = 60.0  # without progress


DEFAULT_SETTINGS = FetchSettings()


@dataclass(frozen=True, slots=True)
class TransferReport:
    """What one transfer has brought. Bytes are those of payloads, as they travel, except `bytes_raw`."""

    chunks: int
    bytes_raw: int
    bytes_received: int
    bytes_repeated: int  # received and thrown away: of damaged chunks, and of those that were packed anew meanwhile
    connections: int
    cuts: int
    damaged: int
    seconds: float


def fetch(
    address: tuple[str, int],
    identity: BulkIdentity,
    expected_hub: str,
    ticket: bytes,
    wanted: Iterable[ChunkRef],
    *,
    store: Callable[[list[ChunkFrame]], None],
    settings: FetchSettings = DEFAULT_SETTINGS,
    progress: Callable[[int, int], None] = lambda done, total: None,
    cancelled: threading.Event | None = None,
    clock: Clock | None = None,
    jitter: Callable[[], float] = random.random,
) -> TransferReport:
    """Blocks until `store` has got every wanted chunk, verified, in batches and in any order, from this thread.

    `progress` gets raw bytes that are stored, and all of them. What has arrived before a failure is stored, too. Raises
    E1140 if the peer refuses, or cannot be reached or brings nothing for `give_up_s`; E1101, E1102 or another error of
    its store; E1141 if its link refuses; whatever `store` raises.
    """
    transfer = _Transfer(
        Address(*address),
        identity,
        expected_hub,
        ticket,
        wanted,
        store=store,
        settings=settings,
        progress=progress,
        cancelled=cancelled or threading.Event(),
        clock=clock or SystemClock(),
        jitter=jitter,
    )
    return transfer.run()


@dataclass(slots=True, eq=False)
class _Worker:
    number: int
    sock: socket.socket | None = None
    certificate: PeerCertificate | None = None
    owes: bool = False  # the peer has to send something
    moved_s: float = 0.0  # when it last brought `PROGRESS_BYTES`
    moved_bytes: int = 0
    why: str = ""  # it was ended


class _Refused(Exception):
    """By the peer, or the peer by us."""

    def __init__(self, refused: BulkRefused) -> None:
        super().__init__(refused.reason)
        self.refused = refused


class _Transfer:
    def __init__(
        self,
        address: Address,
        identity: BulkIdentity,
        expected_hub: str,
        ticket: bytes,
        wanted: Iterable[ChunkRef],
        *,
        store: Callable[[list[ChunkFrame]], None],
        settings: FetchSettings,
        progress: Callable[[int, int], None],
        cancelled: threading.Event,
        clock: Clock,
        jitter: Callable[[], float],
    ) -> None:
        self._address = address
        self._identity = identity
        self._expected = expected_hub
        self._ticket = ticket
        self._store = store
        self._settings = settings
        self._progress = progress
        self._cancelled = cancelled
        self._clock = clock
        self._jitter = jitter
        self._tls = TlsContexts(identity)
        self._plan = FetchPlan(wanted, connections=settings.connections, window_bytes=settings.window_bytes)
        self._changed = threading.Condition()  # guards everything below
        self._unstored: deque[ChunkFrame] = deque()
        self._unstored_bytes = 0
        self._unstored_since_s = 0.0
        self._stored_bytes = 0
        self._is_over = False
        self._failure: Exception | None = None
        self._trouble = "nothing has arrived"
        self._began_s = self._progressed_s = clock.monotonic_s()
        self._progressed_bytes = 0
        self._received = self._useful = self._cuts = self._connections = self._faults = self._damaged = 0

    # The calling thread

    def run(self) -> TransferReport:
        count = -(-self._plan.bytes_total // BYTES_PER_CONNECTION_MIN)
        workers = [_Worker(number) for number in range(max(1, min(self._settings.connections, count)))]
        threads = [
            threading.Thread(target=self._work, args=(worker,), name="bulk-fetch", daemon=True) for worker in workers
        ]
        for thread in threads:
            thread.start()
        try:
            self._store_until_done(workers)
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
                for worker in workers:
                    if worker.sock is not None:
                        sockets.end(worker.sock)
            for thread in threads:
                thread.join()
        self._store_batch()
        if self._failure is not None:
            raise self._failure
        return self._report()

    def _store_until_done(self, workers: list[_Worker]) -> None:
        while True:
            with self._changed:
                now_s = self._clock.monotonic_s()
                self._watch(workers, now_s)
                if self._failure is not None or (self._plan.is_done and not self._unstored):
                    return
                if not self._is_batch_due(now_s):
                    self._changed.wait(WATCH_EVERY_S)
                    continue
            self._store_batch()

    def _is_batch_due(self, now_s: float) -> bool:
        if not self._unstored:
            return False
        waited_s = now_s - self._unstored_since_s
        full = self._unstored_bytes >= self._settings.store_bytes
        return full or waited_s >= self._settings.store_every_s or self._plan.is_done

    def _store_batch(self) -> None:
        with self._changed:
            batch = list(self._unstored)
            self._unstored.clear()
            self._unstored_bytes = 0
            self._changed.notify_all()  # there is room again
        if not batch:
            return
        self._store(batch)
        self._stored_bytes += sum(frame.size for frame in batch)
        with self._changed:
            self._progressed_s = self._clock.monotonic_s()  # however long the store took
        self._progress(self._stored_bytes, self._plan.bytes_total)

    def _watch(self, workers: list[_Worker], now_s: float) -> None:
        if self._received - self._progressed_bytes >= PROGRESS_BYTES:
            self._progressed_s, self._progressed_bytes = now_s, self._received
        if self._failure is not None or self._plan.is_done:
            return
        if self._cancelled.is_set():
            self._fail("it was cancelled")
        elif unwelcome := self._identity.refusal(self._expected, b""):
            self._fail(unwelcome)
        elif now_s - self._progressed_s > self._settings.give_up_s:
            self._fail(f"no progress for {self._settings.give_up_s:g} s: {self._trouble}")
        for worker in workers:
            why = self._ending(worker, now_s)
            if why and worker.sock is not None:
                worker.why = why
                sockets.end(worker.sock)

    def _ending(self, worker: _Worker, now_s: float) -> str:
        """Why a connection has to be made anew; empty if it may go on."""
        if worker.owes and now_s - worker.moved_s > self._settings.silence_s_max:
            return f"a connection brought nothing for {self._settings.silence_s_max:g} s"
        if worker.certificate is not None and self._clock.now() >= worker.certificate.not_after:
            return f"the certificate of {self._expected} has expired"
        return ""

    def _fail(self, why: str, code: str = "E1140") -> None:
        if self._failure is None:
            self._failure = HarchError(
                code,
                f"fetching from {self._expected}: {why}",
                hint="what has arrived is kept; try again for the rest",
                meta={"hub": self._expected, "bytes_done": self._plan.bytes_done, "bytes": self._plan.bytes_total},
            )
        self._changed.notify_all()

    def _report(self) -> TransferReport:
        return TransferReport(
            chunks=self._plan.chunks_done,
            bytes_raw=self._plan.bytes_done,
            bytes_received=self._received,
            bytes_repeated=self._received - self._useful,
            connections=self._connections,
            cuts=self._cuts,
            damaged=self._damaged,
            seconds=self._clock.monotonic_s() - self._began_s,
        )

    # The thread of one connection

    def _work(self, worker: _Worker) -> None:
        sockets.lower_priority()
        failures = 0
        while not self._ends():
            received = self._received
            try:
                self._connect_and_receive(worker)
            except _Refused as refusal:
                self._note_refusal(refusal.refused)
            except BulkFault as fault:
                self._note_fault(fault)
            except OSError as error:  # TLS errors are OSErrors
                self._note_trouble(worker, error)
            except Exception as error:  # noqa: BLE001 - a damaged chunk, or a fault: the calling thread raises it
                with self._changed:
                    self._failure = self._failure or error
                    self._changed.notify_all()
            failures = 0 if self._received > received else failures + 1
            self._pause(failures)

    def _connect_and_receive(self, worker: _Worker) -> None:
        session = ReceiverSession()
        connection: ssl.SSLSocket | None = None
        try:
            connection = self._dial(worker)
            self._receive(worker, connection, session)
        finally:
            partial = session.partial()
            with self._changed:
                worker.owes, worker.sock, worker.certificate = False, None, None
                owed = self._plan.requested(worker.number)
                self._plan.lost(worker.number, [*([partial] if partial else []), *session.unused()])
                self._cuts += bool(owed) and not self._is_over
                self._changed.notify_all()  # others may take what it leaves
            if connection is not None:
                connection.close()

    def _dial(self, worker: _Worker) -> ssl.SSLSocket:
        """A connection to exactly the expected hub, to which the ticket may be shown."""
        sock = sockets.new_socket(self._address)
        try:
            self._register(worker, sock)
            sockets.set_options(sock)
            sock.settimeout(sockets.CONNECT_WITHIN_S)
            sock.connect(self._address)
            secured = self._tls.client().wrap_socket(sock, do_handshake_on_connect=False)
        except BaseException:
            sock.close()
            raise
        try:
            self._register(worker, secured)
            secured.do_handshake()
            certificate = sockets.certificate_of(secured)
            expected = HubName(self._identity.name.trust_domain, self._expected)
            if certificate is None or certificate.name != expected:
                found = certificate.name.hub_id if certificate else "somebody else"
                raise _Refused(BulkRefused(rule="itself", reason=f"{self._expected} was dialled, {found} answered"))
            unwelcome = self._identity.refusal(self._expected, b"")
            if unwelcome:
                raise _Refused(BulkRefused(rule="member", reason=unwelcome))
            secured.settimeout(None)  # the calling thread watches
            name = self._identity.name
            hub = LinkHello(protocol_version=PROTOCOL_VERSION, hub_id=name.hub_id, trust_domain=name.trust_domain)
            secured.sendall(encode_hello(BulkHello(version=BULK_VERSION, hub=hub, ticket=self._ticket)))
        except BaseException:
            secured.close()
            raise
        with self._changed:
            self._connections += 1
            worker.certificate = certificate
        return secured

    def _register(self, worker: _Worker, sock: socket.socket) -> None:
        """From here on the calling thread can end it."""
        with self._changed:
            if self._is_over:
                raise OSError("the transfer has ended")
            worker.sock = sock

    def _receive(self, worker: _Worker, connection: ssl.SSLSocket, session: ReceiverSession) -> None:
        while self._request_more(worker, connection, session):
            counted = session.payload_bytes
            count = connection.recv_into(session.space())
            if not count:
                raise OSError(f"{self._expected} closed the connection")
            frames = session.received(count)
            self._note_received(worker, session.payload_bytes - counted, session)
            for frame in frames:
                self._take(worker, frame)
            if session.refused is not None:
                raise _Refused(session.refused)

    def _request_more(self, worker: _Worker, connection: ssl.SSLSocket, session: ReceiverSession) -> bool:
        """False once there is nothing left to receive. Waits while others may be cut, or the store is behind."""
        with self._changed:
            while True:
                if self._is_over or self._plan.is_done:
                    return False
                if self._unstored_bytes < self._settings.unstored_bytes_max:
                    requests, held = self._plan.assign(worker.number)
                    if requests or session.owes:
                        break
                worker.owes = False
                self._changed.wait()
            if not worker.owes:
                worker.owes, worker.moved_s, worker.moved_bytes = True, self._clock.monotonic_s(), 0
        if requests:
            connection.sendall(session.request(requests, held))
        return True

    def _note_received(self, worker: _Worker, count: int, session: ReceiverSession) -> None:
        with self._changed:
            self._received += count
        worker.moved_bytes += count
        if worker.moved_bytes >= PROGRESS_BYTES or not session.owes:
            worker.moved_bytes, worker.moved_s = 0, self._clock.monotonic_s()

    def _take(self, worker: _Worker, frame: ChunkFrame) -> None:
        try:
            unpack_chunk(frame)
        except HarchError:
            with self._changed:
                self._damaged += 1
                self._plan.damaged(worker.number, frame.id)
            return
        with self._changed:
            if not self._unstored:
                self._unstored_since_s = self._clock.monotonic_s()
            self._unstored.append(frame)
            self._unstored_bytes += len(frame.payload)
            self._useful += len(frame.payload)
            self._plan.arrived(worker.number, frame.id)
            if self._plan.is_done or self._unstored_bytes >= self._settings.store_bytes:
                self._changed.notify_all()

    def _ends(self) -> bool:
        with self._changed:
            return self._is_over or self._plan.is_done or self._failure is not None

    def _note_refusal(self, refused: BulkRefused) -> None:
        with self._changed:
            self._trouble = refused.reason
            if refused.rule in FINAL_RULES:
                self._fail(refused.reason, refused.code if refused.code in REGISTRY else "E1140")

    def _note_fault(self, fault: BulkFault) -> None:
        with self._changed:
            self._faults += 1
            self._trouble = f"{self._expected} {fault}"
            if self._faults >= FAULTS_MAX:
                self._fail(self._trouble)

    def _note_trouble(self, worker: _Worker, error: OSError) -> None:
        with self._changed:
            self._trouble = worker.why or f"{self._address}: {str(error) or 'no answer'}"
            worker.why = ""

    def _pause(self, failures: int) -> None:
        """Doubles up to the limit, of which half is random: connections that were cut together do not dial in step."""
        delay_s = min(REDIAL_S_MIN * float(2 ** min(failures, 10)), REDIAL_S_MAX) * (0.5 + 0.5 * self._jitter())
        until_s = self._clock.monotonic_s() + delay_s
        with self._changed, suppress(TimeoutError):
            while not (self._is_over or self._plan.is_done or self._failure is not None):
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0 or not self._changed.wait(left_s):
                    return

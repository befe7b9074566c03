"""What does a test of bulk transfers need? Chunks, a hub that sends, a hub that fetches, and a wire that can be cut."""

from __future__ import annotations

import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from harch.base.clock import Clock, SystemClock
from harch.base.config import Home
from harch.base.errors import HarchError
from harch.base.listen.gate import ConnectionGate
from harch.content.frames import ChunkFrame, Codec, chunk_id
from harch.content.model import ChunkRef
from harch.federation.bulk.fetch import FetchSettings, TransferReport, fetch
from harch.federation.bulk.limits import BulkLimits, TransferClass
from harch.federation.bulk.protocol import (
    BULK_VERSION,
    BulkHello,
    BulkRefused,
    ChunkRequest,
    ReceiverSession,
    encode_hello,
)
from harch.federation.bulk.server import BulkServer
from harch.federation.bulk.sockets import TlsContexts
from harch.federation.bulk.tickets import BulkGrant, TicketRegistry
from harch.federation.identity.authority import make_federation
from harch.federation.identity.hub_identity import HubIdentity
from harch.federation.links.frames import PROTOCOL_VERSION, LinkHello
from harch.testing.clock import SimClock
from harch.testing.ports import free_ports

HOST = "127.0.0.1"
WITHIN_S = 20.0
QUICK = FetchSettings(give_up_s=3.0, silence_s_max=2.0)
LARGE = FetchSettings(give_up_s=60.0, silence_s_max=20.0)


def federation(folder: Path, *names: str) -> dict[str, HubIdentity]:
    addresses = {name: (HOST, port) for name, port in zip(names, free_ports(len(names)), strict=True)}
    return make_federation(Home(folder), addresses, now=SystemClock().now())


def random_chunks(count: int, size: int = 400_000, *, seed: int = 1) -> dict[bytes, ChunkFrame]:
    rng = random.Random(seed)
    frames = (ChunkFrame(chunk_id(raw), len(raw), Codec.RAW, raw) for raw in map(rng.randbytes, [size] * count))
    return {frame.id: frame for frame in frames}


def refs(frames: dict[bytes, ChunkFrame]) -> list[ChunkRef]:
    return [ChunkRef(frame.id, frame.size) for frame in frames.values()]


class Source:
    """Chunks in memory. `before_read` may wait, change what is there, or raise."""

    def __init__(self, frames: dict[bytes, ChunkFrame], clock: Clock) -> None:
        self.frames = dict(frames)
        self._clock = clock
        self.tickets = TicketRegistry(random.Random(7).randbytes)
        self.before_read: Callable[[], None] = lambda: None

    def open(self, hub_id: str, ticket: bytes) -> BulkGrant:
        return self.tickets.open(hub_id, ticket, now=self._clock.now())

    def read(self, grant: BulkGrant, ids: Sequence[bytes]) -> list[ChunkFrame]:
        self.before_read()
        if missing := [name for name in ids if name not in self.frames]:
            raise HarchError("E1102", f"{missing[0].hex()[:16]} is not here")
        return [self.frames[name] for name in ids]


@dataclass
class Sink:
    """Where fetched chunks go; counts those that came twice."""

    frames: dict[bytes, ChunkFrame] = field(default_factory=dict)
    twice: int = 0
    batches: list[int] = field(default_factory=list)

    def __call__(self, batch: list[ChunkFrame]) -> None:
        self.batches.append(sum(len(frame.payload) for frame in batch))
        for frame in batch:
            self.twice += frame.id in self.frames
            self.frames[frame.id] = frame


class Hub:
    """A hub that sends, with what it has."""

    def __init__(
        self,
        identity: HubIdentity,
        frames: dict[bytes, ChunkFrame],
        *,
        clock: Clock | None = None,
        limits: BulkLimits | None = None,
        gate: ConnectionGate | None = None,
        per_peer_max: int = 16,
    ) -> None:
        self.identity = identity
        self.clock = clock or SystemClock()
        self.source = Source(frames, self.clock)
        self.limits = limits
        self.server = BulkServer(
            identity=identity,
            listen=(HOST, 0),
            source=self.source,
            limits_to=lambda hub_id: self.limits,
            clock=self.clock,
            gate=gate,
            per_peer_max=per_peer_max,
        )

    def ticket(
        self,
        hub_id: str,
        ids: Sequence[bytes] | None = None,
        *,
        transfer_class: TransferClass = TransferClass.CONTENT,
        now: datetime | None = None,
    ) -> bytes:
        names = frozenset(self.source.frames if ids is None else ids)
        grant = BulkGrant(tenant="mine", ids=names, transfer_class=transfer_class)
        return self.source.tickets.issue(hub_id, grant, now=now or self.clock.now())


@contextmanager
def serving(*hubs: Hub) -> Iterator[None]:
    with ExitStack() as stack:
        for hub in hubs:
            hub.server.start()
            stack.callback(hub.server.close)
        yield


def fetch_all(
    identity: HubIdentity,
    hub: Hub,
    *,
    sink: Sink | None = None,
    ticket: bytes | None = None,
    wanted: list[ChunkRef] | None = None,
    settings: FetchSettings = QUICK,
    port: int | None = None,
    expected: str | None = None,
    **more: object,
) -> TransferReport:
    return fetch(
        (HOST, hub.server.port if port is None else port),
        identity,
        expected or hub.identity.hub_id,
        hub.ticket(identity.hub_id) if ticket is None else ticket,
        refs(hub.source.frames) if wanted is None else wanted,
        store=sink if sink is not None else Sink(),
        settings=settings,
        **more,
    )


class RawPeer:
    """Says what it likes."""

    def __init__(self, hub: Hub, identity: HubIdentity) -> None:
        raw = socket.create_connection((HOST, hub.server.port), timeout=WITHIN_S)
        self.sock = TlsContexts(identity).client().wrap_socket(raw)
        self.session = ReceiverSession()
        self.identity = identity

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def greet(self, ticket: bytes, *, hub_id: str | None = None, version: int = BULK_VERSION) -> None:
        name = self.identity.name
        hub = LinkHello(protocol_version=PROTOCOL_VERSION, hub_id=hub_id or name.hub_id, trust_domain=name.trust_domain)
        self.sock.sendall(encode_hello(BulkHello(version=version, hub=hub, ticket=ticket)))

    def request(self, *chunks: ChunkRef) -> None:
        self.sock.sendall(self.session.request([ChunkRequest(one.id, one.size) for one in chunks]))

    def frames(self, count: int) -> list[ChunkFrame]:
        found: list[ChunkFrame] = []
        while len(found) < count and self._receive(found):
            pass
        return found

    def end(self) -> BulkRefused | None:
        """Reads until the connection has ended; the reason, if one is given."""
        while self._receive([]):
            pass
        return self.session.refused

    def _receive(self, found: list[ChunkFrame]) -> bool:
        try:
            count = self.sock.recv_into(self.session.space())
        except (ssl.SSLError, ConnectionError):
            return False
        found += self.session.received(count)
        return bool(count)


def until(holds: Callable[[], bool]) -> None:
    """Looks again and again, for what a thread does in its own time."""
    ends_s = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < ends_s
        threading.Event().wait(0.02)


class WatchedClock(SimClock):
    """Knows how often somebody has looked at it."""

    looks = 0

    def monotonic_s(self) -> float:
        self.looks += 1
        return super().monotonic_s()

    def jump_and_be_seen(self, delay_s: float) -> None:
        """For the thread of a connection, for which the other end waits: whoever looks then is the one that watches."""
        self.jump(delay_s)
        looks = self.looks
        until(lambda: self.looks > looks + 2)


class Wire:
    """A TCP proxy. `cut_after` answers, for each new connection, after how many bytes towards the dialler it is cut;
    with `silent` nobody notices at once: the bytes just stop."""

    def __init__(self, port: int, cut_after: Callable[[], int | None], *, silent: bool = False) -> None:
        self._target = port
        self._cut_after = cut_after
        self._silent = silent
        self._listener = socket.create_server((HOST, 0))
        self._socks: list[socket.socket] = []
        self._lock = threading.Lock()
        self.port = int(self._listener.getsockname()[1])
        self.cuts = self.connections = 0
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            for sock in (self._listener, *self._socks):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in (self._listener, *self._socks):
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection((HOST, self._target))
            with self._lock:
                self.connections += 1
                self._socks += [near, far]
                left = self._cut_after()
            for source, target, limit in ((near, far, None), (far, near, left)):
                thread = threading.Thread(target=self._carry, args=(source, target, limit), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _carry(self, source: socket.socket, target: socket.socket, left: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(65_536 if left is None else min(left, 65_536)):
                target.sendall(data)
                if left is not None:
                    left -= len(data)
                    if not left:
                        with self._lock:
                            self.cuts += 1
                        if self._silent:
                            return
                        break
        for sock in (source, target):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

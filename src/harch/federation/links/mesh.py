"""How do hubs exchange messages?

Each dials all others, sends where it has dialled, and reads where it was dialled: connections that are greeted,
checked, read, and watched until they end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from harch.base.clock import Clock
from harch.base.listen.accept import Listener
from harch.base.listen.gate import ConnectionGate
from harch.federation.identity.members import Address, HubName
from harch.federation.links import tls_connection
from harch.federation.links.frames import (
    PROTOCOL_VERSION,
    Bye,
    FrameKind,
    LinkHello,
    LinkPing,
    LinkPong,
    LinkRefused,
    Parted,
    decode_control,
    frame,
    refusal,
)
from harch.federation.links.peer import Peer
from harch.federation.links.tls_connection import SHUTDOWN_WITHIN_S, Connection, LinkIdentity

HELLO_WITHIN_S = 5.0
SILENCE_S_MAX = 15.0  # the dialler pings every second
UNKNOWN_MAX = 256  # connections that have not said who they are
PER_HUB_MAX = 4  # a replacement beside the one it replaces, and some that the other end has lost already


@dataclass(slots=True)
class _Accepted:
    hub_id: str  # empty until the Hello
    last_frame_s: float


class Acceptor:
    """All connections that others have dialled. `on_body(hub_id, body)` answers why it refuses the body, or nothing."""

    def __init__(
        self,
        identity: LinkIdentity,
        clock: Clock,
        *,
        features: tuple[str, ...],
        on_body: Callable[[str, bytes], str],
        on_greeted: Callable[[str], None],
        on_uncertified: Callable[[bytes], bytes] | None,
    ) -> None:
        self._identity = identity
        self._clock = clock
        self._features = features
        self._on_body = on_body
        self._on_greeted = on_greeted
        self._on_uncertified = on_uncertified
        self._accepted: dict[Connection, _Accepted] = {}
        self._bytes_of_ended: dict[str, int] = {}

    def hello(self) -> LinkHello:
        name = self._identity.name
        return LinkHello(
            protocol_version=PROTOCOL_VERSION,
            hub_id=name.hub_id,
            trust_domain=name.trust_domain,
            features=(*self._identity.features, *self._features),
            introduction=self._identity.introduction(),
        )

    def bytes_received(self, hub_id: str) -> int:
        open_now = sum(c.bytes_received for c, accepted in self._accepted.items() if accepted.hub_id == hub_id)
        return self._bytes_of_ended.get(hub_id, 0) + open_now

    def sweep(self) -> None:
        """Ends what has been silent for too long, and links whose certificate has run out or whose hub was retired."""
        now_s = self._clock.monotonic_s()
        for connection, accepted in list(self._accepted.items()):
            limit_s = SILENCE_S_MAX if accepted.hub_id else HELLO_WITHIN_S
            if now_s - accepted.last_frame_s > limit_s:
                connection.abort(f"silent for {limit_s:g} s")
            elif accepted.hub_id:
                self._check_again(connection, accepted.hub_id)

    def drop(self, hub_id: str, why: str) -> None:
        for connection, accepted in list(self._accepted.items()):
            if accepted.hub_id == hub_id:
                self._refuse(connection, LinkRefused("member", why))

    def connections(self) -> list[Connection]:
        return list(self._accepted)

    # Called by connections

    def opened(self, connection: Connection) -> None:
        """Peers greet at once, so of those that have not, the oldest give way: nobody can lock peers out by waiting."""
        self._accepted[connection] = _Accepted("", self._clock.monotonic_s())
        unknown = [one for one, accepted in self._accepted.items() if not accepted.hub_id and not one.is_ending]
        for oldest in unknown[:-UNKNOWN_MAX]:
            oldest.abort("too many unidentified connections")

    def received(self, connection: Connection, kind: int, body: bytes) -> None:
        accepted = self._accepted[connection]
        accepted.last_frame_s = self._clock.monotonic_s()
        if kind == FrameKind.MESSAGE and accepted.hub_id:
            fault = self._on_body(accepted.hub_id, body)
            if fault:
                self._refuse(connection, LinkRefused("message", fault))
        elif kind == FrameKind.CONTROL:
            self._control(connection, accepted, body)
        elif kind == FrameKind.UNCERTIFIED and self._on_uncertified and not connection.shows_certificate:
            connection.write(frame(FrameKind.UNCERTIFIED, self._on_uncertified(body)))
            connection.close("the join request is answered")
        else:
            connection.abort(f"sent a frame of kind {kind} at the wrong time")

    def writable(self, connection: Connection) -> None:
        """Only answers are written here, each of them small."""

    def closed(self, connection: Connection, why: str) -> None:
        accepted = self._accepted.pop(connection)
        if accepted.hub_id:
            before = self._bytes_of_ended.get(accepted.hub_id, 0)
            self._bytes_of_ended[accepted.hub_id] = before + connection.bytes_received

    def _control(self, connection: Connection, accepted: _Accepted, body: bytes) -> None:
        try:
            message = decode_control(body)
        except msgspec.DecodeError as error:
            self._refuse(connection, LinkRefused("message", f"not a message between hubs: {error}"))
            return
        match message:
            case LinkHello() if not accepted.hub_id:
                self._greet(connection, accepted, message)
            case LinkPing(number) if accepted.hub_id:
                if self._check_again(connection, accepted.hub_id):
                    connection.say(LinkPong(number))
            case Bye() if accepted.hub_id:
                connection.say(Parted())
            case _:
                connection.abort(f"sent {type(message).__name__} at the wrong time")

    def _greet(self, connection: Connection, accepted: _Accepted, hello: LinkHello) -> None:
        certified: HubName | None = connection.certificate.name if connection.certificate else None
        refused = refusal(hello, own=self._identity.name, certified=certified, expected=None)
        if refused is None:
            why = self._identity.refusal(hello.hub_id, hello.introduction)
            refused = LinkRefused("member", why) if why else None
        if refused is not None:
            self._refuse(connection, refused)
            return
        accepted.hub_id = hello.hub_id
        connection.accept_large_frames()
        connection.say(self.hello())
        self._end_oldest(hello.hub_id)
        self._on_greeted(hello.hub_id)

    def _end_oldest(self, hub_id: str) -> None:
        of_hub = [connection for connection, accepted in self._accepted.items() if accepted.hub_id == hub_id]
        for connection in of_hub[:-PER_HUB_MAX]:
            connection.abort(f"{hub_id} has reconnected")

    def _check_again(self, connection: Connection, hub_id: str) -> bool:
        """What held at the greeting need not hold forever."""
        certificate = connection.certificate
        if certificate is None or self._clock.now() >= certificate.not_after:
            self._refuse(connection, LinkRefused("certificate", f"the certificate of {hub_id} has expired"))
            return False
        why = self._identity.refusal(hub_id, b"")
        if why:
            self._refuse(connection, LinkRefused("member", why))
        return not why

    def _refuse(self, connection: Connection, refused: LinkRefused) -> None:
        connection.say(refused)
        connection.close(refused.reason)


# How do hubs exchange messages? Each dials all others, sends where it has dialled, and reads where it was dialled.
#
# Two connections for a pair cost little and need no agreement on which of them counts. What the messages mean is the
# caller's affair: `encode` and `decode` turn them into bytes and back.


SWEEP_EVERY_S = 1.0
PEERS_MAX = 1_000

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One peer, for people and metrics. `trouble` says why the link is down; bytes are counted before encryption.

    `messages_refused` are those for which the queue had no room.
    """

    hub_id: str
    address: Address
    up: bool
    trouble: str
    rtt_ms: float | None
    features: tuple[str, ...]
    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int
    messages_refused: int


class Mesh(Generic[M]):
    """All links of one hub. `run` serves until it is cancelled; all callbacks are called on its event loop.

    - `on_message(hub_id, message)`: from a peer whose certificate names it. An error that it raises ends that peer's
      connection; so does a body that `decode` refuses with a ValueError.
    - `on_up(hub_id)`, `on_down(hub_id, why)`: whether `send` can reach that peer. What was sent shortly before an
      `on_down` may or may not have arrived.
    - `on_stranger(request) -> answer`: only for a hub that lets others join; for connections without certificate.
    """

    def __init__(
        self,
        *,
        identity: LinkIdentity,
        listen: tuple[str, int],
        peers: Mapping[str, tuple[str, int]],
        encode: Callable[[M], bytes],
        decode: Callable[[bytes], M],
        on_message: Callable[[str, M], None],
        on_up: Callable[[str], None],
        on_down: Callable[[str, str], None],
        clock: Clock,
        features: tuple[str, ...] = (),
        on_uncertified: Callable[[bytes], bytes] | None = None,
        jitter: Callable[[], float] = random.random,
        gate: ConnectionGate | None = None,
    ) -> None:
        self._identity = identity
        self._listen = Address(*listen)
        self._encode = encode
        self._decode = decode
        self._on_message = on_message
        self._on_up = on_up
        self._on_down = on_down
        self._clock = clock
        self._jitter = jitter
        self._gate = gate or ConnectionGate("peers")
        self._messages_received: dict[str, int] = {}
        self._acceptor = Acceptor(
            identity,
            clock,
            features=features,
            on_body=self._body,
            on_greeted=self._greeted,
            on_uncertified=on_uncertified,
        )
        self._peers: dict[str, Peer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self.port = self._listen.port  # the real one once it listens on port 0
        for hub_id, address in peers.items():
            self.add_peer(hub_id, address)

    async def run(self, *, listening: Callable[[int], None] | None = None) -> None:
        """Until cancelled. Raises E1004 if the port is taken."""
        sock = tls_connection.listen(self._listen)
        self.port = sock.getsockname()[1]
        listener = Listener(
            sock,
            self._gate,
            lambda ticket: Connection(self._acceptor, ticket),
            tls=self._identity.server_context(),
            tls_shutdown_s=SHUTDOWN_WITHIN_S,
        )
        try:
            if listening is not None:
                listening(self.port)
            async with asyncio.TaskGroup() as group:
                self._group = group
                for hub_id in self._peers:
                    self._start(hub_id)
                group.create_task(self._sweep())
        finally:
            self._group = None
            self._tasks.clear()
            listener.close()
            for connection in self._acceptor.connections():
                connection.close("this hub stops")

    def send(self, hub_id: str, message: M, *, droppable: bool = False) -> bool:
        """Never waits. False if there is no link or its queue is full: then nothing was sent.

        Raises `FrameTooLarge` for a message above 1 MiB.
        """
        peer = self._peers.get(hub_id)
        if peer is None or not peer.is_up:
            return False
        return peer.send(frame(FrameKind.MESSAGE, self._encode(message)), droppable=droppable)

    def broadcast(self, message: M, *, droppable: bool = False) -> int:
        """To all peers, encoded once; answers how many took it."""
        sealed = frame(FrameKind.MESSAGE, self._encode(message))
        return sum(peer.send(sealed, droppable=droppable) for peer in self._peers.values())

    def add_peer(self, hub_id: str, address: tuple[str, int]) -> None:
        """From now on this peer is dialled. A known one gets a new address, which its next connection uses."""
        if hub_id == self._identity.name.hub_id:
            return
        known = self._peers.get(hub_id)
        if known is not None:
            known.address = Address(*address)
            return
        if len(self._peers) >= PEERS_MAX:
            raise ValueError(f"a hub has at most {PEERS_MAX} peers")
        self._peers[hub_id] = Peer(
            hub_id,
            Address(*address),
            identity=self._identity,
            hello=self._acceptor.hello,
            clock=self._clock,
            jitter=self._jitter,
            on_up=self._on_up,
            on_down=self._on_down,
        )
        self._start(hub_id)

    def remove_peer(self, hub_id: str, why: str = "no longer a peer") -> None:
        """Ends both directions. Whether it may come back is for the identity to say."""
        if self._peers.pop(hub_id, None) is not None:
            task = self._tasks.pop(hub_id, None)
            if task is not None:
                task.cancel()
        self._acceptor.drop(hub_id, why)

    def is_up(self, hub_id: str) -> bool:
        return hub_id in self._peers and self._peers[hub_id].is_up

    def up(self) -> tuple[str, ...]:
        return tuple(hub_id for hub_id, peer in self._peers.items() if peer.is_up)

    def rtt_ms(self, hub_id: str) -> float | None:
        """Round trip, the median of the last pings, one every second; None without a link."""
        return self._peers[hub_id].rtt_ms if hub_id in self._peers else None

    def features(self, hub_id: str) -> tuple[str, ...]:
        return self._peers[hub_id].features if hub_id in self._peers else ()

    def status(self) -> list[LinkStatus]:
        return [
            LinkStatus(
                hub_id=hub_id,
                address=peer.address,
                up=peer.is_up,
                trouble=peer.trouble,
                rtt_ms=peer.rtt_ms,
                features=peer.features,
                bytes_sent=peer.bytes_sent,
                bytes_received=self._acceptor.bytes_received(hub_id),
                messages_sent=peer.messages_sent,
                messages_received=self._messages_received.get(hub_id, 0),
                messages_refused=peer.messages_refused,
            )
            for hub_id, peer in self._peers.items()
        ]

    def _start(self, hub_id: str) -> None:
        if self._group is not None:
            self._tasks[hub_id] = self._group.create_task(self._peers[hub_id].run(), name=f"link to {hub_id}")

    def _greeted(self, hub_id: str) -> None:
        """It is there, so it can be dialled."""
        peer = self._peers.get(hub_id)
        if peer is not None and not peer.is_up:
            peer.dial_now()

    def _body(self, hub_id: str, body: bytes) -> str:
        try:
            message = self._decode(body)
        except ValueError as error:  # msgspec.DecodeError is one
            return f"not a message that this hub understands: {error}"
        self._messages_received[hub_id] = self._messages_received.get(hub_id, 0) + 1
        self._on_message(hub_id, message)
        return ""

    async def _sweep(self) -> None:
        while True:
            self._acceptor.sweep()
            await self._clock.sleep(SWEEP_EVERY_S)

"""Who may talk to this hub? Connections that peers have dialled: greeted, checked, read, and watched until they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from harch.base.clock import Clock
from harch.federation.identity.names import HubName
from harch.federation.links.connection import Connection, LinkIdentity
from harch.federation.links.control import (
    PROTOCOL_VERSION,
    Bye,
    Hello,
    Parted,
    Ping,
    Pong,
    Refused,
    decode_control,
    refusal,
)
from harch.federation.links.frames import Kind, frame

HELLO_WITHIN_S = 5.0
SILENCE_S_MAX = 15.0  # the dialler pings every second
UNKNOWN_MAX = 256  # connections that have not said who they are
PER_HUB_MAX = 4  # a replacement beside the one it replaces, and some that the other end has lost already


@dataclass(slots=True)
class _Accepted:
    hub_id: str  # empty until the Hello
    heard_s: float


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
        on_stranger: Callable[[bytes], bytes] | None,
    ) -> None:
        self._identity = identity
        self._clock = clock
        self._features = features
        self._on_body = on_body
        self._on_greeted = on_greeted
        self._on_stranger = on_stranger
        self._accepted: dict[Connection, _Accepted] = {}
        self._bytes_of_ended: dict[str, int] = {}

    def hello(self) -> Hello:
        name = self._identity.name
        return Hello(
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
            if now_s - accepted.heard_s > limit_s:
                connection.abort(f"silent for {limit_s:g} s")
            elif accepted.hub_id:
                self._check_again(connection, accepted.hub_id)

    def drop(self, hub_id: str, why: str) -> None:
        for connection, accepted in list(self._accepted.items()):
            if accepted.hub_id == hub_id:
                self._refuse(connection, Refused("member", why))

    def connections(self) -> list[Connection]:
        return list(self._accepted)

    # Called by connections

    def opened(self, connection: Connection) -> None:
        """Peers greet at once, so of those that have not, the oldest give way: nobody can lock peers out by waiting."""
        self._accepted[connection] = _Accepted("", self._clock.monotonic_s())
        unknown = [one for one, accepted in self._accepted.items() if not accepted.hub_id and not one.is_ending]
        for oldest in unknown[:-UNKNOWN_MAX]:
            oldest.abort("too many connections that have not said who they are")

    def received(self, connection: Connection, kind: int, body: bytes) -> None:
        accepted = self._accepted[connection]
        accepted.heard_s = self._clock.monotonic_s()
        if kind == Kind.MESSAGE and accepted.hub_id:
            fault = self._on_body(accepted.hub_id, body)
            if fault:
                self._refuse(connection, Refused("message", fault))
        elif kind == Kind.CONTROL:
            self._control(connection, accepted, body)
        elif kind == Kind.STRANGER and self._on_stranger and not connection.shows_certificate:
            connection.write(frame(Kind.STRANGER, self._on_stranger(body)))
            connection.close("the stranger has its answer")
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
            self._refuse(connection, Refused("message", f"not a message between hubs: {error}"))
            return
        match message:
            case Hello() if not accepted.hub_id:
                self._greet(connection, accepted, message)
            case Ping(number) if accepted.hub_id:
                if self._check_again(connection, accepted.hub_id):
                    connection.say(Pong(number))
            case Bye() if accepted.hub_id:
                connection.say(Parted())
            case _:
                connection.abort(f"sent {type(message).__name__} at the wrong time")

    def _greet(self, connection: Connection, accepted: _Accepted, hello: Hello) -> None:
        certified: HubName | None = connection.certificate.name if connection.certificate else None
        refused = refusal(hello, own=self._identity.name, certified=certified, expected=None)
        if refused is None:
            why = self._identity.refusal(hello.hub_id, hello.introduction)
            refused = Refused("member", why) if why else None
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
            connection.abort(f"{hub_id} has dialled anew")

    def _check_again(self, connection: Connection, hub_id: str) -> bool:
        """What held at the greeting need not hold for ever."""
        certificate = connection.certificate
        if certificate is None or self._clock.now() >= certificate.not_after:
            self._refuse(connection, Refused("certificate", f"the certificate of {hub_id} has expired"))
            return False
        why = self._identity.refusal(hub_id, b"")
        if why:
            self._refuse(connection, Refused("member", why))
        return not why

    def _refuse(self, connection: Connection, refused: Refused) -> None:
        connection.say(refused)
        connection.close(refused.reason)

"""What is one TLS connection between two hubs? Frames in both directions, and the certificate at the other end."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, cast

from harch.base.listen.gate import Ticket
from harch.federation.identity.names import HubName, parse_uri
from harch.federation.links.control import Control, encode_control
from harch.federation.links.frames import BODY_BYTES_MAX, FrameReader, Kind, frame

BUFFERED_BYTES_MAX = 256 * 1024  # handed to the transport; what waits beyond that stays in the outbox
SHUTDOWN_WITHIN_S = 2.0


class LinkIdentity(Protocol):
    """What links need to know of a hub's identity. `identity.HubIdentity` is one."""

    @property
    def name(self) -> HubName: ...

    @property
    def generation(self) -> int:
        """Grows with each new certificate."""
        ...

    @property
    def features(self) -> tuple[str, ...]: ...

    def server_context(self) -> ssl.SSLContext: ...

    def client_context(self) -> ssl.SSLContext: ...

    def introduction(self) -> bytes: ...

    def refusal(self, hub_id: str, introduction: bytes) -> str: ...


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """What the other end has proved to be. TLS has checked signature and dates; the dates run on while it is open."""

    name: HubName
    not_after: datetime


class ConnectionOwner(Protocol):
    """Who handles what a connection brings."""

    def opened(self, connection: Connection) -> None: ...

    def received(self, connection: Connection, kind: int, body: bytes) -> None: ...

    def writable(self, connection: Connection) -> None: ...

    def closed(self, connection: Connection, why: str) -> None: ...


class Connection(asyncio.Protocol):
    """After `close` or `abort` nothing more is received, and `closed` follows once."""

    def __init__(self, owner: ConnectionOwner, ticket: Ticket | None = None) -> None:
        self._owner = owner
        self._ticket = ticket  # of one that others have dialled
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._why = ""
        self.is_closed = False
        self.can_write = False
        self.certificate: PeerCertificate | None = None
        self.shows_certificate = False
        self.bytes_sent = 0
        self.bytes_received = 0

    @property
    def is_ending(self) -> bool:
        return bool(self._why)

    def accept_large_frames(self) -> None:
        """The peer is known from here on."""
        self._reader.body_bytes_max = BODY_BYTES_MAX
        if self._ticket is not None:
            self._ticket.served()

    def write(self, frames: bytes) -> None:
        if self._transport is not None and not self._why:
            self.bytes_sent += len(frames)
            self._transport.write(frames)

    def say(self, message: Control) -> None:
        self.write(frame(Kind.CONTROL, encode_control(message)))

    def close(self, why: str) -> None:
        """What was written still goes out."""
        self._end(why, at_once=False)

    def abort(self, why: str) -> None:
        """For a peer that misbehaves, or no longer reads."""
        self._end(why, at_once=True)

    def _end(self, why: str, *, at_once: bool) -> None:
        self._why = self._why or why
        self.can_write = False
        if self._transport is not None:
            if at_once:
                self._transport.abort()
            else:
                self._transport.close()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=BUFFERED_BYTES_MAX)
        self.can_write = True
        if self._ticket is not None:
            self._ticket.evict = lambda: self.abort("others need the room")
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            shown = secured.getpeercert()
            self.shows_certificate = bool(shown)
            self.certificate = peer_certificate(shown) if shown else None
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        self.bytes_received += len(data)
        for kind, body in self._reader.feed(data):
            if self._why:
                return
            self._owner.received(self, kind, body)
        if self._reader.fault:
            self.abort(f"sent {self._reader.fault}")

    def pause_writing(self) -> None:
        self.can_write = False

    def resume_writing(self) -> None:
        if not self._why:
            self.can_write = True
            self._owner.writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self.can_write = False
        self._why = self._why or _words(exc)
        if self._ticket is not None:
            self._ticket.release()
        self._owner.closed(self, self._why)


def peer_certificate(shown: dict[str, object]) -> PeerCertificate | None:
    """None unless the certificate names exactly one hub and nothing else."""
    names = cast(tuple[tuple[str, str], ...], shown.get("subjectAltName", ()))
    name = parse_uri(names[0][1]) if len(names) == 1 and names[0][0] == "URI" else None
    if name is None:
        return None
    ends_s = ssl.cert_time_to_seconds(str(shown["notAfter"]))
    return PeerCertificate(name, datetime.fromtimestamp(ends_s, UTC))


def _words(error: Exception | None) -> str:
    if error is None:
        return "the peer closed the connection"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}".lower().replace("_", " ").replace("tls:", "TLS:")
    return str(error) or type(error).__name__

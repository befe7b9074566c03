"""Is this the message engine, and does it know us? One connection from its first byte to the end of the handshake."""

from __future__ import annotations

import ssl

from harch.base.clock import Clock
from harch.pipelines.client import commands
from harch.pipelines.client.errors import AuthorizationFailed, ConnectionLost, NatsError
from harch.pipelines.client.options import ClientOptions, connect_line, parse_address
from harch.pipelines.client.protocol import Event, Info, Parser, Ping, Pong, Refusal
from harch.pipelines.client.sockets import Part, Wire


class Link:
    """A socket with its parser. Made by `open_link`; after a failure it is closed and never used again."""

    def __init__(self, wire: Wire, parser: Parser, info: Info) -> None:
        self.parser = parser
        self.info = info
        self._wire = wire

    def fill(self, timeout_s: float) -> int:
        """Receives what there is into the parser; 0 if nothing came in time."""
        count = self._wire.receive_into(self.parser.writable(), timeout_s)
        self.parser.wrote(count)
        return count

    def send(self, parts: tuple[Part, ...]) -> None:
        self._wire.send(parts)

    def close(self) -> None:
        self._wire.close()


def open_link(url: str, options: ClientOptions, tls: ssl.SSLContext | None, clock: Clock) -> Link:
    """Connects and identifies itself. Raises `ConnectionLost`, or `AuthorizationFailed` where trying again is vain."""
    address = parse_address(url)
    parser = Parser(buffer_bytes=options.buffer_bytes, payload_bytes_max=options.payload_bytes_max)
    deadline_s = clock.monotonic_s() + options.connect_timeout_s
    wire = Wire(address, options, clock)

    def receive() -> Event:
        while (event := parser.next()) is None:
            left_s = deadline_s - clock.monotonic_s()
            count = wire.receive_into(parser.writable(), left_s) if left_s > 0 else 0
            if count == 0:
                raise ConnectionLost("the other side does not finish the handshake")
            parser.wrote(count)
        return event

    try:
        info = receive()
        if not isinstance(info, Info):
            raise ConnectionLost("the other side does not begin as a message engine does")
        if info.tls_required or address.tls:
            if tls is None or options.tls is None:
                raise ConnectionLost("the engine wants TLS, and no authority to trust is named")
            wire.start_tls(tls, options.tls.server_name or address.host, options.connect_timeout_s)
        wire.send((connect_line(options, info),))
        while not isinstance(event := receive(), Pong):
            refuse(event)
            if isinstance(event, Ping):
                wire.send((commands.PONG,))
        return Link(wire, parser, info)
    except NatsError:
        wire.close()
        raise


def refuse(event: Event) -> None:
    """Raises if the engine said no during the handshake."""
    if isinstance(event, Refusal):
        raise AuthorizationFailed(event.text) if event.is_authorization else ConnectionLost(event.text)

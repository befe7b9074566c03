"""How do bytes get into and out of a socket without copies? Non-blocking, with a deadline for each direction."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Sequence

from harch.base.clock import Clock
from harch.pipelines.client.errors import ConnectionLost
from harch.pipelines.client.options import Address, ClientOptions, TlsFiles

Part = bytes | memoryview


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Verifies the engine against the one authority that is named; the system's authorities have no say."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(files.ca)
    if files.certificate:
        context.load_cert_chain(files.certificate, files.key or None)
    return context


def _unsent(parts: Sequence[Part], sent: int) -> list[Part]:
    """What is left after the kernel took so many bytes."""
    left: list[Part] = []
    for part in parts:
        size = len(part)
        if sent < size:
            left.append(memoryview(part)[sent:] if sent else part)
        sent = max(0, sent - size)
    return left


class Wire:
    """One connected socket. One thread may read while others write; a TLS session is shared under one lock."""

    def __init__(self, address: Address, options: ClientOptions, clock: Clock) -> None:
        self._clock = clock
        self._write_timeout_s = options.write_timeout_s
        self._lock = threading.Lock()
        self._is_tls = False
        try:
            made = socket.create_connection((address.host, address.port), options.connect_timeout_s)
        except OSError as error:
            raise ConnectionLost(f"{address.host}:{address.port}: {error}") from error
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            made.setsockopt(socket.SOL_SOCKET, option, options.socket_buffer_bytes)
        made.setblocking(False)
        self._socket: socket.socket = made
        self._incoming = select.poll()
        self._incoming.register(made, select.POLLIN)

    def start_tls(self, context: ssl.SSLContext, server_name: str, timeout_s: float) -> None:
        """After the engine's INFO, which is not encrypted. The handshake has a deadline too."""
        self._socket.settimeout(timeout_s)
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=server_name)
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"TLS: {error}") from error
        self._socket.setblocking(False)
        self._is_tls = True

    def receive_into(self, room: memoryview, timeout_s: float) -> int:
        """The number of bytes received; 0 if none came in time. Raises `ConnectionLost` at the end of the stream."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            try:
                if self._is_tls:
                    with self._lock:
                        count = self._socket.recv_into(room)
                else:
                    count = self._socket.recv_into(room)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as waiting:
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return 0
                if isinstance(waiting, ssl.SSLWantWriteError):
                    self._wait(select.POLLOUT, left_s)
                else:
                    self._incoming.poll(left_s * 1000)
                continue
            except (OSError, ValueError) as error:
                raise ConnectionLost(str(error)) from error
            if count == 0:
                raise ConnectionLost("the message engine closed the connection")
            return count

    def send(self, parts: Sequence[Part]) -> None:
        """All parts as they are: the kernel gathers them. Half a message cannot be taken back, so failure is final."""
        with self._lock:
            if self._is_tls:
                self._send_tls(parts)
            else:
                self._send_plain(parts)

    def _send_plain(self, parts: Sequence[Part]) -> None:
        left: Sequence[Part] = parts
        while left:
            try:
                sent = self._socket.sendmsg(left)
            except BlockingIOError:
                if not self._wait(select.POLLOUT, self._write_timeout_s):
                    raise ConnectionLost("the message engine takes no more bytes") from None
                continue
            except (OSError, ValueError) as error:
                raise ConnectionLost(str(error)) from error
            left = _unsent(left, sent)

    def _send_tls(self, parts: Sequence[Part]) -> None:
        """TLS encrypts into its own buffer anyway; small parts are joined so that they share a record."""
        small = sum(map(len, parts)) <= 16 << 10
        for part in (b"".join(parts),) if small else parts:
            view = memoryview(part)
            while len(view):
                try:
                    view = view[self._socket.send(view) :]
                except (ssl.SSLWantWriteError, ssl.SSLWantReadError) as waiting:
                    want = select.POLLIN if isinstance(waiting, ssl.SSLWantReadError) else select.POLLOUT
                    if not self._wait(want, self._write_timeout_s):
                        raise ConnectionLost("the message engine takes no more bytes") from None
                except (OSError, ValueError) as error:
                    raise ConnectionLost(str(error)) from error

    def _wait(self, events: int, timeout_s: float) -> bool:
        try:
            poller = select.poll()
            poller.register(self._socket, events)
            return bool(poller.poll(max(0.0, timeout_s) * 1000))
        except (OSError, ValueError) as error:  # closed by another thread
            raise ConnectionLost(str(error)) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a reader in another thread
        self._socket.close()

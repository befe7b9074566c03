"""How is an ASGI application served?

By uvicorn, through the gate, on a socket that is bound already, with limits on size, count and time before a request
is parsed further.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Generator
from http import HTTPStatus
from typing import Any

import httptools
import msgspec
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from harch.base.errors import HarchError
from harch.base.listen.accept import Listener
from harch.base.listen.direct_route import FAILED, DirectCycle, DirectRoutes, header_lines, plain_headers
from harch.base.listen.gate import ConnectionGate, Ticket

# When is a request too much? Before it is parsed further: uvicorn's protocol with limits on size, count and time.
#
# uvicorn (with httptools) keeps what it has read of a head until the head is complete, however long that takes and
# however large it grows. Here every piece is counted before the parser may keep it, and whoever owes us the rest of a
# request is looked at once a second.


ErrorBody = Callable[[HarchError], bytes]
_NO_ROUTES: DirectRoutes = {}


class HttpGuard:
    """What the connections of one HTTP listener share. `error_body` writes an error as its clients read it."""

    def __init__(self, gate: ConnectionGate, error_body: ErrorBody, direct: DirectRoutes = _NO_ROUTES) -> None:
        self.gate = gate
        self.error_body = error_body
        self.direct = direct
        self.owing: set[GuardedHttpProtocol] = set()  # the other end owes us the rest of a request
        self._common: list[tuple[bytes, bytes]] = []
        self._common_lines = b""

    def sweep(self, now_s: float) -> None:
        """Ends what has been too slow."""
        for connection in list(self.owing):
            connection.check(now_s)

    def common_lines(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """The headers that the server gives every response, as lines: it makes a new list of them once a second."""
        if headers is not self._common:
            self._common, self._common_lines = headers, header_lines(headers)
        return self._common_lines

    def full(self) -> bytes:
        """The answer to those for whom there is no room."""
        hint = "close connections that you do not need, and try again in a moment"
        return self.answer(HarchError("E0404", "too many connections are open", hint=hint, retry_after_s=1))

    def answer(self, error: HarchError) -> bytes:
        """A whole answer; the connection ends with it."""
        status, body = HTTPStatus(error.kind.status), self.error_body(error)
        retry = b"" if error.retry_after_s is None else b"retry-after: %d\r\n" % error.retry_after_s
        first = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n" % (status.value, status.phrase.encode())
        return b"%bcontent-length: %d\r\n%bconnection: close\r\n\r\n%b" % (first, len(body), retry, body)


class GuardedHttpProtocol(HttpToolsProtocol):
    """One connection of HTTP."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], *, guard: HttpGuard, ticket: Ticket
    ) -> None:
        super().__init__(config, server_state, app_state, asyncio.get_running_loop())
        self._guard = guard
        self._limits = guard.gate.limits
        self._ticket = ticket
        self._refusal: tuple[str, HarchError] | None = None
        self._owed_since_s: float | None = None
        self._in_message = self._in_body = False
        self._deliveries = 0  # heads, parts of bodies and ends that the parser has handed out
        self._undelivered_bytes = 0  # what it has kept or skipped since
        self._header_bytes = self._body_bytes = 0
        self._direct: DirectCycle | None = None  # the request that is being read will be served without ASGI
        if self.ws_protocol_class is not None:
            self.ws_protocol_class = self._websocket  # type: ignore[assignment] # it makes one

    def check(self, now_s: float) -> None:
        """Refuses what has taken too long. Nobody is blamed while we ourselves do not read."""
        if self._owed_since_s is None:
            self._guard.owing.discard(self)
            return
        if self.flow.read_paused:
            self._owed_since_s = now_s
            return
        took_s = now_s - self._owed_since_s
        if self._in_body and took_s > self._limits.body_s_allowed(self._body_bytes):
            hint = f"send at least {self._limits.body_bytes_per_s_min} bytes a second, or less at a time"
            self._refuse("body_slow", HarchError("E0210", f"the body was not complete after {took_s:.0f} s", hint=hint))
        elif not self._in_body and took_s > self._limits.head_s_max:
            if self._in_message or self._undelivered_bytes:
                seconds = f"{self._limits.head_s_max:g} s"
                error = HarchError("E0210", f"the headers were not complete within {seconds}", hint="send them at once")
                self._refuse("head_slow", error)
            else:
                self._guard.gate.refuse("silent", self._ticket.address)
                self.transport.abort()  # it has not said a word

    def evict(self) -> None:
        """Somebody else needs the room, and this end has waited for longest."""
        if self._in_message or self._undelivered_bytes:
            self._answer_and_close(self._guard.full())
        else:
            self.transport.close()

    # Called by the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        self._ticket.evict = self.evict
        self._owe()

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.owing.discard(self)
        self._ticket.release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        most = self._limits.head_bytes_max
        if len(data) <= most:
            self._feed(data)
        else:
            # Never more than one head at a time: what follows is not even looked at once the limit is passed.
            view = memoryview(data)
            for start in range(0, len(data), most):
                if not self._feed(view[start : start + most]):
                    break
        if not self._in_message and not self._undelivered_bytes:
            self._owed_since_s = None
            self._guard.owing.discard(self)
        elif self._owed_since_s is None:
            self._owe()

    def _feed(self, piece: bytes | memoryview) -> bool:
        """Whether there is a point in going on."""
        deliveries = self._deliveries
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            # From here on the connection is a WebSocket's, and its protocol has the ticket. A wish for anything else
            # was not heard: the request is answered as it is.
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            return False
        except httptools.HttpParserError:
            reason, error = self._refusal or ("malformed", HarchError("E0202", "this is not an HTTP request"))
            self._refuse(reason, error)
            return False
        if self._direct is not None:
            self._leave_direct_route(self._direct)  # the rest of its body is not here yet
        if self._deliveries != deliveries:
            self._undelivered_bytes = 0
            return True
        self._undelivered_bytes += len(piece)
        if self._undelivered_bytes > self._limits.head_bytes_max:
            self._refuse("head_large", self._too_large())
            return False
        return True

    def _websocket(self, **arguments: Any) -> GuardedWebSocket:
        return GuardedWebSocket(ticket=self._ticket, **arguments)

    def _owe(self) -> None:
        self._owed_since_s = self.loop.time()
        self._guard.owing.add(self)

    # Called by the parser

    def on_message_begin(self) -> None:
        self._in_message, self._in_body = True, False
        self._header_bytes = self._body_bytes = 0
        self.url, self.headers = b"", []  # uvicorn sees the head once it is complete, if ASGI needs it at all

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if len(self.headers) >= self._limits.header_count_max:
            error = HarchError("E0209", f"more than {self._limits.header_count_max} headers", hint="send fewer")
            self._refusal = ("headers_many", error)
            raise ValueError("too many headers")  # the parser stops, and `_feed` says why
        if self._header_bytes > self._limits.head_bytes_max:
            self._refusal = ("head_large", self._too_large())
            raise ValueError("too large a head")
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._deliveries += 1
        self._in_body = True
        self._owed_since_s = None  # the body has a time of its own
        if len(self.pipeline) >= self._limits.pipelined_max:
            error = HarchError("E0404", "too many requests were sent ahead", hint="wait for answers")
            self._refusal = ("pipelined", error)
            raise ValueError("too many requests ahead")
        self._direct = self._direct_cycle()
        if self._direct is None:
            self._begin_asgi()

    def _direct_cycle(self) -> DirectCycle | None:
        """For the plainest requests of a direct route."""
        route = self._guard.direct.get(self.url)
        if (
            route is None
            or self._is_answering  # its turn comes later
            or self.parser.get_method() != route.method
            or self.parser.get_http_version() != "1.1"
            or not self.parser.should_keep_alive()
        ):
            return None
        headers = plain_headers(self.headers)
        return DirectCycle(route, headers) if headers is not None else None

    def _begin_asgi(self) -> None:
        url, headers = self.url, self.headers
        super().on_message_begin()
        super().on_url(url)
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()

    def _leave_direct_route(self, direct: DirectCycle) -> None:
        """What began like a request for a direct route has turned out to be none."""
        self._direct = None
        self._begin_asgi()
        super().on_body(direct.body)

    def on_body(self, body: bytes) -> None:
        self._deliveries += 1
        self._body_bytes += len(body)
        if self._direct is None:
            super().on_body(body)
            return
        self._direct.body += body
        if self._body_bytes > self._direct.route.body_bytes_max:
            self._leave_direct_route(self._direct)

    def on_message_complete(self) -> None:
        self._deliveries += 1
        self._in_message = self._in_body = False
        self._ticket.served()
        direct, self._direct = self._direct, None
        if direct is None:
            super().on_message_complete()
            return
        self.cycle = direct  # type: ignore[assignment] # as good as one of uvicorn's
        direct.task = self.loop.create_task(self._serve_directly(direct))
        self.tasks.add(direct.task)  # a stop waits for them

    async def _serve_directly(self, cycle: DirectCycle) -> None:
        """Whatever the other end does meanwhile, the request is handled to its end."""
        try:
            response = await cycle.route.handle(cycle.headers, cycle.body)
        except BaseException as error:  # also if it is cancelled: a stop waits for so long and no longer
            self.logger.error("a direct route failed", exc_info=error)
            response, cycle.keep_alive = FAILED, False
        if self.flow.write_paused:
            await self.flow.drain()
        self.tasks.discard(cycle.task)
        if self.transport.is_closing():
            return  # nobody is left to answer
        common = self._guard.common_lines(self.server_state.default_headers)
        self.transport.write(response.encode(common, keep_alive=cycle.keep_alive))
        cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        self._ticket.waits()
        super().on_response_complete()

    @property
    def _is_answering(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def _too_large(self) -> HarchError:
        most = self._limits.head_bytes_max
        return HarchError("E0209", f"the request line and headers are larger than {most} bytes", hint="send less")

    def _refuse(self, reason: str, error: HarchError) -> None:
        self._guard.gate.refuse(reason, self._ticket.address)
        self._answer_and_close(self._guard.answer(error))

    def _answer_and_close(self, answer: bytes) -> None:
        """At once: what still comes is not read. In the middle of another answer there is nothing to be said."""
        if self.transport.is_closing():
            return
        if not self._is_answering:
            self.transport.write(answer)
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # who takes no answers is not waited for
        else:
            self.transport.close()


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, which gives its ticket back."""

    def __init__(self, *, ticket: Ticket, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._ticket = ticket

    def connection_lost(self, exc: Exception | None) -> None:
        self._ticket.release()
        super().connection_lost(exc)


# How is an ASGI application served? By uvicorn, through the gate, on a socket that is bound already.


BACKLOG = 2048
SWEEPS_PER_LIMIT = 4  # so soon after its limit a slow request is ended
SWEEP_S_MAX = 1.0
TICK_S = 1.0


def plain_error(error: HarchError) -> bytes:
    """An error for clients that know no other shape."""
    return msgspec.json.encode({"code": error.code, "message": error.message, "hint": error.hint, **error.meta})


@contextlib.asynccontextmanager
async def http_server(
    app: Any,
    listener: socket.socket,
    gate: ConnectionGate,
    *,
    error_body: ErrorBody = plain_error,
    direct: DirectRoutes = _NO_ROUTES,
    frame_bytes_max: int | None = None,
    graceful_stop_s: float,
    on_stop: Callable[[], None] = lambda: None,
) -> AsyncIterator[asyncio.Task[None]]:
    """Takes connections while the block lasts, as the task that it yields. Then running requests finish.

    `direct` routes are served without `app`, as far as requests are plain. `frame_bytes_max`: of a WebSocket; None:
    there are none. `on_stop` is called before requests are waited for.
    """
    config = uvicorn.Config(
        app,
        loop="none",  # the caller runs the loop
        http=GuardedHttpProtocol,
        ws="none" if frame_bytes_max is None else "websockets-sansio",
        ws_max_size=frame_bytes_max or 0,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=gate.limits.idle_s_max,  # type: ignore[arg-type] # it is only given to a timer
        timeout_graceful_shutdown=max(1, round(graceful_stop_s)),
    )
    started = asyncio.Event()
    server = _Server(config, listener, HttpGuard(gate, error_body, direct), started)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name=f"serves {gate.name}")
    try:
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        yield serving
    finally:
        on_stop()
        server.stop()
        await serving


class _Server(uvicorn.Server):
    """uvicorn behind our own listener, and without its signal handlers: signals belong to the process."""

    def __init__(self, config: uvicorn.Config, sock: socket.socket, guard: HttpGuard, started: asyncio.Event) -> None:
        super().__init__(config)
        self._sock, self._guard, self._started = sock, guard, started
        self._stopping = asyncio.Event()
        limits = guard.gate.limits
        self._sweep_s = min(SWEEP_S_MAX, min(limits.head_s_max, limits.body_s_grace) / SWEEPS_PER_LIMIT)
        self._sweeping: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        listener = Listener(self._sock, self._guard.gate, self._connection, refusal=self._guard.full())
        self.servers = [listener]  # type: ignore[list-item] # `close` and `wait_closed` are all that is asked of it
        self._sweeping = asyncio.create_task(self._sweep(), name="sweeps slow requests")
        self.started = True
        self._started.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self._sweeping is not None:
            self._sweeping.cancel()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """Keeps the `date` header current. uvicorn looks ten times a second whether to stop; this one is told."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._stopping.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def _connection(self, ticket: Ticket) -> asyncio.BaseProtocol:
        return GuardedHttpProtocol(
            self.config, self.server_state, self.lifespan.state, guard=self._guard, ticket=ticket
        )

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._sweep_s)
            self._guard.sweep(loop.time())

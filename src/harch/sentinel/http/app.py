"""How is a request to SENTINEL served? Read within limits, allowed or refused, done by the right threads, answered."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from harch.base.clock import Clock, epoch_ms
from harch.base.errors import HarchError
from harch.base.http.limits import HttpLimits
from harch.base.http.messages import RequestIds, answer_then_drain, declared_bytes, read_body
from harch.base.http.streams import Streams
from harch.base.listen.direct_route import DirectRoutes
from harch.sentinel.http.access import ANONYMOUS, Authenticator, Caller, tenant_of
from harch.sentinel.http.messages import HttpReply, TelemetryRequest, failure, read_parameters
from harch.sentinel.http.permissions import ACCESS, SOCKET, Access, allowed
from harch.sentinel.http.routing import HttpRoute, Routes, Socket, SocketRoute, WorkClass

QUERIES_AT_ONCE = 2
QUERIES_WAITING_MAX = 64
WRITES_AT_ONCE = 4
WRITES_WAITING_MAX = 256
RECHECK_S = 1.0  # about the key of an open connection; the door asks its hub less often

T = TypeVar("T")

_FORM = "application/x-www-form-urlencoded"
_log = logging.getLogger("harch.sentinel")


class TelemetryApp:
    """The ASGI application of one SENTINEL."""

    def __init__(
        self,
        routes: Routes,
        authenticator: Authenticator,
        clock: Clock,
        sockets: Sequence[SocketRoute] = (),
        requests: Counter[tuple[str, int]] | None = None,
    ) -> None:
        """`requests` counts answers by route and status, as far as a route was found."""
        self._routes = routes
        self._requests: Counter[tuple[str, int]] = Counter() if requests is None else requests
        self._sockets = {route.path: route for route in sockets}
        self._socket_access = {route.path: allowed(ACCESS, SOCKET, route.path) for route in sockets}
        self._authenticator = authenticator
        self._clock = clock
        self._ids = RequestIds()
        self._limits = HttpLimits()
        self._threads = {
            WorkClass.QUERY: ThreadPoolExecutor(QUERIES_AT_ONCE, "sentinel-query"),
            WorkClass.WRITE: ThreadPoolExecutor(WRITES_AT_ONCE, "sentinel-write"),
        }
        self._waiting = dict.fromkeys(WorkClass, 0)
        self._waiting_max = {WorkClass.QUERY: QUERIES_WAITING_MAX, WorkClass.WRITE: WRITES_WAITING_MAX}
        self.streams = Streams(self._limits)
        self.direct_routes: DirectRoutes = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        handler = ""
        try:
            route, names, access = self._routes.find(scope["method"], scope["path"])
            handler = route.path
            answer = await self._answer(route, names, access, scope, receive, send)
        except HarchError as error:
            answer = failure(error)
        except ConnectionError:
            return  # the client is gone: nobody is left to answer
        except Exception as fault:  # noqa: BLE001 - the process edge: logged, answered, the server lives on
            request_id = self._ids.next()
            _log.error("%s: %s %s failed", request_id, scope["method"], scope["path"], exc_info=fault)
            answer = failure(HarchError("E1001", f"internal error; see request {request_id}"))
        if handler:
            self._requests[handler, answer.status if answer is not None else 413] += 1
        if answer is not None:
            await _send(send, answer)

    def error_body(self, error: HarchError) -> bytes:
        """For requests that are refused before they come here."""
        return failure(error).body

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket through the same door as everything else."""
        if (await receive())["type"] != "websocket.connect":
            return
        socket = Socket(receive, send, self._limits.stalled_s_max)
        try:
            route = self._sockets.get(scope["path"].rstrip("/"))
            if route is None:
                raise HarchError("E0207", f"no WebSocket at {scope['path']}")
            headers, access = _headers(scope), self._socket_access[route.path]
            caller = await self._allowed(headers, access)
            parameters = read_parameters(scope["query_string"])
            tenant, now_ms = tenant_of(caller, headers, access.scope), epoch_ms(self._clock.now())
            request = TelemetryRequest("GET", scope["path"], headers, parameters, b"", tenant, now_ms, caller=caller)
            await self._while_allowed(route.handler(request, socket), headers, access)
            await socket.close()
        except HarchError as error:
            await socket.refuse(error)
        except ConnectionError:
            return  # the client is gone
        except Exception as fault:  # noqa: BLE001 - the process edge: logged, closed, the server lives on
            request_id = self._ids.next()
            _log.error("%s: %s failed", request_id, scope["path"], exc_info=fault)
            await socket.refuse(HarchError("E1001", f"internal error; see request {request_id}"))

    def close(self) -> None:
        for threads in self._threads.values():
            threads.shutdown(wait=True, cancel_futures=True)

    async def _answer(
        self, route: HttpRoute, names: dict[str, str], access: Access, scope: Scope, receive: Receive, send: Send
    ) -> HttpReply | None:
        """None if it was refused already, for the length that its body declares."""
        headers = _headers(scope)
        caller = await self._allowed(headers, access)
        limits = replace(self._limits, body_bytes_max=route.body_bytes_max)
        if declared_bytes(scope) > limits.body_bytes_max:
            refusal = failure(HarchError("E0204", f"the body is larger than {limits.body_bytes_max} bytes"))
            head = [(b"content-type", refusal.content_type.encode())]
            await answer_then_drain(scope, receive, send, headers=head, body=refusal.body, limits=limits)
            return None
        body = await read_body(receive, limits) if scope["method"] not in {"GET", "HEAD"} else b""
        form = body if route.is_form and headers.get("content-type", "").startswith(_FORM) else b""
        gone = threading.Event()
        request = TelemetryRequest(
            scope["method"],
            scope["path"],
            headers,
            read_parameters(scope["query_string"], form),
            body,
            tenant_of(caller, headers, access.scope),
            epoch_ms(self._clock.now()),
            gone.is_set,
            caller,
        )
        if route.over_hubs is not None and request.hubs:
            answer = route.over_hubs(request, names)
        elif request.one("hubs"):
            raise HarchError("E0699", f"{scope['path']} covers only this hub", hint="remove `hubs`")
        elif route.work in {WorkClass.QUICK, WorkClass.LOOP} or (
            route.is_small is not None and route.is_small(request)
        ):
            answer = route.handler(request, names)
        else:
            # Only queries are given up: what was sent is kept, also for those who do not wait for the answer.
            watching = asyncio.create_task(_watch(receive, gone)) if route.work is WorkClass.QUERY else None
            try:
                answer = await self._in_thread(route, lambda: route.handler(request, names))
            finally:
                if watching is not None:
                    watching.cancel()
        return answer if isinstance(answer, HttpReply) else await answer

    async def _allowed(self, headers: Mapping[str, str], access: Access) -> Caller:
        """Raises E0101, E0102, E0103, and E0802 while nobody can say whose key it is."""
        if access.roles is None:
            return ANONYMOUS
        caller = await self._authenticator.caller(headers)
        access.check(caller.role)
        return caller

    async def _while_allowed(self, work: Coroutine[Any, Any, None], headers: Mapping[str, str], access: Access) -> None:
        """Ends a connection whose key is revoked meanwhile. Raises what the work raises, or why it may not go on."""
        working = asyncio.ensure_future(work)
        rechecking = asyncio.ensure_future(self._until_refused(headers, access))
        try:
            await asyncio.wait({working, rechecking}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                rechecking.result()
            working.result()
        finally:
            for task in (working, rechecking):
                task.cancel()
            await asyncio.gather(working, rechecking, return_exceptions=True)

    async def _until_refused(self, headers: Mapping[str, str], access: Access) -> None:
        while True:
            await self._clock.sleep(RECHECK_S)
            await self._allowed(headers, access)

    async def _in_thread(self, route: HttpRoute, work: Callable[[], T]) -> T:
        if self._waiting[route.work] >= self._waiting_max[route.work]:
            hint = "send less at a time, and try again in a moment"
            raise HarchError("E0676", f"too many {route.work.value} requests are pending", hint=hint, retry_after_s=1)
        self._waiting[route.work] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads[route.work], work)
        finally:
            self._waiting[route.work] -= 1


async def _watch(receive: Receive, gone: threading.Event) -> None:
    """Notes that the caller has hung up, so that a query for nobody ends."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


async def _send(send: Send, answer: HttpReply) -> None:
    headers = [(b"content-length", b"%d" % len(answer.body))]
    if answer.body:
        headers.append((b"content-type", answer.content_type.encode()))
    headers.extend((name.lower().encode(), value.encode("latin-1", "replace")) for name, value in answer.headers)
    with suppress(ConnectionError):
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

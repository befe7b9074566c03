"""Where does a request go first?

Hot routes and agents are served here, counted and traced; everything else by FastAPI behind it.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harch.api.access import identify, require_agent
from harch.api.errors import error_body, error_headers, internal_fault
from harch.api.hub_port import HubPort
from harch.api.limits import LARGE_BODIES
from harch.api.submit import Submission
from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.http.limits import HttpLimits
from harch.base.http.messages import (
    JSON_TYPE,
    RequestIds,
    answer_then_drain,
    declared_bytes,
    read_body,
    send_json,
    token_from,
    too_large,
)
from harch.base.http.streams import Streams
from harch.base.listen.direct_route import DirectResponse, DirectRoute, DirectRoutes, Headers, header_lines
from harch.base.tracing.spans import TRACEPARENT, TraceContext, read_header
from harch.base.tracing.tracer import Tracing, inside

_UNSUPPORTED_DATA, _GOING_AWAY = 1003, 1001


class WebSocketLink:
    """An `AgentLink` over ASGI. Frames are binary; anything else ends the connection."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        self.peer = f"{client[0]}:{client[1]}" if client else "unknown"
        self._receive = receive
        self._send = send
        self._open = True

    async def receive(self) -> bytes:
        if not self._open:
            raise ConnectionError(f"the connection of agent {self.peer} is closed")
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self._open = False
            raise ConnectionError(f"agent {self.peer} has left")
        frame: bytes | None = message.get("bytes")
        if frame is None:
            await self.close(_UNSUPPORTED_DATA)
            raise ConnectionError(f"agent {self.peer} sent text where frames are binary")
        return frame

    async def send(self, frame: bytes) -> None:
        if not self._open:
            raise ConnectionError(f"the connection of agent {self.peer} is closed")
        try:
            await self._send({"type": "websocket.send", "bytes": frame})
        except (OSError, RuntimeError) as error:  # the server says either, depending on who closed first
            self._open = False
            raise ConnectionError(f"agent {self.peer} has left") from error

    async def close(self, code: int = _GOING_AWAY) -> None:
        if self._open:
            self._open = False
            try:
                await self._send({"type": "websocket.close", "code": code})
            except (OSError, RuntimeError):
                return


async def connect_agent(hub: HubPort, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
    """Serves one agent until its connection ends; a refused one gets the usual error as HTTP answer."""
    await receive()  # websocket.connect
    try:
        principal = require_agent(identify(hub, token_from(scope["headers"])))
    except HarchError as error:
        await refuse_websocket(error, send, request_id)
        return
    await send({"type": "websocket.accept"})
    link = WebSocketLink(scope, receive, send)
    try:
        await hub.attach_agent(link, key_id=principal.key_id)
    except ConnectionError:
        _log.info("agent %s (key %s) disconnected", link.peer, principal.key_id)
    finally:
        await link.close()


async def refuse_websocket(error: HarchError, send: Send, request_id: str) -> None:
    headers = [*error_headers(error), (b"x-request-id", request_id.encode())]
    await send({"type": "websocket.http.response.start", "status": error.kind.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": error_body(error, request_id)})


# Which requests begin a trace? Submissions of work, and whatever comes from a caller that traces.
#
# A caller says so with `traceparent`. Other requests, such as those of dashboards that ask every second, are not
# traced.


_HEADER = TRACEPARENT.encode()
_NOTHING = contextlib.nullcontext(INVALID_SPAN)


class RequestSpans:
    """Of one hub. Without `tracing` it costs nothing."""

    def __init__(self, tracing: Tracing | None) -> None:
        self._tracing = tracing

    def of(
        self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], *, begins: bool, now_s: float
    ) -> contextlib.AbstractContextManager[Span]:
        """A span that is current while the request is served. `begins`: also without a caller that traces.

        Under load there mostly is no room for another trace, so this is asked before anything else.
        """
        tracing = self._tracing
        if tracing is None or not tracing.budget.has_room(now_s):
            return _NOTHING
        parent = _parent(headers)
        if not begins and (parent is None or (not parent.sampled and method == "GET")):
            return _NOTHING
        context = tracing.begin(parent)
        if context is None:
            return _NOTHING
        route = route_of(path)
        return tracing.tracer.start_as_current_span(
            f"{method} {route}",
            context=inside(context),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "http.route": route},
        )


def route_of(path: str) -> str:
    """What kind of thing a path is about; what follows may be a name that people chose."""
    words = [word for word in path.split("/") if word]
    kind = words[1:2] if words[:1] == ["v1"] else words[:1]
    return "/".join(["/v1", *kind])


def trace_id_of(span: Span) -> str:
    """In hexadecimal; empty for a request that is not traced."""
    known = span.get_span_context()
    return f"{known.trace_id:032x}" if known.trace_id else ""


def _parent(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    for name, value in headers:
        if name == _HEADER:
            return read_header(value.decode("latin-1"))
    return None


# How many requests does a hub answer, and how fast? Counted at the front door, for the public dashboards.


BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_NAMES = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")


class Traced(NamedTuple):
    """An answer whose trace can be looked at."""

    trace_id: str
    took_s: float
    at_s: float


class Traffic:
    """Counts since the start of the process. Streams count when they end and have no duration."""

    def __init__(self) -> None:
        self.by_status: Counter[str] = Counter()
        self.seconds = 0.0
        self._below = [0] * (len(BOUNDS_S) + 1)
        self._traces: dict[int, Traced] = {}

    def count(self, status: int, took_s: float) -> None:
        self.by_status[f"{status // 100}xx"] += 1
        self.seconds += took_s
        self._below[bisect_left(BOUNDS_S, took_s)] += 1

    def traced(self, took_s: float, trace_id: str, at_s: float) -> None:
        """An answer that was counted belongs to a trace."""
        self._traces[bisect_left(BOUNDS_S, took_s)] = Traced(trace_id, took_s, at_s)

    def traces(self) -> dict[str, Traced]:
        """The newest by upper bound."""
        return {_NAMES[bucket]: traced for bucket, traced in self._traces.items()}

    def durations(self) -> Iterator[tuple[str, int]]:
        """Cumulative counts by upper bound; the last one is all."""
        total = 0
        for bound, count in zip(_NAMES, self._below, strict=True):
            total += count
            yield bound, total


# Where does a request go first? Hot routes and agents are served here, everything else by FastAPI behind it.
#
# This is also the process edge of HTTP: whatever goes wrong further in leaves as the one error shape, with a request
# id.


PREFIX = "/v1"
SUBMISSION_PATHS = ("/v1/workloads", "/workloads")

_log = logging.getLogger("harch.api")


class Front:
    """The ASGI application of one hub; submissions of work need no ASGI."""

    def __init__(
        self,
        hub: HubPort,
        inner: ASGIApp,
        limits: HttpLimits,
        streams: Streams,
        traffic: Traffic,
        clock: Clock,
        tracing: Tracing | None = None,
    ) -> None:
        self._hub = hub
        self._inner = inner
        self._limits = limits
        self._submission = Submission(hub)
        self._ids = RequestIds()
        self._version = (b"x-harchos-version", hub.version.encode())
        self.streams = streams
        self._traffic = traffic
        self._clock = clock
        self._spans = RequestSpans(tracing)
        self._json_lines = header_lines([self._version, JSON_TYPE])
        submission = DirectRoute(b"POST", limits.body_bytes_max, self.submit)
        self.direct_routes: DirectRoutes = {path.encode(): submission for path in SUBMISSION_PATHS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            method, path, headers = scope["method"], scope["path"], scope["headers"]
            submits = method == "POST" and path in SUBMISSION_PATHS
            began_s = self._clock.monotonic_s()
            with self._spans.of(method, path, headers, begins=submits, now_s=began_s) as span:
                if submits:
                    await self._submit(scope, receive, send, span, began_s)
                else:
                    await self._behind(scope, receive, self._counted(send, span, began_s), versioned(path))
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._inner(scope, receive, send)

    def error_body(self, error: HarchError) -> bytes:
        """For requests that are refused before they come here."""
        return error_body(error, self._ids.next())

    async def submit(self, headers: Headers, body: bytes) -> DirectResponse:
        """A submission without ASGI, answered as through it."""
        began_s = self._clock.monotonic_s()
        with self._spans.of("POST", SUBMISSION_PATHS[0], headers.items(), begins=True, now_s=began_s) as span:
            request_id = self._ids.next(headers.get(b"x-request-id", b""))
            try:
                status, answer = await self._submission.take(self._submission.admit(headers), body)
                lines = b"x-request-id: %b\r\n%b" % (request_id.encode(), self._json_lines)
            except Exception as error:  # noqa: BLE001 - the process edge: logged, answered, the server lives on
                refusal = self._refusal(error, "POST", SUBMISSION_PATHS[0], request_id)
                status, answer = refusal.kind.status, error_body(refusal, request_id)
                lines = header_lines([*error_headers(refusal), *self._headers(request_id)])
            self._count(status, span, began_s)
            return DirectResponse(status, lines, answer)

    async def _submit(self, scope: Scope, receive: Receive, send: Send, span: Span, began_s: float) -> None:
        request_id = self._request_id(scope)
        try:
            if declared_bytes(scope) > self._limits.body_bytes_max:
                raise too_large(self._limits)
            caller = self._submission.admit(dict(scope["headers"]))
            status, body = await self._submission.take(caller, await read_body(receive, self._limits))
        except ConnectionError:
            return  # the client is gone: nobody is left to answer
        except Exception as error:  # noqa: BLE001 - the process edge: logged, answered, the server lives on
            refusal = self._refusal(error, scope["method"], scope["path"], request_id)
            await self._refuse(refusal, scope, receive, self._counted(send, span, began_s), request_id)
        else:
            self._count(status, span, began_s)
            await send_json(send, status, body, headers=self._headers(request_id))

    async def _behind(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        request_id = self._request_id(scope)
        if declared_bytes(scope) > LARGE_BODIES.get(path, self._limits.body_bytes_max):
            await self._refuse(too_large(self._limits), scope, receive, send, request_id)
            return
        finished = False

        async def send_with_headers(message: Message) -> None:
            nonlocal finished
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers(request_id)]
            elif not message.get("more_body", False):
                finished = True
            await send(message)

        inner_scope = {**scope, "path": path, "raw_path": path.encode(), "harch.request_id": request_id}
        try:
            await self._inner(inner_scope, receive, send_with_headers)
        except ConnectionError:
            return  # the client is gone
        except Exception as error:
            self._log_fault(error, scope["method"], scope["path"], request_id)
            if not finished:
                raise  # the server closes the connection: half an answer must not look like a whole one

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = self._request_id(scope)
        if versioned(scope["path"]) == f"{PREFIX}/agents/connect":
            await connect_agent(self._hub, scope, receive, send, request_id)
            return
        await receive()
        await refuse_websocket(HarchError("E0207", "no WebSocket is served here"), send, request_id)

    async def _refuse(self, error: HarchError, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        body = error_body(error, request_id)
        headers = [*error_headers(error), *self._headers(request_id)]
        if error.code == "E0204":
            await answer_then_drain(scope, receive, send, headers=headers, body=body, limits=self._limits)
        else:
            await send_json(send, error.kind.status, body, headers=headers, content_type=False)

    def _counted(self, send: Send, span: Span, began_s: float) -> Send:
        """Notes each answer with the time until its head is sent: the rest depends on the reader."""

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(message["status"], span, began_s)
            await send(message)

        return counting

    def _count(self, status: int, span: Span, began_s: float) -> None:
        took_s = self._clock.monotonic_s() - began_s
        self._traffic.count(status, took_s)
        if span.is_recording():
            span.set_attribute("http.response.status_code", status)
            if status >= 500:
                span.set_status(StatusCode.ERROR, str(status))
            self._traffic.traced(took_s, trace_id_of(span), self._clock.now().timestamp())

    def _refusal(self, error: Exception, method: str, path: str, request_id: str) -> HarchError:
        """What the client is answered; a fault of ours is logged."""
        if isinstance(error, HarchError):
            return error
        self._log_fault(error, method, path, request_id)
        return internal_fault(request_id)

    def _log_fault(self, error: Exception, method: str, path: str, request_id: str) -> None:
        _log.error("%s: %s %s failed", request_id, method, path, exc_info=error)

    def _request_id(self, scope: Scope) -> str:
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                return self._ids.next(value)
        return self._ids.next()

    def _headers(self, request_id: str) -> list[tuple[bytes, bytes]]:
        return [(b"x-request-id", request_id.encode()), self._version]


def versioned(path: str) -> str:
    """Every route lives below `/v1` and is mirrored at `/`: the Terraform client loses the prefix of its base URL."""
    path = path.rstrip("/")
    return path if path == PREFIX or path.startswith(f"{PREFIX}/") else PREFIX + path

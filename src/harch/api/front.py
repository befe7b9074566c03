"""Where does a request go first? Hot routes and agents are served here, everything else by FastAPI behind it.

This is also the process edge of HTTP: whatever goes wrong further in leaves as the one error shape, with a request id.
"""

from __future__ import annotations

import logging

from opentelemetry.trace import Span, StatusCode
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harch.api.agents import connect_agent, refuse_websocket
from harch.api.body import answer_then_drain, declared_bytes, too_large
from harch.api.errors import error_body, error_headers, internal_fault
from harch.api.hub_port import HubPort
from harch.api.limits import Limits
from harch.api.reply import RequestIds, send_json
from harch.api.request_spans import RequestSpans, trace_id_of
from harch.api.streams import Streams
from harch.api.submit import Submission
from harch.api.traffic import Traffic
from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.base.tracing.tracer import Tracing

PREFIX = "/v1"

_log = logging.getLogger("harch.api")


class Front:
    """The ASGI application of one hub."""

    def __init__(
        self,
        hub: HubPort,
        inner: ASGIApp,
        limits: Limits,
        streams: Streams,
        traffic: Traffic,
        clock: Clock,
        tracing: Tracing | None = None,
    ) -> None:
        self._hub = hub
        self._inner = inner
        self._limits = limits
        self._submission = Submission(hub, limits)
        self._ids = RequestIds()
        self._version = (b"x-harchos-version", hub.version.encode())
        self.streams = streams
        self._traffic = traffic
        self._clock = clock
        self._spans = RequestSpans(tracing)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            submits = scope["method"] == "POST" and path in {"/v1/workloads", "/workloads"}
            began_s = self._clock.monotonic_s()
            with self._spans.of(scope, begins=submits, now_s=began_s) as span:
                send = self._counted(send, span, began_s)
                if submits:
                    await self._submit(scope, receive, send)
                else:
                    await self._behind(scope, receive, send, versioned(path))
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._inner(scope, receive, send)

    def error_body(self, error: HarchError) -> bytes:
        """For requests that are refused before they come here."""
        return error_body(error, self._ids.next())

    async def _submit(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = self._request_id(scope)
        try:
            status, body = await self._submission.handle(scope, receive)
        except HarchError as error:
            await self._refuse(error, scope, receive, send, request_id)
        except ConnectionError:
            return  # the client is gone: nobody is left to answer
        except Exception as error:  # noqa: BLE001 - the process edge: logged, answered, the server lives on
            self._log_fault(error, scope, request_id)
            await self._refuse(internal_fault(request_id), scope, receive, send, request_id)
        else:
            await send_json(send, status, body, headers=self._headers(request_id))

    async def _behind(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        request_id = self._request_id(scope)
        if declared_bytes(scope) > self._limits.body_bytes_max:
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
            self._log_fault(error, scope, request_id)
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
                status, took_s = message["status"], self._clock.monotonic_s() - began_s
                self._traffic.count(status, took_s)
                if span.is_recording():
                    span.set_attribute("http.response.status_code", status)
                    if status >= 500:
                        span.set_status(StatusCode.ERROR, str(status))
                    self._traffic.traced(took_s, trace_id_of(span), self._clock.now().timestamp())
            await send(message)

        return counting

    def _log_fault(self, error: Exception, scope: Scope, request_id: str) -> None:
        _log.error("%s: %s %s failed", request_id, scope["method"], scope["path"], exc_info=error)

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

"""How do node agents come in? The WebSocket `/v1/agents/connect`, for keys with the role `agent` only."""

from __future__ import annotations

import logging

from starlette.types import Receive, Scope, Send

from harch.api.access import identify, require_agent, token_from
from harch.api.errors import error_body, error_headers
from harch.api.hub_port import HubPort
from harch.base.errors import HarchError

_UNSUPPORTED_DATA, _GOING_AWAY = 1003, 1001

_log = logging.getLogger("harch.api")


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

"""Where do inference requests come in? A small ASGI app around the protocol: bodies, limits, and nothing else.

Who may call is decided by whoever mounts it. Its paths start with `/v2`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from harch.base.errors import HarchError
from harch.pipelines.think.inference_protocol import (
    JSON_LENGTH_HEADER,
    Reply,
    Verb,
    answer,
    read_call,
    read_infer,
    refusal,
    write_infer,
)
from harch.pipelines.think.service import ThinkService

BODY_BYTES_MAX = 16 * 1024 * 1024

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_log = logging.getLogger(__name__)


def inference_app(service: ThinkService, *, program_version: str = "", body_bytes_max: int = BODY_BYTES_MAX) -> AsgiApp:
    """An app to mount or to serve alone. The caller runs `service.run()` beside it."""

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise HarchError("E0207", "the inference endpoint speaks HTTP only")
        try:
            reply = await _reply(service, scope, receive, program_version, body_bytes_max)
        except HarchError as error:
            reply = refusal(error)
        except Exception:  # noqa: BLE001 (the edge of the process: logged, and the client hears of a fault)
            _log.exception("an inference request failed")
            reply = refusal(HarchError("E1001", "the request could not be answered", hint="see the log of the stage"))
        headers = [(name.encode(), value.encode()) for name, value in reply.headers]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else reply.body
        await send({"type": "http.response.body", "body": body})

    return app


async def _reply(
    service: ThinkService,
    scope: MutableMapping[str, Any],
    receive: Receive,
    program_version: str,
    body_bytes_max: int,
) -> Reply:
    call = read_call(scope["method"], scope["path"].removeprefix(scope.get("root_path", "")))
    if call.verb is not Verb.INFER:
        return answer(call, service.stage, program_version=program_version)
    service.stage.model(call.model)  # before its body is read
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    if headers.get("content-encoding", "identity") != "identity":
        raise HarchError("E0505", "compressed bodies are not supported", hint="send the body as it is")
    ask = read_infer(call, await _body(receive, body_bytes_max), headers.get(JSON_LENGTH_HEADER))
    found = await service.infer(
        call.model,
        ask.tensors,
        version=call.version,
        device=ask.device,
        priority=ask.priority,
        timeout_s=ask.timeout_s,
    )
    if found.ref is None:
        raise HarchError("E0508", "the model gave no answer")
    return write_infer(ask, found.ref, found.tensors)


async def _body(receive: Receive, bytes_max: int) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HarchError("E0505", "the client went away before its request was complete")
        part = message.get("body", b"")
        size += len(part)
        if size > bytes_max:
            raise HarchError("E0204", f"the body is larger than {bytes_max} bytes", hint="send fewer rows at a time")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)

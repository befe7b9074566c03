"""How do other programs query a model?

The Open Inference Protocol v2, as functions from requests to replies, and a small ASGI app around them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError
from harch.pipelines.think.model_loader import OnnxSession
from harch.pipelines.think.models import LiveVersion, VersionRef
from harch.pipelines.think.rollout import VersionState
from harch.pipelines.think.runner import ThinkRunner
from harch.pipelines.think.sessions import Array
from harch.pipelines.think.settings import PRIORITIES, PRIORITY_DEFAULT
from harch.pipelines.think.stage import ThinkStage
from harch.pipelines.think.tensor_format import InferBody, described, read_body, write_tensor

# How do other programs ask a model? The Open Inference Protocol v2, as functions from requests to replies.
#
# Errors have the protocol's own shape, `{"error": "…"}`; their text starts with the HarchOS code.


EXTENSIONS = ("binary_tensor_data",)
JSON_LENGTH_HEADER = "inference-header-content-length"
TIMEOUT_US_MAX = 600_000_000
_PATH = re.compile(
    r"/v2(?:/health/(?P<health>live|ready)"
    r"|/models/(?P<model>[^/]{1,200})(?:/versions/(?P<version>[^/]{1,100}))?(?:/(?P<verb>ready|infer))?)?/?"
)


class InferenceVerb(StrEnum):
    LIVE = "live"
    READY = "ready"
    SERVER = "server"
    MODEL = "model"
    MODEL_READY = "model ready"
    INFER = "infer"


class InferenceCall(Struct, frozen=True, kw_only=True):
    verb: InferenceVerb
    model: str = ""
    version: str | None = None


class InferenceReply(Struct, frozen=True, kw_only=True):
    """`json_bytes`: how much of the body is JSON, where binary data follows it."""

    status: int
    body: bytes
    json_bytes: int | None = None
    retry_after_s: int | None = None

    @property
    def headers(self) -> list[tuple[str, str]]:
        plain = self.json_bytes is None
        found = [("content-type", "application/json" if plain else "application/octet-stream")]
        found.append(("content-length", str(len(self.body))))
        if not plain:
            found.append((JSON_LENGTH_HEADER, str(self.json_bytes)))
        if self.retry_after_s is not None:
            found.append(("retry-after", str(self.retry_after_s)))
        return found


class InferRequest(Struct, frozen=True, kw_only=True, eq=False):
    """A request that was understood; `timeout_s`, `priority` and `device` come from its parameters."""

    call: InferenceCall
    body: InferBody
    tensors: dict[str, Array]
    priority: int
    timeout_s: float | None
    device: int | str | None


def read_call(method: str, path: str) -> InferenceCall:
    """What a request is about. E0207 for paths that the protocol does not have, E0208 for the wrong method."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise HarchError(
            "E0207", f"the inference protocol has no path `{path[:100]}`", hint="GET /v2 lists what is served"
        )
    health, model, version, verb = match.group("health", "model", "version", "verb")
    wanted = "POST" if verb == "infer" else "GET"
    if method not in (wanted, "HEAD" if wanted == "GET" else wanted):
        raise HarchError("E0208", f"`{path[:100]}` takes {wanted}, not {method[:16]}", hint=f"use {wanted}")
    if health is not None:
        return InferenceCall(verb=InferenceVerb(health))
    if model is None:
        return InferenceCall(verb=InferenceVerb.SERVER)
    verbs = {None: InferenceVerb.MODEL, "ready": InferenceVerb.MODEL_READY, "infer": InferenceVerb.INFER}
    return InferenceCall(
        verb=verbs[verb], model=unquote(model), version=unquote(version) if version is not None else None
    )


def answer(call: InferenceCall, stage: ThinkStage, *, program_version: str) -> InferenceReply:
    """Everything but inference. "Not ready" is a 4xx, as the protocol says."""
    match call.verb:
        case InferenceVerb.LIVE:
            return _json(200, {"live": True})
        case InferenceVerb.READY:
            ready = all(model.route.active is not None for model in stage.models.values())
            return _json(200 if ready else 400, {"ready": ready})
        case InferenceVerb.SERVER:
            return _json(200, {"name": "harch", "version": program_version, "extensions": EXTENSIONS})
        case InferenceVerb.MODEL_READY:
            live = _live(stage, call)
            return _json(200 if live else 400, {"name": call.model, "ready": live is not None})
        case _:
            return _json(200, _metadata(stage, call))


def read_infer(call: InferenceCall, body: bytes, json_bytes: str | None) -> InferRequest:
    """The tensors of a request and how it wants to be served, or E0505."""
    length = None
    if json_bytes is not None:
        if not re.fullmatch(r"[0-9]{1,10}", json_bytes):
            raise HarchError("E0505", f"{JSON_LENGTH_HEADER} is `{json_bytes[:32]}`", hint="use a number of bytes")
        length = int(json_bytes)
    request, tensors = read_body(body, length)
    parameters = request.parameters
    priority = _number(parameters, "priority", PRIORITIES)
    timeout_us = _number(parameters, "timeout", TIMEOUT_US_MAX)
    device = parameters.get("device")
    if device is not None and (isinstance(device, bool) or not isinstance(device, int | str)):
        raise HarchError("E0505", "parameter `device` is neither a number nor text", hint="use the id of the device")
    return InferRequest(
        call=call,
        body=request,
        tensors=tensors,
        priority=priority - 1 if priority else PRIORITY_DEFAULT,  # 1 is the first in the protocol, 0 means "no matter"
        timeout_s=timeout_us / 1e6 if timeout_us else None,
        device=device,
    )


def write_infer(infer: InferRequest, ref: VersionRef, tensors: dict[str, Array]) -> InferenceReply:
    """The outputs that were wished for, in JSON or as binary data, with the version and hash that made them."""
    requested_outputs = {requested.name: requested for requested in infer.body.outputs}
    if unknown := sorted(set(requested_outputs).difference(tensors)):
        raise HarchError("E0505", f"the model has no output `{unknown[0]}`", hint="GET /v2/models/NAME lists them")
    default = infer.body.parameters.get("binary_data_output") is True
    outputs, tail = [], []
    for name in requested_outputs or tensors:
        requested = requested_outputs.get(name)
        binary = requested.parameters.get("binary_data", default) is True if requested else default
        output, raw = write_tensor(name, tensors[name], binary=binary)
        outputs.append(output)
        tail.append(raw)
    head: dict[str, Any] = {"model_name": ref.model, "model_version": ref.version}
    if infer.body.id:
        head["id"] = infer.body.id
    head |= {"parameters": {"sha256": ref.sha256}, "outputs": outputs}
    encoded = msgspec.json.encode(head)
    if not any(tail):
        return InferenceReply(status=200, body=encoded)
    return InferenceReply(status=200, body=b"".join([encoded, *tail]), json_bytes=len(encoded))


def refusal(error: HarchError) -> InferenceReply:
    """An error in the protocol's shape."""
    hint = f" (hint: {error.hint})" if error.hint else ""
    body = msgspec.json.encode({"error": f"{error.code}: {error.message}{hint}"})
    return InferenceReply(status=error.kind.status, body=body, retry_after_s=error.retry_after_s)


def _live(stage: ThinkStage, call: InferenceCall) -> LiveVersion | None:
    route = stage.model(call.model).route
    return route.active if call.version is None else route.warm.get(call.version)


def _metadata(stage: ThinkStage, call: InferenceCall) -> dict[str, object]:
    model = stage.model(call.model)
    live = _live(stage, call)
    if live is None:
        what = "it has no active version" if call.version is None else f"version `{call.version[:32]}` is not loaded"
        raise HarchError("E0501", f"model `{call.model}`: {what}", hint="check with GET /v2/models/NAME/ready")
    versions = [version for version, state in model.rollout.states.items() if state is not VersionState.RETIRED]
    return {
        "name": call.model,
        "versions": versions,
        "platform": "onnxruntime_onnx" if isinstance(live.session, OnnxSession) else "python",
        "inputs": [described(spec) for spec in live.session.inputs],
        "outputs": [described(spec) for spec in live.session.outputs],
        "parameters": {"sha256": live.ref.sha256, "device": live.session.device},
    }


def _number(parameters: dict[str, Any], name: str, largest: int) -> int:
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        raise HarchError("E0505", f"parameter `{name}` is not a number from 0 to {largest}", hint="remove it")
    return value


def _json(status: int, content: object) -> InferenceReply:
    return InferenceReply(status=status, body=msgspec.json.encode(content))


# Where do inference requests come in? A small ASGI app around the protocol: bodies, limits, and nothing else.
#
# Who may call is decided by whoever mounts it. Its paths start with `/v2`.


BODY_BYTES_MAX = 16 * 1024 * 1024

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_log = logging.getLogger(__name__)


def inference_app(service: ThinkRunner, *, program_version: str = "", body_bytes_max: int = BODY_BYTES_MAX) -> AsgiApp:
    """An app to mount or to serve alone. The caller runs `service.run()` beside it."""

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise HarchError("E0207", "the inference endpoint supports only HTTP")
        try:
            reply = await _reply(service, scope, receive, program_version, body_bytes_max)
        except HarchError as error:
            reply = refusal(error)
        except Exception:  # noqa: BLE001 (the edge of the process: logged, and the client hears of a fault)
            _log.exception("an inference request failed")
            reply = refusal(HarchError("E1001", "the request failed", hint="see the log of the stage"))
        headers = [(name.encode(), value.encode()) for name, value in reply.headers]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else reply.body
        await send({"type": "http.response.body", "body": body})

    return app


async def _reply(
    service: ThinkRunner,
    scope: MutableMapping[str, Any],
    receive: Receive,
    program_version: str,
    body_bytes_max: int,
) -> InferenceReply:
    call = read_call(scope["method"], scope["path"].removeprefix(scope.get("root_path", "")))
    if call.verb is not InferenceVerb.INFER:
        return answer(call, service.stage, program_version=program_version)
    service.stage.model(call.model)  # before its body is read
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    if headers.get("content-encoding", "identity") != "identity":
        raise HarchError("E0505", "compressed bodies are not supported", hint="send the body uncompressed")
    request = read_infer(call, await _body(receive, body_bytes_max), headers.get(JSON_LENGTH_HEADER))
    found = await service.infer(
        call.model,
        request.tensors,
        version=call.version,
        device=request.device,
        priority=request.priority,
        timeout_s=request.timeout_s,
    )
    if found.ref is None:
        raise HarchError("E0508", "the model returned nothing")
    return write_infer(request, found.ref, found.tensors)


async def _body(receive: Receive, bytes_max: int) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HarchError("E0505", "the client disconnected before its request was complete")
        part = message.get("body", b"")
        size += len(part)
        if size > bytes_max:
            raise HarchError("E0204", f"the body is larger than {bytes_max} bytes", hint="send fewer rows at a time")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)

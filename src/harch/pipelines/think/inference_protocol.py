"""How do other programs ask a model? The Open Inference Protocol v2, as functions from requests to replies.

Errors have the protocol's own shape, `{"error": "…"}`; their text starts with the HarchOS code.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError
from harch.pipelines.think.models import LiveVersion, VersionRef
from harch.pipelines.think.onnx_session import OnnxSession
from harch.pipelines.think.rollout import State
from harch.pipelines.think.sessions import Array
from harch.pipelines.think.settings import PRIORITIES, PRIORITY_DEFAULT
from harch.pipelines.think.stage import ThinkStage
from harch.pipelines.think.tensor_format import InferBody, described, read_body, write_tensor

EXTENSIONS = ("binary_tensor_data",)
JSON_LENGTH_HEADER = "inference-header-content-length"
TIMEOUT_US_MAX = 600_000_000
_PATH = re.compile(
    r"/v2(?:/health/(?P<health>live|ready)"
    r"|/models/(?P<model>[^/]{1,200})(?:/versions/(?P<version>[^/]{1,100}))?(?:/(?P<verb>ready|infer))?)?/?"
)


class Verb(StrEnum):
    LIVE = "live"
    READY = "ready"
    SERVER = "server"
    MODEL = "model"
    MODEL_READY = "model ready"
    INFER = "infer"


class Call(Struct, frozen=True, kw_only=True):
    verb: Verb
    model: str = ""
    version: str | None = None


class Reply(Struct, frozen=True, kw_only=True):
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


class InferAsk(Struct, frozen=True, kw_only=True, eq=False):
    """A request that was understood; `timeout_s`, `priority` and `device` come from its parameters."""

    call: Call
    body: InferBody
    tensors: dict[str, Array]
    priority: int
    timeout_s: float | None
    device: int | str | None


def read_call(method: str, path: str) -> Call:
    """What a request is about. E0207 for paths that the protocol does not have, E0208 for the wrong method."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise HarchError(
            "E0207", f"the inference protocol has no path `{path[:100]}`", hint="GET /v2 says what is served"
        )
    health, model, version, verb = match.group("health", "model", "version", "verb")
    wanted = "POST" if verb == "infer" else "GET"
    if method not in (wanted, "HEAD" if wanted == "GET" else wanted):
        raise HarchError("E0208", f"`{path[:100]}` takes {wanted}, not {method[:16]}", hint=f"use {wanted}")
    if health is not None:
        return Call(verb=Verb(health))
    if model is None:
        return Call(verb=Verb.SERVER)
    verbs = {None: Verb.MODEL, "ready": Verb.MODEL_READY, "infer": Verb.INFER}
    return Call(verb=verbs[verb], model=unquote(model), version=unquote(version) if version is not None else None)


def answer(call: Call, stage: ThinkStage, *, program_version: str) -> Reply:
    """Everything but inference. "Not ready" is a 4xx, as the protocol says."""
    match call.verb:
        case Verb.LIVE:
            return _json(200, {"live": True})
        case Verb.READY:
            ready = all(model.route.active is not None for model in stage.models.values())
            return _json(200 if ready else 400, {"ready": ready})
        case Verb.SERVER:
            return _json(200, {"name": "harch", "version": program_version, "extensions": EXTENSIONS})
        case Verb.MODEL_READY:
            live = _live(stage, call)
            return _json(200 if live else 400, {"name": call.model, "ready": live is not None})
        case _:
            return _json(200, _metadata(stage, call))


def read_infer(call: Call, body: bytes, json_bytes: str | None) -> InferAsk:
    """The tensors of a request and how it wants to be served, or E0505."""
    length = None
    if json_bytes is not None:
        if not re.fullmatch(r"[0-9]{1,10}", json_bytes):
            raise HarchError("E0505", f"{JSON_LENGTH_HEADER} is `{json_bytes[:32]}`", hint="it is a number of bytes")
        length = int(json_bytes)
    request, tensors = read_body(body, length)
    parameters = request.parameters
    priority = _number(parameters, "priority", PRIORITIES)
    timeout_us = _number(parameters, "timeout", TIMEOUT_US_MAX)
    device = parameters.get("device")
    if device is not None and (isinstance(device, bool) or not isinstance(device, int | str)):
        raise HarchError("E0505", "parameter `device` is neither a number nor text", hint="it is the id of the device")
    return InferAsk(
        call=call,
        body=request,
        tensors=tensors,
        priority=priority - 1 if priority else PRIORITY_DEFAULT,  # 1 is the first in the protocol, 0 means "no matter"
        timeout_s=timeout_us / 1e6 if timeout_us else None,
        device=device,
    )


def write_infer(ask: InferAsk, ref: VersionRef, tensors: dict[str, Array]) -> Reply:
    """The outputs that were wished for, in JSON or as binary data, with the version and hash that made them."""
    wishes = {wish.name: wish for wish in ask.body.outputs}
    if unknown := sorted(set(wishes).difference(tensors)):
        raise HarchError("E0505", f"the model has no output `{unknown[0]}`", hint="GET /v2/models/NAME lists them")
    default = ask.body.parameters.get("binary_data_output") is True
    outputs, tail = [], []
    for name in wishes or tensors:
        wish = wishes.get(name)
        binary = wish.parameters.get("binary_data", default) is True if wish else default
        output, raw = write_tensor(name, tensors[name], binary=binary)
        outputs.append(output)
        tail.append(raw)
    head: dict[str, Any] = {"model_name": ref.model, "model_version": ref.version}
    if ask.body.id:
        head["id"] = ask.body.id
    head |= {"parameters": {"sha256": ref.sha256}, "outputs": outputs}
    encoded = msgspec.json.encode(head)
    if not any(tail):
        return Reply(status=200, body=encoded)
    return Reply(status=200, body=b"".join([encoded, *tail]), json_bytes=len(encoded))


def refusal(error: HarchError) -> Reply:
    """An error in the protocol's shape."""
    hint = f" (hint: {error.hint})" if error.hint else ""
    body = msgspec.json.encode({"error": f"{error.code}: {error.message}{hint}"})
    return Reply(status=error.kind.status, body=body, retry_after_s=error.retry_after_s)


def _live(stage: ThinkStage, call: Call) -> LiveVersion | None:
    route = stage.model(call.model).route
    return route.active if call.version is None else route.warm.get(call.version)


def _metadata(stage: ThinkStage, call: Call) -> dict[str, object]:
    model = stage.model(call.model)
    live = _live(stage, call)
    if live is None:
        what = "it has no active version" if call.version is None else f"version `{call.version[:32]}` is not loaded"
        raise HarchError("E0501", f"model `{call.model}`: {what}", hint="GET /v2/models/NAME/ready asks before")
    versions = [version for version, state in model.rollout.states.items() if state is not State.RETIRED]
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
        raise HarchError("E0505", f"parameter `{name}` is not a number from 0 to {largest}", hint="leave it out")
    return value


def _json(status: int, content: object) -> Reply:
    return Reply(status=status, body=msgspec.json.encode(content))

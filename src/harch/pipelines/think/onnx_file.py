"""Is all of a model inside its file? ONNX lets tensors lie in files beside it, which no hash of the file covers.

ONNX Runtime would read them, from the folder that the worker happens to stand in. So the file is walked before it is
loaded: as protobuf, along the fields that can hold a tensor, without reading the tensors themselves.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Iterator

from harch.base.errors import HarchError

DEPTH_MAX = 64
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14

# Which fields of which message lead to which messages, by the numbers of onnx.proto.
_LEADS_TO: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}


def check_is_whole(content: bytes) -> None:
    """E0503 if a tensor of the model lies elsewhere, or the bytes are no protobuf."""
    if content[4:8] == b"ORTM":
        raise _refused("is in ONNX Runtime's own format", "export it as ONNX")
    waiting: list[tuple[str, memoryview, int]] = [("model", memoryview(content), 0)]
    while waiting:
        kind, message, depth = waiting.pop()
        if depth > DEPTH_MAX:
            raise _refused(f"nests its graphs deeper than {DEPTH_MAX}", "flatten it")
        for number, value in _fields(message):
            if kind == "tensor":
                if number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value != 0):
                    raise _refused("stores weights outside its file", "export it with all weights inside")
            elif (inner := _LEADS_TO[kind].get(number)) is not None and isinstance(value, memoryview):
                waiting.append((inner, value, depth + 1))


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            size, at = _varint(message, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise _not_a_model()
        if at + size > len(message):
            raise _not_a_model()
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_VARINT_BYTES_MAX):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at
    raise _not_a_model()


def _not_a_model() -> HarchError:
    return _refused("cannot be read: not an ONNX model, or truncated", "copy it again, or export it again")


def _refused(what: str, hint: str) -> HarchError:
    return HarchError("E0503", f"the model {what}", hint=hint)

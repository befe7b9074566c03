"""How do tensors travel in the Open Inference Protocol? As JSON numbers, or as raw bytes behind the JSON (binary data).

Types, sizes and limits are checked before anything is allocated by what a request claims.
"""

# harch: pure

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct, field

from harch.base.errors import HarchError
from harch.pipelines.think.sessions import Array, TensorSpec

TENSORS_MAX = 64
ELEMENTS_MAX = 16_777_216
DIMENSIONS_MAX = 8
_HINT = "the Open Inference Protocol v2 describes requests; GET /v2/models/NAME lists the inputs"

DATATYPES = {
    "BOOL": "bool",
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
}
_NAMES = {numpy_name: name for name, numpy_name in DATATYPES.items()}

Shape = Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1, max_length=DIMENSIONS_MAX)]
Parameters = dict[str, Any]


class InputTensor(Struct, frozen=True, kw_only=True):
    """`parameters.binary_data_size`: its data is not here, but behind the JSON."""

    name: Annotated[str, Meta(max_length=256)]
    shape: Shape
    datatype: str
    data: Any = None
    parameters: Parameters = {}


class RequestedOutput(Struct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(max_length=256)]
    parameters: Parameters = {}


class InferBody(Struct, frozen=True, kw_only=True):
    """The JSON part of a request. Fields and parameters that are not known are left alone, as the protocol wants."""

    inputs: Annotated[tuple[InputTensor, ...], Meta(min_length=1, max_length=TENSORS_MAX)]
    id: Annotated[str, Meta(max_length=256)] = ""
    outputs: Annotated[tuple[RequestedOutput, ...], Meta(max_length=TENSORS_MAX)] = ()
    parameters: Parameters = {}


class OutputTensor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: Parameters = field(default_factory=dict)
    data: list[Any] | None = None


def read_body(body: bytes, json_bytes: int | None) -> tuple[InferBody, dict[str, Array]]:
    """The request and its tensors, or E0505. `json_bytes` is the header Inference-Header-Content-Length."""
    if json_bytes is not None and not 0 < json_bytes <= len(body):
        raise _refused(f"Inference-Header-Content-Length is {json_bytes}, but the body has {len(body)} bytes")
    head = body if json_bytes is None else body[:json_bytes]
    try:
        request = msgspec.json.decode(head, type=InferBody)
    except msgspec.DecodeError as error:  # also values of the wrong type
        raise _refused(f"the JSON of the request is not valid: {error}") from error
    rest, tensors = memoryview(body)[len(head) :], {}
    for tensor in request.inputs:
        if tensor.name in tensors:
            raise _refused(f"input `{tensor.name}` is given twice")
        count = math.prod(tensor.shape)
        if tensor.datatype not in DATATYPES:
            raise _refused(
                f"input `{tensor.name}` has datatype `{tensor.datatype[:16]}`; known: {', '.join(DATATYPES)}"
            )
        if count > ELEMENTS_MAX:
            raise _refused(f"input `{tensor.name}` has {count} elements, more than {ELEMENTS_MAX}")
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            tensors[tensor.name] = _from_json(tensor, count)
        else:
            tensors[tensor.name] = _from_bytes(tensor, count, size, rest)
            rest = rest[size:]
    if len(rest):
        raise _refused(f"{len(rest)} extra bytes after the JSON")
    return request, tensors


def write_tensor(name: str, tensor: Array, *, binary: bool) -> tuple[OutputTensor, bytes]:
    """One output: with its data in JSON, or with the bytes to append."""
    datatype = _NAMES[str(tensor.dtype)]
    if binary:
        raw = np.ascontiguousarray(tensor).astype(tensor.dtype.newbyteorder("<"), copy=False).tobytes()
        parameters: Parameters = {"binary_data_size": len(raw)}
        return OutputTensor(name=name, datatype=datatype, shape=tensor.shape, parameters=parameters), raw
    return OutputTensor(name=name, datatype=datatype, shape=tensor.shape, data=tensor.reshape(-1).tolist()), b""


def described(spec: TensorSpec) -> dict[str, object]:
    """A tensor in a model's metadata; -1 stands for any size."""
    shape = [-1 if size is None else size for size in spec.shape]
    return {"name": spec.name, "datatype": _NAMES[spec.dtype], "shape": shape}


def _from_bytes(tensor: InputTensor, count: int, size: object, rest: memoryview) -> Array:
    dtype = np.dtype(DATATYPES[tensor.datatype]).newbyteorder("<")
    wanted = count * dtype.itemsize
    if not isinstance(size, int) or isinstance(size, bool) or size != wanted:
        raise _refused(f"input `{tensor.name}` has {wanted} bytes by its shape, but `binary_data_size` is {size}")
    if tensor.data is not None:
        raise _refused(f"input `{tensor.name}` has data both in and after the JSON")
    if size > len(rest):
        raise _refused(f"input `{tensor.name}` needs {size} bytes, but {len(rest)} are left after the JSON")
    if tensor.datatype == "BOOL":
        raw = np.frombuffer(rest[:size], dtype=np.uint8)
        if (raw > 1).any():
            raise _refused(f"input `{tensor.name}` has bytes that are neither 0 nor 1")
        return np.asarray(raw == 1).reshape(tensor.shape)
    plain: Array = np.frombuffer(rest[:size], dtype=dtype)
    return plain.reshape(tensor.shape)


def _from_json(tensor: InputTensor, count: int) -> Array:
    if not isinstance(tensor.data, list):
        raise _refused(f"input `{tensor.name}` has neither `data` nor `binary_data_size`")
    wanted = np.dtype(DATATYPES[tensor.datatype])
    try:
        found = np.array(tensor.data)
    except (ValueError, OverflowError) as error:  # lists of unequal length
        raise _refused(f"input `{tensor.name}` has ragged data") from error
    if found.size != count:
        raise _refused(
            f"input `{tensor.name}` has {found.size} values, but its shape {list(tensor.shape)} needs {count}"
        )
    allowed = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[wanted.kind]
    if count and found.dtype.kind not in allowed:
        raise _refused(f"input `{tensor.name}` has values that are not {tensor.datatype}")
    if count and wanted.kind in "iu":
        limits = np.iinfo(wanted)
        if int(found.min()) < limits.min or int(found.max()) > limits.max:
            raise _refused(f"input `{tensor.name}` has values beyond {tensor.datatype}")
    with np.errstate(over="ignore"):
        cast = found.astype(wanted)
    if wanted.kind == "f" and not np.isfinite(cast).all():
        raise _refused(f"input `{tensor.name}` has values beyond {tensor.datatype}")
    return cast.reshape(tensor.shape)


def _refused(message: str) -> HarchError:
    return HarchError("E0505", message, hint=_HINT)

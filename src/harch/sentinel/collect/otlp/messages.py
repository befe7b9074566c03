"""How is a body of OTLP/HTTP read? Protobuf or JSON; both become the same message."""

from __future__ import annotations

import base64
import binascii
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from harch.base.errors import HarchError

PROTOBUF, JSON = "application/x-protobuf", "application/json"
_IDS = frozenset({"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"})
_DEPTH_MAX = 64
_SLIPS = (
    TypeError,
    AttributeError,
    KeyError,
    RecursionError,
)  # of protobuf's JSON reader, where a type is not the expected

Request = TypeVar("Request", bound=Message)


def read_message(body: bytes, content_type: str, empty: Request) -> Request:
    """The body as a message of the type of `empty`. Raises E0671 for what cannot be read."""
    try:
        if content_type == JSON:
            import orjson

            json_format.ParseDict(_with_plain_ids(orjson.loads(body), 0), empty, ignore_unknown_fields=True)
        else:
            empty.ParseFromString(body)
    except (DecodeError, json_format.ParseError, ValueError, *_SLIPS) as problem:
        raise HarchError("E0671", f"the body is not an OTLP message: {str(problem)[:200]}") from problem
    return empty


def write_message(message: Message, content_type: str) -> bytes:
    if content_type == JSON:
        text: str = json_format.MessageToJson(message, indent=None)
        return text.encode()
    body: bytes = message.SerializeToString()
    return body


def _with_plain_ids(value: Any, depth: int) -> Any:
    """OTLP's JSON writes ids in hexadecimal, where the JSON of protobuf has base64."""
    if depth > _DEPTH_MAX:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        return {
            key: _base64(item) if key in _IDS and isinstance(item, str) else _with_plain_ids(item, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_with_plain_ids(item, depth + 1) for item in value]
    return value


def _base64(text: str) -> str:
    try:
        return base64.b64encode(bytes.fromhex(text)).decode()
    except (ValueError, binascii.Error):
        raise ValueError(f"`{text[:40]}` is not a hexadecimal id") from None

"""What do all OTLP/HTTP routes share? Bodies as protobuf or JSON, plain or packed, and answers of the same kind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from harch.api.telemetry.answer import Answer
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.routing import WRITE_BYTES_MAX
from harch.base.errors import HarchError

if TYPE_CHECKING:
    from google.protobuf.message import Message

Request = TypeVar("Request", bound="Message")

ARCHIVED_BYTES_MAX = 16 * 1024 * 1024  # of logs or traces in one request, unpacked
PARTS_MAX = 200_000
OBJECTS_MAX = 500_000  # of JSON, where a record or span has several
LARGE_BYTES = 4 * 1024 * 1024
_LARGE = threading.Lock()
_PARTS = (1, 2, 2)
_KINDS = ("application/x-protobuf", "application/json")


@dataclass(frozen=True, slots=True)
class OtlpBody:
    """A body, unpacked, and what it is."""

    plain: bytes
    kind: str

    def read(self, empty: Request, parts: str = "") -> Request:
        """Raises E0671; E0606 if there are too many `parts`, the records or spans of scopes of resources."""
        from harch.sentinel.collect.otlp.messages import PROTOBUF, read_message
        from harch.sentinel.collect.parts import check_objects, check_parts

        if parts and self.kind == PROTOBUF:
            check_parts(self.plain, _PARTS, PARTS_MAX, parts)
        elif parts:
            check_objects(self.plain, OBJECTS_MAX)
        return read_message(self.plain, self.kind, empty)

    def answered(self, response: Message) -> Answer:
        from harch.sentinel.collect.otlp.messages import write_message

        return Answer(body=write_message(response, self.kind), content_type=self.kind)


@contextmanager
def in_turn(bytes_count: int) -> Iterator[None]:
    """Large bodies one at a time: what is read takes many times the memory of what was sent."""
    if bytes_count <= LARGE_BYTES:
        yield
        return
    with _LARGE:
        yield


def otlp_body(request: TelemetryRequest, bytes_max: int = WRITE_BYTES_MAX) -> OtlpBody:
    """Raises E0677 for what is packed or typed otherwise, E0204 for what is too large."""
    from harch.api.telemetry.compression import decompressed

    kind = request.headers.get("content-type", _KINDS[0]).partition(";")[0].strip().lower()
    if kind not in _KINDS:
        raise HarchError("E0677", f"OTLP bodies are `{_KINDS[0]}` or `{_KINDS[1]}`, not `{kind[:80]}`")
    return OtlpBody(decompressed(request.body, request.headers.get("content-encoding", ""), bytes_max), kind)

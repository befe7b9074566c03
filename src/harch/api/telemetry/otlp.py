"""What do all OTLP/HTTP routes share? Bodies as protobuf or JSON, plain or packed, and answers of the same kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from harch.api.telemetry.answer import Answer
from harch.api.telemetry.request import TelemetryRequest
from harch.api.telemetry.routing import WRITE_BYTES_MAX
from harch.base.errors import HarchError

if TYPE_CHECKING:
    from google.protobuf.message import Message

Request = TypeVar("Request", bound="Message")

_KINDS = ("application/x-protobuf", "application/json")


@dataclass(frozen=True, slots=True)
class OtlpBody:
    """A body, unpacked, and what it is."""

    plain: bytes
    kind: str

    def read(self, empty: Request) -> Request:
        """Raises E0671."""
        from harch.sentinel.collect.otlp.messages import read_message

        return read_message(self.plain, self.kind, empty)

    def answered(self, response: Message) -> Answer:
        from harch.sentinel.collect.otlp.messages import write_message

        return Answer(body=write_message(response, self.kind), content_type=self.kind)


def otlp_body(request: TelemetryRequest) -> OtlpBody:
    """Raises E0677 for what is packed or typed otherwise, E0204 for what is too large."""
    from harch.api.telemetry.compression import decompressed

    kind = request.headers.get("content-type", _KINDS[0]).partition(";")[0].strip().lower()
    if kind not in _KINDS:
        raise HarchError("E0677", f"OTLP bodies are `{_KINDS[0]}` or `{_KINDS[1]}`, not `{kind[:80]}`")
    return OtlpBody(decompressed(request.body, request.headers.get("content-encoding", ""), WRITE_BYTES_MAX), kind)

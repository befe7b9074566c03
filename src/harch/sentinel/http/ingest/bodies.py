"""How is a body that brings telemetry read?

Unpacked never beyond its limit; OTLP as protobuf or JSON, and answers of the same kind.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from harch.base.errors import HarchError
from harch.sentinel.http.messages import HttpReply, TelemetryRequest
from harch.sentinel.http.routing import WRITE_BYTES_MAX

if TYPE_CHECKING:
    from google.protobuf.message import Message


_GZIP = 16 + zlib.MAX_WBITS
_MEMBERS_MAX = 1000


def decompressed(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """Plain, gzip, deflate or zstd. Raises E0204 beyond the limit, E0677 for what cannot be unpacked."""
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return body
    if name in {"gzip", "deflate"}:
        return _inflated(body, name, bytes_max)
    if name == "zstd":
        return _unpacked_zstd(body, bytes_max)
    raise HarchError("E0677", f"unsupported compression; use gzip, deflate or zstd, not `{encoding[:40]}`")


def _inflated(body: bytes, name: str, bytes_max: int) -> bytes:
    """Several gzip members one after the other are one body; `deflate` comes with and without its head."""
    pieces: list[bytes] = []
    left = bytes_max
    while True:
        unpacker = zlib.decompressobj(wbits=_GZIP if name == "gzip" else _deflate_window(body))
        try:
            plain = unpacker.decompress(body, left + 1)
        except zlib.error as broken:
            raise HarchError("E0677", f"cannot decompress the body with {name}") from broken
        if len(plain) > left:
            raise _too_large(bytes_max)
        if not unpacker.eof:
            raise HarchError("E0677", f"the body is truncated: incomplete {name} stream")
        pieces.append(plain)
        left -= len(plain)
        body = unpacker.unused_data
        if not body:
            return b"".join(pieces)
        if name != "gzip" or len(pieces) >= _MEMBERS_MAX:
            raise HarchError("E0677", f"trailing data after the body's {name}")


def _deflate_window(body: bytes) -> int:
    """As the standard has it, with a head of two bytes, or bare, as many send it."""
    has_head = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return zlib.MAX_WBITS if has_head else -zlib.MAX_WBITS


def _unpacked_zstd(body: bytes, bytes_max: int) -> bytes:
    import cramjam

    room = bytearray(bytes_max)  # what does not fit into it is refused; pages that stay unused are never real memory
    try:
        size = cramjam.zstd.decompress_into(body, room)
    except cramjam.DecompressionError as broken:
        if "write whole buffer" in str(broken):
            raise _too_large(bytes_max) from broken
        raise HarchError("E0677", "cannot decompress the body with zstd") from broken
    return bytes(memoryview(room)[:size])


def _too_large(bytes_max: int) -> HarchError:
    return HarchError("E0204", f"the body is larger than {bytes_max} bytes when decompressed")


# What do all OTLP/HTTP routes share? Bodies as protobuf or JSON, plain or packed, and answers of the same kind.


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
        from harch.sentinel.collect.part_limits import check_objects, check_parts

        if parts and self.kind == PROTOBUF:
            check_parts(self.plain, _PARTS, PARTS_MAX, parts)
        elif parts:
            check_objects(self.plain, OBJECTS_MAX)
        return read_message(self.plain, self.kind, empty)

    def answered(self, response: Message) -> HttpReply:
        from harch.sentinel.collect.otlp.messages import write_message

        return HttpReply(body=write_message(response, self.kind), content_type=self.kind)


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

    kind = request.headers.get("content-type", _KINDS[0]).partition(";")[0].strip().lower()
    if kind not in _KINDS:
        raise HarchError("E0677", f"OTLP bodies must be `{_KINDS[0]}` or `{_KINDS[1]}`, not `{kind[:80]}`")
    return OtlpBody(decompressed(request.body, request.headers.get("content-encoding", ""), bytes_max), kind)

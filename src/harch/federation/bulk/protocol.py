"""What do the two ends of a bulk connection send each other, and what ends it?

Records: a kind, a length, a body. The receiver greets with its ticket and requests chunks by name; the sender greets,
and sends exactly these chunks, in this order. A chunk of which the receiver holds the beginning already is continued
there. Neither end trusts the other: every size, name and order is checked before memory is given to it.
"""

# harch: pure

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError
from harch.content.frames import HEAD_BYTES, ChunkFrame, Codec, frame_head, read_head
from harch.content.model import CHUNK_BYTES_MAX
from harch.federation.links.frames import LinkHello

BULK_VERSION = 1
HELLO_BYTES_MAX = 16 * 1024
REQUEST_CHUNKS_MAX = 1024  # of one record
REQUESTED_MAX = 4096  # not sent yet; a receiver that wants more waits
READ_BYTES_MAX = 4 * 1024 * 1024  # what the sender reads from its store at a time
READ_CHUNKS_MAX = 64
COALESCED_BYTES_MAX = 16 * 1024  # smaller chunks leave with their head: one TLS record instead of two
TICKET_BYTES_MAX = 64
REASON_CHARS_MAX = 500

_RECORD = struct.Struct("!BI")
_REQUEST = struct.Struct("!32sIII")
_OFFSET = struct.Struct("!I")
_REQUEST_BYTES: int = _REQUEST.size
RECORD_HEAD_BYTES: int = _RECORD.size
CHUNK_HEAD_BYTES: int = RECORD_HEAD_BYTES + HEAD_BYTES + _OFFSET.size  # what a chunk costs beside its payload
_STAGED_BYTES = 64 * 1024
_REQUEST_BYTES_MAX = REQUEST_CHUNKS_MAX * _REQUEST_BYTES


class RecordKind(IntEnum):
    HELLO = 0
    REQUEST = 1
    CHUNK = 2
    REFUSED = 3


class BulkHello(Struct, frozen=True, kw_only=True, tag="hello"):
    """First record in each direction. Only the receiver shows a ticket.

    A later version may add fields, never change the meaning of these: an older hub has to understand whom it refuses.
    """

    version: int
    hub: LinkHello
    ticket: bytes = b""


class BulkRefused(Struct, frozen=True, kw_only=True, tag="refused"):
    """Instead of a Hello, or at any time later: the rule and the reason, then the connection is closed.

    `code`: the error of the sender's store, if that is what failed.
    """

    rule: str
    reason: str
    code: str = ""


class ChunkRequest(NamedTuple):
    """One chunk, of `size` raw bytes. Of its payload of `length` bytes the receiver holds the first `offset`."""

    id: bytes
    size: int
    offset: int = 0
    length: int = 0


class PartialChunk(NamedTuple):
    """The beginning of a chunk that was cut off, with what its head said."""

    id: bytes
    size: int
    codec: Codec
    length: int
    begun: bytes


class BulkFault(Exception):
    """The other end did what the protocol does not allow. Ends the connection."""


_encode = msgspec.msgpack.Encoder().encode
_decode_hello = msgspec.msgpack.Decoder(BulkHello).decode
_decode_refused = msgspec.msgpack.Decoder(BulkRefused).decode


def encode_hello(hello: BulkHello) -> bytes:
    return _record(RecordKind.HELLO, _encode(hello))


def encode_refused(refused: BulkRefused) -> bytes:
    return _record(RecordKind.REFUSED, _encode(refused))


def encode_requests(requests: Sequence[ChunkRequest]) -> bytes:
    """As many records as it takes."""
    parts = (requests[at : at + REQUEST_CHUNKS_MAX] for at in range(0, len(requests), REQUEST_CHUNKS_MAX))
    return b"".join(_record(RecordKind.REQUEST, b"".join(_REQUEST.pack(*one) for one in part)) for part in parts)


def _record(kind: RecordKind, body: bytes) -> bytes:
    return _RECORD.pack(kind, len(body)) + body


class SenderSession:
    """The end that has the chunks: bytes in, requests out. Holds one unfinished record and `REQUESTED_MAX` requests."""

    def __init__(self) -> None:
        self.hello: BulkHello | None = None
        self._rest = b""
        self._requested: deque[ChunkRequest] = deque()

    def __len__(self) -> int:
        """Requests that were not taken yet."""
        return len(self._requested)

    def feed(self, data: bytes) -> None:
        """Raises `BulkFault`."""
        data = self._rest + data
        at = 0
        while at + RECORD_HEAD_BYTES <= len(data):
            kind, length = _RECORD.unpack_from(data, at)
            self._check_head(kind, length)
            end = at + RECORD_HEAD_BYTES + length
            if end > len(data):
                break
            self._take(kind, data[at + RECORD_HEAD_BYTES : end])
            at = end
        self._rest = data[at:]

    def next_batch(self) -> list[ChunkRequest]:
        """The next requests, as many as are read from a store at once."""
        batch: list[ChunkRequest] = []
        size = 0
        while self._requested and len(batch) < READ_CHUNKS_MAX:
            size += self._requested[0].size
            if batch and size > READ_BYTES_MAX:
                break
            batch.append(self._requested.popleft())
        return batch

    def encode(self, request: ChunkRequest, frame: ChunkFrame) -> tuple[bytes, memoryview]:
        """The head of a chunk and what follows it. Raises `BulkFault` if the request has lied about its size.

        The receiver's beginning counts only if it was made of a payload as long as this one.
        """
        if frame.size != request.size:
            raise BulkFault(f"requested a chunk of {request.size} bytes that has {frame.size}")
        length = len(frame.payload)
        offset = request.offset if length == request.length else 0
        body = HEAD_BYTES + _OFFSET.size + length - offset
        head = _RECORD.pack(RecordKind.CHUNK, body) + frame_head(frame) + _OFFSET.pack(offset)
        rest = memoryview(frame.payload)[offset:]
        if len(rest) <= COALESCED_BYTES_MAX:
            return head + rest, memoryview(b"")
        return head, rest

    def _check_head(self, kind: int, length: int) -> None:
        if self.hello is None:
            if kind != RecordKind.HELLO or length > HELLO_BYTES_MAX:
                raise BulkFault("does not greet")
        elif kind != RecordKind.REQUEST:
            raise BulkFault(f"sent a record of kind {kind} at the wrong time")
        elif not 0 < length <= _REQUEST_BYTES_MAX or length % _REQUEST_BYTES:
            raise BulkFault(f"sent a request of {length} bytes")

    def _take(self, kind: int, body: bytes) -> None:
        if kind == RecordKind.HELLO:
            self.hello = _hello(body)
            if not 0 < len(self.hello.ticket) <= TICKET_BYTES_MAX:
                raise BulkFault("shows no ticket")
            return
        if len(self._requested) + length_of(body) > REQUESTED_MAX:
            raise BulkFault(f"requested more than {REQUESTED_MAX} chunks at once")
        for request in map(ChunkRequest._make, _REQUEST.iter_unpack(body)):
            if not 0 < request.size <= CHUNK_BYTES_MAX or not 0 <= request.length <= CHUNK_BYTES_MAX:
                raise BulkFault("requested a chunk of an impossible size")
            if request.offset and request.offset >= request.length:
                raise BulkFault("requested a chunk from behind its end")
            self._requested.append(request)


def length_of(body: bytes) -> int:
    """How many requests a record holds."""
    return len(body) // _REQUEST_BYTES


class ReceiverSession:
    """The end that wants the chunks: fill `space`, then `received` answers what has become complete.

    Memory is given to one chunk at a time, whatever is requested. Raises `BulkFault`; then nothing more is to be fed.
    """

    def __init__(self) -> None:
        self.hello: BulkHello | None = None
        self.refused: BulkRefused | None = None
        self.payload_bytes = 0  # received, of complete and incomplete chunks
        self._requested: deque[ChunkRequest] = deque()
        self._held: dict[bytes, PartialChunk] = {}
        self._staged = memoryview(bytearray(_STAGED_BYTES))
        self._staged_end = 0
        self._payload = memoryview(bytearray(CHUNK_BYTES_MAX))
        self._chunk: tuple[bytes, int, Codec, int] | None = None  # the one that is being received, as its head says
        self._filled = 0  # of its payload

    @property
    def owes(self) -> bool:
        """Whether the other end has to send something."""
        return bool(self._requested)

    def request(self, requests: Sequence[ChunkRequest], held: Iterable[PartialChunk] = ()) -> bytes:
        """What to send. `held`: the beginnings that requests with an offset build on."""
        self._requested.extend(requests)
        self._held.update((one.id, one) for one in held)
        return encode_requests(requests)

    def space(self) -> memoryview:
        """Where the next bytes belong: large payloads come to their place without a copy."""
        if self._chunk is not None and not self._staged_end:
            return self._payload[self._filled : self._chunk[3]]
        return self._staged[self._staged_end :]

    def received(self, count: int) -> list[ChunkFrame]:
        """So many bytes were written to `space`. The chunks that are complete now, none of them verified."""
        if self._chunk is not None and not self._staged_end:
            self._filled += count
            self.payload_bytes += count
            return self._completed()
        self._staged_end += count
        return self._parse()

    def partial(self) -> PartialChunk | None:
        """What has arrived of the chunk that was being received when the connection ended."""
        if self._chunk is None or not self._filled:
            return None
        return PartialChunk(*self._chunk, bytes(self._payload[: self._filled]))

    def unused(self) -> list[PartialChunk]:
        """Beginnings that were handed to this connection and that it did not come to."""
        return list(self._held.values())

    def _parse(self) -> list[ChunkFrame]:
        complete: list[ChunkFrame] = []
        at = 0
        while True:
            if self._chunk is not None:
                count = min(self._chunk[3] - self._filled, self._staged_end - at)
                self._payload[self._filled : self._filled + count] = self._staged[at : at + count]
                self._filled += count
                self.payload_bytes += count
                at += count
                complete += self._completed()
                if self._chunk is not None:
                    break
            elif not (count := self._take_record(self._staged[at : self._staged_end])):
                break
            else:
                at += count
        rest = self._staged_end - at
        if at and rest:
            self._staged[:rest] = bytes(self._staged[at : self._staged_end])
        self._staged_end = rest
        return complete

    def _take_record(self, view: memoryview) -> int:
        """Bytes of the head of a chunk, or of another record as a whole; 0 if more of it has to come first."""
        if len(view) < RECORD_HEAD_BYTES:
            return 0
        kind, length = _RECORD.unpack_from(view)
        if kind == RecordKind.CHUNK:
            if self.hello is None:
                raise BulkFault("does not greet")
            if len(view) < CHUNK_HEAD_BYTES:
                return 0
            self._begin(view[RECORD_HEAD_BYTES:CHUNK_HEAD_BYTES], length)
            return CHUNK_HEAD_BYTES
        if kind not in (RecordKind.HELLO, RecordKind.REFUSED) or self.refused is not None:
            raise BulkFault(f"sent a record of kind {kind} at the wrong time")
        if length > HELLO_BYTES_MAX:
            raise BulkFault(f"sent a record of {length} bytes")
        end = RECORD_HEAD_BYTES + int(length)
        if len(view) < end:
            return 0
        self._take_control(kind, bytes(view[RECORD_HEAD_BYTES:end]))
        return end

    def _take_control(self, kind: int, body: bytes) -> None:
        if kind == RecordKind.REFUSED:
            self.refused = _refused(body)
        elif self.hello is not None:
            raise BulkFault("greeted twice")
        else:
            self.hello = _hello(body)

    def _begin(self, head: memoryview, body_length: int) -> None:
        try:
            name, size, codec, length = read_head(head[:HEAD_BYTES])
        except HarchError as error:
            raise BulkFault(error.message) from error
        (offset,) = _OFFSET.unpack_from(head, HEAD_BYTES)
        wanted = self._requested[0] if self._requested else None
        if wanted is None or wanted.id != name:
            raise BulkFault("sent a chunk that was not requested")
        if size != wanted.size:
            raise BulkFault(f"sent a chunk of {size} bytes where {wanted.size} were wanted")
        held = self._held.pop(name, None)
        if offset not in (0, wanted.offset) or body_length != len(head) + length - offset:
            raise BulkFault("sent a chunk whose lengths contradict each other")
        if offset:
            if held is None or (held.codec, held.length, len(held.begun)) != (codec, length, offset):
                raise BulkFault("continued a chunk that was another one before")
            self._payload[:offset] = held.begun
        self._chunk = (name, size, codec, length)
        self._filled = offset

    def _completed(self) -> list[ChunkFrame]:
        if self._chunk is None or self._filled < self._chunk[3]:
            return []
        name, size, codec, length = self._chunk
        self._chunk = None
        self._filled = 0
        self._requested.popleft()
        return [ChunkFrame(name, size, codec, bytes(self._payload[:length]))]


def _hello(body: bytes) -> BulkHello:
    try:
        return _decode_hello(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BulkFault("sent a greeting that cannot be read") from error


def _refused(body: bytes) -> BulkRefused:
    try:
        refused = _decode_refused(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BulkFault("sent a refusal that cannot be read") from error
    return BulkRefused(
        rule=refused.rule[:REASON_CHARS_MAX], reason=refused.reason[:REASON_CHARS_MAX], code=refused.code[:16]
    )

"""How is a pack laid out? A header, records, the heads of all records again, and a footer.

A record is a head and the sealed payload of one chunk. Everything but the payload is readable by anybody: names of
chunks (which are hashes), sizes, and what is needed to open the payload. Heads stand twice: before each payload, so
that a record can be read, moved and found again in a pack that is damaged, and together at the end, so that an index
can be rebuilt with one read per pack. A pack is written once and never changed.
"""

# harch: pure

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from harch.content.frames import Codec
from harch.content.model import CHUNK_BYTES_MAX

KEY_ID_BYTES = 16
PACK_ID_BYTES = 16
SALT_BYTES = 16
TAG_BYTES = 16

_CHECKSUM = struct.Struct("!I")
_HEADER = struct.Struct("!8s16s16s")  # magic, pack, key of its tenant
_HEAD = struct.Struct("!4s32sIBI16sI")  # marker, chunk, raw size, codec, sealed size, salt, number
_FOOTER = struct.Struct("!8sIQI")  # magic, records, their bytes, checksum of their heads
_PACK_MAGIC = b"HARCHPK\x01"
_HEAD_MARKER = b"HRC\x01"
_END_MAGIC = b"HARCHEND"
HEADER_BYTES = _HEADER.size + _CHECKSUM.size
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
FOOTER_BYTES = _FOOTER.size + _CHECKSUM.size
OVERHEAD_BYTES = HEAD_BYTES + TAG_BYTES  # of one chunk, without its second head


class DamagedRecord(ValueError):
    """These bytes are not what was written."""


class RecordHead(NamedTuple):
    """`sealed_bytes`: of the payload with its tag. Salt and number name the key and nonce, once each."""

    chunk: bytes
    size: int
    codec: Codec
    sealed_bytes: int
    salt: bytes
    number: int

    @property
    def record_bytes(self) -> int:
        return HEAD_BYTES + self.sealed_bytes


class PlacedRecord(NamedTuple):
    """A record and where in its pack it begins."""

    at: int
    head: RecordHead


class PackContent(NamedTuple):
    """What a pack says of itself. `is_whole`: nothing of its frame is damaged."""

    key_id: bytes
    records: list[PlacedRecord]
    is_whole: bool


def encode_head(head: RecordHead) -> bytes:
    return _checked(_HEAD.pack(_HEAD_MARKER, *head))


def read_head(data: bytes | memoryview) -> RecordHead:
    """Raises DamagedRecord."""
    body = _unchecked(data, _HEAD.size)
    marker, chunk, size, codec, sealed_bytes, salt, number = _HEAD.unpack(body)
    if marker != _HEAD_MARKER or codec not in (Codec.RAW, Codec.ZSTD) or not 0 < size <= CHUNK_BYTES_MAX:
        raise DamagedRecord("this is no record")
    if not TAG_BYTES < sealed_bytes <= CHUNK_BYTES_MAX + TAG_BYTES:
        raise DamagedRecord("this is no record")
    return RecordHead(chunk, size, Codec(codec), sealed_bytes, salt, number)


class PackDraft:
    """A pack that is being put together in memory. `pieces` are written one after the other."""

    def __init__(self, pack_id: bytes, key_id: bytes) -> None:
        self.pieces: list[bytes] = [_checked(_HEADER.pack(_PACK_MAGIC, pack_id, key_id))]
        self.records: list[PlacedRecord] = []
        self.bytes = HEADER_BYTES
        self._heads: list[bytes] = []

    def add(self, head: RecordHead, encoded: bytes, sealed: bytes) -> None:
        self.records.append(PlacedRecord(self.bytes, head))
        self.pieces += (encoded, sealed)
        self._heads.append(encoded)
        self.bytes += len(encoded) + len(sealed)

    def finish(self) -> None:
        heads = b"".join(self._heads)
        footer = _FOOTER.pack(_END_MAGIC, len(self._heads), self.bytes - HEADER_BYTES, zlib.crc32(heads))
        self.pieces += (heads, _checked(footer))
        self.bytes += len(heads) + FOOTER_BYTES


def footer_bytes(end: bytes | memoryview) -> int:
    """How many bytes at the end of a pack are its heads and its footer. Raises DamagedRecord."""
    return _read_footer(end)[0] * HEAD_BYTES + FOOTER_BYTES


def read_by_footer(begin: bytes | memoryview, end: bytes | memoryview, pack_bytes: int) -> PackContent:
    """From the first `HEADER_BYTES` and at least the last `footer_bytes` of a pack. Raises DamagedRecord."""
    count, record_bytes, checksum = _read_footer(end)
    if pack_bytes != HEADER_BYTES + record_bytes + count * HEAD_BYTES + FOOTER_BYTES:
        raise DamagedRecord("it has another size than its footer says")
    first = len(end) - FOOTER_BYTES - count * HEAD_BYTES
    heads = end[first : len(end) - FOOTER_BYTES]
    if first < 0 or zlib.crc32(heads) != checksum:
        raise DamagedRecord("its heads are damaged")
    records, at = [], HEADER_BYTES
    for place in range(0, len(heads), HEAD_BYTES):
        head = read_head(heads[place : place + HEAD_BYTES])
        records.append(PlacedRecord(at, head))
        at += head.record_bytes
    if at != HEADER_BYTES + record_bytes:
        raise DamagedRecord("its records are not where its footer says")
    return PackContent(_read_header(begin), records, is_whole=True)


def read_by_records(data: bytes, key_id: bytes | None = None) -> PackContent:
    """From all bytes of a pack, of which some are damaged: every record whose head can be read.

    `key_id`: the tenant's, where the header cannot be read. Raises DamagedRecord if nobody knows it.
    """
    try:
        key_id = _read_header(data)
        is_whole = True
    except DamagedRecord:
        if key_id is None:
            raise
        is_whole = False
    records, at = [], data.find(_HEAD_MARKER)
    while at >= 0:
        try:
            head = read_head(memoryview(data)[at : at + HEAD_BYTES])
        except DamagedRecord:
            at = data.find(_HEAD_MARKER, at + 1)
            continue
        if at + head.record_bytes > len(data):
            break
        # The heads at the end look like records: what follows them is another head, or the footer.
        behind = data[at + HEAD_BYTES : at + HEAD_BYTES + len(_END_MAGIC)]
        if behind == _END_MAGIC or _is_head(data, at + HEAD_BYTES):
            break
        records.append(PlacedRecord(at, head))
        at = data.find(_HEAD_MARKER, at + head.record_bytes)
    try:
        is_whole = is_whole and read_by_footer(data, data, len(data)).records == records
    except DamagedRecord:
        is_whole = False
    return PackContent(key_id, records, is_whole)


def _is_head(data: bytes, at: int) -> bool:
    try:
        read_head(memoryview(data)[at : at + HEAD_BYTES])
    except DamagedRecord:
        return False
    return True


def _read_header(data: bytes | memoryview) -> bytes:
    magic, _, key_id = _HEADER.unpack(_unchecked(data, _HEADER.size))
    if magic != _PACK_MAGIC:
        raise DamagedRecord("this is no pack")
    return bytes(key_id)


def _read_footer(end: bytes | memoryview) -> tuple[int, int, int]:
    magic, count, record_bytes, checksum = _FOOTER.unpack(_unchecked(end[-FOOTER_BYTES:], _FOOTER.size))
    if magic != _END_MAGIC:
        raise DamagedRecord("it has no footer")
    return count, record_bytes, checksum


def _checked(body: bytes) -> bytes:
    return body + _CHECKSUM.pack(zlib.crc32(body))


def _unchecked(data: bytes | memoryview, size: int) -> bytes:
    body = bytes(data[:size])
    if len(data) < size + _CHECKSUM.size or _CHECKSUM.unpack(data[size : size + _CHECKSUM.size])[0] != zlib.crc32(body):
        raise DamagedRecord("its checksum is wrong")
    return body

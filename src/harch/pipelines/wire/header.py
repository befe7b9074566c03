"""What is in this batch, and may we trust it?

The 64 little-endian bytes in front of every batch, and CRC-32C by the processor's own instruction.
"""

# harch: pure

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum, IntFlag
from functools import lru_cache

from msgspec import Struct

from harch.base.errors import HarchError, InvariantBroken
from harch.base.rejection import Rejection

Buffer = bytes | bytearray | memoryview


def crc32c(data: Buffer, so_far: int = 0) -> int:
    """The checksum of `data`, going on from `so_far`. Reads memory views without copying them."""
    return _function()(data, so_far)


@lru_cache(maxsize=1)
def _function() -> Callable[[Buffer, int], int]:
    try:
        from crc32c import crc32c as function
    except ImportError as missing:
        raise HarchError(
            "E0740",
            "the package `crc32c` is not installed, so batches cannot be checked",
            hint="pip install 'harch[pipelines]'",
        ) from missing
    return function


# What is in this batch, and may we trust its head? The 64 little-endian bytes in front of every batch.
#
# The checksum covers the first 60 bytes and the payload, so that a bit that flips in the jurisdiction mask is found
# too.
# Bytes from outside never raise: they become a header, or a `Rejection` that says what is wrong with them.


MAGIC = int.from_bytes(b"HRCH", "little")
VERSION = 1
HEADER_BYTES = 64
EVENTS_MAX = 1 << 20
MESSAGE_BYTES_MAX = 8 << 20  # what the message engine is configured to carry
PAYLOAD_BYTES_MAX = MESSAGE_BYTES_MAX - HEADER_BYTES
TIME_NS_MAX = 1 << 62  # the year 2116; leaves room to add offsets without overflow
SEQ_MAX = (1 << 63) - 1

_LAYOUT = struct.Struct("<IBBBBIIQIIQqqII")
_FIRST_TIME, _FIRST_TIME_AT = struct.Struct("<q"), 40
_CHECKED_BYTES = HEADER_BYTES - 4  # all but the checksum itself
_GAP = struct.Struct("<QQ")


class Flags(IntFlag):
    END = 1  # the source will send nothing more
    REPLAY = 2  # sent before; the receiver may have it already
    WATERMARK_ONLY = 4  # no events, no sequence number of its own: `seq` is the last one sent
    GAP = 8  # a range of batches that was shed: counted, not lost


_FLAGS_ALL = int(Flags.END | Flags.REPLAY | Flags.WATERMARK_ONLY | Flags.GAP)
_FLAGS_EMPTY = int(Flags.WATERMARK_ONLY | Flags.GAP)
# Plain numbers for what is asked of every batch: operators of enums are slow.
_END_BIT, _WATERMARK_BIT, _GAP_BIT = int(Flags.END), int(Flags.WATERMARK_ONLY), int(Flags.GAP)


class BatchLane(IntEnum):
    """How a batch travels: in memory order only, stored by one server, or stored by three."""

    HOT = 0
    DURABLE = 1
    CRITICAL = 2


_LANE_MAX = int(BatchLane.CRITICAL)
PRIORITY_NEVER_SHED = 0  # commands and safety; higher numbers are given up first
PRIORITY_MAX = 7


class BatchHeader(Struct, frozen=True, kw_only=True):
    """One head. `seq` is gapless per source from 1; times are nanoseconds since 1970 UTC."""

    schema: int
    n: int
    juris_mask: int  # hubs, by bit number of the compiled rules, that may store and process the batch
    policy_version: int  # of the table of those bit numbers
    source: int
    seq: int
    t_first_ns: int  # the earliest event; times of events are offsets from it
    watermark_ns: int  # nothing that the source sends later is older than this
    payload_len: int
    flags: int = 0
    priority: int = 3
    lane: int = 0

    @property
    def is_gap(self) -> bool:
        return self.flags & _GAP_BIT != 0

    @property
    def is_watermark_only(self) -> bool:
        return self.flags & _WATERMARK_BIT != 0

    @property
    def is_end(self) -> bool:
        return self.flags & _END_BIT != 0


class SequenceGap(Struct, frozen=True):
    """What a gap header stands for: the batches `first_seq` to `last_seq` were shed, with so many events in them."""

    first_seq: int
    last_seq: int
    events: int


def pack_header(header: BatchHeader, payload: Buffer = b"") -> bytes:
    """The 64 bytes. A header that no receiver would accept is a fault of the caller."""
    if len(payload) != header.payload_len:
        raise InvariantBroken("payload_len is the length of the payload", header.payload_len, len(payload))
    try:
        head = _LAYOUT.pack(MAGIC, VERSION, *_fields(header), 0)
    except struct.error as error:
        raise InvariantBroken("a header field is out of its range", error) from error
    if isinstance(found := unpack_header(head), Rejection):
        raise InvariantBroken("a header that is sent can be read", found.rule, found.detail)
    checksum = crc32c(payload, crc32c(head[:_CHECKED_BYTES]))
    return head[:_CHECKED_BYTES] + checksum.to_bytes(4, "little")


def pack_batch(header: BatchHeader, payload: Buffer = b"") -> bytes:
    """Head and payload as one message. Senders that can gather send `pack_header` and the payload instead."""
    return b"".join((pack_header(header, payload), payload))


def unpack_header(message: Buffer) -> BatchHeader | Rejection:
    """The head of a message, with every field in its range. Says nothing about the payload: see `check_payload`."""
    if len(message) < HEADER_BYTES:
        return _no("truncated", f"{len(message)} bytes; a header has {HEADER_BYTES}")
    (magic, version, flags, priority, lane, schema, n, mask, policy, source, seq, first, mark, size, _) = (
        _LAYOUT.unpack_from(message)
    )
    if magic != MAGIC:
        return _no("magic", f"starts with {magic:#010x}, not {MAGIC:#010x}", "send batches of the HarchOS wire format")
    if version != VERSION:
        return _no(
            "version", f"wire version {version}; this release reads {VERSION}", "run the same release on both sides"
        )
    if flags & ~_FLAGS_ALL:
        return _no("flags", f"unknown flags {flags & ~_FLAGS_ALL:#04x}")
    if priority > PRIORITY_MAX:
        return _no("priority", f"priority {priority}; the last is {PRIORITY_MAX}")
    if lane > _LANE_MAX:
        return _no("lane", f"lane {lane} is not known")
    if n > EVENTS_MAX:
        return _no("events", f"{n} events; at most {EVENTS_MAX} in a batch", "send smaller batches")
    if size > PAYLOAD_BYTES_MAX:
        return _no("size", f"{size} bytes of payload; at most {PAYLOAD_BYTES_MAX}", "send smaller batches")
    if flags & _FLAGS_EMPTY and (n or size != (_GAP.size if flags & _GAP_BIT else 0)):
        return _no("flags", f"a gap or watermark with {n} events and {size} bytes")
    if seq > SEQ_MAX or (seq == 0 and not flags & _WATERMARK_BIT):
        return _no("seq", f"sequence number {seq}; the first is 1")
    if not 0 <= first <= TIME_NS_MAX or not 0 <= mark <= TIME_NS_MAX:
        return _no("time", f"first event at {first} ns, watermark at {mark} ns; times lie between 1970 and 2116")
    return BatchHeader(
        schema=schema,
        n=n,
        juris_mask=mask,
        policy_version=policy,
        source=source,
        seq=seq,
        t_first_ns=first,
        watermark_ns=mark,
        payload_len=size,
        flags=flags,
        priority=priority,
        lane=lane,
    )


def first_time_ns(message: Buffer) -> int:
    """The first time in a head that was or will be checked elsewhere; 0 for what is too short to have one."""
    return int(_FIRST_TIME.unpack_from(message, _FIRST_TIME_AT)[0]) if len(message) >= HEADER_BYTES else 0


def check_payload(header: BatchHeader, message: Buffer) -> memoryview | Rejection:
    """The payload of a whole message, once its length and its checksum are right. A view: nothing is copied."""
    view = memoryview(message).cast("B")
    if len(view) != HEADER_BYTES + header.payload_len:
        return _no("length", f"{len(view)} bytes; the header announces {HEADER_BYTES + header.payload_len}")
    payload = view[HEADER_BYTES:]
    announced = int.from_bytes(view[_CHECKED_BYTES:HEADER_BYTES], "little")
    if crc32c(payload, crc32c(view[:_CHECKED_BYTES])) != announced:
        return _no("checksum", f"the checksum of batch {header.seq} of source {header.source} does not match")
    return payload


def pack_gap(header: BatchHeader, gap: SequenceGap) -> bytes:
    """A message that says: these batches were shed. Times, mask and source are those of `header`."""
    fields = {name: getattr(header, name) for name in header.__struct_fields__}
    fields.update(n=0, seq=gap.last_seq, payload_len=_GAP.size, flags=header.flags & Flags.REPLAY | Flags.GAP)
    return pack_batch(BatchHeader(**fields), _GAP.pack(gap.first_seq, gap.events))


def read_gap(header: BatchHeader, payload: Buffer) -> SequenceGap | Rejection:
    """What was shed, from the checked payload of a gap."""
    first, events = _GAP.unpack(payload)
    if not 1 <= first <= header.seq:
        return _no("gap", f"a gap from {first} to {header.seq}")
    return SequenceGap(first, header.seq, events)


def as_replay(message: Buffer) -> bytes:
    """The same message, marked as sent before. For a message of our own: it must be readable."""
    header = unpack_header(message)
    if isinstance(header, Rejection):
        raise InvariantBroken("a kept message can be read", header.rule, header.detail)
    fields = {name: getattr(header, name) for name in header.__struct_fields__}
    fields["flags"] = header.flags | Flags.REPLAY
    return pack_batch(BatchHeader(**fields), bytes(memoryview(message)[HEADER_BYTES:]))


def _fields(header: BatchHeader) -> tuple[int, ...]:
    return (
        header.flags,
        header.priority,
        header.lane,
        header.schema,
        header.n,
        header.juris_mask,
        header.policy_version,
        header.source,
        header.seq,
        header.t_first_ns,
        header.watermark_ns,
        header.payload_len,
    )


def _no(rule: str, detail: str, fix: str = "") -> Rejection:
    return Rejection("batch", rule, detail, fix)

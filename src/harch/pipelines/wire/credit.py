"""How does a receiver tell a source how much it may send? Absolute numbers, so that a lost one is cured by the next."""

from __future__ import annotations

import struct

from msgspec import Struct

from harch.base.rejection import Rejection
from harch.pipelines.wire.checksum import Buffer, crc32c
from harch.pipelines.wire.header import SEQ_MAX

MAGIC = int.from_bytes(b"HRCG", "little")
_LAYOUT = struct.Struct("<IIQQQ")
CREDIT_BYTES = _LAYOUT.size + 4


class Credit(Struct, frozen=True):
    """What one receiver grants to one source. Within an epoch `allowed_bytes` counts from zero and only grows.

    A higher epoch means: the receiver started anew or missed something; send again all after `checkpointed_seq`.
    """

    source: int
    epoch: int
    allowed_bytes: int
    checkpointed_seq: int


def pack_credit(credit: Credit) -> bytes:
    body = _LAYOUT.pack(MAGIC, credit.source, credit.epoch, credit.allowed_bytes, credit.checkpointed_seq)
    return body + crc32c(body).to_bytes(4, "little")


def unpack_credit(message: Buffer) -> Credit | Rejection:
    if len(message) != CREDIT_BYTES:
        return Rejection("credit", "length", f"{len(message)} bytes; a grant of credit has {CREDIT_BYTES}")
    magic, source, epoch, allowed, checkpointed = _LAYOUT.unpack_from(message)
    if magic != MAGIC:
        return Rejection("credit", "magic", f"starts with {magic:#010x}, not {MAGIC:#010x}")
    if crc32c(bytes(message[:-4])) != int.from_bytes(message[-4:], "little"):
        return Rejection("credit", "checksum", f"the checksum of the grant for source {source} does not match")
    if checkpointed > SEQ_MAX:
        return Rejection("credit", "seq", f"sequence number {checkpointed}")
    return Credit(source, epoch, allowed, checkpointed)

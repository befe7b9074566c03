"""What is kept of a partition? One value: the state of SENSE, and the features that it told but nobody has yet.

Features are part of the value, so that a window is told exactly as it was closed: whoever starts from it sends them
again under the same ids, and goes on with a state in which that window is closed.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from harch.pipelines.sense.checkpoint import VALUE_BYTES_MAX, Checkpoint, decode_checkpoint, encode_checkpoint, unusable
from harch.pipelines.wire.checksum import crc32c

_MAGIC = b"HRPT"
_HEAD_BYTES = len(_MAGIC) + 4
_MESSAGE_OVERHEAD_BYTES = 64 << 10  # of the engine, around a value
SAVED_BYTES_MAX = VALUE_BYTES_MAX - _MESSAGE_OVERHEAD_BYTES


class Told(Struct, frozen=True, array_like=True):
    """Features of one window, as they travel. `seq` is gapless per partition and makes their id."""

    seq: int
    message: bytes


class SavedPartition(Struct, frozen=True, array_like=True):
    """`epoch` of the lease under which it was written: two holders never write the same bytes."""

    epoch: int
    state: bytes  # a checkpoint of SENSE, empty before the first event
    outbox: list[Told]


def encode_saved(epoch: int, checkpoint: Checkpoint | None, outbox: list[Told], *, compress: bool) -> bytes:
    """Raises E0741 where it is larger than a value may be: nothing of it could be stored."""
    state = encode_checkpoint(checkpoint, compress=compress) if checkpoint is not None else b""
    body = msgspec.msgpack.encode(SavedPartition(epoch, state, outbox))
    if len(body) + _HEAD_BYTES > SAVED_BYTES_MAX:
        raise unusable(f"{len(body)} bytes; a value has at most {SAVED_BYTES_MAX}: use more partitions, or compress")
    return b"".join((_MAGIC, crc32c(body).to_bytes(4, "little"), body))


def decode_saved(value: bytes) -> tuple[SavedPartition, Checkpoint | None]:
    """Raises E0741 for what is damaged."""
    body = value[_HEAD_BYTES:]
    if value[: len(_MAGIC)] != _MAGIC or crc32c(body) != int.from_bytes(value[len(_MAGIC) : _HEAD_BYTES], "little"):
        raise unusable("the saved partition is damaged")
    try:
        saved = msgspec.msgpack.decode(body, type=SavedPartition)
    except msgspec.MsgspecError as error:
        raise unusable(f"the saved partition cannot be read: {error}") from error
    return saved, decode_checkpoint(saved.state) if saved.state else None

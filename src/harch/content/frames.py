"""How does a chunk travel, and how is it laid down? As a frame: its name, its size, and its bytes, compressed or not.

Bodies of uploads and downloads, and what hubs send each other, are frames one after the other. Whoever receives a frame
unpacks it and compares the hash before believing it; a frame never grows beyond `CHUNK_BYTES_MAX` when unpacked.
"""

# harch: pure

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

import blake3
import zstandard

from harch.base.errors import HarchError
from harch.content.model import CHUNK_BYTES_MAX, DIGEST_BYTES

BATCH_BYTES_MAX = 16 * 1024 * 1024  # of one upload or download, as it travels
BATCH_CHUNKS_MAX = 8192
COMPRESSION_LEVEL = 3
INCOMPRESSIBLE_SHARE = 0.97  # what saves less is kept as it is: reading it is cheaper then
_HEAD = struct.Struct("!32sIBI")  # name, raw size, codec, payload size
HEAD_BYTES = _HEAD.size
FRAME_BYTES_MAX = HEAD_BYTES + CHUNK_BYTES_MAX


class Codec(IntEnum):
    RAW = 0
    ZSTD = 1


class ChunkFrame(NamedTuple):
    """One chunk as it travels. `size` is that of its raw bytes."""

    id: bytes
    size: int
    codec: Codec
    payload: bytes

    @property
    def bytes_travelling(self) -> int:
        return HEAD_BYTES + len(self.payload)


def chunk_id(raw: bytes | memoryview) -> bytes:
    return blake3.blake3(raw).digest()


def compressor() -> zstandard.ZstdCompressor:
    """For many chunks, one after the other in one thread: making one costs more than a small chunk."""
    return zstandard.ZstdCompressor(level=COMPRESSION_LEVEL)


def decompressor() -> zstandard.ZstdDecompressor:
    """As `compressor`."""
    return zstandard.ZstdDecompressor()


def pack_chunk(
    raw: bytes | memoryview, *, chunk: bytes | None = None, by: zstandard.ZstdCompressor | None = None
) -> ChunkFrame:
    """`chunk`: its name, if the caller has computed it already."""
    name = chunk if chunk is not None else chunk_id(raw)
    packed = (by or compressor()).compress(raw)
    if len(packed) <= INCOMPRESSIBLE_SHARE * len(raw):
        return ChunkFrame(name, len(raw), Codec.ZSTD, packed)
    return ChunkFrame(name, len(raw), Codec.RAW, bytes(raw))


def unpack_chunk(frame: ChunkFrame, *, by: zstandard.ZstdDecompressor | None = None) -> bytes:
    """Its raw bytes. Raises E1101 unless they are what its name says."""
    raw = frame.payload
    if frame.codec is Codec.ZSTD:
        try:
            # A payload that tells its own size is given that much memory, whatever the limit: so it is asked first.
            if zstandard.frame_content_size(frame.payload) not in (frame.size, -1):
                raise _damaged(frame.id, "it would not have the size that it claims")
            raw = (by or decompressor()).decompress(frame.payload, max_output_size=frame.size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise _damaged(frame.id, f"it cannot be decompressed: {error}") from error
    if len(raw) != frame.size or chunk_id(raw) != frame.id:
        raise _damaged(frame.id, "its content is not what its name says")
    return raw


def encode_frame(frame: ChunkFrame) -> bytes:
    return frame_head(frame) + frame.payload


def frame_head(frame: ChunkFrame) -> bytes:
    """For writers that send head and payload apart, without a copy."""
    return _HEAD.pack(frame.id, frame.size, frame.codec, len(frame.payload))


def decode_frames(body: bytes | memoryview) -> Iterator[ChunkFrame]:
    """All frames of a whole body. Raises E1101 for a body that is cut or has an impossible head."""
    view = memoryview(body)
    at, count = 0, 0
    while at < len(view):
        if len(view) - at < HEAD_BYTES:
            raise _not_frames("it ends inside of a frame")
        name, size, codec, length = read_head(view[at : at + HEAD_BYTES])
        at += HEAD_BYTES
        if len(view) - at < length:
            raise _not_frames("it ends inside of a chunk")
        count += 1
        if count > BATCH_CHUNKS_MAX:
            raise _not_frames(f"it has more than {BATCH_CHUNKS_MAX} chunks")
        yield ChunkFrame(name, size, codec, bytes(view[at : at + length]))
        at += length


def read_head(head: bytes | memoryview) -> tuple[bytes, int, Codec, int]:
    """(name, raw size, codec, payload size). Raises E1101 for values that no frame has."""
    name, size, codec, length = _HEAD.unpack(head)
    if codec not in (Codec.RAW, Codec.ZSTD) or not 0 < size <= CHUNK_BYTES_MAX or not 0 < length <= CHUNK_BYTES_MAX:
        raise _not_frames("a frame has an impossible head")
    if codec == Codec.RAW and length != size:
        raise _not_frames("a frame has an impossible head")
    return name, size, Codec(codec), length


def encode_ids(ids: Iterable[bytes]) -> bytes:
    return b"".join(ids)


def decode_ids(body: bytes) -> list[bytes]:
    """Raises E1101 for a body that is no list of names."""
    if len(body) % DIGEST_BYTES:
        raise _not_frames(f"names of chunks have {DIGEST_BYTES} bytes each")
    return [body[at : at + DIGEST_BYTES] for at in range(0, len(body), DIGEST_BYTES)]


def _damaged(name: bytes, why: str) -> HarchError:
    return HarchError("E1101", f"chunk {name.hex()[:16]} is damaged: {why}", hint="send it again")


def _not_frames(why: str) -> HarchError:
    return HarchError("E1101", f"these are no chunks: {why}", hint="send whole frames")

"""What was packed? Snappy blocks say first how large they are unpacked, so a bomb is refused before it goes off."""

from __future__ import annotations

from harch.base.errors import HarchError
from harch.sentinel.store.ingest import messages
from harch.sentinel.store.ingest.scratch import Scratch
from harch.sentinel.store.limits import Limits

try:
    from cramjam import DecompressionError, snappy
except ImportError as missing:
    raise HarchError("E0601", "cramjam") from missing


def unpack(body: bytes, scratch: Scratch, limits: Limits) -> int:
    """Unpacks into `scratch.data` and returns the size. Raises E0605 or E0606."""
    if len(body) > limits.body_bytes_max:
        raise HarchError("E0606", f"the body has {len(body)} bytes; {limits.body_bytes_max} are allowed")
    size, _ = messages.varint(body, 0)
    if size > limits.request_bytes_max:
        raise HarchError("E0606", f"the body unpacks to {size} bytes; {limits.request_bytes_max} are allowed")
    scratch.data_for(size + 8)
    try:
        unpacked = snappy.decompress_raw_into(body, scratch.data[: size or 1])
    except DecompressionError as broken:
        raise HarchError("E0605", "the body is not a snappy block") from broken
    if unpacked != size:
        raise HarchError("E0605", "the body is not a snappy block")
    return size

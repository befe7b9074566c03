"""How is a body unpacked? Never beyond its limit, however little of it was sent."""

from __future__ import annotations

import zlib

from harch.base.errors import HarchError


def decompressed(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """Plain, gzip, deflate or zstd. Raises E0204 beyond the limit, E0677 for what cannot be unpacked."""
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return body
    if name in {"gzip", "deflate"}:
        return _inflated(body, name, bytes_max)
    if name == "zstd":
        return _unpacked_zstd(body, bytes_max)
    raise HarchError("E0677", f"bodies may be compressed with gzip, deflate or zstd, not `{encoding[:40]}`")


def _inflated(body: bytes, name: str, bytes_max: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=47 if name == "gzip" else zlib.MAX_WBITS)
    try:
        plain = unpacker.decompress(body, bytes_max + 1)
    except zlib.error as broken:
        raise HarchError("E0677", f"the body cannot be unpacked with {name}") from broken
    if len(plain) > bytes_max:
        raise _too_large(bytes_max)
    if not unpacker.eof:
        raise HarchError("E0677", f"the body ends before its {name} does: it was cut short")
    return plain


def _unpacked_zstd(body: bytes, bytes_max: int) -> bytes:
    import cramjam

    room = bytearray(bytes_max)  # what does not fit into it is refused; pages that stay unused are never real memory
    try:
        size = cramjam.zstd.decompress_into(body, room)
    except cramjam.DecompressionError as broken:
        if "write whole buffer" in str(broken):
            raise _too_large(bytes_max) from broken
        raise HarchError("E0677", "the body cannot be unpacked with zstd") from broken
    return bytes(memoryview(room)[:size])


def _too_large(bytes_max: int) -> HarchError:
    return HarchError("E0204", f"the body is larger than {bytes_max} bytes when unpacked")

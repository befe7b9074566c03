"""How is a body unpacked? Never beyond its limit, however little of it was sent."""

from __future__ import annotations

import zlib

from harch.base.errors import HarchError

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
    raise HarchError("E0677", f"bodies may be compressed with gzip, deflate or zstd, not `{encoding[:40]}`")


def _inflated(body: bytes, name: str, bytes_max: int) -> bytes:
    """Several gzip members one after the other are one body; `deflate` comes with and without its head."""
    pieces: list[bytes] = []
    left = bytes_max
    while True:
        unpacker = zlib.decompressobj(wbits=_GZIP if name == "gzip" else _deflate_window(body))
        try:
            plain = unpacker.decompress(body, left + 1)
        except zlib.error as broken:
            raise HarchError("E0677", f"the body cannot be unpacked with {name}") from broken
        if len(plain) > left:
            raise _too_large(bytes_max)
        if not unpacker.eof:
            raise HarchError("E0677", f"the body ends before its {name} does: it was cut short")
        pieces.append(plain)
        left -= len(plain)
        body = unpacker.unused_data
        if not body:
            return b"".join(pieces)
        if name != "gzip" or len(pieces) >= _MEMBERS_MAX:
            raise HarchError("E0677", f"something follows the end of the body's {name}")


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
        raise HarchError("E0677", "the body cannot be unpacked with zstd") from broken
    return bytes(memoryview(room)[:size])


def _too_large(bytes_max: int) -> HarchError:
    return HarchError("E0204", f"the body is larger than {bytes_max} bytes when unpacked")

"""How is a small file sealed? Its content ends with a line that has its checksum, by which one flipped bit is found.

For records, lists and settings that HarchOS writes for itself: JSON, or another form in which a part is never taken for
the whole. Files of older releases have no seal and are read as they are. Standard library only: supervisors of tasks
use it, too.
"""

from __future__ import annotations

import zlib

_SEAL_BYTES = 10  # a line's end, eight hexadecimal digits, a line's end
_MENDED_BYTES_MAX = 1 << 20  # looking for a flipped bit takes four seconds then
_HEX = frozenset(b"0123456789abcdef")


class DamagedContent(ValueError):
    """The bytes are not those that were written."""


def seal(content: bytes) -> bytes:
    return content + b"\n%08x\n" % zlib.crc32(content)


def unseal(raw: bytes) -> bytes:
    """The content; all of it where there is no seal. Raises DamagedContent."""
    if not _has_seal(raw):
        return raw
    content = raw[:-_SEAL_BYTES]
    if seal(content) != raw:
        raise DamagedContent("its checksum is wrong")
    return content


def mended(raw: bytes) -> bytes | None:
    """The content as it was before one bit of it or of its seal was flipped; None if that is not what happened."""
    content, stored = raw[:-_SEAL_BYTES], raw[-_SEAL_BYTES:]
    if len(raw) < _SEAL_BYTES or len(raw) > _MENDED_BYTES_MAX:
        return None
    right = seal(content)[-_SEAL_BYTES:]
    if sum((one ^ other).bit_count() for one, other in zip(right, stored, strict=True)) == 1:
        return content
    if not _has_seal(raw):
        return None
    place = _flipped_bit(len(content), zlib.crc32(content) ^ int(stored[1:9], 16))
    if place is None:
        return None
    fixed = bytearray(content)
    fixed[place // 8] ^= 1 << place % 8
    return bytes(fixed)


def open_seal(raw: bytes) -> tuple[bytes, bool]:
    """The content of what must be sealed, and whether one bit had to be put right. Raises DamagedContent."""
    if _has_seal(raw) and seal(raw[:-_SEAL_BYTES]) == raw:
        return raw[:-_SEAL_BYTES], False
    content = mended(raw)
    if content is None:
        raise DamagedContent("its checksum is wrong" if _has_seal(raw) else "its checksum is missing")
    return content, True


def _has_seal(raw: bytes) -> bool:
    seal_ = raw[-_SEAL_BYTES:]
    return len(seal_) == _SEAL_BYTES and seal_[0] == seal_[-1] == 10 and _HEX.issuperset(seal_[1:9])


def _flipped_bit(length: int, difference: int) -> int | None:
    """Which bit of so many bytes makes this difference in their CRC-32? Each makes one of its own."""
    registers = [_TABLE[1 << bit] for bit in range(8)]  # of a bit in the last byte
    for place in range(length - 1, -1, -1):
        for bit, register in enumerate(registers):
            if register == difference:
                return 8 * place + bit
        registers = [(register >> 8) ^ _TABLE[register & 0xFF] for register in registers]
    return None


def _table() -> list[int]:
    found = []
    for byte in range(256):
        register = byte
        for _ in range(8):
            register = (register >> 1) ^ (0xEDB88320 if register & 1 else 0)
        found.append(register)
    return found


_TABLE = _table()

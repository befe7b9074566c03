"""How is a small file sealed? Its content ends with its checksum, by which one flipped bit is found and put right.

For records, lists and settings that HarchOS writes for itself: in a form of which a part is never taken for the whole.
`LINE` adds a line; `FIELD` adds a field to an object in JSON, which other readers then still understand. Files of older
releases have no seal and are read as they are. Standard library only: supervisors of tasks use it, too.
"""

from __future__ import annotations

import zlib

_MENDED_BYTES_MAX = 1 << 20  # looking for a flipped bit takes some seconds then
_HEX = frozenset(b"0123456789abcdef")


class DamagedContent(ValueError):
    """The bytes are not those that were written."""


class Seal:
    """A way to add a checksum. `ending` is what the content ends with, and the seal takes the place of."""

    def __init__(self, before: bytes, after: bytes, ending: bytes = b"") -> None:
        self._before, self._after, self._ending = before, after, ending
        self._bytes = len(before) + 8 + len(after)

    def seal(self, content: bytes) -> bytes:
        if not content.endswith(self._ending):
            raise ValueError("this content cannot be sealed")
        body = content[: len(content) - len(self._ending)]
        return body + self._before + b"%08x" % zlib.crc32(content) + self._after

    def unseal(self, raw: bytes) -> bytes:
        """The content; all of it where there is no seal. Raises DamagedContent."""
        if not self._is_on(raw):
            return raw
        content = self._content(raw)
        if self.seal(content) != raw:
            raise DamagedContent("its checksum is wrong")
        return content

    def open(self, raw: bytes) -> tuple[bytes, bool]:
        """The content of what must be sealed, and whether one bit had to be put right. Raises DamagedContent."""
        if self._is_on(raw) and self.seal(self._content(raw)) == raw:
            return self._content(raw), False
        content = self.mended(raw)
        if content is None:
            raise DamagedContent("its checksum is wrong" if self._is_on(raw) else "its checksum is missing")
        return content, True

    def mended(self, raw: bytes) -> bytes | None:
        """The content as it was before one bit of it or of its seal was flipped; None if something else happened."""
        if not self._bytes <= len(raw) <= _MENDED_BYTES_MAX:
            return None
        content = self._content(raw)
        right = self.seal(content)
        if sum((one ^ other).bit_count() for one, other in zip(right, raw, strict=True)) == 1:
            return content
        if not self._is_on(raw):
            return None
        stored = int(raw[len(raw) - self._bytes + len(self._before) :][:8], 16)
        place = _flipped_bit(len(content), zlib.crc32(content) ^ stored)
        if place is None or place // 8 >= len(content) - len(self._ending):
            return None
        fixed = bytearray(content)
        fixed[place // 8] ^= 1 << place % 8
        return bytes(fixed)

    def _content(self, raw: bytes) -> bytes:
        return raw[: len(raw) - self._bytes] + self._ending

    def _is_on(self, raw: bytes) -> bool:
        found = raw[len(raw) - self._bytes :] if len(raw) >= self._bytes else b""
        digits = found[len(self._before) : len(self._before) + 8]
        return found.startswith(self._before) and found.endswith(self._after) and _HEX.issuperset(digits)


LINE = Seal(b"\n", b"\n")
FIELD = Seal(b',"seal":"', b'"}', b"}")


def _flipped_bit(length: int, difference: int) -> int | None:
    """Which bit of so many bytes makes this difference in their CRC-32? Each makes one of its own."""
    table = [_step(byte) for byte in range(256)]
    registers = [table[1 << bit] for bit in range(8)]  # of a bit in the last byte
    for place in range(length - 1, -1, -1):
        for bit, register in enumerate(registers):
            if register == difference:
                return 8 * place + bit
        registers = [(register >> 8) ^ table[register & 0xFF] for register in registers]
    return None


def _step(register: int) -> int:
    for _ in range(8):
        register = (register >> 1) ^ (0xEDB88320 if register & 1 else 0)
    return register

"""Is this what was written? CRC-32C by the processor's own instruction."""

from __future__ import annotations

from harch.base.errors import HarchError

try:
    from crc32c import crc32c
except ImportError as missing:
    raise HarchError("E0601", "crc32c") from missing

__all__ = ["crc32c"]

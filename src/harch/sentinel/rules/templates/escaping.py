"""How does a text travel in an address? Go's QueryEscape: all but letters, digits and `-_.~`, with `+` for a space."""

from __future__ import annotations

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")


def query_escaped(text: str) -> str:
    content = text.encode(errors="replace")
    return "".join(chr(byte) if byte in _SAFE else "+" if byte == 0x20 else f"%{byte:02X}" for byte in content)

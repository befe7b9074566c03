"""How many are there? `1 file`, `34 files`: numbers agree with their noun."""

# harch: pure

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

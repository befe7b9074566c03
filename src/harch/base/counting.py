"""How is a number of things said? `1 node`, `2 nodes`."""

# harch: pure

from __future__ import annotations


def counted(count: float, one: str, many: str = "") -> str:
    """`many` where it is not `one` with an s."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {one if count == 1 else many or f'{one}s'}"

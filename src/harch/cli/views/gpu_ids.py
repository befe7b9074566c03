"""How are the GPUs of a task listed? Those of one node in a row as a range: `g0-g7`. --json has every id."""

# harch: pure

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d*)")


def gpu_ranges(node_id: str, gpu_ids: Iterable[str]) -> str:
    """Without the id of the node, which stands beside it; `no GPU` for none."""
    ranges: list[tuple[str, str]] = []
    for gpu_id in gpu_ids:
        name = gpu_id.removeprefix(f"{node_id}-")
        if ranges and name == _next(ranges[-1][1]):
            ranges[-1] = ranges[-1][0], name
        else:
            ranges.append((name, name))
    return ", ".join(first if first == last else f"{first}-{last}" for first, last in ranges) or "no GPU"


def _next(name: str) -> str:
    """The name that follows: `g8` after `g7`. A name without a number is followed by none."""
    found = _NUMBERED.fullmatch(name)
    return f"{found[1]}{int(found[2]) + 1}" if found else ""

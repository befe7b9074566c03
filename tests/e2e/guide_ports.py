"""Which ports does a guide write down, and on which does its test listen? Free ones, in the same places.

A page writes the numbers that its reader has: those of the shared federation begin at 7700, and a page that sets
`HARCH_PORT_BASE=7800` starts hubs of its own there. In commands and files, every number of such a hundred that stands
behind a colon (and the base itself) is replaced by the same one of a free hundred; all other numbers stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from guide_page import Step

from harch.base.config import PORT_BASE_DEFAULT

_BASE = re.compile(r"\bHARCH_PORT_BASE=(\d+)00\b")
_PORT = re.compile(r"(?:(?<=:)|(?<=HARCH_PORT_BASE=))(\d{2,3})(\d\d)(?!\w|\.\d)")


def with_free_ports(steps: list[Step], shared_base: int, free_base: Callable[[], int]) -> list[Step]:
    """`free_base` is asked once for each base that the page sets."""
    own = dict.fromkeys(found for step in steps for found in _BASE.findall(step.text))
    bases = {str(PORT_BASE_DEFAULT // 100): shared_base} | {hundred: free_base() for hundred in own}

    def free(port: re.Match[str]) -> str:
        base = bases.get(port[1])
        return port[0] if base is None else str(base + int(port[2]))

    return [replace(step, text=_PORT.sub(free, step.text)) for step in steps]

"""How large may a number in a request be? At most what 64 bits hold: databases, kernels and other clients hold no more.

JSON and Python know integers of any size; everything behind a route does not. Every integer that a route takes has
bounds, these or narrower ones, and a test that walks all routes sees to it.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
INT32_MAX = 2**31 - 1
DIGITS_MAX = 19  # of INT64_MAX

Int64 = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
Natural64 = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Natural32 = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Positive32 = Annotated[int, Meta(ge=1, le=INT32_MAX)]


def read_natural(text: str) -> int | None:
    """A number of plain digits up to `INT64_MAX`; None for anything else. `str.isdigit` alone lets `²` pass."""
    if not text.isascii() or not text.isdigit() or len(text.lstrip("0")) > DIGITS_MAX:
        return None
    number = int(text.lstrip("0") or "0")
    return number if number <= INT64_MAX else None

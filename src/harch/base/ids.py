"""How are things named? Sortable, unguessable ids with a prefix that says what they name."""

from __future__ import annotations

import re
import secrets
from datetime import datetime
from functools import lru_cache

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no letters that read as digits
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]  # ten bits at a time
_LETTERS = _ALPHABET.encode() * 8  # a letter for each byte, each equally often
_STAMP_WIDTH, _NOISE_WIDTH = 9, 12
_RANDOM_BITS = 5 * _NOISE_WIDTH
_IDS_PER_PAGE = 256
_pool: list[str] = []
_NAME = re.compile(r"^[a-zA-Z0-9]([a-zA-Z0-9._ -]{0,126}[a-zA-Z0-9])?$")


def new_id(prefix: str, *, now: datetime, entropy: int | None = None) -> str:
    """`wl_` + 9 characters of milliseconds + 12 of randomness; later ids sort after earlier ones.

    Simulations pass `entropy`, so that a run can be replayed.
    """
    noise = _fresh_noise() if entropy is None else _base32(entropy & ((1 << _RANDOM_BITS) - 1), _NOISE_WIDTH)
    return f"{prefix}_{_stamp(int(now.timestamp() * 1000))}{noise}"


@lru_cache(maxsize=4)  # under load several ids share a millisecond
def _stamp(millis: int) -> str:
    return _base32(millis, _STAMP_WIDTH)


def _fresh_noise() -> str:
    """From the kernel, in pages: one call for each id would be a tenth of the cost of a submission."""
    if not _pool:
        page = secrets.token_bytes(_NOISE_WIDTH * _IDS_PER_PAGE).translate(_LETTERS).decode("ascii")
        _pool.extend(page[at : at + _NOISE_WIDTH] for at in range(0, len(page), _NOISE_WIDTH))
    return _pool.pop()


def forget_drawn_noise() -> None:
    """After a fork: two processes must not draw from one page."""
    _pool.clear()


def is_name(text: str) -> bool:
    """True for names that people may give: 1 to 128 letters, digits, dots, dashes, underscores, inner spaces."""
    return _NAME.match(text) is not None


def _base32(number: int, width: int) -> str:
    pairs = []
    for _ in range(width // 2):
        pairs.append(_PAIRS[number & 1023])
        number >>= 10
    if width % 2:
        pairs.append(_ALPHABET[number & 31])
    return "".join(reversed(pairs))


# Whose is what nobody else asked for? The operator's: work under the first keys, and what HarchOS says of itself.


DEFAULT_TENANT = "default"

"""Which alert is it? The fingerprint of a label set: 64-bit FNV-1a over sorted names and values, as in Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from harch.sentinel.model.labels import Labels, labels

_OFFSET, _PRIME, _MASK = 14695981039346656037, 1099511628211, 2**64 - 1
_SEPARATOR = b"\xff"  # no byte of UTF-8


def fnv1a(content: bytes) -> int:
    total = _OFFSET
    for byte in content:
        total = ((total ^ byte) * _PRIME) & _MASK
    return total


@lru_cache(maxsize=16_384)  # the same alerts come back every evaluation
def fingerprint_of(pairs: Labels) -> str:
    content = b"".join(name.encode() + _SEPARATOR + value.encode() + _SEPARATOR for name, value in pairs)
    return f"{fnv1a(content):016x}"


def fingerprint(pairs: Mapping[str, str]) -> str:
    """Sixteen hex digits, e.g. for the API and for links."""
    return fingerprint_of(labels(pairs))

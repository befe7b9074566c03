"""Can these lines contain that text at all? A bitmap of grams says no for almost all that do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from harch.sentinel.archive.gram_kernels import LITERAL_MIN, grams_of, set_grams
from harch.sentinel.archive.texts import Texts, data_of, offsets_of
from harch.sentinel.store.bytes_kernels import Array

_FIRST_BYTES = 1 << 19  # enough for 4 MiB of the most varied text
_LEAST_BYTES = 1 << 6
_FILL_MAX = 0.3  # share of places that are set: each gram of a literal passes wrongly with this chance
_GRAMS_MAX = 64  # more of one literal prove nothing more


def bitmap_of(columns: Iterable[Texts]) -> bytes:
    """The bitmap of all texts in these columns, folded as long as it stays sparse enough."""
    bits = np.zeros(_FIRST_BYTES, np.uint8)
    for texts in columns:
        set_grams(data_of(texts), offsets_of(texts), bits)
    while len(bits) > _LEAST_BYTES:
        half = len(bits) // 2
        folded = bits[:half] | bits[half:]
        if int(np.bitwise_count(folded).sum()) > _FILL_MAX * 8 * half:
            break
        bits = folded
    return bits.tobytes()


def grams_in(literals: Iterable[str]) -> Array:
    """What must be in the bitmap of lines that contain all of these texts. Short texts ask for nothing."""
    found: list[Array] = []
    for literal in literals:
        data = np.frombuffer(literal.encode(), np.uint8)
        if len(data) >= LITERAL_MIN:
            out = np.empty(len(data), np.uint64)
            found.append(out[: grams_of(data, out)][:_GRAMS_MAX])
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)


def is_asked_for(literals: Sequence[str]) -> bool:
    return any(len(literal.encode()) >= LITERAL_MIN for literal in literals)

"""Can these lines contain that text at all? A bitmap of grams says no for almost all that do not."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from harch.sentinel.archive.gram_kernels import LITERAL_MIN, choose_grams, set_places
from harch.sentinel.archive.texts import Texts, data_of, offsets_of
from harch.sentinel.store.bytes_kernels import Array

_COUNTING_BYTES = 1 << 19  # a bitmap to estimate how many grams differ
_BITS_PER_GRAM = 3.2  # each gram of a literal then passes wrongly with a chance of about a quarter
_GRAMS_MAX = 64  # more of one literal prove nothing more


def bitmap_of(columns: Iterable[Texts]) -> bytes:
    """The bitmap of all texts in these columns."""
    found = [_chosen(data_of(texts), offsets_of(texts)) for texts in columns]
    grams = np.concatenate(found) if found else np.empty(0, np.uint32)
    counting = np.zeros(_COUNTING_BYTES, np.uint8)
    set_places(grams, len(grams), counting)
    free = max(1, 8 * _COUNTING_BYTES - int(np.bitwise_count(counting).sum()))
    different = 8 * _COUNTING_BYTES * math.log(8 * _COUNTING_BYTES / free)
    bits = np.zeros(8 * max(1, math.ceil(different * _BITS_PER_GRAM / 64)), np.uint8)
    set_places(grams, len(grams), bits)
    return bits.tobytes()


def grams_in(literals: Iterable[str]) -> Array:
    """What must be in the bitmap of lines that contain all of these texts. Short texts ask for nothing."""
    found = []
    for literal in literals:
        data = np.frombuffer(literal.encode(), np.uint8)
        if len(data) >= LITERAL_MIN:
            found.append(_chosen(data, np.array([0, len(data)], np.int32))[:_GRAMS_MAX])
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint32)


def _chosen(data: Array, offsets: Array) -> Array:
    out = np.empty(int(offsets[-1] - offsets[0]), np.uint32)
    return out[: choose_grams(data, offsets, out)]

"""How are many strings held as two buffers and filtered?

Columns of Arrow, and bitmaps of grams that rule out almost all lines without a string.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harch.sentinel.archive.gram_kernels import LITERAL_MIN, choose_grams, set_places
from harch.sentinel.archive.literals import required_literals
from harch.sentinel.model.labels import whole_text_pattern
from harch.sentinel.model.logs import FilterKind, LineFilter
from harch.sentinel.model.selection import Ints
from harch.sentinel.store.bytes_kernels import Array

StringColumn = Any  # a pyarrow StringArray without nulls
Mask = npt.NDArray[np.bool_]
PackedStrings = tuple[bytes, bytes]

_SHARE_MAX = 10  # of texts: what more than a tenth of them contain is looked for one by one
_HITS_MIN = 64
_LITERAL_MIN = 4
_LITERALS_TRIED = 3
_LITERAL = re.compile(r"[^A-Za-z0-9_]")


def string_column(values: Sequence[str]) -> StringColumn:
    """Raises UnicodeEncodeError for text that is no UTF-8."""
    return pa.array(values, pa.string())


def empty_strings(count: int) -> StringColumn:
    return pa.StringArray.from_buffers(count, pa.py_buffer(bytes(4 * (count + 1))), pa.py_buffer(b""))


def offsets_of(strings: StringColumn) -> npt.NDArray[np.int32]:
    """Where each text begins in the data, and where the last one ends."""
    if len(strings) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(strings.buffers()[1], np.int32)[strings.offset : strings.offset + len(strings) + 1]


def data_of(strings: StringColumn) -> npt.NDArray[np.uint8]:
    data = strings.buffers()[2] if len(strings) else None
    return np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def sizes_of(strings: StringColumn) -> Ints:
    return np.diff(offsets_of(strings)).astype(np.int64)


def bytes_in(strings: StringColumn) -> int:
    offsets = offsets_of(strings)
    return int(offsets[-1] - offsets[0])


def packed(strings: StringColumn) -> PackedStrings:
    offsets, data = offsets_of(strings), data_of(strings)
    return (offsets - offsets[0]).tobytes(), data[offsets[0] : offsets[-1]].tobytes()


def unpacked(parts: PackedStrings) -> StringColumn:
    offsets, data = parts
    return pa.StringArray.from_buffers(len(offsets) // 4 - 1, pa.py_buffer(offsets), pa.py_buffer(data))


def joined_strings(parts: Sequence[StringColumn]) -> StringColumn:
    return pa.concat_arrays(parts)


def passing(strings: StringColumn, one: LineFilter) -> Mask:
    """Which texts a line filter takes. Raises E0602 for an expression that is none."""
    if one.kind in (FilterKind.CONTAINS, FilterKind.LACKS):
        found = _containing(strings, one.text)
        if found is None:
            found = _matching(strings, _quoted(one.text))  # faster than Arrow's own search for a text
        return found if one.kind is FilterKind.CONTAINS else ~found
    whole_text_pattern(one.text)
    found = _matching_all(strings, one.text)
    return found if one.kind is FilterKind.MATCHES else ~found


def _matching_all(strings: StringColumn, expression: str) -> Mask:
    """Where the expression needs a text that few have, only those are looked at."""
    pattern = f"(?s:{expression})"
    literals = sorted(required_literals(expression), key=len, reverse=True)[:_LITERALS_TRIED]
    for literal in literals:
        candidates = _containing(strings, literal) if len(literal) >= _LITERAL_MIN else None
        if candidates is not None:
            found = np.zeros(len(strings), np.bool_)
            places = np.flatnonzero(candidates)
            found[places] = _matching(strings.take(places), pattern)
            return found
    return _matching(strings, pattern)


def _matching(strings: StringColumn, pattern: str) -> Mask:
    if not len(strings):
        return np.zeros(0, np.bool_)
    found: Mask = pc.match_substring_regex(strings, pattern=pattern).to_numpy(zero_copy_only=False)
    return found


def _containing(strings: StringColumn, literal: str) -> Mask | None:
    """Texts with a literal, by a search through all of them as one; None where it is so frequent that this is slow."""
    offsets, wanted = offsets_of(strings), literal.encode()
    if not wanted or not len(strings):
        return None
    begin = int(offsets[0])
    data = data_of(strings)[begin : int(offsets[-1])].tobytes()
    hits: list[int] = []
    allowed = len(strings) / _SHARE_MAX / max(1, len(data))  # hits a byte: the first few tell that there are too many
    at = data.find(wanted)
    while at >= 0:
        hits.append(at)
        if len(hits) > _HITS_MIN + allowed * at:
            return None
        at = data.find(wanted, at + 1)
    places = np.array(hits, np.int64) + begin
    rows = np.searchsorted(offsets, places, side="right") - 1
    found = np.zeros(len(strings), np.bool_)
    found[rows[places + len(wanted) <= offsets[rows + 1]]] = True  # a hit may reach over the end of its text
    return found


def _quoted(text: str) -> str:
    """The text as an RE2 expression that finds just it."""
    return _LITERAL.sub(lambda found: f"\\x{{{ord(found[0]):x}}}", text)


# Can these lines contain that text at all? A bitmap of grams says no for almost all that do not.


_COUNTING_BYTES = 1 << 19  # a bitmap to estimate how many grams differ
_BITS_PER_GRAM = 3.2  # each gram of a literal then passes wrongly with a chance of about a quarter
_GRAMS_MAX = 64  # more of one literal prove nothing more


def bitmap_of(columns: Iterable[StringColumn]) -> bytes:
    """The bitmap of all texts in these columns."""
    found = [_chosen(data_of(strings), offsets_of(strings)) for strings in columns]
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

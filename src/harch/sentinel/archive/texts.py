"""How are many texts held as two buffers? Arrow's columns of strings, their bytes, and what filters ask of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harch.sentinel.archive.literals import required_literals
from harch.sentinel.model.logs import FilterKind, LineFilter
from harch.sentinel.model.matchers import whole_text_pattern
from harch.sentinel.model.selection import Ints

Texts = Any  # a pyarrow StringArray without nulls
Mask = npt.NDArray[np.bool_]
PackedTexts = tuple[bytes, bytes]

_SHARE_MAX = 10  # of texts: what more than a tenth of them contain is looked for one by one
_HITS_MIN = 64
_LITERAL_MIN = 4
_LITERALS_TRIED = 3
_LITERAL = re.compile(r"[^A-Za-z0-9_]")


def texts_of(values: Sequence[str]) -> Texts:
    """Raises UnicodeEncodeError for text that is no UTF-8."""
    return pa.array(values, pa.string())


def empty_texts(count: int) -> Texts:
    return pa.StringArray.from_buffers(count, pa.py_buffer(bytes(4 * (count + 1))), pa.py_buffer(b""))


def offsets_of(texts: Texts) -> npt.NDArray[np.int32]:
    """Where each text begins in the data, and where the last one ends."""
    if len(texts) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]


def data_of(texts: Texts) -> npt.NDArray[np.uint8]:
    data = texts.buffers()[2] if len(texts) else None
    return np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def sizes_of(texts: Texts) -> Ints:
    return np.diff(offsets_of(texts)).astype(np.int64)


def bytes_in(texts: Texts) -> int:
    offsets = offsets_of(texts)
    return int(offsets[-1] - offsets[0])


def packed(texts: Texts) -> PackedTexts:
    offsets, data = offsets_of(texts), data_of(texts)
    return (offsets - offsets[0]).tobytes(), data[offsets[0] : offsets[-1]].tobytes()


def unpacked(parts: PackedTexts) -> Texts:
    offsets, data = parts
    return pa.StringArray.from_buffers(len(offsets) // 4 - 1, pa.py_buffer(offsets), pa.py_buffer(data))


def joined_texts(parts: Sequence[Texts]) -> Texts:
    return pa.concat_arrays(parts)


def passing(texts: Texts, one: LineFilter) -> Mask:
    """Which texts a line filter takes. Raises E0602 for an expression that is none."""
    if one.kind in (FilterKind.CONTAINS, FilterKind.LACKS):
        found = _containing(texts, one.text)
        if found is None:
            found = _matching(texts, _quoted(one.text))  # faster than Arrow's own search for a text
        return found if one.kind is FilterKind.CONTAINS else ~found
    whole_text_pattern(one.text)
    found = _matching_all(texts, one.text)
    return found if one.kind is FilterKind.MATCHES else ~found


def _matching_all(texts: Texts, expression: str) -> Mask:
    """Where the expression needs a text that few have, only those are looked at."""
    pattern = f"(?s:{expression})"
    literals = sorted(required_literals(expression), key=len, reverse=True)[:_LITERALS_TRIED]
    for literal in literals:
        candidates = _containing(texts, literal) if len(literal) >= _LITERAL_MIN else None
        if candidates is not None:
            found = np.zeros(len(texts), np.bool_)
            places = np.flatnonzero(candidates)
            found[places] = _matching(texts.take(places), pattern)
            return found
    return _matching(texts, pattern)


def _matching(texts: Texts, pattern: str) -> Mask:
    if not len(texts):
        return np.zeros(0, np.bool_)
    found: Mask = pc.match_substring_regex(texts, pattern=pattern).to_numpy(zero_copy_only=False)
    return found


def _containing(texts: Texts, literal: str) -> Mask | None:
    """Texts with a literal, by a search through all of them as one; None where it is so frequent that this is slow."""
    offsets, wanted = offsets_of(texts), literal.encode()
    if not wanted or not len(texts):
        return None
    begin = int(offsets[0])
    data = data_of(texts)[begin : int(offsets[-1])].tobytes()
    hits: list[int] = []
    allowed = len(texts) / _SHARE_MAX / max(1, len(data))  # hits a byte: the first few tell that there are too many
    at = data.find(wanted)
    while at >= 0:
        hits.append(at)
        if len(hits) > _HITS_MIN + allowed * at:
            return None
        at = data.find(wanted, at + 1)
    places = np.array(hits, np.int64) + begin
    rows = np.searchsorted(offsets, places, side="right") - 1
    found = np.zeros(len(texts), np.bool_)
    found[rows[places + len(wanted) <= offsets[rows + 1]]] = True  # a hit may reach over the end of its text
    return found


def _quoted(text: str) -> str:
    """The text as an RE2 expression that finds just it."""
    return _LITERAL.sub(lambda found: f"\\x{{{ord(found[0]):x}}}", text)

"""Are these labels as the store writes them itself? Then their parts are known at once, and no copy is needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from harch.sentinel.jit import inner_kernel, kernel
from harch.sentinel.store.bytes_kernels import Array, borrowed, same_bytes

# Columns of a part: where name and value lie, counted from the start of the labels.
NAME_FROM, NAME_TO, VALUE_FROM, VALUE_TO = range(4)

_LABEL, _NAME, _VALUE = 0x0A, 0x0A, 0x12
_METRIC_NAME = np.frombuffer(b"__name__", np.uint8)


@kernel
def split_labels(
    data: Array,
    starts: Array,
    ends: Array,
    labels_max: int,
    name_bytes_max: int,
    value_bytes_max: int,
    parts: Array,  # i32 (rows, labels, 4) out
    counts: Array,  # i32 out: labels of each row; 0: not usual, or not allowed
) -> None:
    """Splits labels that are sorted, whole, short (lengths of one byte) and within the limits; leaves all others."""
    data = borrowed(data)
    for row in range(len(starts)):
        counts[row] = _split(
            data, starts[row], ends[row], min(labels_max, parts.shape[1]), name_bytes_max, value_bytes_max, parts[row]
        )


@inner_kernel
def _split(data: Array, start: Any, end: Any, labels_max: Any, name_max: Any, value_max: Any, parts: Array) -> Any:
    at, count, named = start, 0, False
    before_from, before_to = start, start
    while at < end:
        if count >= labels_max or end - at < 6 or data[at] != _LABEL or data[at + 1] >= 0x80:
            return 0
        stop = at + 2 + np.int64(data[at + 1])
        name_size = np.int64(data[at + 3])
        name_from = at + 4
        name_to = name_from + name_size
        if stop > end or data[at + 2] != _NAME or name_size >= 0x80 or name_size == 0 or name_to + 2 > stop:
            return 0
        value_size = np.int64(data[name_to + 1])
        if data[name_to] != _VALUE or value_size >= 0x80 or value_size == 0 or name_to + 2 + value_size != stop:
            return 0
        if name_size > name_max or value_size > value_max:
            return 0
        if count > 0 and not _ascends(data, before_from, before_to, name_from, name_to):
            return 0
        named = named or (name_size == 8 and same_bytes(data, name_from, _METRIC_NAME, 0, 8))
        parts[count, NAME_FROM], parts[count, NAME_TO] = name_from - start, name_to - start
        parts[count, VALUE_FROM], parts[count, VALUE_TO] = name_to + 2 - start, stop - start
        before_from, before_to = name_from, name_to
        count += 1
        at = stop
    return count if named else 0


@inner_kernel
def _ascends(data: Array, left: Any, left_to: Any, right: Any, right_to: Any) -> Any:
    while left < left_to and right < right_to:
        if data[left] != data[right]:
            return data[left] < data[right]
        left += 1
        right += 1
    return left == left_to and right < right_to

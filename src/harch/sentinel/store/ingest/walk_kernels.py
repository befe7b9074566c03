"""What is where in a remote-write 1 message? One pass over its bytes; none is believed before it is checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from harch.sentinel.compiled import inner_kernel, kernel
from harch.sentinel.store.bytes_kernels import (
    MALFORMED,
    Array,
    borrowed,
    load_word,
    read_length,
    read_varint,
    skip_field,
)

# How a walk ended, beside MALFORMED: with everything, or for want of room in the scratch arrays.
WALKED, MORE_ROWS, MORE_SAMPLES, MORE_NOTES = range(4)

# What rows and messages need beyond the kernels.
SCATTERED_LABELS, HAS_EXEMPLARS, HAS_HISTOGRAMS = 1, 2, 4

# Lines of the scratch array of rows: what is asked of all rows at once lies together.
LABELS_FROM, LABELS_TO, MESSAGE_FROM, MESSAGE_TO, FLAGS = range(5)
ROW_COLUMNS = 5

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_LABEL, _SAMPLE = 1 << 3 | _BYTES, 2 << 3 | _BYTES
_VALUE, _TIME = 1 << 3 | _FIXED64, 2 << 3 | _VARINT


@kernel
def walk_v1(
    data: Array,
    end: int,
    rows: Array,  # i64 (ROW_COLUMNS, n) out
    sample_rows: Array,  # i32 out, one a sample
    timestamps: Array,  # i64 out
    bits: Array,  # u64 out
    notes: Array,  # i64 (n, 2) out: where descriptions of metrics lie
    counts: Array,  # i64 out: rows, samples, notes
) -> Any:
    """Finds series, samples and descriptions. Nothing outside of `data[:end]` is read, whatever the bytes say."""
    data, rows, sample_rows = borrowed(data), borrowed(rows), borrowed(sample_rows)
    timestamps, bits = borrowed(timestamps), borrowed(bits)
    row_count, sample_count, note_count = 0, 0, 0
    at = np.int64(0)
    while at < end:
        tag, at = read_varint(data, at, end)
        if at < 0 or tag >> np.uint64(3) == np.uint64(0):
            return MALFORMED
        if tag == np.uint64(1 << 3 | _BYTES):
            first, stop = read_length(data, at, end)
            if first < 0:
                return MALFORMED
            if row_count >= rows.shape[1]:
                return MORE_ROWS
            status, flags, sample_end = _walk_series(
                data, first, stop, row_count, rows, sample_rows, timestamps, bits, sample_count
            )
            if status != WALKED:
                return status
            if sample_end > sample_count or flags & (HAS_EXEMPLARS | HAS_HISTOGRAMS):  # else there is nothing to store
                row_count += 1
            sample_count = sample_end
            at = stop
        elif tag == np.uint64(3 << 3 | _BYTES):
            first, stop = read_length(data, at, end)
            if first < 0:
                return MALFORMED
            if note_count >= len(notes):
                return MORE_NOTES
            notes[note_count, 0], notes[note_count, 1] = first, stop
            note_count += 1
            at = stop
        else:
            at = skip_field(data, at, end, np.int64(tag & np.uint64(7)))
            if at < 0:
                return MALFORMED
    counts[0], counts[1], counts[2] = row_count, sample_count, note_count
    return WALKED


@inner_kernel
def _walk_series(
    data: Array, first: Any, end: Any, row: Any, rows: Array, sample_rows: Array, timestamps: Array, bits: Array,
    samples: Any,
) -> Any:  # fmt: skip
    labels_from, labels_to, flags = first, first, 0
    at = first
    while at + 1 < end and data[at] == _LABEL and data[at + 1] < 0x80:  # the usual labels, without calls
        at += 2 + np.int64(data[at + 1])
        if at > end:
            return MALFORMED, 0, samples
        labels_to = at
    while at < end:
        before = at
        if end - at >= 13 and data[at] == _SAMPLE and samples < len(timestamps):  # the usual sample, without calls
            stop = _read_usual_sample(data, at, end, samples, timestamps, bits)
            if stop > 0:
                sample_rows[samples] = row
                samples += 1
                at = stop
                continue
        tag, at = read_varint(data, at, end)
        if at < 0 or tag >> np.uint64(3) == np.uint64(0):
            return MALFORMED, 0, samples
        field, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
        if wire != _BYTES or field > 4:
            if field <= 4:
                return MALFORMED, 0, samples
            at = skip_field(data, at, end, wire)
            if at < 0:
                return MALFORMED, 0, samples
            continue
        part, stop = read_length(data, at, end)
        if part < 0:
            return MALFORMED, 0, samples
        if field == 1:
            if labels_to == labels_from:
                labels_from = before
            elif labels_to != before:
                flags |= SCATTERED_LABELS
            labels_to = stop
        elif field == 2:
            if samples >= len(timestamps):
                return MORE_SAMPLES, 0, samples
            valid, time, value, _ = read_sample(data, part, stop)
            if not valid:
                return MALFORMED, 0, samples
            sample_rows[samples], timestamps[samples], bits[samples] = row, time, value
            samples += 1
        else:
            flags |= HAS_EXEMPLARS if field == 3 else HAS_HISTOGRAMS
        at = stop
    rows[LABELS_FROM, row], rows[LABELS_TO, row] = labels_from, labels_to
    rows[MESSAGE_FROM, row], rows[MESSAGE_TO, row], rows[FLAGS, row] = first, end, flags
    return WALKED, flags, samples


@inner_kernel
def _read_usual_sample(data: Array, at: Any, end: Any, place: Any, timestamps: Array, bits: Array) -> Any:
    """Reads a sample that is a value and a time in this order; 0 where it is any other, or not whole."""
    size = np.int64(data[at + 1])
    stop = at + 2 + size
    if size >= 0x80 or size < 11 or stop > end or data[at + 2] != _VALUE or data[at + 11] != _TIME:
        return np.int64(0)
    value_at = at + 3
    time, shift = np.uint64(0), np.uint64(0)
    at += 12
    while at < stop and shift < np.uint64(64):
        byte = np.uint64(data[at])
        at += 1
        time |= (byte & np.uint64(0x7F)) << shift
        shift += np.uint64(7)
        if byte < np.uint64(0x80):
            break
    if at != stop or data[stop - 1] >= 0x80:
        return np.int64(0)
    bits[place], timestamps[place] = load_word(data, value_at), np.int64(time)
    return stop


@inner_kernel
def read_sample(data: Array, at: Any, end: Any) -> Any:
    """Whether it is a sample, its time, the bits of its value, and since when it counts."""
    time, value, start = np.int64(0), np.uint64(0), np.int64(0)
    while at < end:
        tag, at = read_varint(data, at, end)
        if at < 0:
            return False, time, value, start
        if tag == np.uint64(1 << 3 | _FIXED64):
            if end - at < 8:
                return False, time, value, start
            value = load_word(data, at)
            at += 8
        elif tag == np.uint64(2 << 3 | _VARINT):
            number, at = read_varint(data, at, end)
            time = np.int64(number)
        elif tag == np.uint64(3 << 3 | _VARINT):
            number, at = read_varint(data, at, end)
            start = np.int64(number)
        elif tag >> np.uint64(3) <= np.uint64(3):
            return False, time, value, start
        else:
            at = skip_field(data, at, end, np.int64(tag & np.uint64(7)))
        if at < 0:
            return False, time, value, start
    return True, time, value, start

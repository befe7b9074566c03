"""What is where in a remote-write message of version 1 or 2?

One pass over its bytes; none is believed before it is checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harch.sentinel.jit import inner_kernel, kernel
from harch.sentinel.store.bytes_kernels import (
    MALFORMED,
    Array,
    borrowed,
    copy_bytes,
    hash_bytes,
    load_word,
    read_length,
    read_varint,
    same_bytes,
    skip_field,
    write_varint,
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


# What is where in a remote-write 2 message? Labels are numbers of a table of texts; here they become bytes again.


MORE_SYMBOLS, MORE_LABELS = 4, 5
HAS_STARTS = 3  # place in the counts: whether any sample says since when it counts

# Columns of a note: what is said about a metric. Name, help and unit are numbers of texts.
NOTE_NAME, NOTE_TYPE, NOTE_HELP, NOTE_UNIT = range(4)

_BYTES_WIRE = 2
_METRIC_NAME = np.frombuffer(b"__name__", np.uint8)


@kernel
def list_symbols(data: Array, end: int, symbols: Array, counts: Array) -> int:
    """Notes where the texts of the table lie (start and end each). The first one must be empty."""
    data = borrowed(data)
    count = 0
    at = np.int64(0)
    while at < end:
        tag, at = read_varint(data, at, end)
        if at < 0 or tag >> np.uint64(3) == np.uint64(0):
            return MALFORMED
        if tag == np.uint64(4 << 3 | _BYTES_WIRE):
            first, stop = read_length(data, at, end)
            if first < 0 or (count == 0 and stop != first):
                return MALFORMED
            if count >= len(symbols):
                return MORE_SYMBOLS
            symbols[count, 0], symbols[count, 1] = first, stop
            count += 1
            at = stop
        else:
            at = skip_field(data, at, end, np.int64(tag & np.uint64(7)))
            if at < 0:
                return MALFORMED
    counts[0] = count
    return WALKED


@kernel
def walk_v2(
    data: Array,
    end: int,
    seed: np.uint64,
    symbols: Array,  # i64 (n, 2)
    labels: Array,  # u8 out: the labels of all rows as bytes
    labels_per_series_max: int,
    known_notes: Array,  # u64: a table of hashes of what is known about metrics, a power of two, never full
    rows: Array,
    sample_rows: Array,
    timestamps: Array,
    bits: Array,
    starts: Array,
    notes: Array,  # i64 (n, 4) out
    note_hashes: Array,  # u64 out
    counts: Array,  # i64 out: rows, samples, notes, HAS_STARTS, bytes of labels
) -> Any:
    """Finds series, samples and news about metrics, as `walk_v1` does; what lies in `labels` has its offsets there."""
    data, symbols, labels, known_notes = borrowed(data), borrowed(symbols), borrowed(labels), borrowed(known_notes)
    sample_rows, timestamps, bits, starts = (
        borrowed(sample_rows),
        borrowed(timestamps),
        borrowed(bits),
        borrowed(starts),
    )
    notes, note_hashes, counts = borrowed(notes), borrowed(note_hashes), borrowed(counts)
    row_count, sample_count, note_count, label_bytes = 0, 0, 0, np.int64(0)
    counts[HAS_STARTS] = 0
    at = np.int64(0)
    while at < end:
        tag, at = read_varint(data, at, end)
        if at < 0:
            return MALFORMED
        if tag != np.uint64(5 << 3 | _BYTES_WIRE):
            at = skip_field(data, at, end, np.int64(tag & np.uint64(7)))
            if at < 0:
                return MALFORMED
            continue
        first, stop = read_length(data, at, end)
        if first < 0:
            return MALFORMED
        if row_count >= rows.shape[1]:
            return MORE_ROWS
        label_end, name = _write_labels(data, first, stop, symbols, labels, label_bytes, labels_per_series_max)
        if label_end < 0:
            return -label_end if label_end != MALFORMED else MALFORMED
        status, flags, sample_end, described, described_to = _walk_series_v2(
            data, first, stop, row_count, sample_rows, timestamps, bits, starts, sample_count, counts
        )
        if status != WALKED:
            return status
        if described >= 0:
            if note_count >= len(notes):
                return MORE_NOTES
            status, is_news = _note(
                data, described, described_to, symbols, name, known_notes, seed, notes, note_hashes, note_count
            )
            if status != WALKED:
                return status
            note_count += is_news
        if sample_end > sample_count or flags != 0:
            rows[LABELS_FROM, row_count], rows[LABELS_TO, row_count] = label_bytes, label_end
            rows[MESSAGE_FROM, row_count], rows[MESSAGE_TO, row_count], rows[FLAGS, row_count] = first, stop, flags
            row_count += 1
            label_bytes = label_end
        sample_count = sample_end
        at = stop
    counts[0], counts[1], counts[2], counts[4] = row_count, sample_count, note_count, label_bytes
    return WALKED


@inner_kernel
def _write_labels(data: Array, at: Any, end: Any, symbols: Array, labels: Array, out: Any, labels_max: Any) -> Any:
    """Writes the labels of one series as remote-write 1 would, and finds its name. Minus a status where it cannot."""
    name, pairs, key = np.int64(0), 0, np.int64(-1)
    while at < end:
        tag, at = read_varint(data, at, end)
        if at < 0 or tag >> np.uint64(3) == np.uint64(0):
            return np.int64(MALFORMED), name
        if tag >> np.uint64(3) != np.uint64(1):
            at = skip_field(data, at, end, np.int64(tag & np.uint64(7)))
            if at < 0:
                return np.int64(MALFORMED), name
            continue
        packed_end = at
        if tag & np.uint64(7) == np.uint64(_BYTES_WIRE):
            at, packed_end = read_length(data, at, end)
            if at < 0:
                return np.int64(MALFORMED), name
        elif tag & np.uint64(7) != np.uint64(0):
            return np.int64(MALFORMED), name
        is_one = tag & np.uint64(7) == np.uint64(0)
        while at < packed_end or is_one:
            number, at = read_varint(data, at, end if is_one else packed_end)
            if at < 0 or number >= np.uint64(len(symbols)):
                return np.int64(MALFORMED), name
            is_one = False
            if key < 0:
                key = np.int64(number)
                continue
            value = np.int64(number)
            if pairs <= labels_max and symbols[value, 1] > symbols[value, 0]:  # one too many is enough to be refused
                pairs += 1
                out = _write_label(data, symbols, key, value, labels, out)
                if out < 0:
                    return out, name
            if symbols[key, 1] - symbols[key, 0] == 8 and same_bytes(data, symbols[key, 0], _METRIC_NAME, 0, 8):
                name = value
            key = np.int64(-1)
    if key >= 0:
        return np.int64(MALFORMED), name
    return out, name


@inner_kernel
def _write_label(data: Array, symbols: Array, key: Any, value: Any, labels: Array, out: Any) -> Any:
    key_size, value_size = symbols[key, 1] - symbols[key, 0], symbols[value, 1] - symbols[value, 0]
    if out + key_size + value_size + 64 > len(labels):
        return np.int64(-MORE_LABELS)
    size = 2 + _width(key_size) + key_size + _width(value_size) + value_size
    labels[out] = 0x0A
    out = write_varint(labels, out + 1, np.uint64(size))
    labels[out] = 0x0A
    out = write_varint(labels, out + 1, np.uint64(key_size))
    copy_bytes(data, symbols[key, 0], key_size, labels, out)
    out += key_size
    labels[out] = 0x12
    out = write_varint(labels, out + 1, np.uint64(value_size))
    copy_bytes(data, symbols[value, 0], value_size, labels, out)
    return out + value_size


@inner_kernel
def _width(size: Any) -> Any:
    """Bytes of a length as a varint."""
    width = 1
    while size >= 0x80:
        size >>= 7
        width += 1
    return width


@inner_kernel
def _walk_series_v2(
    data: Array, at: Any, end: Any, row: Any, sample_rows: Array, timestamps: Array, bits: Array, starts: Array,
    samples: Any, counts: Array,
) -> Any:  # fmt: skip
    flags, described, described_to = 0, np.int64(-1), np.int64(-1)
    while at < end:
        tag, at = read_varint(data, at, end)  # labels were read before, so all tags are whole
        field, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
        if field < 2 or field > 5:
            at = skip_field(data, at, end, wire)
            continue
        if wire != _BYTES_WIRE:
            return MALFORMED, 0, samples, described, described_to
        part, stop = read_length(data, at, end)
        if field == 2:
            if samples >= len(timestamps):
                return MORE_SAMPLES, 0, samples, described, described_to
            valid, time, value, start = read_sample(data, part, stop)
            if not valid:
                return MALFORMED, 0, samples, described, described_to
            sample_rows[samples], timestamps[samples], bits[samples], starts[samples] = row, time, value, start
            if start != 0:
                counts[HAS_STARTS] = 1
            samples += 1
        elif field == 5:
            described, described_to = part, stop
        else:
            flags |= HAS_HISTOGRAMS if field == 3 else HAS_EXEMPLARS
        at = stop
    return WALKED, flags, samples, described, described_to


@inner_kernel
def _note(
    data: Array, at: Any, end: Any, symbols: Array, name: Any, known: Array, seed: Any, notes: Array,
    note_hashes: Array, place: Any,
) -> Any:  # fmt: skip
    """Reads what is said about a metric, and whether that is news. What a series repeats every time is recognised by
    hash."""
    kind, text, unit = np.int64(0), np.int64(0), np.int64(0)
    while at < end:
        tag, at = read_varint(data, at, end)
        if at < 0 or tag >> np.uint64(3) == np.uint64(0):
            return MALFORMED, 0
        field, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
        if wire == 0:
            number, at = read_varint(data, at, end)
            if at < 0 or (field > 1 and field < 5 and number >= np.uint64(len(symbols))):
                return MALFORMED, 0
            if field == 1:
                kind = np.int64(number & np.uint64(0x7F))
            elif field == 3:
                text = np.int64(number)
            elif field == 4:
                unit = np.int64(number)
        else:
            at = skip_field(data, at, end, wire)
            if at < 0:
                return MALFORMED, 0
    if kind == 0 and symbols[text, 1] == symbols[text, 0] and symbols[unit, 1] == symbols[unit, 0]:
        return WALKED, 0
    state = hash_bytes(data, symbols[name, 0], symbols[name, 1], seed ^ np.uint64(kind))
    state = hash_bytes(data, symbols[text, 0], symbols[text, 1], state)
    state = hash_bytes(data, symbols[unit, 0], symbols[unit, 1], state)
    slot = np.int64(state) & np.int64(len(known) - 1)
    while known[slot] != np.uint64(0):
        if known[slot] == state:
            return WALKED, 0
        slot = (slot + 1) & np.int64(len(known) - 1)
    notes[place, NOTE_NAME], notes[place, NOTE_TYPE] = name, kind
    notes[place, NOTE_HELP], notes[place, NOTE_UNIT] = text, unit
    note_hashes[place] = state
    return WALKED, 1


@kernel
def remember_notes(known: Array, fresh: Array) -> None:
    """Adds hashes to the table, which has room for them."""
    for place in range(len(fresh)):
        slot = np.int64(fresh[place]) & np.int64(len(known) - 1)
        while known[slot] != np.uint64(0) and known[slot] != fresh[place]:
            slot = (slot + 1) & np.int64(len(known) - 1)
        known[slot] = fresh[place]

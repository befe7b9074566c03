"""How are samples written into the log? In few bytes: what the sample before of the series tells is left out.

A sample is one byte of control, then what it does not say itself: the series (zigzag of the step from the one before),
the time (zigzag of the step), the value. Control: 0x80 the next series, 0x40 the same time, and in the low bits how the
value differs from the last one that this segment holds of the series: changed bytes, or steps of a decimal number.
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
    read_varint,
    unzigzag,
    write_varint,
    zigzag,
)
from harch.sentinel.store.head.arena_kernels import (
    KEY_AT,
    KEY_LENGTH,
    LOG_BITS,
    LOG_SEGMENT,
    NO_ROOM,
    VERDICTS,
    Arena,
    append_samples,
)
from harch.sentinel.store.head.index_kernels import UNKNOWN, probe

SAMPLES, SAMPLES_WITH_STARTS, SERIES = 1, 2, 3  # kinds of records that kernels write; others begin at 16
FIRST_OTHER = 16

_NEXT_SERIES, _SAME_TIME, _FORM = 0x80, 0x40, 0x3F
# Forms 0 to 36: n changed bytes with t zero bytes below them, for all n + t <= 8. Then decimals with 0 to 4 places.
_FIRST_FORM = np.array([0, 1, 9, 16, 22, 27, 31, 34, 36], np.int64)
_FORM_BYTES = np.array([n for n in range(9) for _ in range(9 - n if n else 1)], np.int64)
_FORM_SHIFT = np.array([8 * t for n in range(9) for t in range(9 - n if n else 1)], np.uint64)
_DECIMALS = 37
_POWERS = np.array([1.0, 10.0, 100.0, 1_000.0, 10_000.0])
_DECIMAL_MAX = float(1 << 51)

SAMPLE_BYTES_MAX = 1 + 10 + 10 + 10 + 10

# Why `replay_records` came back.
DONE, OTHER_RECORD, UNKNOWN_SERIES, MORE_SERIES, MORE_SAMPLES, BROKEN, FULL = range(7)


@kernel
def name_series(rows: Array, keys: Array, series: Array, log_starts: Array, segment: int, out: Array, at: int) -> int:
    """Writes the labels of series that the segment does not know yet. Returns the offset behind, or minus the need."""
    need = 0
    for place in range(len(series)):
        if rows[series[place], LOG_SEGMENT] != segment:
            need += 21 + rows[series[place], KEY_LENGTH]
    if at + need > len(out):
        return -need
    for place in range(len(series)):
        sid = series[place]
        if rows[sid, LOG_SEGMENT] == segment:
            continue
        rows[sid, LOG_SEGMENT] = segment
        rows[sid, LOG_BITS] = 0
        log_starts[sid] = 0
        first, length = rows[sid, KEY_AT], rows[sid, KEY_LENGTH]
        out[at] = SERIES
        at = write_varint(out, at + 1, np.uint64(sid))
        at = write_varint(out, at, np.uint64(length))
        copy_bytes(keys, first, length, out, at)
        at += length
    return at


@kernel
def write_samples(
    rows: Array,
    series: Array,
    timestamps: Array,
    bits: Array,
    starts: Array,
    log_starts: Array,  # i64: of each series, the start that the segment wrote last
    out: Array,  # with room for SAMPLE_BYTES_MAX a sample, and 16
    at: int,
) -> tuple[int, int]:
    """Writes one record of samples whose series the segment knows. Returns the offset behind, and the newest time."""
    out, rows = borrowed(out), borrowed(rows)
    with_starts = len(starts) > 0
    out[at] = SAMPLES_WITH_STARTS if with_starts else SAMPLES
    at = write_varint(out, at + 1, np.uint64(len(series)))
    sid_before, time_before, newest = np.int64(-1), np.int64(0), timestamps[0]
    for place in range(len(series)):
        sid, time = np.int64(series[place]), timestamps[place]
        newest = max(newest, time)
        control_at = at
        control = 0
        at += 1
        if sid == sid_before + 1:
            control |= _NEXT_SERIES
        else:
            at = write_varint(out, at, zigzag(sid - sid_before))
        if time == time_before:
            control |= _SAME_TIME
        else:
            at = write_varint(out, at, zigzag(time - time_before))
        form, at = _write_value(out, at, bits[place], np.uint64(rows[sid, LOG_BITS]))
        out[control_at] = control | form
        rows[sid, LOG_BITS] = np.int64(bits[place])
        if with_starts:
            at = write_varint(out, at, zigzag(starts[place] - log_starts[sid]))
            log_starts[sid] = starts[place]
        sid_before, time_before = sid, time
    return at, newest


@inner_kernel
def _write_value(out: Array, at: Any, value: Any, before: Any) -> Any:
    changed = value ^ before
    if changed == np.uint64(0):
        return 0, at
    low, rest = 0, changed
    while rest & np.uint64(0xFF) == np.uint64(0):
        rest >>= np.uint64(8)
        low += 1
    width, above = 1, rest >> np.uint64(8)
    while above != np.uint64(0):
        above >>= np.uint64(8)
        width += 1
    if width > 2:
        number = _as_float(value)
        for places in range(len(_POWERS)):
            scaled = np.rint(number * _POWERS[places])
            if not abs(scaled) < _DECIMAL_MAX:
                break
            whole = np.int64(scaled)
            if _as_bits(whole / _POWERS[places]) == value:
                step = zigzag(whole - _decimal(before, places))
                if step >> np.uint64(7 * (width - 1)) == np.uint64(0):  # fewer bytes than the changed ones
                    return _DECIMALS + places, write_varint(out, at, step)
                break
    for _ in range(width):
        out[at] = np.uint8(rest & np.uint64(0xFF))
        rest >>= np.uint64(8)
        at += 1
    return _FIRST_FORM[width] + low, at


@inner_kernel
def _decimal(bits: Any, places: Any) -> Any:
    scaled = np.rint(_as_float(bits) * _POWERS[places])
    return np.int64(scaled) if abs(scaled) < _DECIMAL_MAX else np.int64(0)


@inner_kernel
def _as_float(bits: Any) -> Any:
    return np.uint64(bits).view(np.float64)


@inner_kernel
def _as_bits(number: Any) -> Any:
    return np.float64(number).view(np.uint64)


@kernel
def replay_records(
    data: Array,
    at: Any,
    end: Any,
    names: Array,  # i32: the series of each number that the segment uses, UNKNOWN = not named yet
    values: Array,  # u64: the last value of each of them
    starts_of: Array,  # i64: and the last start
    columns: tuple[Array, Array, Array, Array],  # scratch: series, timestamps, bits, starts
    table: Array,
    keys: Array,
    seed: np.uint64,
    arena: Arena,
    rows: Array,
    skipped: Array,  # i64: one count, of samples whose series is not known
    skips: bool,
) -> Any:
    """Takes records into the head until one needs more than kernels can do.

    A sample of a series that was not named is broken; with `skips` it is left out, because its name was lost. Returns
    why it stopped, the offset of the record where it did, and the newest time or how much more is needed.
    """
    data, names, values, starts_of = borrowed(data), borrowed(names), borrowed(values), borrowed(starts_of)
    newest = np.int64(np.iinfo(np.int64).min)
    nothing = np.empty(0, np.int32)
    while at < end:
        kind = data[at]
        if kind == SERIES:
            number, after = read_varint(data, at + 1, end)
            length, after = read_varint(data, after, end) if after > 0 else (np.uint64(0), MALFORMED)
            if after < 0 or length > np.uint64(end - after) or number > np.uint64(1 << 31):
                return BROKEN, at, newest
            if number >= np.uint64(len(names)):
                return MORE_SERIES, at, np.int64(number)
            stop = after + np.int64(length)
            sid = probe(data, after, np.int64(length), hash_bytes(data, after, stop, seed), table, keys)
            if sid == UNKNOWN:
                return UNKNOWN_SERIES, at, newest
            names[number] = sid
            values[number] = np.uint64(0)
            starts_of[number] = 0
            at = stop
        elif kind in (SAMPLES, SAMPLES_WITH_STARTS):
            count, after = read_varint(data, at + 1, end)
            if after < 0 or count > np.uint64(end - after) + np.uint64(1):
                return BROKEN, at, newest
            n = np.int64(count)
            if n > len(columns[0]):
                return MORE_SAMPLES, at, n
            with_starts = kind == SAMPLES_WITH_STARTS
            after, kept = _read_samples(data, after, end, n, with_starts, names, values, starts_of, columns, skips)
            if after < 0:
                return BROKEN, at, newest
            skipped[0] += n - kept
            n = kept
            verdicts, counts = np.empty(n, np.uint8), np.zeros(VERDICTS, np.int64)
            starts = columns[3][: n if with_starts else 0]
            append_samples(
                arena, rows, columns[0][:n], columns[1][:n], columns[2][:n], starts, nothing,
                -1, np.iinfo(np.int64).min, np.iinfo(np.int64).max, verdicts, counts,
            )  # fmt: skip
            if counts[NO_ROOM] > 0:
                return FULL, at, newest
            for place in range(n):
                newest = max(newest, columns[1][place])
            at = after
        else:
            return OTHER_RECORD, at, newest
    return DONE, at, newest


@kernel
def list_names(data: Array, at: Any, end: Any, numbers: Array, starts: Array, ends: Array, stops: Array) -> int:
    """Lists records that name series, as many as follow each other and find room; returns how many, 0 if broken.

    Of each: the number, where its labels start and end. `stops[0]` is where the last one ends.
    """
    count = 0
    while at < end and data[at] == SERIES and count < len(numbers):
        number, after = read_varint(data, at + 1, end)
        length, after = read_varint(data, after, end) if after > 0 else (np.uint64(0), MALFORMED)
        if after < 0 or length > np.uint64(end - after):
            return 0
        at = after + np.int64(length)
        numbers[count], starts[count], ends[count] = np.int64(number), after, at
        count += 1
    stops[0] = at
    return count


@inner_kernel
def _read_samples(
    data: Array, at: Any, end: Any, count: Any, with_starts: Any, names: Array, values: Array, starts_of: Array,
    columns: Any, skips: Any,
) -> Any:  # fmt: skip
    number, time, kept = np.int64(-1), np.int64(0), np.int64(0)
    for _ in range(count):
        if at >= end:
            return MALFORMED, kept
        control = data[at]
        at += 1
        if control & _NEXT_SERIES:
            number += 1
        else:
            step, at = read_varint(data, at, end)
            number += unzigzag(step)
            if at < 0:
                return MALFORMED, kept
        if not control & _SAME_TIME:
            step, at = read_varint(data, at, end)
            time += unzigzag(step)
            if at < 0:
                return MALFORMED, kept
        is_known = number >= 0 and number < len(names) and names[number] != UNKNOWN
        if not is_known and not skips:
            return MALFORMED, kept
        before = values[number] if is_known else np.uint64(0)
        value, at = _read_value(data, at, end, np.int64(control & _FORM), before)
        if at < 0:
            return MALFORMED, kept
        start = np.int64(0)
        if with_starts:
            step, at = read_varint(data, at, end)
            if at < 0:
                return MALFORMED, kept
            start = unzigzag(step)
        if not is_known:
            continue
        values[number] = value
        columns[0][kept], columns[1][kept], columns[2][kept] = names[number], time, value
        if with_starts:
            starts_of[number] += start
            columns[3][kept] = starts_of[number]
        kept += 1
    return at, kept


@inner_kernel
def _read_value(data: Array, at: Any, end: Any, form: Any, before: Any) -> Any:
    if form >= _DECIMALS:
        step, at = read_varint(data, at, end)
        if at < 0 or form >= _DECIMALS + len(_POWERS):
            return np.uint64(0), MALFORMED
        return _as_bits((_decimal(before, form - _DECIMALS) + unzigzag(step)) / _POWERS[form - _DECIMALS]), at
    width = _FORM_BYTES[form]
    if width > end - at:
        return np.uint64(0), MALFORMED
    changed = np.uint64(0)
    for place in range(width):
        changed |= np.uint64(data[at + place]) << np.uint64(8 * place)
    return before ^ (changed << _FORM_SHIFT[form]), at + width

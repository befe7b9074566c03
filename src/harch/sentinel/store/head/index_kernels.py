"""Which series has these labels? A table of hashes, where equal hashes count only if the bytes are equal too."""

from __future__ import annotations

from typing import Any

import numpy as np

from harch.sentinel.jit import inner_kernel, kernel
from harch.sentinel.store.bytes_kernels import borrowed, hash_bytes, same_bytes
from harch.sentinel.store.head.arena_kernels import EXISTS, KEY_AT, KEY_HASH, KEY_LENGTH, ROW, Array

UNKNOWN = -1
# Columns of a slot of the table: 32 bytes, half a cache line. A hash is never 0, which marks an empty slot.
HASH, SERIES, AT, LENGTH = range(4)


@kernel
def find_series(
    data: Array,
    starts: Array,
    ends: Array,
    seed: np.uint64,
    table: Array,  # i64 (slots, 4), a power of two
    keys: Array,
    rows: Array,
    followers: Array,  # i32: which series came after this one the last time, plus 1
    hashes: Array,  # u64 out, of keys that had to be looked up
    series: Array,  # i32 out: the series, or UNKNOWN
) -> int:
    """Finds the series of all keys and returns how many are unknown.

    Senders mostly send the same series in the same order, so the one that came next the last time is tried first:
    then its bytes are compared and nothing is hashed.
    """
    data, table, keys, rows = borrowed(data), borrowed(table), borrowed(keys), borrowed(rows)
    unknown, before = 0, np.int64(-1)
    for place in range(len(starts)):
        start, length = starts[place], ends[place] - starts[place]
        guess = np.int64(followers[before]) - 1 if before >= 0 else np.int64(-1)
        if (
            guess >= 0
            and length > 0
            and rows[guess, KEY_LENGTH] == length
            and same_bytes(data, start, keys, rows[guess, KEY_AT], length)
        ):
            series[place] = guess
            before = guess
            continue
        hashes[place] = hash_bytes(data, start, start + length, seed)
        sid = np.int64(probe(data, start, length, hashes[place], table, keys))
        series[place] = sid
        if sid == UNKNOWN:
            unknown += 1
        elif before >= 0:
            followers[before] = sid + 1
        before = sid
    return unknown


@inner_kernel
def probe(data: Array, start: Any, length: Any, key_hash: Any, table: Array, keys: Array) -> Any:
    mask = np.int64(len(table) - 1)
    wanted = np.int64(key_hash)
    slot = wanted & mask
    while table[slot, HASH] != 0:
        if (
            table[slot, HASH] == wanted
            and table[slot, LENGTH] == length
            and same_bytes(data, start, keys, table[slot, AT], length)
        ):
            return np.int32(table[slot, SERIES])
        slot = (slot + 1) & mask
    return np.int32(UNKNOWN)


@kernel
def insert_key(table: Array, key_hash: np.uint64, sid: int, at: int, length: int) -> None:
    """Puts a key that is not there yet into the table, which must not be full."""
    mask = np.int64(len(table) - 1)
    slot = np.int64(key_hash) & mask
    while table[slot, HASH] != 0:
        slot = (slot + 1) & mask
    table[slot, HASH] = np.int64(key_hash)
    table[slot, SERIES] = sid
    table[slot, AT] = at
    table[slot, LENGTH] = length


@kernel
def refill(table: Array, rows: Array, series_count: int, old_keys: Array, keys: Array) -> int:
    """Fills an empty table with all series and moves their keys together; returns how many bytes those take."""
    used = 0
    for sid in range(series_count):
        if rows[sid, EXISTS] == 0:
            continue
        at, length = rows[sid, KEY_AT], rows[sid, KEY_LENGTH]
        keys[used : used + length] = old_keys[at : at + length]
        rows[sid, KEY_AT] = used
        insert_key(table, np.uint64(rows[sid, KEY_HASH]), sid, used, length)
        used += length
    return used


@kernel
def clear_rows(rows: Array, series: Array) -> None:
    for place in range(len(series)):
        for column in range(ROW):
            rows[series[place], column] = 0

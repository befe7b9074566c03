"""How do kernels read bytes that a stranger sent? Always below an end that the caller knows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from harch.sentinel.jit import inner_kernel, kernel

Array = Any
Number = Any  # kernels mix widths on purpose, which type checkers cannot follow

MALFORMED = -1  # what `read_varint` and `skip_field` return in place of the next offset

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SEVEN = np.uint64(7)
_EIGHT = np.uint64(8)


def _load(typing_context: Any, array: Any, offset: Any) -> Any:
    """Eight bytes at any offset as one little-endian word; the caller has checked that all of them are inside."""
    tools: Any = cgutils

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        proxy = tools.create_struct_proxy(array)(context, builder, value=arguments[0])
        word = context.get_value_type(types.uint64)
        address = builder.bitcast(builder.gep(proxy.data, [arguments[1]]), word.as_pointer())
        loaded = builder.load(address)
        loaded.align = 1
        return loaded

    return types.uint64(array, types.int64), generate


def _store(typing_context: Any, array: Any, offset: Any, value: Any) -> Any:
    """Writes eight bytes at any offset; the caller has checked that all of them are inside."""
    tools: Any = cgutils

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        proxy = tools.create_struct_proxy(array)(context, builder, value=arguments[0])
        word = context.get_value_type(types.uint64)
        address = builder.bitcast(builder.gep(proxy.data, [arguments[1]]), word.as_pointer())
        builder.store(arguments[2], address).align = 1
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), generate


load_word: Any = intrinsic(_load)
store_word: Any = intrinsic(_store)


def _borrow(typing_context: Any, lent: Any) -> Any:
    """The same array, or tuple of arrays, without owners, which must outlive the kernel.

    Every call between kernels counts its arrays as used and then as unused again, one atomic operation each, which
    takes longer than reading a number. An array without an owner has nothing to count.
    """
    tools: Any = cgutils

    def without_owner(context: Any, builder: Any, kind: Any, value: Any) -> Any:
        array = tools.create_struct_proxy(kind)(context, builder, value=value)
        array.meminfo = tools.get_null_value(array.meminfo.type)
        array.parent = tools.get_null_value(array.parent.type)
        return array._getvalue()

    def lend(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = arguments[0]
        if isinstance(lent, types.Array):
            return without_owner(context, builder, lent, value)
        for place, kind in enumerate(lent.types):
            array = without_owner(context, builder, kind, builder.extract_value(value, place))
            value = builder.insert_value(value, array, place)
        return value

    return lent(lent), lend


borrowed: Any = intrinsic(_borrow)  # in a kernel that Python calls: `data = borrowed(data)`


def _inlined(function: Any) -> Any:
    """For the smallest functions: they become part of their callers before owners of arrays are counted."""
    decorator: Any = njit
    return decorator(inline="always")(function)


@_inlined
def read_varint(data: Array, offset: Number, end: Number) -> Any:
    """The number at `offset` and the offset after it; MALFORMED in its place where it does not end before `end`."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while offset < end:
        byte = np.uint64(data[offset])
        offset += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return value, offset
        shift += _SEVEN
        if shift > np.uint64(63):
            break
    return np.uint64(0), MALFORMED


@inner_kernel
def read_length(data: Array, offset: Number, end: Number) -> Any:
    """Start and end of what a length at `offset` announces; MALFORMED twice where it does not fit before `end`."""
    length, start = read_varint(data, offset, end)
    if start < 0 or length > np.uint64(end - start):
        return MALFORMED, MALFORMED
    return start, start + np.int64(length)


@inner_kernel
def skip_field(data: Array, offset: Number, end: Number, wire_type: Number) -> Any:
    """The offset after a field that nobody asked for."""
    if wire_type == 0:
        _, after = read_varint(data, offset, end)
        return after
    if wire_type == 2:
        _, after = read_length(data, offset, end)
        return after
    width = 8 if wire_type == 1 else 4 if wire_type == 5 else end - offset + 1  # others do not exist (any more)
    return offset + width if width <= end - offset else MALFORMED


@inner_kernel
def hash_bytes(data: Array, offset: Number, end: Number, seed: Number) -> Any:
    """64 bits over these bytes, never 0. The seed is secret, so that nobody can prepare series that collide."""
    state = seed ^ (np.uint64(end - offset) * _MULTIPLIER)
    while offset + 8 <= end:
        state = (state ^ load_word(data, offset)) * _MULTIPLIER
        state ^= state >> np.uint64(29)
        offset += 8
    rest = np.uint64(0)
    shift = np.uint64(0)
    while offset < end:
        rest |= np.uint64(data[offset]) << shift
        shift += _EIGHT
        offset += 1
    state = (state ^ rest) * _MULTIPLIER
    state ^= state >> np.uint64(32)
    state *= _MULTIPLIER
    state ^= state >> np.uint64(29)
    return state if state != np.uint64(0) else np.uint64(1)


@inner_kernel
def same_bytes(left: Array, left_at: Number, right: Array, right_at: Number, length: Number) -> bool:
    place = 0
    while place + 8 <= length:
        if load_word(left, left_at + place) != load_word(right, right_at + place):
            return False
        place += 8
    while place < length:
        if left[left_at + place] != right[right_at + place]:
            return False
        place += 1
    return True


@_inlined
def copy_bytes(source: Array, at: Number, size: Number, out: Array, to: Number) -> None:
    """Copies short texts, for which the copying of slices has too much to set up."""
    place = 0
    while place + 8 <= size:
        store_word(out, to + place, load_word(source, at + place))
        place += 8
    while place < size:
        out[to + place] = source[at + place]
        place += 1


@_inlined
def write_varint(out: Array, offset: Number, value: Number) -> Any:
    """Writes at most ten bytes; the caller has made sure of the room."""
    while value >= np.uint64(0x80):
        out[offset] = np.uint8(value & np.uint64(0x7F)) | np.uint8(0x80)
        value >>= _SEVEN
        offset += 1
    out[offset] = np.uint8(value)
    return offset + 1


@inner_kernel
def zigzag(value: Number) -> Any:
    """Small numbers of either sign as small numbers. Wraps around like the machine's arithmetic, and back."""
    return np.uint64((value << np.int64(1)) ^ (value >> np.int64(63)))


@inner_kernel
def unzigzag(value: Number) -> Any:
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))


@kernel
def hash_spans(data: Array, starts: Array, ends: Array, seed: Number, hashes: Array) -> None:
    for place in range(len(starts)):
        hashes[place] = hash_bytes(data, starts[place], ends[place], seed)

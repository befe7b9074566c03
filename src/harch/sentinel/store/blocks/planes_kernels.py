"""How do numbers of one width lie in bytes? In planes: all lowest bytes, all second bytes, then the bits that are left.

Loops over a plane run on vector units, and zstd finds what is alike in it. Numbers that need more bits than the width
are patched: a list of distances and upper bits stands before the planes.
"""

from __future__ import annotations

import numpy as np

from harch.sentinel.compiled import inner_kernel
from harch.sentinel.store.blocks.bytes_kernels import BROKEN, Bytes, Int, Words, get_varint, put_varint

_U0, _U1 = np.uint64(0), np.uint64(1)
_BYTE = np.uint64(255)


@inner_kernel
def is_width(width: Int) -> bool:
    return width % 8 in (0, 1, 2, 4)


@inner_kernel
def put_planes(packed: Words, start: Int, count: Int, width: Int, out: Bytes, at: Int) -> Int:
    """Patches first (how many; then distance and upper bits of each), then byte planes, then the narrow plane."""
    patches = 0
    if width < 64:
        for place in range(start, count):
            if packed[place] >> np.uint64(width):
                patches += 1
    at = put_varint(out, at, np.uint64(patches))
    if patches:
        last: Int = start
        for place in range(start, count):
            upper = packed[place] >> np.uint64(width)
            if upper:
                at = put_varint(out, at, np.uint64(place - last))
                at = put_varint(out, at, upper)
                last = place
    for plane in range(width // 8):
        for place in range(start, count):
            out[at + place - start] = np.uint8((packed[place] >> np.uint64(8 * plane)) & _BYTE)
        at += count - start
    narrow = width % 8
    if narrow:
        shift, mask = np.uint64(width - narrow), (_U1 << np.uint64(narrow)) - _U1
        each = 8 // narrow
        size = (count - start + each - 1) // each
        for byte in range(size):
            together = _U0
            for part in range(each):  # value `part * size + byte`: runs of neighbours stay in runs of bytes
                source = start + part * size + byte
                if source < count:
                    together |= ((packed[source] >> shift) & mask) << np.uint64(part * narrow)
            out[at + byte] = np.uint8(together)
        at += size
    return at


@inner_kernel
def get_planes(data: Bytes, at: Int, end: Int, start: Int, count: Int, width: Int, numbers: Words) -> Int:
    patches, at = get_varint(data, at, end)
    if at == BROKEN or patches > np.uint64(count - start) or (patches and width == 64) or not is_width(width):
        return BROKEN
    first_patch = at
    for _ in range(2 * np.int64(patches)):
        _number, at = get_varint(data, at, end)
        if at == BROKEN:
            return BROKEN
    narrow, total = width % 8, count - start
    each = 8 // narrow if narrow else 1
    size = (total + each - 1) // each if narrow else 0
    if at + (width // 8) * total + size > end:
        return BROKEN
    column = numbers[start:count]
    if width < 8:
        column[:] = _U0
    for plane in range(width // 8):
        shift, bytes_of_plane = np.uint64(8 * plane), data[at : at + total]
        if plane == 0:
            for place in range(total):
                column[place] = np.uint64(bytes_of_plane[place])
        else:
            for place in range(total):
                column[place] |= np.uint64(bytes_of_plane[place]) << shift
        at += total
    if narrow:
        shift, mask = np.uint64(width - narrow), np.uint64((1 << narrow) - 1)
        for part in range(each):
            moved, run = np.uint64(part * narrow), column[part * size : (part + 1) * size]
            bytes_of_plane = data[at : at + run.size]
            for place in range(run.size):
                run[place] |= ((np.uint64(bytes_of_plane[place]) >> moved) & mask) << shift
        at += size
    patched: Int = start
    patch_at = first_patch
    for _ in range(np.int64(patches)):
        distance, patch_at = get_varint(data, patch_at, end)
        upper, patch_at = get_varint(data, patch_at, end)
        if distance >= np.uint64(count - patched):
            return BROKEN
        patched += np.int64(distance)
        numbers[patched] |= upper << np.uint64(width)
    return at

"""How does a column of 64-bit integers become few bytes, and fast again numbers?

1. A predictor leaves residuals: the number itself (0), its distance from the one before (1), the change of that
   distance (2), or its distance from a straight line (3), which suits the clock of a scraper that wavers.
2. Residuals are counted from the smallest (all positive), or from a middle one and zigzagged (both sides).
3. A width is chosen that most residuals fit into; the few that do not are patched in from a list.
4. The bits are laid out in planes: all lowest bytes, then all second bytes, then the rest in 1, 2 or 4 bits each.
   Loops over planes run on vector units, and zstd finds what is alike in a plane.

All arithmetic is modulo 2^64, so every column comes back exactly. Decoding believes nothing: a place past the end, an
unknown form or a patch outside of the column gives BROKEN.
"""

from __future__ import annotations

import numpy as np

from harch.sentinel.compiled import inner_kernel
from harch.sentinel.store.blocks.bytes_kernels import (
    BROKEN,
    Bytes,
    Int,
    Words,
    bit_length,
    get_varint,
    put_varint,
    unzigzag,
    zigzag,
)
from harch.sentinel.store.blocks.planes_kernels import get_planes, is_width, put_planes

_U0 = np.uint64(0)
_PATCH_BITS = 16  # what a patch takes beside its upper bits: its distance, and a varint's last byte
_TWO_SIDED = 4  # a flag beside the predictor's number
_PREDICTORS = 4


@inner_kernel
def integers_room(count: Int) -> Int:
    """How many bytes does a column of so many numbers take at most?"""
    return 9 * count + 64


@inner_kernel
def encode_integers(numbers: Words, count: Int, scratch: Words, out: Bytes, at: Int) -> Int:
    """Writes a column and returns the place behind. `scratch` has room for two columns, `out` for integers_room."""
    slope = _line_slope(numbers, count)
    predictor = _best_predictor(numbers, count, slope)
    _residuals(numbers, count, predictor, slope, scratch)
    base, width, bits = _layout(scratch, count, predictor, False, scratch[count:])
    both_base, both_width, both_bits = _layout(scratch, count, predictor, True, scratch[count:])
    two_sided = both_bits < bits
    if two_sided:
        base, width = both_base, both_width
    else:
        _layout(scratch, count, predictor, False, scratch[count:])
    out[at] = np.uint8(predictor + (_TWO_SIDED if two_sided else 0))
    out[at + 1] = np.uint8(width)
    at += 2
    for place in range(_plain_count(predictor, count)):
        at = put_varint(out, at, zigzag(scratch[place]))
    if predictor == 3:
        at = put_varint(out, at, zigzag(slope))
    at = put_varint(out, at, zigzag(base))
    return put_planes(scratch[count:], _plain_count(predictor, count), count, width, out, at)


@inner_kernel
def decode_integers(data: Bytes, at: Int, end: Int, count: Int, numbers: Words) -> Int:
    """Fills `numbers[:count]` and returns the place behind the column, or BROKEN."""
    if at < 0 or at + 2 > end or count < 0 or count > numbers.size:
        return BROKEN
    form, width = np.int64(data[at]), np.int64(data[at + 1])
    at += 2
    if form >= 2 * _TWO_SIDED or width > 64:
        return BROKEN
    predictor, two_sided = form % _TWO_SIDED, form >= _TWO_SIDED
    plain = _plain_count(predictor, count)
    for place in range(plain):
        number, at = get_varint(data, at, end)
        numbers[place] = unzigzag(number)
    slope = _U0
    if predictor == 3:
        number, at = get_varint(data, at, end)
        slope = unzigzag(number)
    number, at = get_varint(data, at, end)
    base = unzigzag(number)
    at = get_planes(data, at, end, plain, count, width, numbers)
    if at == BROKEN:
        return BROKEN
    _restore(numbers, plain, count, predictor, two_sided, base, slope)
    return at


@inner_kernel
def _plain_count(predictor: Int, count: Int) -> Int:
    """How many numbers at the start have nothing to be predicted from?"""
    return min(count, predictor % 3)


@inner_kernel
def _line_slope(numbers: Words, count: Int) -> np.uint64:
    if count < 3:
        return _U0
    rise = np.int64(numbers[count - 1] - numbers[0])
    return np.uint64(np.int64(np.rint(rise / (count - 1))))


@inner_kernel
def _best_predictor(numbers: Words, count: Int, slope: np.uint64) -> Int:
    """The one whose residuals need the fewest bits, counted from about their middle; all four in one pass."""
    if count < 4:
        return 0
    middle = count // 2
    far = _common_distance(numbers, count)
    bits = np.zeros(_PREDICTORS, np.int64)
    level, on_line = numbers[middle], numbers[middle] - slope * np.uint64(middle)
    before = numbers[1] - numbers[0]
    step = _U0
    for place in range(2, count):
        distance = numbers[place] - numbers[place - 1]
        step += slope
        bits[0] += bit_length(zigzag(numbers[place] - level))
        bits[1] += bit_length(zigzag(distance - far))
        bits[2] += bit_length(zigzag(distance - before))
        bits[3] += bit_length(zigzag(numbers[place] - slope - step - on_line))
        before = distance
    best = 0
    for predictor in range(1, _PREDICTORS):
        if bits[predictor] < bits[best]:
            best = predictor
    return best


@inner_kernel
def _common_distance(numbers: Words, count: Int) -> np.uint64:
    """The median of three distances, so that a counter's reset in just that place misleads nobody."""
    looks = np.empty(3, np.int64)
    for look in range(3):
        place = 1 + look * (count - 2) // 2
        looks[look] = np.int64(numbers[place] - numbers[place - 1])
    return np.uint64(max(min(looks[0], looks[1]), min(max(looks[0], looks[1]), looks[2])))


@inner_kernel
def _residuals(numbers: Words, count: Int, predictor: Int, slope: np.uint64, residuals: Words) -> None:
    if predictor == 0:
        for place in range(count):
            residuals[place] = numbers[place]
    elif predictor == 3:
        for place in range(count):
            residuals[place] = numbers[place] - slope * np.uint64(place)
    else:
        for place in range(min(count, 1)):
            residuals[place] = numbers[place]
        for place in range(1, count):
            residuals[place] = numbers[place] - numbers[place - 1]
        if predictor == 2:
            for place in range(count - 1, 1, -1):
                residuals[place] -= residuals[place - 1]


@inner_kernel
def _restore(
    numbers: Words, plain: Int, count: Int, predictor: Int, two_sided: bool | np.bool, base: np.uint64, slope: np.uint64
) -> None:
    column = numbers[plain:count]
    if two_sided:
        for place in range(column.size):
            column[place] = unzigzag(column[place]) + base
    elif base != _U0:
        for place in range(column.size):
            column[place] += base
    if predictor == 3:
        for place in range(column.size):
            column[place] += slope * np.uint64(place)
    if predictor == 2:
        _sum_up(numbers[1:count])
    if predictor == 1 or predictor == 2:
        _sum_up(numbers[:count])


@inner_kernel
def _sum_up(numbers: Words) -> None:
    running = _U0
    for place in range(numbers.size):
        running += numbers[place]
        numbers[place] = running


@inner_kernel
def _layout(
    residuals: Words, count: Int, predictor: Int, two_sided: bool | np.bool, packed: Words
) -> tuple[np.uint64, Int, Int]:
    """Base, width and estimated bits of one form; leaves in `packed` what would be laid out in planes."""
    start = _plain_count(predictor, count)
    base = _middle(residuals, start, count) if two_sided else _smallest(residuals, start, count)
    lengths = np.zeros(65, np.int64)
    for place in range(start, count):
        number = residuals[place] - base
        if two_sided:
            number = zigzag(number)
        packed[place] = number
        lengths[bit_length(number)] += 1
    total = np.int64(count - start)
    width, best = 64, np.int64(1) << 62
    above, upper_bits, bits = np.int64(0), np.int64(0), np.int64(0)
    for candidate in range(64, -1, -1):
        if is_width(candidate):
            cost = total * candidate + above * _PATCH_BITS + upper_bits * 8 // 7
            if cost < best:
                width, best = candidate, cost
        above += lengths[candidate]
        upper_bits += above
    for length in range(65):
        bits += lengths[length] * length
    return base, width, best + bits  # planes as they are, and what zstd may make of them


@inner_kernel
def _smallest(residuals: Words, start: Int, count: Int) -> np.uint64:
    smallest = np.int64(0)
    for place in range(start, count):
        if place == start or np.int64(residuals[place]) < smallest:
            smallest = np.int64(residuals[place])
    return np.uint64(smallest)


@inner_kernel
def _middle(residuals: Words, start: Int, count: Int) -> np.uint64:
    """Something like the median: that of up to 9 residuals spread over the column."""
    if start >= count:
        return _U0
    looks = np.empty(9, np.int64)
    taken = min(9, count - start)
    for look in range(taken):
        number = np.int64(residuals[start + look * (count - start) // taken])
        seat = look
        while seat > 0 and looks[seat - 1] > number:
            looks[seat] = looks[seat - 1]
            seat -= 1
        looks[seat] = number
    return np.uint64(looks[taken // 2])

"""How does a column of integers or floats become few bytes, and fast again numbers?

Floats as decimal integers where every bit survives that, else as their bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harch.sentinel.jit import inner_kernel
from harch.sentinel.store.blocks.bytes_kernels import (
    BROKEN,
    Bytes,
    Int,
    Words,
    bit_length,
    get_planes,
    get_varint,
    is_width,
    put_planes,
    put_varint,
    unzigzag,
    zigzag,
)

# How does a column of 64-bit integers become few bytes, and fast again numbers?
#
# 1. A predictor leaves residuals: the number itself (0), its distance from the one before (1), the change of that
#    distance (2), or its distance from a straight line (3), which suits the clock of a scraper that wavers.
# 2. Residuals are counted from the smallest (all positive), or from a middle one and zigzagged (both sides).
# 3. A width is chosen that most residuals fit into; the few that do not are patched in from a list.
# 4. The bits are laid out in planes: all lowest bytes, then all second bytes, then the rest in 1, 2 or 4 bits each.
#    Loops over planes run on vector units, and zstd finds what is alike in a plane.
#
# All arithmetic is modulo 2^64, so every column comes back exactly. Decoding believes nothing: a place past the end, an
# unknown form or a patch outside of the column gives BROKEN.


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


# How does a column of floats become few bytes? As decimal integers where every bit survives that, else as their bits.
#
# Monitoring values are mostly counts and short decimals: 41.7 is 417 / 10. The smallest power of ten is used that gives
# back the very bits of (nearly) all values; those it cannot give back (NaNs, stale markers, infinities, -0.0) are
# exceptions, written out. Then the greatest common step is divided out, since memory grows by pages and not by bytes. A
# column that is not decimal goes the same way with its bits as integers: neighbours share their upper ones.


Floats = npt.NDArray[np.float64]

_BITS = 255  # the form of a column whose integers are the floats' own bits
_EXPONENTS = 18
_POWERS = np.array([float(f"1e{exponent}") for exponent in range(_EXPONENTS)])
_LARGEST = 2.0**53  # integers below are exact in a float
_FAR = np.int64(1) << np.int64(61)
_EXCEPTION_BYTES = 10
_WIDE_BYTES = 5  # decimals that take more than this each are compared with plain bits


@inner_kernel
def values_room(count: Int) -> Int:
    """How many bytes does a column of so many values take at most, with the room that choosing takes?"""
    return 2 * (integers_room(count) + (count // 8 + 1) * _EXCEPTION_BYTES + 64)


@inner_kernel
def encode_values(values: Floats, bits: Words, count: Int, scratch: Words, out: Bytes, at: Int) -> Int:
    """Writes a column and returns the place behind. `bits` is a view of `values`; `scratch` has room for 4 columns."""
    exponent = _decimal_exponent(values, bits, count)
    if exponent >= 0:
        decimal_end = _encode_decimal(values, bits, count, exponent, scratch, out, at)
        if decimal_end - at <= _WIDE_BYTES * count:
            return decimal_end
        bits_end = _encode_bits(bits, count, scratch, out, decimal_end)
        if bits_end - decimal_end >= decimal_end - at:
            return decimal_end
        for place in range(bits_end - decimal_end):
            out[at + place] = out[decimal_end + place]
        return at + bits_end - decimal_end
    return _encode_bits(bits, count, scratch, out, at)


@inner_kernel
def decode_values(data: Bytes, at: Int, end: Int, count: Int, values: Floats, bits: Words) -> Int:
    """Fills `values[:count]`, of which `bits` is a view, and returns the place behind the column, or BROKEN."""
    if at < 0 or at >= end or count < 0 or count > bits.size:
        return BROKEN
    form = np.int64(data[at])
    if form != _BITS and form >= _EXPONENTS:
        return BROKEN
    exceptions, at = get_varint(data, at + 1, end)
    if at == BROKEN or exceptions > np.uint64(count):
        return BROKEN
    exceptions_at = at
    for _ in range(np.int64(exceptions)):
        _distance, at = get_varint(data, at, end)
        if at == BROKEN or at + 8 > end:
            return BROKEN
        at += 8
    at = _decode_steps(data, at, end, count, bits)
    if at == BROKEN:
        return BROKEN
    if form == 0:
        for place in range(count):
            values[place] = np.float64(np.int64(bits[place]))
    elif form != _BITS:
        power = _POWERS[form]
        for place in range(count):
            values[place] = np.divide(np.float64(np.int64(bits[place])), power)
    if exceptions and not _place_exceptions(data, exceptions_at, end, np.int64(exceptions), count, bits):
        return BROKEN
    return at


@inner_kernel
def _place_exceptions(data: Bytes, at: Int, end: Int, exceptions: Int, count: Int, bits: Words) -> bool:
    place: Int = 0
    for _ in range(exceptions):
        distance, at = get_varint(data, at, end)
        if distance >= np.uint64(count - place):
            return False
        place += np.int64(distance)
        word = np.uint64(0)
        for byte in range(8):
            word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
        bits[place] = word
        at += 8
    return True


@inner_kernel
def _is_decimal(value: float, bits: np.uint64, exponent: Int) -> bool:
    scaled = np.rint(value * _POWERS[exponent])
    if not abs(scaled) < _LARGEST:
        return False
    back = scaled / _POWERS[exponent]
    return back == value and (value != 0.0 or bits == np.uint64(0))


@inner_kernel
def _decimal_exponent(values: Floats, bits: Words, count: Int) -> Int:
    """The smallest exponent that serves all values but an eighth; -1 where there is none."""
    exponent, failed = 0, 0
    for place in range(count):
        if _is_decimal(values[place], bits[place], exponent):
            continue
        wanted = exponent + 1
        while wanted < _EXPONENTS and not _is_decimal(values[place], bits[place], wanted):
            wanted += 1
        if wanted < _EXPONENTS:
            exponent = wanted
        else:
            failed += 1
            if failed > count // 8:
                return -1
    failed = 0
    for place in range(count):  # a larger exponent may fail values that a smaller one served
        if not _is_decimal(values[place], bits[place], exponent):
            failed += 1
    return exponent if failed <= count // 8 else -1


@inner_kernel
def _encode_decimal(values: Floats, bits: Words, count: Int, exponent: Int, scratch: Words, out: Bytes, at: Int) -> Int:
    exceptions = 0
    for place in range(count):
        if not _is_decimal(values[place], bits[place], exponent):
            exceptions += 1
    out[at] = np.uint8(exponent)
    at = put_varint(out, at + 1, np.uint64(exceptions))
    before, last = np.int64(0), 0
    for place in range(count):
        if exceptions and not _is_decimal(values[place], bits[place], exponent):
            at = put_varint(out, at, np.uint64(place - last))
            last = place
            for byte in range(8):
                out[at + byte] = np.uint8((bits[place] >> np.uint64(8 * byte)) & np.uint64(255))
            at += 8
        else:
            before = np.int64(np.rint(values[place] * _POWERS[exponent]))
        scratch[place] = np.uint64(before)
    return _encode_steps(scratch, count, scratch[count:], out, at)


@inner_kernel
def _encode_bits(bits: Words, count: Int, scratch: Words, out: Bytes, at: Int) -> Int:
    out[at] = np.uint8(_BITS)
    out[at + 1] = np.uint8(0)
    for place in range(count):
        scratch[place] = bits[place]
    return _encode_steps(scratch, count, scratch[count:], out, at + 2)


@inner_kernel
def _encode_steps(numbers: Words, count: Int, scratch: Words, out: Bytes, at: Int) -> Int:
    """`numbers` as origin + step * column. A step of 0 says that all are the origin, and no column follows."""
    origin = numbers[0] if count else np.uint64(0)
    step = _common_step(numbers, count, origin)
    at = put_varint(out, at, zigzag(origin))
    at = put_varint(out, at, np.uint64(step))
    if step == 0:
        return at
    for place in range(count):
        distance = np.int64(numbers[place] - origin)
        numbers[place] = np.uint64(distance if step == 1 else distance // step)
    return encode_integers(numbers, count, scratch, out, at)


@inner_kernel
def _decode_steps(data: Bytes, at: Int, end: Int, count: Int, numbers: Words) -> Int:
    number, at = get_varint(data, at, end)
    origin = unzigzag(number)
    step, at = get_varint(data, at, end)
    if at == BROKEN:
        return BROKEN
    if step == np.uint64(0):
        for place in range(count):
            numbers[place] = origin
        return at
    at = decode_integers(data, at, end, count, numbers)
    if at == BROKEN:
        return BROKEN
    if step == np.uint64(1):
        for place in range(count):
            numbers[place] += origin
    else:
        for place in range(count):
            numbers[place] = origin + step * numbers[place]
    return at


@inner_kernel
def _common_step(numbers: Words, count: Int, origin: np.uint64) -> np.int64:
    """The greatest common divisor of all distances from the origin; 0 where all are 0.

    Distances of bit patterns may span the whole 64 bits, where only powers of two divide them and their wrapped
    negatives alike: then the step is such a power.
    """
    step, every_bit = np.int64(0), np.uint64(0)
    for place in range(count):
        distance = np.int64(numbers[place] - origin)
        every_bit |= np.uint64(distance)
        if step != 1 and distance != 0:
            small = -_FAR < distance < _FAR
            other = abs(distance) if small else np.int64(1)
            while other:
                step, other = other, step % other
    if step == 1 and every_bit & np.uint64(1) == np.uint64(0) and every_bit != np.uint64(0):
        lowest = every_bit & (np.uint64(0) - every_bit)
        step = np.int64(min(lowest, np.uint64(_FAR)))
    return step

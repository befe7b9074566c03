"""Where do the ticks of a chart stand? Round values at its left, round UTC times below it."""

# harch: pure

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
DECIMALS_MAX = 6
VALUE_MIN = 1e-290  # smaller ones are drawn as zero
DAY_S = 86_400.0
TIME_STEPS_S = (
    *(0.001 * size for size in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(60.0 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3600.0 * hours for hours in (1, 2, 3, 6, 12)),
    *(DAY_S * days for days in (1, 2, 7, 14, 28, 91, 182, 364, 728, 1820, 3640)),
)
ELAPSED_UNITS = (("d", DAY_S), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
YEAR_LABEL_S = 300 * DAY_S  # a day of the month alone could be of two years
LABEL_GAP = 2


@dataclass(frozen=True, slots=True)
class ValueScale:
    """`labels` belong to `ticks`, from the lowest to the highest; the scale begins and ends with one."""

    ticks: tuple[float, ...]
    labels: tuple[str, ...]

    @property
    def low(self) -> float:
        return self.ticks[0]

    @property
    def high(self) -> float:
        return self.ticks[-1]


@dataclass(frozen=True, slots=True)
class TimeTick:
    column: int
    label: str


def value_scale(low: float, high: float, ticks_max: int) -> ValueScale:
    """At most so many round ticks around the values; zero is one if they lie on both sides of it."""
    size = max(abs(low), abs(high))
    if size < VALUE_MIN:
        low, high = 0.0, 1.0
    elif high - low <= size * 1e-9:  # flat: room above and below
        low, high = low - size / 2, high + size / 2
    ticks_max = max(ticks_max, 3 if low < 0 < high else 2)
    step = _round_up((high - low) / (ticks_max - 1))
    while math.ceil(high / step) - math.floor(low / step) + 1 > ticks_max:
        step = _round_up(step * 1.5)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = tuple(number * step + 0.0 for number in range(first, last + 1))  # no -0
    return ValueScale(ticks, _value_labels(ticks, step))


def _round_up(step: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(size * power for size in (1.0, 2.0, 5.0, 10.0) if size * power >= step * (1 - 1e-9))


def _value_labels(ticks: tuple[float, ...], step: float) -> tuple[str, ...]:
    """With one prefix and as many decimals as tell neighbours apart."""
    largest = max(abs(tick) for tick in ticks)
    factor, prefix = next((pair for pair in PREFIXES if largest >= pair[0]), PREFIXES[-1])
    decimals = max(0, -math.floor(math.log10(step / factor) + 1e-9))
    if decimals > DECIMALS_MAX or largest >= 1e15:
        return tuple(f"{tick:.12g}" for tick in ticks)
    return tuple(f"{tick / factor:.{decimals}f}{prefix}" if tick else "0" for tick in ticks)


def time_ticks(start_s: float, end_s: float, width: int, *, elapsed: bool = False) -> list[TimeTick]:
    """Round times between two, with labels that fit side by side into so many columns. `elapsed`: since a start."""

    def label(at_s: float, step_s: float) -> str:
        return elapsed_label(at_s, step_s) if elapsed else _time_label(at_s, step_s, span_s)

    span_s = max(end_s - start_s, 1e-6)
    per_s = (width - 1) / span_s
    for step_s in TIME_STEPS_S:
        if step_s * per_s < len(label(end_s if elapsed else start_s, step_s)) + LABEL_GAP:
            continue
        numbers = range(math.ceil(start_s / step_s), math.floor(end_s / step_s) + 1)
        if numbers:
            return [
                TimeTick(round((number * step_s - start_s) * per_s), label(number * step_s, step_s))
                for number in numbers
            ]
        break
    return [TimeTick(0, label(start_s, 1.0))]


def _time_label(at_s: float, step_s: float, span_s: float) -> str:
    """A time of day, or the day where one begins."""
    at = datetime.fromtimestamp(round(at_s, 3), UTC)
    if step_s >= DAY_S:
        return f"{at:%Y-%m-%d}" if span_s >= YEAR_LABEL_S else day_label(at_s)
    if step_s >= 60:
        return day_label(at_s) if (at.hour, at.minute) == (0, 0) else f"{at:%H:%M}"
    return f"{at:%H:%M:%S}" if step_s >= 1 else f"{at:%H:%M:%S.%f}"[:-3]


def elapsed_label(at_s: float, step_s: float) -> str:
    unit, seconds = next((one for one in ELAPSED_UNITS if step_s >= one[1]), ELAPSED_UNITS[-1])
    return f"{at_s / seconds:g} {unit}"


def day_label(at_s: float) -> str:
    at = datetime.fromtimestamp(at_s, UTC)
    return f"{at.day} {at:%b}"


def label_row(ticks: list[TimeTick], width: int) -> str:
    """The labels, each centred below its tick, moved inwards at the ends; one that would touch another is left out."""
    row = [" "] * width
    free = 0
    for tick in ticks:
        if len(tick.label) > width:
            continue
        begin = min(max(0, tick.column - len(tick.label) // 2), width - len(tick.label))
        if begin >= free:
            row[begin : begin + len(tick.label)] = tick.label
            free = begin + len(tick.label) + 1
    return "".join(row)

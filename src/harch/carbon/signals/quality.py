"""May a decision rest on this reading? A chain of rules; every no is a `Rejection` with its numbers.

Rules on arrival look at the reading and at what the same source said before. What other sources say is weighed later,
in `choice`, because it changes with every reading.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from harch.base.rejection import Rejection
from harch.carbon.signals.history import DAY, History, Sample, median, quantile, spread
from harch.carbon.signals.limits import Limits
from harch.carbon.units import LBS_PER_MWH_IN_G_PER_KWH
from harch.carbon.values import CarbonIntensity, Evidence, Quantity, Reading

FUTURE_TOLERANCE_S = 90.0  # clocks of two organisations agree to the minute, not to the second
HISTORY_MIN = 12  # fewer samples do not say what is typical
SPREADS_MAX = 6.0
TAIL = 0.2  # of the settled past, what must have been as high or as low for that to be usual
UNIT_TOLERANCE = 0.03
BEYOND = 1.3  # times the extreme of the past: further than it creeps from one day to the next
LBS_RANGE = (0.75, 1.25)  # hours differ from the median of their day
STUCK_SAMPLES_MIN = 6
LBS_FACTOR = 1 / LBS_PER_MWH_IN_G_PER_KWH  # what a value in lbs/MWh is too high by when taken for g/kWh


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a reading is judged against."""

    now: datetime
    limits: Limits
    history: History
    number_max: float | None = None  # the plate of the plant, where there is one


Check = Callable[[Reading[Quantity], Circumstances], Rejection | None]


def arrival_rejections(reading: Reading[Quantity], seen: Circumstances) -> tuple[Rejection, ...]:
    """Every rule that the reading breaks as it arrives. What breaks none of the first ones is remembered."""
    if broken := _first(reading, seen, PLAUSIBILITY):
        return (broken,)  # further rules would compare with a number or a time that means nothing
    return tuple(found for check in DOUBTS if (found := check(reading, seen)) is not None)


def forecast_rejections(reading: Reading[Quantity], seen: Circumstances) -> tuple[Rejection, ...]:
    """What a source says about a later time has no past to be compared with: it must be possible, no more."""
    broken = _first(reading, seen, (check_number, check_limits))
    return () if broken is None else (broken,)


def remembered(reading: Reading[Quantity], seen: Circumstances) -> History:
    """The history after this reading."""
    if _first(reading, seen, PLAUSIBILITY) is not None:
        return seen.history
    doubted = _first(reading, seen, DOUBTS) is not None
    return seen.history.with_sample(Sample(reading.at, reading.value.number, doubted))


def check_number(reading: Reading[Quantity], _seen: Circumstances) -> Rejection | None:
    if math.isfinite(reading.value.number):
        return None
    return _no(reading, "number", f"{reading.value.number} is no number", "ask the source's operator")


def check_limits(reading: Reading[Quantity], seen: Circumstances) -> Rejection | None:
    number, limits = reading.value.number, seen.limits
    if number < limits.low:
        fix = "a negative value is not physical" if number < 0 <= limits.low else ""
        if isinstance(reading.value, CarbonIntensity) and 0 < number < limits.low:
            fix = f"in kg/kWh it would be {number * 1000:.4g} g/kWh; declare the unit of the source"
        return _no(reading, "limits", f"{reading.value} is below {limits.low:g}", fix)
    high = limits.high if seen.number_max is None else min(limits.high, seen.number_max)
    if abs(number) > high:
        fix = "check the unit" + (" and the plate in the carbon file" if seen.number_max is not None else "")
        if isinstance(reading.value, CarbonIntensity):
            fix = f"in lbs/MWh it would be {number / LBS_FACTOR:.4g} g/kWh; declare the unit of the source"
        return _no(reading, "limits", f"{reading.value} is above {high:g}", fix)
    return None


def check_future(reading: Reading[Quantity], seen: Circumstances) -> Rejection | None:
    ahead_s = (reading.at - seen.now).total_seconds()
    if reading.ahead or ahead_s <= FUTURE_TOLERANCE_S:
        return None
    return _no(reading, "future", f"is about a time {ahead_s:.0f} s from now", "compare the clocks")


def check_order(reading: Reading[Quantity], seen: Circumstances) -> Rejection | None:
    last = seen.history.last
    if last is None or reading.at >= last.at:
        return None
    back = last.at - reading.at
    return _no(reading, "backwards", f"is {_words(back)} older than the one before it", "the newer one stays in use")


def check_unit_jump(reading: Reading[Quantity], seen: Circumstances) -> Rejection | None:
    """A source that changes to lbs/MWh shows about 2.2 times its last day, and more than it has ever shown."""
    trusted = seen.history.trusted()
    day = seen.history.trusted(since=seen.now - DAY)
    if not isinstance(reading.value, CarbonIntensity) or not day:
        return None
    number, usual = reading.value.number, median(day)
    low, high = (LBS_FACTOR * part for part in LBS_RANGE)
    if usual <= 0 or not low <= number / usual <= high or number <= BEYOND * max(trusted):
        return None
    return _no(
        reading,
        "unit",
        f"{number:.4g} is {number / usual:.2f} times the usual {usual:.4g}: it looks like lbs/MWh",
        f"if so, it is {number / LBS_FACTOR:.4g} g/kWh: declare the unit of the source",
    )


def check_typical(reading: Reading[Quantity], seen: Circumstances) -> Rejection | None:
    """Against the source's own past.

    Some grids swing between two levels, so both ends of what a fifth of the settled past has shown are usual, and what
    it has shown at all is nearly so. Before there is such a past, the median is what is usual.
    """
    limits, numbers, tail = seen.limits, seen.history.settled(seen.now), TAIL
    if len(numbers) < HISTORY_MIN:
        numbers, tail = seen.history.trusted(), 0.5
    if limits.odd_factor is None or len(numbers) < HISTORY_MIN:
        return None
    number, low, high = reading.value.number, quantile(numbers, tail), quantile(numbers, 1 - tail)
    most = max(high * limits.odd_factor, high + limits.odd_margin_above, high + SPREADS_MAX * spread(numbers))
    least = min(low / limits.odd_factor, low - limits.odd_margin_below, min(numbers) / BEYOND)
    if least <= number <= most:
        return None
    usual = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    return _no(
        reading,
        "outlier",
        f"{number:.4g} is far from {usual}, the usual of the last {len(numbers)} values of this source",
        "it is taken when it has lasted for more than a day",
    )


# In this order: a number and a time that mean something, before anything is compared with them.
PLAUSIBILITY: tuple[Check, ...] = (check_number, check_limits, check_future, check_order)
DOUBTS: tuple[Check, ...] = (check_unit_jump, check_typical)


def staleness(reading: Reading[Quantity], *, now: datetime, limits: Limits) -> Rejection | None:
    """Is it too old to rest on? A source that says until when a value holds is believed."""
    if reading.valid_until is not None:
        if now < reading.valid_until:
            return None
        return _no(reading, "stale", f"held until {_words(now - reading.valid_until)} ago", "set or fetch it anew")
    age = reading.age(now)
    if age.total_seconds() <= limits.stale_after_s:
        return None
    return _no(
        reading, "stale", f"is {_words(age)} old; the limit is {_words(timedelta(seconds=limits.stale_after_s))}"
    )


def stuckness(reading: Reading[Quantity], *, history: History, limits: Limits) -> Rejection | None:
    """Has a meter shown exactly the same for too long? Zero is exempt: the sun does set, and batteries do rest."""
    number = reading.value.number
    if limits.stuck_after_s is None or reading.evidence is not Evidence.MEASURED or number == 0:
        return None
    since = history.same_since(number)
    if since is None or sum(sample.at >= since for sample in history.samples) < STUCK_SAMPLES_MIN:
        return None
    still = reading.at - since
    if still.total_seconds() < limits.stuck_after_s:
        return None
    return _no(reading, "stuck", f"has been exactly {number:.6g} for {_words(still)}", "look at the meter")


def agree(number: float, other: float, factor: float, margin: float) -> bool:
    """Within a factor of each other, or closer than a margin."""
    low, high = sorted((number, other))
    return high - low <= margin or (low > 0 and high <= factor * low)


def looks_like_lbs(number: float, reference: float) -> bool:
    """True when the number is what the reference would be in lbs/MWh."""
    return reference > 0 and abs(number / reference / LBS_FACTOR - 1) <= UNIT_TOLERANCE


def _first(reading: Reading[Quantity], seen: Circumstances, checks: tuple[Check, ...]) -> Rejection | None:
    return next((found for check in checks if (found := check(reading, seen)) is not None), None)


def _no(reading: Reading[Quantity], rule: str, detail: str, nearest_fix: str = "") -> Rejection:
    return Rejection(reading.source, rule, detail, nearest_fix)


def _words(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

"""May a decision rest on this reading?

How old, how high and how odd it may be, by one row per signal and by what the source said before; every no is a
`Rejection`.
"""

# harch: pure

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Literal

from harch.base.rejection import Rejection
from harch.carbon.units import LBS_PER_MWH_IN_G_PER_KWH
from harch.carbon.values import CarbonIntensity, Evidence, Quantity, Reading, Signal

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalLimits:
    """What a reading of one signal must keep to.

    `low` and `high` are physical. `odd_factor` says how many times more or less than usual a value may be before it is
    doubted; None where honest values jump, as PV at sunrise and prices do. The margins are differences that are never
    odd: a narrow one below, because a false low value draws work to the place. `worse` is the direction that a careful
    decision assumes when sources contradict each other.
    """

    low: float
    high: float
    stale_after_s: float
    stuck_after_s: float | None = None
    odd_factor: float | None = None
    odd_margin_above: float = 0.0
    odd_margin_below: float = 0.0
    worse: Literal["high", "low"] = "high"


def _grid(low: float, high: float, stale_after_s: float, *, odd_margin_below: float = 15.0) -> SignalLimits:
    # A thermal plant emits at most about 1,200 g/kWh; a grid above it exists on paper only (see docs/guides/carbon.md).
    # Honest hours lie within a factor of three of their median, or within the spread that the zone itself has shown.
    return SignalLimits(
        low=low,
        high=high,
        stale_after_s=stale_after_s,
        stuck_after_s=48 * HOUR_S,  # whole numbers of a hydro grid do stay the same for a day
        odd_factor=3.0,
        odd_margin_above=50.0,
        odd_margin_below=odd_margin_below,
    )


def _meter(
    high: float, *, low: float = 0.0, stuck_after_s: float | None = 1800.0, worse: Literal["high", "low"] = "low"
) -> SignalLimits:
    return SignalLimits(low=low, high=high, stale_after_s=300.0, stuck_after_s=stuck_after_s, worse=worse)


DEFAULT_LIMITS: Mapping[Signal, SignalLimits] = MappingProxyType(
    {
        # No grid is cleaner than its cleanest plant: below 2 g over the life cycle, the unit is wrong.
        Signal.GRID_AVERAGE_LIFECYCLE: _grid(2.0, 1200.0, 3 * HOUR_S),
        Signal.GRID_AVERAGE_DIRECT: _grid(0.0, 1200.0, 3 * HOUR_S),
        # Where wind or sun is curtailed, one more kWh honestly costs nothing: no marginal value is oddly low.
        Signal.GRID_MARGINAL_LIFECYCLE: _grid(0.0, 1500.0, 0.5 * HOUR_S, odd_margin_below=1500.0),
        Signal.GRID_MARGINAL_DIRECT: _grid(0.0, 1500.0, 0.5 * HOUR_S, odd_margin_below=1500.0),
        Signal.CONTRACT_LIFECYCLE: SignalLimits(low=0.0, high=1200.0, stale_after_s=24 * HOUR_S),
        Signal.ONSITE_LIFECYCLE: SignalLimits(low=0.0, high=1200.0, stale_after_s=24 * HOUR_S),
        Signal.RENEWABLE_SHARE: SignalLimits(low=0.0, high=1.0, stale_after_s=3 * HOUR_S, worse="low"),
        Signal.PV_POWER: _meter(1e6),
        Signal.WIND_POWER: _meter(1e6),
        Signal.BATTERY_POWER: _meter(1e6, low=-1e6),
        Signal.BATTERY_CHARGE: _meter(1e7, stuck_after_s=None),  # an idle battery holds its charge
        Signal.GPU_POWER: _meter(1e6, worse="high"),
        Signal.FACILITY_POWER: _meter(1e6, worse="high"),
        # Currencies differ by factors of hundreds, so this bounds nonsense only. Exchanges have seen -484 and 3,072.
        Signal.PRICE: SignalLimits(low=-1e5, high=1e7, stale_after_s=1.25 * HOUR_S),
        Signal.PUE: SignalLimits(low=1.0, high=4.0, stale_after_s=24 * HOUR_S),
        Signal.IRRADIANCE: SignalLimits(
            low=0.0, high=1500.0, stale_after_s=2 * HOUR_S, stuck_after_s=3 * HOUR_S, worse="low"
        ),
        Signal.WIND_SPEED_10M: SignalLimits(
            low=0.0, high=75.0, stale_after_s=2 * HOUR_S, stuck_after_s=12 * HOUR_S, worse="low"
        ),
        Signal.WIND_SPEED_80M: SignalLimits(
            low=0.0, high=90.0, stale_after_s=2 * HOUR_S, stuck_after_s=12 * HOUR_S, worse="low"
        ),
        Signal.CLOUD_COVER: SignalLimits(low=0.0, high=1.0, stale_after_s=2 * HOUR_S),
        Signal.TEMPERATURE: SignalLimits(low=-90.0, high=60.0, stale_after_s=2 * HOUR_S, stuck_after_s=24 * HOUR_S),
    }
)


# What has a source said about a signal before? The last samples, one per moment, and what is typical of them.


SAMPLES_MAX = 600  # two days of values every 5 minutes, or five hours of a meter read every 30 s

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class SignalSample:
    """One plausible number. Doubted ones are kept as well, else a lasting change would be doubted forever."""

    at: datetime
    number: float
    doubted: bool = False


@dataclass(frozen=True, slots=True)
class SampleHistory:
    """Samples of one source, one place and one signal, in the order of their moments."""

    samples: tuple[SignalSample, ...] = ()

    @property
    def last(self) -> SignalSample | None:
        return self.samples[-1] if self.samples else None

    def with_sample(self, sample: SignalSample) -> SampleHistory:
        """A later value for the same moment is a correction and takes its place; an earlier moment is not taken."""
        last = self.last
        if last is None or sample.at > last.at:
            return SampleHistory((*self.samples[-(SAMPLES_MAX - 1) :], sample))
        return SampleHistory((*self.samples[:-1], sample)) if sample.at == last.at else self

    def numbers(self) -> list[float]:
        return [sample.number for sample in self.samples]

    def trusted(self, *, since: datetime | None = None) -> list[float]:
        """The values that nobody doubted when they came."""
        kept = (sample for sample in self.samples if not sample.doubted)
        return [sample.number for sample in kept if since is None or sample.at >= since]

    def settled(self, now: datetime) -> list[float]:
        """The values of more than a day ago: a lie of today is no evidence for itself."""
        return [sample.number for sample in self.samples if now - sample.at > DAY]

    def same_since(self, number: float) -> datetime | None:
        """Since when the value has been exactly this one, or None if it is another now."""
        since = None
        for sample in reversed(self.samples):
            if sample.number != number:
                break
            since = sample.at
        return since


NO_HISTORY = SampleHistory()


def quantile(numbers: Sequence[float], share: float) -> float:
    """The value that this share of at least one number does not exceed."""
    ordered = sorted(numbers)
    return ordered[round(share * (len(ordered) - 1))]


def median(numbers: Sequence[float]) -> float:
    """The middle of at least one number. (`statistics` would bring `random` into modules that must not know it.)"""
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def spread(numbers: Sequence[float]) -> float:
    """The median distance from the median, scaled to a standard deviation: a few wild values do not move it."""
    centre = median(numbers)
    return 1.4826 * median([abs(number - centre) for number in numbers])


# May a decision rest on this reading? A chain of rules; every no is a `Rejection` with its numbers.
#
# Rules on arrival look at the reading and at what the same source said before. What other sources say is weighed later,
# in `choice`, because it changes with every reading.


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
    limits: SignalLimits
    history: SampleHistory
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


def remembered(reading: Reading[Quantity], seen: Circumstances) -> SampleHistory:
    """The history after this reading."""
    if _first(reading, seen, PLAUSIBILITY) is not None:
        return seen.history
    doubted = _first(reading, seen, DOUBTS) is not None
    return seen.history.with_sample(SignalSample(reading.at, reading.value.number, doubted))


def check_number(reading: Reading[Quantity], _seen: Circumstances) -> Rejection | None:
    if math.isfinite(reading.value.number):
        return None
    return _no(reading, "number", f"{reading.value.number} is not a number", "contact the operator of the source")


def check_limits(reading: Reading[Quantity], seen: Circumstances) -> Rejection | None:
    number, limits = reading.value.number, seen.limits
    if number < limits.low:
        fix = "a negative value is impossible" if number < 0 <= limits.low else ""
        if isinstance(reading.value, CarbonIntensity) and 0 < number < limits.low:
            fix = f"as kg/kWh it would be {number * 1000:.4g} g/kWh; set the unit of the source"
        return _no(reading, "limits", f"{reading.value} is below {limits.low:g}", fix)
    high = limits.high if seen.number_max is None else min(limits.high, seen.number_max)
    if abs(number) > high:
        fix = "check the unit" + (" and the rated power in the carbon file" if seen.number_max is not None else "")
        if isinstance(reading.value, CarbonIntensity):
            fix = f"as lbs/MWh it would be {number / LBS_FACTOR:.4g} g/kWh; set the unit of the source"
        return _no(reading, "limits", f"{reading.value} is above {high:g}", fix)
    return None


def check_future(reading: Reading[Quantity], seen: Circumstances) -> Rejection | None:
    ahead_s = (reading.at - seen.now).total_seconds()
    if reading.ahead or ahead_s <= FUTURE_TOLERANCE_S:
        return None
    return _no(reading, "future", f"is {ahead_s:.0f} s in the future", "check the clocks")


def check_order(reading: Reading[Quantity], seen: Circumstances) -> Rejection | None:
    last = seen.history.last
    if last is None or reading.at >= last.at:
        return None
    back = last.at - reading.at
    return _no(reading, "backwards", f"is {_words(back)} older than the previous one", "the newer one is used")


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
        f"{number:.4g} is {number / usual:.2f} times the typical {usual:.4g}: probably lbs/MWh",
        f"as lbs/MWh it is {number / LBS_FACTOR:.4g} g/kWh: set the unit of the source",
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
        f"{number:.4g} is far from {usual}, typical of the last {len(numbers)} values of this source",
        "accepted once it lasts more than a day",
    )


# In this order: a number and a time that mean something, before anything is compared with them.
PLAUSIBILITY: tuple[Check, ...] = (check_number, check_limits, check_future, check_order)
DOUBTS: tuple[Check, ...] = (check_unit_jump, check_typical)


def staleness(reading: Reading[Quantity], *, now: datetime, limits: SignalLimits) -> Rejection | None:
    """Is it too old to rest on? A source that says until when a value holds is believed."""
    if reading.valid_until is not None:
        if now < reading.valid_until:
            return None
        return _no(reading, "stale", f"expired {_words(now - reading.valid_until)} ago", "set or fetch a new value")
    age = reading.age(now)
    if age.total_seconds() <= limits.stale_after_s:
        return None
    return _no(
        reading, "stale", f"is {_words(age)} old; the limit is {_words(timedelta(seconds=limits.stale_after_s))}"
    )


def stuckness(reading: Reading[Quantity], *, history: SampleHistory, limits: SignalLimits) -> Rejection | None:
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
    return _no(reading, "stuck", f"has been exactly {number:.6g} for {_words(still)}", "check the meter")


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

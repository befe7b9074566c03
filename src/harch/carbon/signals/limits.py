"""How old, how high and how odd may a reading be? One row per signal; operators replace rows in the carbon file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from harch.carbon.values import Signal

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
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


def _grid(low: float, high: float, stale_after_s: float, *, odd_margin_below: float = 15.0) -> Limits:
    # A thermal plant emits at most about 1,200 g/kWh; a grid above it exists on paper only (see docs/guides/carbon.md).
    # Honest hours lie within a factor of three of their median, or within the spread that the zone itself has shown.
    return Limits(
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
) -> Limits:
    return Limits(low=low, high=high, stale_after_s=300.0, stuck_after_s=stuck_after_s, worse=worse)


DEFAULT_LIMITS: Mapping[Signal, Limits] = MappingProxyType(
    {
        # No grid is cleaner than its cleanest plant: below 2 g over the life cycle, the unit is wrong.
        Signal.GRID_AVERAGE_LIFECYCLE: _grid(2.0, 1200.0, 3 * HOUR_S),
        Signal.GRID_AVERAGE_DIRECT: _grid(0.0, 1200.0, 3 * HOUR_S),
        # Where wind or sun is curtailed, one more kWh honestly costs nothing: no marginal value is oddly low.
        Signal.GRID_MARGINAL_LIFECYCLE: _grid(0.0, 1500.0, 0.5 * HOUR_S, odd_margin_below=1500.0),
        Signal.GRID_MARGINAL_DIRECT: _grid(0.0, 1500.0, 0.5 * HOUR_S, odd_margin_below=1500.0),
        Signal.CONTRACT_LIFECYCLE: Limits(low=0.0, high=1200.0, stale_after_s=24 * HOUR_S),
        Signal.ONSITE_LIFECYCLE: Limits(low=0.0, high=1200.0, stale_after_s=24 * HOUR_S),
        Signal.RENEWABLE_SHARE: Limits(low=0.0, high=1.0, stale_after_s=3 * HOUR_S, worse="low"),
        Signal.PV_POWER: _meter(1e6),
        Signal.WIND_POWER: _meter(1e6),
        Signal.BATTERY_POWER: _meter(1e6, low=-1e6),
        Signal.BATTERY_CHARGE: _meter(1e7, stuck_after_s=None),  # an idle battery holds its charge
        Signal.GPU_POWER: _meter(1e6, worse="high"),
        Signal.FACILITY_POWER: _meter(1e6, worse="high"),
        # Currencies differ by factors of hundreds, so this bounds nonsense only. Exchanges have seen -484 and 3,072.
        Signal.PRICE: Limits(low=-1e5, high=1e7, stale_after_s=1.25 * HOUR_S),
        Signal.PUE: Limits(low=1.0, high=4.0, stale_after_s=24 * HOUR_S),
        Signal.IRRADIANCE: Limits(
            low=0.0, high=1500.0, stale_after_s=2 * HOUR_S, stuck_after_s=3 * HOUR_S, worse="low"
        ),
        Signal.WIND_SPEED_10M: Limits(
            low=0.0, high=75.0, stale_after_s=2 * HOUR_S, stuck_after_s=12 * HOUR_S, worse="low"
        ),
        Signal.WIND_SPEED_80M: Limits(
            low=0.0, high=90.0, stale_after_s=2 * HOUR_S, stuck_after_s=12 * HOUR_S, worse="low"
        ),
        Signal.CLOUD_COVER: Limits(low=0.0, high=1.0, stale_after_s=2 * HOUR_S),
        Signal.TEMPERATURE: Limits(low=-90.0, high=60.0, stale_after_s=2 * HOUR_S, stuck_after_s=24 * HOUR_S),
    }
)

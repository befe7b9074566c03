"""What does a procurement plan start from? The site, its next hours and its contracts, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from harch.energy.steps import Array, Steps

EFFICIENCY = 0.92  # each way
WEAR_PER_MWH = 1.0
TERMINAL_PER_MWH = 40.0
# Without it the plan does not care when it stores surplus, waits for a later one, and that one may not come.
SALE_RISE_PER_MWH_H = 0.2
# A later purchase counts this much less per hour ahead: sun or wind may make it needless. Without it plans keep the
# battery for a dear hour that does not come, and have no room when the surplus does.
FADE_PER_H = 0.02


class Objective(StrEnum):
    """What a plan is for. `cost` does not chase revenue, `profit` counts it fully."""

    PROFIT = "profit"  # purchases less sales
    COST = "cost"  # purchases
    SELF_CONSUMPTION = "self-consumption"  # as little bought energy as possible, then profit


@dataclass(frozen=True, slots=True, kw_only=True)
class Battery:
    """A store behind the meter. `wear_per_mwh` is counted for every MWh that goes in or comes out."""

    energy_kwh: float
    power_kw: float
    floor_kwh: float = 0.0
    charge_efficiency: float = EFFICIENCY
    discharge_efficiency: float = EFFICIENCY
    wear_per_mwh: float = WEAR_PER_MWH
    to_grid: bool = False
    from_grid: bool = True  # False: own surplus only is stored


@dataclass(frozen=True, slots=True, kw_only=True)
class FlexibleLoad:
    """Energy that has to be used within the steps `first` (included) to `last` (excluded), when does not matter."""

    name: str
    energy_kwh: float
    power_kw: float
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PpaOffer:
    """What an agreement offers in each step, and what its energy counts as in the carbon budget."""

    name: str
    offered_kwh: Array
    per_mwh: float
    must_take: bool
    g_per_kwh: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandPeaks:
    """A charge per kW of monthly peak: the month of each step, and the peaks that those months have had already."""

    per_kw: float
    months: tuple[str, ...]
    before_kw: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Arrays have one entry per step; prices are per MWh in `currency`.

    `carbon_per_t` puts a price on emissions in the objective; it is no part of the bill. `budget_kg` limits the
    emissions of bought energy over the horizon: own plants do not count, so that selling own power and buying cleaner
    power for it never looks like a saving. With `budget_fades` later emissions count less in it, as later purchases do.
    """

    steps: Steps
    currency: str
    load_kwh: Array
    own_kwh: Array
    import_per_mwh: Array
    grid_g_per_kwh: Array
    import_kw_max: float
    sale_per_mwh: Array
    battery: Battery | None = None
    stored_kwh: float = 0.0
    flexible: tuple[FlexibleLoad, ...] = ()
    ppas: tuple[PpaOffer, ...] = ()
    demand: DemandPeaks | None = None
    budget_kg: float | None = None
    budget_fades: bool = False
    carbon_per_t: float = 0.0
    objective: Objective = Objective.PROFIT
    terminal_per_mwh: float = TERMINAL_PER_MWH
    sale_rise_per_mwh_h: float = SALE_RISE_PER_MWH_H
    fade_per_h: float = FADE_PER_H

    @property
    def fade(self) -> Array:
        """How much a purchase in each step counts in the objective. Bills are not touched by it."""
        hours_ahead: Array = self.steps.hours * np.arange(self.steps.count, dtype=np.float64)
        return np.asarray(np.exp(-self.fade_per_h * hours_ahead), dtype=np.float64)

    @property
    def surplus_kwh(self) -> Array:
        """What own plants give beyond the load that cannot wait."""
        return np.maximum(self.own_kwh - self.load_kwh, 0.0)

    @property
    def flexible_kwh_max(self) -> Array:
        """How much flexible load each step can take at most."""
        most = np.zeros(self.steps.count)
        for load in self.flexible:
            most[load.first : load.last] += load.power_kw * self.steps.hours
        return most

"""What does a procurement plan start from, and can a plan be made from it?

The site, its next hours and its contract; every mistake with its place and its fix.
"""

# harch: pure

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from harch.base.errors import Problems
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
class ProcurementProblem:
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


# Can a plan be made from this? Every mistake of a problem with its place and its fix, or nothing.


FLEXIBLE_MAX = 256
PPAS_MAX = 32
# What is beyond these was given in another unit: no site draws a TW, no grid emits 5 kg per kWh.
KWH_MAX = 1e9
PER_MWH_MAX = 1e8
G_PER_KWH_MAX = 5000.0
PER_T_MAX = 1e9


def problems_of(problem: ProcurementProblem) -> Problems:
    """Empty if the problem can be planned. It may still be that no plan supplies the load."""
    found = Problems()
    for name, values, low, high in (
        ("load_kwh", problem.load_kwh, 0.0, KWH_MAX),
        ("own_kwh", problem.own_kwh, 0.0, KWH_MAX),
        ("import_per_mwh", problem.import_per_mwh, -PER_MWH_MAX, PER_MWH_MAX),
        ("sale_per_mwh", problem.sale_per_mwh, -PER_MWH_MAX, PER_MWH_MAX),
        ("grid_g_per_kwh", problem.grid_g_per_kwh, 0.0, G_PER_KWH_MAX),
    ):
        _check_series(name, values, problem, low, high, found)
    _check_number("import_kw_max", problem.import_kw_max, 0, KWH_MAX, found)
    _check_number("carbon_per_t", problem.carbon_per_t, 0, PER_T_MAX, found)
    _check_number("terminal_per_mwh", problem.terminal_per_mwh, 0, PER_MWH_MAX, found)
    _check_number("sale_rise_per_mwh_h", problem.sale_rise_per_mwh_h, 0, PER_MWH_MAX, found)
    _check_number("fade_per_h", problem.fade_per_h, 0, 1, found)
    if problem.budget_kg is not None:
        # A budget below zero is a debt of earlier hours; it is kept as well as possible and reported.
        _check_number("budget_kg", problem.budget_kg, -KWH_MAX, KWH_MAX, found)
    if problem.battery is not None:
        _check_battery(problem.battery, problem.stored_kwh, found)
    _check_flexible(problem, found)
    _check_ppas(problem, found)
    _check_demand(problem, found)
    return found


def _check_series(
    name: str, values: Array, problem: ProcurementProblem, low: float, high: float, found: Problems
) -> None:
    if np.shape(values) != (problem.steps.count,):
        found.add(name, f"has {np.size(values)} values for {problem.steps.count} steps")
        return
    wrong = ~(np.isfinite(values) & (values >= low) & (values <= high))
    if wrong.any():
        first = int(np.argmax(wrong))
        when = f"{problem.steps.at(first):%Y-%m-%dT%H:%MZ}"
        found.add(name, f"is {values[first]:g} at {when} ({int(wrong.sum())} such steps); use {low:g} to {high:g}")


def _check_number(name: str, value: float, low: float, high: float, found: Problems) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        found.add(name, f"is {value:g}; use {low:g} to {high:g}")


def _check_battery(battery: Battery, stored_kwh: float, found: Problems) -> None:
    _check_number("battery.energy_kwh", battery.energy_kwh, 0, KWH_MAX, found)
    _check_number("battery.power_kw", battery.power_kw, 0, KWH_MAX, found)
    _check_number("battery.floor_kwh", battery.floor_kwh, 0, battery.energy_kwh, found)
    _check_number("battery.charge_efficiency", battery.charge_efficiency, 0.01, 1, found)
    _check_number("battery.discharge_efficiency", battery.discharge_efficiency, 0.01, 1, found)
    _check_number("battery.wear_per_mwh", battery.wear_per_mwh, 0, PER_MWH_MAX, found)
    # A meter that reads a little beyond the limits is taken as full or empty.
    if not (math.isfinite(stored_kwh) and -0.05 * battery.energy_kwh <= stored_kwh <= 1.05 * battery.energy_kwh):
        found.add("stored_kwh", f"is {stored_kwh:g} in a battery of {battery.energy_kwh:g} kWh")


def _check_flexible(problem: ProcurementProblem, found: Problems) -> None:
    if len(problem.flexible) > FLEXIBLE_MAX:
        found.add(
            "flexible", f"has {len(problem.flexible)} loads, the limit is {FLEXIBLE_MAX}; group them into classes"
        )
        return
    names = [load.name for load in problem.flexible]
    if len(set(names)) != len(names):
        found.add("flexible", "two loads have the same name")
    for load in problem.flexible:
        _check_window(load, problem, found)


def _check_window(load: FlexibleLoad, problem: ProcurementProblem, found: Problems) -> None:
    where = f"flexible.{load.name}"
    _check_number(f"{where}.energy_kwh", load.energy_kwh, 0, KWH_MAX, found)
    _check_number(f"{where}.power_kw", load.power_kw, 0, KWH_MAX, found)
    if not 0 <= load.first < load.last <= problem.steps.count:
        found.add(where, f"has the window {load.first} to {load.last} in a horizon of {problem.steps.count} steps")
    elif load.energy_kwh > load.power_kw * problem.steps.hours * (load.last - load.first) * (1 + 1e-9):
        most = load.power_kw * problem.steps.hours * (load.last - load.first)
        found.add(where, f"needs {load.energy_kwh:g} kWh and can take {most:g} kWh in its window; widen it")


def _check_ppas(problem: ProcurementProblem, found: Problems) -> None:
    if len(problem.ppas) > PPAS_MAX:
        found.add("ppas", f"has {len(problem.ppas)} agreements, the limit is {PPAS_MAX}")
        return
    names = [ppa.name for ppa in problem.ppas]
    if len(set(names)) != len(names):
        found.add("ppas", "two agreements have the same name")
    for ppa in problem.ppas:
        _check_series(f"ppas.{ppa.name}.offered_kwh", ppa.offered_kwh, problem, 0.0, KWH_MAX, found)
        _check_series(f"ppas.{ppa.name}.g_per_kwh", ppa.g_per_kwh, problem, 0.0, G_PER_KWH_MAX, found)
        _check_number(f"ppas.{ppa.name}.per_mwh", ppa.per_mwh, -PER_MWH_MAX, PER_MWH_MAX, found)


def _check_demand(problem: ProcurementProblem, found: Problems) -> None:
    if problem.demand is None:
        return
    _check_number("demand.per_kw", problem.demand.per_kw, 0, PER_MWH_MAX, found)
    if len(problem.demand.months) != problem.steps.count:
        found.add("demand.months", f"has {len(problem.demand.months)} entries for {problem.steps.count} steps")
    for month, before_kw in problem.demand.before_kw.items():
        _check_number(f"demand.before_kw.{month}", before_kw, 0, KWH_MAX, found)

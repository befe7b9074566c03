"""How is procurement a linear program?

Columns, rows and prices of one problem; which way power may flow in each step is decided before.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harch.carbon.planning.linear import Index, Solved, SparseProgram, solve
from harch.energy.procurement.problem import Battery, Objective, ProcurementProblem
from harch.energy.steps import KWH_PER_MWH, Array

# Which way may power flow in each step? What one meter and one battery cannot do at once is decided before the plan.
#
# A linear program would buy and sell in one step where selling pays more than buying costs, and charge and discharge at
# once where it is paid to use power. Neither is possible behind one meter. In such steps, and only there, one of the
# two
# is closed beforehand. That keeps the program linear, and bounded at zero and negative prices.


Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class OneWay:
    """Steps in which a first solution charged and discharged at once, with the way that was the stronger one.

    Where power will be paid for being used, an empty battery is worth money, and moving energy in a circle empties it.
    No price of the step itself tells; it is seen only in the solution.
    """

    charging_only: Mask
    discharging_only: Mask

    def applied(self, directions: Directions) -> Directions:
        return replace(
            directions,
            charging=directions.charging & ~self.discharging_only,
            discharging=directions.discharging & ~self.charging_only,
        )

    def and_more(self, charge_kwh: Array, discharge_kwh: Array, tolerance_kwh: float) -> OneWay | None:
        """With the circles of one more solution; None if it has none."""
        circles = np.minimum(charge_kwh, discharge_kwh) > tolerance_kwh
        if not circles.any():
            return None
        charging = charge_kwh >= discharge_kwh
        return OneWay(self.charging_only | (circles & charging), self.discharging_only | (circles & ~charging))


@dataclass(frozen=True, slots=True)
class Directions:
    """True where it may happen."""

    buying: Mask
    selling: Mask
    charging: Mask
    discharging: Mask


def directions_of(
    problem: ProcurementProblem, buy_per_kwh: Array, sale_per_kwh: Array, *, supply_first: bool
) -> Directions:
    """`buy_per_kwh` and `sale_per_kwh` are as the objective sees them; the cheapest way to buy counts.

    With `supply_first` nothing is closed for buying: some sales are given up for what helps to supply the load.
    """
    hours = problem.steps.hours
    reach_kwh = problem.import_kw_max * hours
    doubtful = buy_per_kwh <= sale_per_kwh
    charge_kwh = 0.0 if problem.battery is None else problem.battery.power_kw * hours
    flexible_kwh = problem.flexible_kwh_max
    # What is earned by using as much bought power as possible, against selling what own plants have left.
    by_buying = np.maximum(-buy_per_kwh, 0.0) * (problem.load_kwh + charge_kwh + flexible_kwh)
    by_selling = sale_per_kwh * problem.surplus_kwh
    exports = (problem.surplus_kwh > 0) & (flexible_kwh <= problem.surplus_kwh) & (by_selling >= by_buying)
    if supply_first:
        exports = np.zeros_like(doubtful)
    paid_to_use = buy_per_kwh < 0
    short = problem.load_kwh + flexible_kwh > problem.own_kwh + reach_kwh
    return Directions(
        buying=~doubtful | ~exports,
        selling=~doubtful | exports,
        charging=~paid_to_use | ~short,
        discharging=~paid_to_use | short,
    )


# How is the program of a purchase plan written down? In blocks of columns and rows, for the planner's one solver.


TIME_LIMIT_S = 45.0
PRESOLVE_COLUMNS_MIN = 2000  # below it, simplifying a program takes longer than solving it

Solution = Solved  # duals of rows are what one unit more of the right-hand side costs

__all__ = ["Index", "LinearProgram", "Solution"]


@dataclass(slots=True)
class LinearProgram:
    """Minimise cost over columns within bounds, with rows within bounds. Filled block by block."""

    _program: SparseProgram = field(default_factory=SparseProgram)

    def columns(self, count: int, *, cost: ArrayLike = 0.0, low: ArrayLike = 0.0, high: ArrayLike = np.inf) -> Index:
        """New columns; their numbers, to be used in rows."""
        return self._program.add_columns(_filled(count, cost), _filled(count, low), _filled(count, high))

    def rows(self, count: int, *, low: ArrayLike = -np.inf, high: ArrayLike = np.inf) -> Index:
        return self._program.add_rows(_filled(count, low), _filled(count, high))

    def entries(self, rows: Index, columns: Index, values: ArrayLike) -> None:
        """Coefficients, one per pair; a single row or value holds for all columns."""
        self._program.enter(rows, columns, np.asarray(values, dtype=np.float64))

    def solve(self, *, time_limit_s: float = TIME_LIMIT_S) -> Solution:
        """Never raises for what the program says: a status that is not optimal is reported in `failure`."""
        small = self._program.columns < PRESOLVE_COLUMNS_MIN
        return solve(self._program, time_limit_s=time_limit_s, options={"presolve": "off"} if small else {})


def _filled(count: int, values: ArrayLike) -> Array:
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (count,))


# How is procurement a linear program? Columns, rows and prices of one problem, and the plan in its solution.
#
# Two slacks keep it solvable: load that nothing supplies, and emissions above the budget. Their prices are so high that
# they are used only where nothing else helps; the planner turns the first into a failure and reports the second.


WEAR_PER_MWH_MIN = 1e-3  # so that moving energy in a circle is never free
SALE_WEIGHT_OF_COST = 0.01  # the objective `cost` sells what is left over, and gives up nothing for it
BOUGHT_WEIGHT = 10.0  # of the objective `self-consumption`, times the highest price
# Per g of emissions above the budget, times the highest price of a kWh: postponing a purchase pays even if the
# intensities of two steps differ by a tenth of a gram.
OVER_WEIGHT_PER_G = 10.0


@dataclass(frozen=True, slots=True)
class ProcurementModel:
    """A program and where to find what in it. `None` or empty: the site has no such thing."""

    problem: ProcurementProblem
    program: LinearProgram
    penalty_per_kg: float
    imported: Index
    own_used: Index
    own_sold: Index
    unserved: Index
    charge: Index
    discharge: Index
    battery_sold: Index
    stored: Index
    ppas: tuple[Index, ...]
    flexible: tuple[Index, ...]
    over: Index
    balance_rows: Index
    stored_rows: Index
    budget_rows: Index

    def solve(self) -> Solution:
        return self.program.solve()


def build_model(
    problem: ProcurementProblem, *, supply_first: bool = False, one_way: OneWay | None = None
) -> ProcurementModel:
    """The program of a problem that passed its checks."""
    return _Builder(problem, supply_first, one_way).build()


class _Builder:
    def __init__(self, problem: ProcurementProblem, supply_first: bool, one_way: OneWay | None) -> None:
        self.problem = problem
        self.program = LinearProgram()
        self.count = problem.steps.count
        self.hours = problem.steps.hours
        self.highest_per_kwh = _highest_price(problem) / KWH_PER_MWH
        self.penalty_per_kg = OVER_WEIGHT_PER_G * 1000 * self.highest_per_kwh
        self.buy_per_kwh = self._bought(problem.import_per_mwh, problem.grid_g_per_kwh)
        self.ppa_per_kwh = tuple(
            self._bought(np.full(self.count, 0.0 if ppa.must_take else ppa.per_mwh), ppa.g_per_kwh)
            for ppa in problem.ppas
        )
        if supply_first:
            # Nobody is paid to use power here, so nothing is gained by using it twice.
            self.buy_per_kwh = np.maximum(self.buy_per_kwh, 0.0)
            self.ppa_per_kwh = tuple(np.maximum(per_kwh, 0.0) for per_kwh in self.ppa_per_kwh)
        self.sale_per_kwh = self._sale_values()
        cheapest = np.min([self.buy_per_kwh, *self._offered_prices()], axis=0)
        found = directions_of(problem, cheapest, self.sale_per_kwh, supply_first=supply_first)
        self.open = found if one_way is None else one_way.applied(found)

    def build(self) -> ProcurementModel:
        problem, program, count = self.problem, self.program, self.count
        balance = program.rows(count, low=problem.load_kwh, high=problem.load_kwh)
        import_max = np.where(self.open.buying, problem.import_kw_max * self.hours, 0.0)
        imported = program.columns(count, cost=self.buy_per_kwh, high=import_max)
        own_used = program.columns(count, high=problem.own_kwh)
        sold_max = np.where(self.open.selling, problem.surplus_kwh, 0.0)
        own_sold = program.columns(count, cost=-self.sale_per_kwh, high=sold_max)
        own_rows = program.rows(count, high=problem.own_kwh)
        for columns in (own_used, own_sold):
            program.entries(own_rows, columns, 1.0)
        emitted_max = float(problem.grid_g_per_kwh.max(initial=0.0)) / 1000
        unserved = program.columns(count, cost=1000 * self.highest_per_kwh + 2 * emitted_max * self.penalty_per_kg)
        for columns in (imported, own_used, unserved):
            program.entries(balance, columns, 1.0)
        ppas = tuple(self._ppa(index, balance) for index in range(len(problem.ppas)))
        self._limit_meter((imported, *ppas))
        flexible = tuple(self._flexible(index, balance) for index in range(len(problem.flexible)))
        charge, discharge, battery_sold, stored, stored_rows = self._battery(balance)
        self._peaks((imported, *ppas))
        over, budget_rows = self._budget(imported, ppas)
        return ProcurementModel(
            problem=problem,
            program=program,
            penalty_per_kg=self.penalty_per_kg,
            imported=imported,
            own_used=own_used,
            own_sold=own_sold,
            unserved=unserved,
            charge=charge,
            discharge=discharge,
            battery_sold=battery_sold,
            stored=stored,
            ppas=ppas,
            flexible=flexible,
            over=over,
            balance_rows=balance,
            stored_rows=stored_rows,
            budget_rows=budget_rows,
        )

    def _bought(self, per_mwh: Array, g_per_kwh: Array) -> Array:
        """What the objective sees in a bought kWh: its price, its carbon at a stated price, and that it was bought."""
        weight = BOUGHT_WEIGHT * self.highest_per_kwh if self.problem.objective is Objective.SELF_CONSUMPTION else 0.0
        return (per_mwh / KWH_PER_MWH + g_per_kwh * self.problem.carbon_per_t / 1e6 + weight) * self.problem.fade

    def _sale_values(self) -> Array:
        problem = self.problem
        if problem.objective is Objective.COST:
            return problem.sale_per_mwh * SALE_WEIGHT_OF_COST / KWH_PER_MWH
        hours_ahead = np.arange(self.count) * self.hours
        return (problem.sale_per_mwh + problem.sale_rise_per_mwh_h * hours_ahead) / KWH_PER_MWH

    def _offered_prices(self) -> list[Array]:
        """Of agreements, only where they offer something."""
        return [
            np.where(ppa.offered_kwh > 0, per_kwh, np.inf)
            for ppa, per_kwh in zip(self.problem.ppas, self.ppa_per_kwh, strict=True)
        ]

    def _ppa(self, index: int, balance: Index) -> Index:
        offered = np.where(self.open.buying, self.problem.ppas[index].offered_kwh, 0.0)
        used = self.program.columns(self.count, cost=self.ppa_per_kwh[index], high=offered)
        self.program.entries(balance, used, 1.0)
        return used

    def _limit_meter(self, bought: tuple[Index, ...]) -> None:
        """Agreements come through the same connection as the rest."""
        if len(bought) == 1:
            return
        rows = self.program.rows(self.count, high=self.problem.import_kw_max * self.hours)
        for columns in bought:
            self.program.entries(rows, columns, 1.0)

    def _flexible(self, index: int, balance: Index) -> Index:
        load = self.problem.flexible[index]
        used = self.program.columns(load.last - load.first, high=load.power_kw * self.hours)
        self.program.entries(balance[load.first : load.last], used, -1.0)
        total = self.program.rows(1, low=load.energy_kwh, high=load.energy_kwh)
        self.program.entries(total, used, 1.0)
        return used

    def _battery(self, balance: Index) -> tuple[Index, Index, Index, Index, Index]:
        none = np.zeros(0, dtype=np.int64)
        battery, program, count = self.problem.battery, self.program, self.count
        if battery is None:
            return none, none, none, none, none
        wear = max(battery.wear_per_mwh, WEAR_PER_MWH_MIN) / KWH_PER_MWH
        most = battery.power_kw * self.hours
        charge_max = np.where(self.open.charging, most, 0.0)
        if not battery.from_grid:
            charge_max = np.minimum(charge_max, self.problem.surplus_kwh)
        charge = program.columns(count, cost=wear, high=charge_max)
        discharge = program.columns(count, cost=wear, high=np.where(self.open.discharging, most, 0.0))
        worth = np.zeros(count)
        worth[-1] = -self.problem.terminal_per_mwh / KWH_PER_MWH
        stored = program.columns(count, cost=worth, low=battery.floor_kwh, high=battery.energy_kwh)
        program.entries(balance, charge, -1.0)
        program.entries(balance, discharge, 1.0)
        start = np.zeros(count)
        start[0] = first_stored_kwh(self.problem, battery)
        rows = program.rows(count, low=start, high=start)
        program.entries(rows, stored, 1.0)
        program.entries(rows[1:], stored[:-1], -1.0)
        program.entries(rows, charge, -battery.charge_efficiency)
        program.entries(rows, discharge, 1 / battery.discharge_efficiency)
        return charge, discharge, self._battery_sales(battery, balance, discharge), stored, rows

    def _battery_sales(self, battery: Battery, balance: Index, discharge: Index) -> Index:
        if not battery.to_grid:
            return np.zeros(0, dtype=np.int64)
        most = np.where(self.open.selling, battery.power_kw * self.hours, 0.0)
        sold = self.program.columns(self.count, cost=-self.sale_per_kwh, high=most)
        self.program.entries(balance, sold, -1.0)
        rows = self.program.rows(self.count, high=0.0)
        self.program.entries(rows, sold, 1.0)
        self.program.entries(rows, discharge, -1.0)
        return sold

    def _peaks(self, bought: tuple[Index, ...]) -> None:
        """One column per month: its peak, never below the one it has had. What is above that is paid for."""
        demand = self.problem.demand
        if demand is None:
            return
        months = np.array(demand.months)
        for month in dict.fromkeys(demand.months):
            inside = np.flatnonzero(months == month)
            peak = self.program.columns(1, cost=demand.per_kw, low=demand.before_kw.get(month, 0.0))
            rows = self.program.rows(len(inside), high=0.0)
            for columns in bought:
                self.program.entries(rows, columns[inside], 1 / self.hours)
            self.program.entries(rows, np.repeat(peak, len(inside)), -1.0)

    def _budget(self, imported: Index, ppas: tuple[Index, ...]) -> tuple[Index, Index]:
        problem, program = self.problem, self.program
        if problem.budget_kg is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        over = program.columns(1, cost=self.penalty_per_kg)
        row = program.rows(1, high=problem.budget_kg)
        weight = problem.fade / 1000 if problem.budget_fades else np.full(self.count, 1 / 1000)
        program.entries(row, imported, problem.grid_g_per_kwh * weight)
        for columns, ppa in zip(ppas, problem.ppas, strict=True):
            program.entries(row, columns, ppa.g_per_kwh * weight)
        program.entries(row, over, -1.0)
        return over, row


def first_stored_kwh(problem: ProcurementProblem, battery: Battery) -> float:
    """What the meter of the battery says, within what the battery can hold."""
    return min(max(problem.stored_kwh, battery.floor_kwh), battery.energy_kwh)


def _highest_price(problem: ProcurementProblem) -> float:
    """The largest price of the problem in any direction, per MWh; 1 if everything is free."""
    prices = [np.abs(problem.import_per_mwh).max(initial=0.0), np.abs(problem.sale_per_mwh).max(initial=0.0)]
    prices += [abs(ppa.per_mwh) for ppa in problem.ppas]
    return max(1.0, *(float(price) for price in prices))

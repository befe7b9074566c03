"""How fast is a procurement plan, and is it worth having? A year of real prices and intensities, modelled plants.

`measure` adds its goals to a verdict, so that `bench/carbon.py` can include them; alone it prints its own.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from energy_data import BATTERY, LOAD_KW, MARKETS, PV_KW, SALE_PER_MWH, SEED, WIND_KW, Year, read_year, windows
from energy_replay import Outcome, replay_rolling, replay_whole
from harch.energy.procurement.plan import PlanFailure, ProcurementPlan
from harch.energy.procurement.planner import plan_by_rule, plan_procurement
from harch.energy.procurement.problem import DemandPeaks, FlexibleLoad, PpaOffer, ProcurementProblem
from harch.energy.steps import Steps
from verdict import Verdict, conditions

DATA = Path(os.environ.get("HARCH_CARBON_DATA", Path(__file__).parents[2] / "shared/data/carbon"))
WINDOW_DAYS = 30
SPEED_SOLVES = 200


class Timed:
    """A planner with a watch."""

    def __init__(self) -> None:
        self.took_ms: list[float] = []
        self.cpu_ms: list[float] = []

    def __call__(self, problem: ProcurementProblem) -> ProcurementPlan | PlanFailure:
        started, cpu = time.perf_counter(), time.process_time()
        plan = plan_procurement(problem)
        self.took_ms.append((time.perf_counter() - started) * 1000)
        self.cpu_ms.append((time.process_time() - cpu) * 1000)
        return plan

    def words(self) -> str:
        """The first ones load the library. CPU time is beside the wall clock, because the machine may be busy."""
        middle, high = np.percentile(self.took_ms[5:], [50, 95])
        cpu_middle, cpu_high = np.percentile(self.cpu_ms[5:], [50, 95])
        return (
            f"{middle:.1f} ms median, {high:.1f} ms p95 ({cpu_middle:.1f} and {cpu_high:.1f} ms of CPU), "
            f"{len(self.took_ms) - 5} solves"
        )

    def p95_ms(self) -> float:
        return float(np.percentile(self.took_ms[5:], 95))


def measure(verdict: Verdict, data: Path, *, zone: str = "ES", year: int = 2022, seed: int = SEED) -> None:
    history = read_year(data, zone, year, seed)
    speed(verdict, history)
    replays(verdict, history, year)


def speed(verdict: Verdict, history: Year) -> None:
    """36 hours with everything a site can have: battery, agreement, flexible load, demand charge, budget."""
    for step_s, name in ((3600, "hourly"), (1800, "half-hourly")):
        timed = Timed()
        for index in range(SPEED_SOLVES):
            timed(_full_problem(history, index, step_s))
        print(f"procurement LP, 36 h {name}: {timed.words()}")
        verdict.goal(f"procurement LP, 36 h {name}, p95", "< 50", timed.p95_ms(), "ms")


def _full_problem(history: Year, index: int, step_s: int) -> ProcurementProblem:
    now = windows(history.start.year)[index % 4].replace(hour=index % 24)
    plain = history.outlook(now, Steps(now, 3600, 36))
    parts = 3600 // step_s
    steps = Steps(now, step_s, 36 * parts)
    arrays = {
        name: np.repeat(getattr(plain, name), parts) / (parts if name.endswith("_kwh") else 1)
        for name in ("load_kwh", "own_kwh", "import_per_mwh", "grid_g_per_kwh", "sale_per_mwh")
    }
    offer = PpaOffer(
        name="wind",
        offered_kwh=np.full(steps.count, 100.0 / parts),
        per_mwh=60.0,
        must_take=False,
        g_per_kwh=arrays["grid_g_per_kwh"],
    )
    flexible = tuple(
        FlexibleLoad(name=f"class-{number}", energy_kwh=300, power_kw=100, first=number * parts, last=24 * parts)
        for number in range(8)
    )
    peaks = DemandPeaks(per_kw=5.0, months=("this",) * steps.count, before_kw={"this": 400.0})
    return replace(plain, steps=steps, ppas=(offer,), flexible=flexible, demand=peaks, budget_kg=2000.0, **arrays)


def replays(verdict: Verdict, history: Year, year: int) -> None:
    """Rule, rolling plans and perfect forecast over whole months."""
    print(
        f"replay: {LOAD_KW:.0f} kW load, {PV_KW:.0f} kW PV and {WIND_KW:.0f} kW wind (modelled), "
        f"{BATTERY.energy_kwh:.0f} kWh / {BATTERY.power_kw:.0f} kW battery, sale {SALE_PER_MWH:.0f} USD/MWh; "
        f"real {history.spot.zone} {year} prices (tomorrow's known from {history.market.published_at:%H:%M} "
        f"{history.market.market_time}) and average lifecycle intensity by location; emissions of bought energy only"
    )
    timed = Timed()
    for number, first in enumerate(windows(year), 1):
        world = history.world(first, WINDOW_DAYS)
        rule = replay_whole(world, plan_by_rule)
        rolling = replay_rolling(world, history.outlook, planning=timed)
        # What nobody can beat: one plan over the whole month with everything known, under the rule's emissions.
        known = replace(world, budget_kg=rule.emitted_kg, sale_rise_per_mwh_h=0.0, fade_per_h=0.0)
        oracle = replay_whole(known, plan_procurement)
        print(f"  window {number}, {first:%Y-%m-%d}, {WINDOW_DAYS} days: rule {_words(rule, rule)}")
        print(f"    rolling plans {_words(rolling, rule)}; perfect forecast {_words(oracle, rule)}")
        verdict.goal(f"window {number}: cost of rolling plans / rule", "<= 1", _relation(rolling, rule))
        verdict.goal(f"window {number}: cost of perfect forecast / rolling plans", "<= 1", _relation(oracle, rolling))
        verdict.goal(f"window {number}: emissions / rule", "<= 1", rolling.emitted_kg / rule.emitted_kg)
    print(f"  plans on the way: {timed.words()}")
    verdict.goal("plans of the replay, p95", "< 50", timed.p95_ms(), "ms")


def _relation(one: Outcome, other: Outcome) -> float:
    """Of costs; also where sales have made them negative: below 1 is cheaper."""
    return 1 + (one.cost - other.cost) / abs(other.cost)


def _words(outcome: Outcome, rule: Outcome) -> str:
    cost, carbon = _relation(outcome, rule) - 1, outcome.emitted_kg / rule.emitted_kg - 1
    words = f"{outcome.cost:,.0f} USD ({cost:+.1%}), {outcome.emitted_kg / 1000:.2f} t ({carbon:+.2%})"
    return f"{words}, by the rule in {outcome.steps_by_rule} h" if outcome.steps_by_rule else words


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, default=DATA, help="the folder of the carbon data")
    options.add_argument("--zone", default="ES", choices=sorted(MARKETS))
    options.add_argument("--year", type=int, default=2022)
    options.add_argument("--seed", type=int, default=SEED, help="of the modelled weather")
    chosen = options.parse_args()
    print(f"conditions: {conditions()}")
    verdict = Verdict("energy")
    measure(verdict, chosen.data, zone=chosen.zone, year=chosen.year, seed=chosen.seed)
    verdict.print()


if __name__ == "__main__":
    main()

"""How much carbon does planning save, at what price, and how fast is a plan? Then forecasts and procurement, if asked.

Replays the shipped scenarios over whole weeks of all seasons with real jobs, gangs, migration cost and the real
scheduler of every hub: naive, HarchOS, and HarchOS with a perfect weather forecast. All figures of emissions are
modelled. `--out` keeps each week as it is done, so that a long run can be taken up again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec import structs

from carbon_bound import least_g_and_kwh
from carbon_scale import big_problem
from harch.carbon.planning.plan import booked, plan_carbon
from harch.carbon.planning.program import plan_classes
from harch.carbon.planning.work import classes_of
from harch.fleet.file import shipped_fleet
from harch.simulate.carbon import POLICIES, CarbonTally, case_report, periods_of, replay_period
from harch.simulate.carbon_scenario import Scenario, ScenarioCase, load_scenario, with_days
from verdict import Verdict, conditions

SCENARIOS = ("onsite-124", "grid-only", "full-house-94")
PARTS = ("scenarios", "replan", "forecast", "energy")
REPLANS = 5
Line = Callable[[str], None]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("HARCH_CARBON_DATA", str(Path(__file__).parents[2] / "shared/data/carbon"))
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options.add_argument("--scenarios", nargs="+", default=SCENARIOS)
    options.add_argument("--cases", nargs="+", type=int, help="numbers of the cases, from 0; all if absent")
    options.add_argument(
        "--weeks", nargs="+", type=int, help="numbers of the weeks, from 0; all if absent: a look only"
    )
    options.add_argument("--days", type=int, help="days of each week: a look only")
    options.add_argument("--seed", type=int, help="another seed of work and weather than the scenario's own")
    options.add_argument("--out", type=Path, help="folder that keeps each week's figures")
    options.add_argument("--data", type=Path, default=Path(default), help="folder of the public series")
    chosen = options.parse_args()
    verdict = Verdict("carbon")
    print(f"conditions: {conditions()}", flush=True)
    if "scenarios" in chosen.parts:
        for name in chosen.scenarios:
            scenario = load_scenario(name)
            scenario = scenario if chosen.days is None else with_days(scenario, chosen.days)
            scenario = scenario if chosen.seed is None else structs.replace(scenario, seed=chosen.seed)
            replayed(verdict, print, scenario, cases=chosen.cases, weeks=chosen.weeks, out=chosen.out)
    if "replan" in chosen.parts:
        replan(verdict, print)
    if "forecast" in chosen.parts and _has(chosen.data, "forecasts"):
        import carbon_forecast

        for part in carbon_forecast.PARTS:
            carbon_forecast.measure(part, chosen.data, verdict, print)
    if "energy" in chosen.parts and _has(chosen.data, "procurement"):
        import energy

        energy.measure(verdict, chosen.data)
    verdict.print()


def replayed(
    verdict: Verdict,
    line: Line,
    scenario: Scenario,
    *,
    cases: list[int] | None = None,
    weeks: list[int] | None = None,
    out: Path | None = None,
) -> None:
    """One table per scenario. Only `onsite-124` has goals for its savings; the others are shown, whatever they say."""
    from harch.placement.policy.engine import warm

    warm()
    numbers = range(len(scenario.weeks)) if weeks is None else weeks
    line(f"\n### {scenario.name}: {scenario.about}; estimated\n")
    line(
        f"{len(numbers)} weeks of {scenario.days} days, seed {scenario.seed}; {100 * scenario.deferrable_share:.0f} % "
        f"deferrable, {100 * scenario.pinned_share:.0f} % pinned; by location, average lifecycle grid and own plants\n"
    )
    line(
        "|asked|PV/wind|policy|g/kWh|saving %|of oracle's|own %|allocated %|MWh|not ended|missed|broken|violations|"
        "inference p99 s|urgent p99 s|deferred h|moves|suspended|"
    )
    line("|" + "---|" * 18)
    for number, case in enumerate(scenario.cases):
        if cases is None or number in cases:
            tallies = _tallies(scenario, case, number, list(numbers), out)
            report = case_report(case, tallies, [], days=scenario.days * len(numbers))
            _show(line, case, report)
            _goals(verdict, scenario, case, report)
    for number, case in enumerate(scenario.cases):
        if cases is None or number in cases:
            _show_bound(line, scenario, case, list(numbers))


def _tallies(
    scenario: Scenario, case: ScenarioCase, number: int, weeks: list[int], out: Path | None
) -> dict[str, CarbonTally]:
    fleet = shipped_fleet(scenario.fleet)
    tallies = {policy: CarbonTally(fleet) for policy in POLICIES}
    for week, period in enumerate(periods_of(fleet, scenario, case)):
        for policy in POLICIES if week in weeks else ():
            name = f"{scenario.name}-{scenario.seed}-{number}-{week}-{scenario.days}-{policy}.json"
            kept = None if out is None else out / name
            if kept is not None and kept.is_file():
                one = CarbonTally(fleet, **json.loads(kept.read_text()))
            else:
                one = CarbonTally(fleet)
                one.add(replay_period(fleet, scenario, period, policy))
                if kept is not None:
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    plain = {name: value for name, value in vars(one).items() if name != "fleet"}
                    kept.write_text(json.dumps(plain))
            tallies[policy].join(one)
    return tallies


def _show(line: Line, case: ScenarioCase, report: dict[str, object]) -> None:
    for policy, found in _dict(report["policies"]).items():
        one = _dict(found)
        saving = {"naive": "", "harch": report["saving_pct"], "oracle": report["oracle_saving_pct"]}[policy]
        cells = [
            f"{case.utilisation:g}",
            f"{case.pv_times:g}/{case.wind_times:g}",
            policy,
            one["g_per_kwh"],
            saving,
            report["share_of_oracle_pct"] if policy == "harch" else "",
            *(
                one[name]
                for name in (
                    "onsite_pct",
                    "allocation_pct",
                    "mwh",
                    "jobs_not_ended",
                    "deadline_misses",
                    "promises_broken",
                    "violations",
                    "inference_wait_p99_s",
                    "urgent_wait_p99_s",
                    "deferred_mean_h",
                    "moves",
                    "suspensions",
                )
            ),
        ]
        line("|" + "|".join(str(cell) for cell in cells) + "|")


def _show_bound(line: Line, scenario: Scenario, case: ScenarioCase, weeks: list[int]) -> None:
    """What divisible work, free moves and a known future would emit: a look at what no policy can beat."""
    fleet = shipped_fleet(scenario.fleet)
    periods = periods_of(fleet, scenario, case)
    least = [least_g_and_kwh(fleet, periods[week], scenario.days) for week in weeks]
    g_per_kwh = sum(grams for grams, _ in least) / sum(kwh for _, kwh in least)
    by_week = ", ".join(f"{grams / kwh:.1f}" for grams, kwh in least)
    line(f"\nNo policy at {100 * case.utilisation:.0f} % can be below {g_per_kwh:.1f} g/kWh (by week: {by_week})")


def _goals(verdict: Verdict, scenario: Scenario, case: ScenarioCase, report: dict[str, object]) -> None:
    naive, ours, oracle = (_dict(_dict(report["policies"])[name]) for name in ("naive", "harch", "oracle"))
    where = f"{scenario.name} at {100 * case.utilisation:.0f} %, PV/wind {case.pv_times:g}/{case.wind_times:g}"
    all_three = (naive, ours, oracle)
    verdict.goal(f"{where}: violations", "== 0", sum(_number(one["violations"]) for one in all_three))
    if scenario.name != "onsite-124":
        return
    verdict.goal(f"{where}: below naive", ">= 62", _number(report["saving_pct"]), "%")
    verdict.goal(f"{where}: intensity", "< 50", _number(ours["g_per_kwh"]), "g/kWh")
    verdict.goal(f"{where}: of the oracle's saving", ">= 90", _number(report["share_of_oracle_pct"]), "%")
    verdict.goal(f"{where}: deadlines missed", "== 0", _number(ours["deadline_misses"]))
    verdict.goal(f"{where}: promises broken", "== 0", _number(ours["promises_broken"]))
    throughput = _number(ours["gpu_hours_done"]) / max(_number(naive["gpu_hours_done"]), 1e-9)
    verdict.goal(f"{where}: work done over naive's", ">= 1", throughput, "times")
    worse = _number(ours["inference_wait_p99_s"]) - _number(naive["inference_wait_p99_s"])
    verdict.goal(f"{where}: p99 wait of inference over that without carbon routing", "<= 0", worse, "s")


def replan(verdict: Verdict, line: Line) -> None:
    """5,000 jobs, 20 hubs, 96 hours: the plan over classes, and with a decision for every job. CPU time of one core."""
    of_classes, of_jobs = [], []
    for seed in range(REPLANS):
        outlook, demand = big_problem(seed)
        began = time.process_time()
        busy_kw, gpus_free = booked(outlook, ())
        classes = plan_classes(
            outlook, classes_of(demand, outlook.steps, outlook.step_h), busy_kw=busy_kw, gpus_free=gpus_free
        )
        of_classes.append(time.process_time() - began)
        began = time.process_time()
        plan_carbon(outlook, demand, ())
        of_jobs.append(time.process_time() - began)
        if classes.failure:
            line(f"no solver: {classes.failure}")
    size = f"{len(demand.waiting)} jobs x {len(outlook.hubs)} hubs x {outlook.steps * outlook.step_h:g} h"
    line(
        f"\nRe-plan of {size}, median and slowest of {REPLANS}, s of CPU: over classes {np.median(of_classes):.2f} and "
        f"{max(of_classes):.2f}; with a decision for every job {np.median(of_jobs):.2f} and {max(of_jobs):.2f}"
    )
    verdict.goal(f"re-plan over classes, {size}, median", "< 1", float(np.median(of_classes)), "s")
    verdict.goal(f"re-plan with a decision for every job, {size}, median", "< 1", float(np.median(of_jobs)), "s")


def _has(data: Path, what: str) -> bool:
    if data.is_dir():
        return True
    print(f"{what}: skipped, no folder {data}", flush=True)
    return False


def _dict(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


if __name__ == "__main__":
    main()

"""How much carbon would planning have saved? The function behind `harch simulate carbon`: naive, HarchOS, oracle.

All three get the same jobs, the same plants and the same weather. The oracle is the same planner with a perfect weather
forecast. Every figure is modelled, and the report says of what it is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from harch.base.clock import Clock, SystemClock
from harch.carbon.planning.moves import MoveRules
from harch.fleet.model import Fleet
from harch.simulate.carbon_jobs import CarbonJob, draw_jobs
from harch.simulate.carbon_meter import Plants
from harch.simulate.carbon_replay import CarbonReplay, Progress
from harch.simulate.carbon_report import Tally, case_report, hourly_kwh
from harch.simulate.carbon_routers import NaiveRouter, PlannedRouter
from harch.simulate.carbon_scenario import Case, Scenario
from harch.simulate.carbon_weather import weather_of
from harch.simulate.policies import new_policy

POLICIES = ("naive", "harch", "oracle")


@dataclass(frozen=True, eq=False)
class Period:
    """One week of one case: what comes, and what the plants give."""

    first_day: datetime
    jobs: tuple[CarbonJob, ...]
    plants: dict[str, Plants]


def periods_of(fleet: Fleet, scenario: Scenario, case: Case) -> tuple[Period, ...]:
    """Seeds differ from week to week, and follow from the scenario's."""
    found = []
    for number, day in enumerate(scenario.weeks):
        first_day = datetime(day.year, day.month, day.day, tzinfo=UTC)
        weather = weather_of(fleet, scenario.weather, first_day, scenario.days, seed=scenario.seed)
        plants = {}
        for hub in fleet.hubs:
            it_kw = sum(node.power_w_max for node in hub.nodes) / 1000
            one = weather.hubs[hub.id]
            plants[hub.id] = Plants(
                it_kw * case.pv_times * one.pv_share,
                it_kw * case.wind_times * one.wind_share,
                one.grid_g_per_kwh,
                scenario.weather.onsite_g_per_kwh,
                hub.pue,
            )
        jobs = draw_jobs(fleet, scenario, case.utilisation, seed=scenario.seed * 1000 + number)
        found.append(Period(first_day, jobs, plants))
    return tuple(found)


def replay_period(
    fleet: Fleet,
    scenario: Scenario,
    period: Period,
    policy: str,
    *,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> CarbonReplay:
    moving = scenario.moving
    again_h = (moving.checkpoint_every_s / 2 + moving.restart_s + moving.stop_s) / 3600
    rules = MoveRules(again_h=again_h, kwh_per_gb=moving.transfer_kwh_per_gb)
    planner = None
    if policy != "naive":
        slack_h = max(kind.slack_h for kind in scenario.work)
        perfect = policy == "oracle"
        planner = PlannedRouter(fleet, period.plants, perfect=perfect, moves=rules, slack_h=slack_h)
    replay = CarbonReplay(
        fleet,
        period.jobs,
        period.plants,
        moving,
        planner or NaiveRouter(fleet),
        new_policy("harch"),
        days=scenario.days,
        clock=clock or SystemClock(),
        planner=planner,
        progress=progress,
    )
    replay.run()
    return replay


@dataclass(frozen=True, eq=False)
class Outcome:
    """What was found: the report as plain values, and hourly kWh (on site, grid) of the first week for a plot."""

    report: dict[str, object]
    hourly: list[dict[str, dict[int, tuple[float, float]]]]  # by case and policy


def simulate_carbon(
    fleet: Fleet, scenario: Scenario, *, clock: Clock | None = None, progress: Progress | None = None
) -> Outcome:
    """Every case under every policy. Equal arguments give equal figures, but for wall-clock times."""
    from harch.placement.policy.engine import warm

    warm()
    cases, hourly = [], []
    for case in scenario.cases:
        tallies = {policy: Tally(fleet) for policy in POLICIES}
        weeks: list[dict[str, object]] = []
        first: dict[str, dict[int, tuple[float, float]]] = {}
        for period in periods_of(fleet, scenario, case):
            week: dict[str, object] = {"first_day": f"{period.first_day:%Y-%m-%d}", "jobs": len(period.jobs)}
            for policy in POLICIES:
                replay = replay_period(fleet, scenario, period, policy, clock=clock, progress=progress)
                week[policy] = round(tallies[policy].add(replay), 2)
                if not weeks:
                    first[policy] = hourly_kwh(replay)
            weeks.append(week)
        cases.append(case_report(case, tallies, weeks, days=scenario.days * len(scenario.weeks)))
        hourly.append(first)
    return Outcome({**_conditions(fleet, scenario), "cases": cases}, hourly)


def _conditions(fleet: Fleet, scenario: Scenario) -> dict[str, object]:
    """What every figure of the report must be read with."""
    return {
        "scenario": scenario.name,
        "about": scenario.about,
        "evidence": "estimated",
        "accounting": "location-based, average lifecycle grid intensity (yearly means) and on-site plants by their own "
        "factor; no export credit; billed with what the plants gave, not with the forecast",
        "energy": "of work, at the meter (IT power times PUE); idle nodes are taken to sleep",
        "naive": "at once, at the hub where it came in, elsewhere only if that is full; same plants",
        "oracle": "the same planner with a perfect forecast of the weather",
        "fleet": fleet.name,
        "gpus": fleet.gpu_count,
        "seed": scenario.seed,
        "days_per_week": scenario.days,
        "deferrable_share": round(scenario.deferrable_share, 4),
        "pinned_share": round(scenario.pinned_share, 4),
        "weather": scenario.weather.csv or "modelled",
    }

"""How much carbon would planning have saved?

The function behind `harch simulate carbon` (naive, HarchOS, oracle), and its numbers per policy over all weeks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime

import numpy as np

from harch.base.clock import Clock, SystemClock
from harch.carbon.planning.dispatch import MoveRules
from harch.fleet.model import Fleet
from harch.simulate.carbon_replay import CarbonReplay, Progress
from harch.simulate.carbon_routers import NaiveRouter, PlannedRouter
from harch.simulate.carbon_scenario import CarbonJob, Scenario, ScenarioCase, draw_jobs
from harch.simulate.carbon_weather import Plants, weather_of
from harch.simulate.policies import new_policy
from harch.workloads.spec import SchedulingClass


@dataclass
class CarbonTally:
    """One policy over several weeks."""

    fleet: Fleet
    kwh: float = 0.0
    it_kwh: float = 0.0
    onsite_kwh: float = 0.0
    grams: float = 0.0
    jobs: int = 0
    ended: int = 0
    gpu_hours_done: float = 0.0
    held_gpu_hours: float = 0.0
    again_gpu_hours: float = 0.0
    misses: int = 0
    broken: int = 0
    violations: int = 0
    moves: int = 0
    suspensions: int = 0
    inference_waits_s: list[float] = field(default_factory=list)
    urgent_waits_s: list[float] = field(default_factory=list)
    urgent_delays_s: list[float] = field(default_factory=list)
    deferrals_s: list[float] = field(default_factory=list)
    deciding_ms: list[float] = field(default_factory=list)
    replans_s: list[float] = field(default_factory=list)

    def add(self, replay: CarbonReplay) -> float:
        """Takes one week; answers its g/kWh."""
        counts, meters = replay.counts, replay.meters.values()
        week_g, week_kwh = sum(meter.grams for meter in meters), sum(meter.kwh for meter in meters)
        self.grams += week_g
        self.kwh += week_kwh
        self.it_kwh += sum(meter.it_kwh for meter in meters)
        self.onsite_kwh += sum(meter.onsite_kwh for meter in meters)
        self.jobs += len(replay.jobs)
        self.ended += len(counts.ended_s)
        self.held_gpu_hours += counts.held_gpu_s / 3600
        self.again_gpu_hours += counts.again_gpu_s / 3600
        self.misses += replay.deadline_misses()
        self.broken += replay.promises_broken()
        self.violations += replay.violations.total()
        self.moves += counts.moves
        self.suspensions += counts.suspensions
        self.deciding_ms += counts.deciding_ms
        self.replans_s += counts.replans_s
        for job in replay.jobs:
            ended_s = counts.ended_s.get(job.request.id)
            if ended_s is None:
                continue
            self.gpu_hours_done += job.duration_s * job.kind.gpus / 3600
            wait_s = counts.waits_s[job.request.id]
            if job.deferrable:
                self.deferrals_s.append(ended_s - job.request.submitted_s - job.duration_s)
                continue
            self.urgent_waits_s.append(wait_s)
            self.urgent_delays_s.append(ended_s - job.request.submitted_s - job.duration_s)
            if job.request.turn_class is SchedulingClass.INFERENCE:
                self.inference_waits_s.append(wait_s)
        return week_g / week_kwh if week_kwh else 0.0

    def join(self, other: CarbonTally) -> None:
        """Takes what another has counted."""
        for entry in fields(self):
            if entry.name != "fleet":
                setattr(self, entry.name, getattr(self, entry.name) + getattr(other, entry.name))

    @property
    def g_per_kwh(self) -> float:
        return self.grams / self.kwh if self.kwh else 0.0

    def as_dict(self, days: int) -> dict[str, object]:
        return {
            "g_per_kwh": round(self.g_per_kwh, 2),
            "kg": round(self.grams / 1000, 1),
            "mwh": round(self.kwh / 1000, 2),
            "mwh_it": round(self.it_kwh / 1000, 2),
            "onsite_pct": round(100 * self.onsite_kwh / self.kwh, 2) if self.kwh else 0.0,
            "allocation_pct": round(100 * self.held_gpu_hours / (self.fleet.gpu_count * days * 24), 2),
            "jobs_ended": self.ended,
            "jobs_not_ended": self.jobs - self.ended,
            "gpu_hours_done": round(self.gpu_hours_done, 1),
            "gpu_hours_twice": round(self.again_gpu_hours, 1),
            "violations": self.violations,
            "deadline_misses": self.misses,
            "promises_broken": self.broken,
            "moves": self.moves,
            "suspensions": self.suspensions,
            "inference_wait_p99_s": _quantile(self.inference_waits_s, 0.99),
            "inference_wait_mean_s": _mean(self.inference_waits_s),
            "urgent_wait_p99_s": _quantile(self.urgent_waits_s, 0.99),
            "urgent_delay_mean_s": _mean(self.urgent_delays_s),
            "deferred_mean_h": round(_mean(self.deferrals_s) / 3600, 2),
            "deferred_max_h": round(_quantile(self.deferrals_s, 1.0) / 3600, 2),
            "inference_deciding_ms_p99": _quantile(self.deciding_ms, 0.99),
            "replan_s_p50": _quantile(self.replans_s, 0.5),
            "replan_s_max": _quantile(self.replans_s, 1.0),
        }


def case_report(
    case: ScenarioCase, tallies: dict[str, CarbonTally], weeks: list[dict[str, object]], *, days: int
) -> dict[str, object]:
    naive, ours, oracle = (tallies[name] for name in ("naive", "harch", "oracle"))
    saving, possible = (1 - one.g_per_kwh / naive.g_per_kwh if naive.g_per_kwh else 0.0 for one in (ours, oracle))
    return {
        "utilisation_asked": case.utilisation,
        "pv_times": case.pv_times,
        "wind_times": case.wind_times,
        "jobs": naive.jobs,
        "saving_pct": round(100 * saving, 2),
        "oracle_saving_pct": round(100 * possible, 2),
        "share_of_oracle_pct": round(100 * saving / possible, 2) if possible > 0 else None,
        "grams_saving_pct": round(100 * (1 - ours.grams / naive.grams), 2) if naive.grams else 0.0,
        "policies": {name: tally.as_dict(days) for name, tally in tallies.items()},
        "weeks": weeks,
    }


def hourly_kwh(replay: CarbonReplay) -> dict[int, tuple[float, float]]:
    """Of all hubs together, by hour: on site and grid."""
    sums: defaultdict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for meter in replay.meters.values():
        for hour, (onsite, grid) in meter.hourly_kwh.items():
            before = sums[hour]
            sums[hour] = (before[0] + onsite, before[1] + grid)
    return dict(sums)


def _quantile(values: list[float], share: float) -> float:
    return round(float(np.quantile(values, share)), 3) if values else 0.0


def _mean(values: list[float]) -> float:
    return round(float(np.mean(values)), 3) if values else 0.0


# How much carbon would planning have saved? The function behind `harch simulate carbon`: naive, HarchOS, oracle.
#
# All three get the same jobs, the same plants and the same weather. The oracle is the same planner with a perfect
# weather
# forecast. Every figure is modelled, and the report says of what it is made.


POLICIES = ("naive", "harch", "oracle")


@dataclass(frozen=True, eq=False)
class Period:
    """One week of one case: what comes, and what the plants give."""

    first_day: datetime
    jobs: tuple[CarbonJob, ...]
    plants: dict[str, Plants]


def periods_of(fleet: Fleet, scenario: Scenario, case: ScenarioCase) -> tuple[Period, ...]:
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
class CarbonOutcome:
    """What was found: the report as plain values, and hourly kWh (on site, grid) of the first week, for its curves."""

    report: dict[str, object]
    hourly: list[dict[str, dict[int, tuple[float, float]]]]  # by case and policy


def simulate_carbon(
    fleet: Fleet, scenario: Scenario, *, clock: Clock | None = None, progress: Progress | None = None
) -> CarbonOutcome:
    """Every case under every policy. Equal arguments give equal figures, but for wall-clock times."""
    from harch.placement.policy.engine import warm

    warm()
    cases, hourly = [], []
    replays, ended = len(scenario.cases) * len(scenario.weeks) * len(POLICIES), 0

    def advance(done_s: float, of_s: float) -> None:
        if progress is not None:
            progress(ended + done_s / of_s, replays)

    for case in scenario.cases:
        tallies = {policy: CarbonTally(fleet) for policy in POLICIES}
        weeks: list[dict[str, object]] = []
        first: dict[str, dict[int, tuple[float, float]]] = {}
        for period in periods_of(fleet, scenario, case):
            week: dict[str, object] = {"first_day": f"{period.first_day:%Y-%m-%d}", "jobs": len(period.jobs)}
            for policy in POLICIES:
                replay = replay_period(fleet, scenario, period, policy, clock=clock, progress=advance)
                ended += 1
                week[policy] = round(tallies[policy].add(replay), 2)
                if not weeks:
                    first[policy] = hourly_kwh(replay)
            weeks.append(week)
        cases.append(case_report(case, tallies, weeks, days=scenario.days * len(scenario.weeks)))
        hourly.append(first)
    return CarbonOutcome({**_conditions(fleet, scenario), "cases": cases}, hourly)


def _conditions(fleet: Fleet, scenario: Scenario) -> dict[str, object]:
    """What every figure of the report must be read with."""
    return {
        "scenario": scenario.name,
        "about": scenario.about,
        "evidence": "estimated",
        "accounting": "location-based, average lifecycle grid intensity (yearly means) and on-site plants by their own "
        "factor; no export credit; billed by actual plant output, not the forecast",
        "energy": "of work, at the meter (IT power times PUE); idle nodes are assumed to sleep",
        "naive": "immediate start at the hub of arrival, elsewhere only if that is full; same plants",
        "oracle": "the same planner with a perfect forecast of the weather",
        "fleet": fleet.name,
        "gpus": fleet.gpu_count,
        "seed": scenario.seed,
        "days_per_week": scenario.days,
        "deferrable_share": round(scenario.deferrable_share, 4),
        "pinned_share": round(scenario.pinned_share, 4),
        "weather": scenario.weather.csv or "modelled",
    }

"""What happened in a step? Gathered while it runs, and one record when it is over.

The running step is gathered in memory. A crash costs its readings up to then; the record is made from those after.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np
from msgspec import Struct

from harch.base.errors import HarchError
from harch.energy.carbon_price import USD_PER_T, CarbonPrices, predicted_prices
from harch.energy.currencies import ExchangeRates
from harch.energy.procurement.contract import problem_under
from harch.energy.procurement.period_balance import PeriodBalance, plan_within
from harch.energy.procurement.plan import PlanFailure, ProcurementPlan
from harch.energy.procurement.planner import plan_by_rule, plan_procurement
from harch.energy.procurement.problem import FlexibleLoad, ProcurementProblem
from harch.energy.procurement.safeguards import Planning
from harch.energy.site import EnergySite
from harch.energy.steps import Array, Steps
from harch.energy.tariffs.prices import SpotSeries, expected_spot
from harch.energy.tariffs.terms import SpotPrice

REMEMBER = timedelta(days=40)  # in memory: a month of peaks, a week of loads


class StepRecord(Struct, frozen=True, kw_only=True):
    """One step that is over. Emissions are sums of the month from `since` on; `per_mwh` is what a source reported."""

    at: datetime
    step_s: int
    load_kwh: float
    own_kwh: float
    import_kwh: float
    agreements_kwh: float
    charge_kwh: float
    discharge_kwh: float
    stored_kwh: float
    rule_stored_kwh: float
    grid_g_per_kwh: float
    per_mwh: float | None
    since: datetime
    emitted_kg: float
    rule_emitted_kg: float
    planner: str

    @property
    def bought_kw(self) -> float:
        return (self.import_kwh + self.agreements_kwh) / (self.step_s / 3600)


@dataclass(slots=True)
class Gathered:
    """Means of one running step."""

    start: datetime
    _load_kw: list[float] = field(default_factory=list)
    _own_kw: list[float] = field(default_factory=list)
    _g_per_kwh: list[float] = field(default_factory=list)
    _per_mwh: list[float] = field(default_factory=list)

    def note(self, load_kw: float, own_kw: float, g_per_kwh: float | None, per_mwh: float | None) -> None:
        self._load_kw.append(max(0.0, load_kw))
        self._own_kw.append(max(0.0, own_kw))
        if g_per_kwh is not None:
            self._g_per_kwh.append(g_per_kwh)
        if per_mwh is not None:
            self._per_mwh.append(per_mwh)

    @property
    def load_kw(self) -> float:
        return _mean(self._load_kw) or 0.0

    @property
    def own_kw(self) -> float:
        return _mean(self._own_kw) or 0.0

    @property
    def g_per_kwh(self) -> float | None:
        return _mean(self._g_per_kwh)

    @property
    def per_mwh(self) -> float | None:
        return _mean(self._per_mwh)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


# What does the hub expect of the next hours? Its past, forecasts and the contract, put together as a problem. Pure.


HORIZON_H = 36
MARKET_HORIZON_H = 60  # to the end of the next market day, whenever one looks
USUAL_DAYS = 7
DECAY_H = 12.0  # a load that is not the usual one is expected to become so
G_PER_KWH_UNKNOWN = 500.0  # where nobody knows the grid at all: a mean of the world


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known at a moment. Series are by full hour, in UTC."""

    now: datetime
    load_kw: float
    own_kw: float
    g_per_kwh: float | None
    own_kw_ahead: Mapping[datetime, float] = field(default_factory=dict)
    g_per_kwh_ahead: Mapping[datetime, float] = field(default_factory=dict)
    past: Sequence[StepRecord] = ()
    spot: SpotSeries | None = None
    rests_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """The problem of the next hours, and what to know about it. `prices_assumed`: nothing may be bid on it."""

    problem: ProcurementProblem
    prices_assumed: bool
    spot_per_mwh: Array | None
    notes: tuple[str, ...]


def steps_ahead(site: EnergySite, now: datetime) -> Steps:
    """From the step that runs."""
    horizon_h = MARKET_HORIZON_H if isinstance(site.tariff.energy, SpotPrice) else HORIZON_H
    return Steps(step_of(now, site.step_s), site.step_s, horizon_h * 3600 // site.step_s)


def step_of(moment: datetime, step_s: int) -> datetime:
    return datetime.fromtimestamp(moment.timestamp() // step_s * step_s, UTC)


def expected_problem(
    site: EnergySite,
    known: Known,
    *,
    import_kw_max: float,
    plants_kwh: Mapping[str, Array],
    stored_kwh: float,
    budget_kg: float | None,
) -> Expected:
    """Raises HarchError E0242 for what cannot be planned on."""
    steps, notes = steps_ahead(site, known.now), []
    load = _load_kw(known, steps) * steps.hours
    own = _own_kw(known, steps) * steps.hours
    grid, guessed = _grid(known, steps)
    if guessed:
        notes.append(guessed)
    spot, assumed = _spot(site, known, steps)
    if assumed:
        notes.append(assumed)
    fixed, flexible = _flexible(site, load, steps)
    problem = problem_under(
        site.tariff,
        steps,
        load_kwh=fixed,
        own_kwh=own,
        grid_g_per_kwh=grid,
        import_kw_max=import_kw_max,
        spot_per_mwh=spot,
        plants_kwh=plants_kwh,
        peaks_before_kw=peaks_kw(site, known.past),
    )
    problem = replace(
        problem,
        battery=site.battery,
        stored_kwh=stored_kwh,
        flexible=flexible,
        budget_kg=budget_kg,
        objective=site.objective,
    )
    return Expected(problem, bool(assumed), spot, tuple(notes))


def peaks_kw(site: EnergySite, past: Sequence[StepRecord]) -> dict[str, float]:
    """The highest mean power of each local month so far."""
    peaks: dict[str, float] = {}
    for record in past:
        month = f"{record.at.astimezone(site.tariff.local_time):%Y-%m}"
        peaks[month] = max(peaks.get(month, 0.0), record.bought_kw)
    return peaks


def budget_until(end: datetime, per_month_kg: float, *, since: datetime, emitted_kg: float) -> float:
    """What may be emitted up to `end`: each month's budget in step with the month, less what was emitted `since`."""
    allowed, start = -emitted_kg, since
    while start < end:
        first = start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        after = month_end(start)
        until = min(after, end)
        allowed += per_month_kg * ((until - start) / (after - first))
        start = until
    return allowed


def month_end(moment: datetime) -> datetime:
    """Of the UTC month: accounts are closed by it."""
    first = moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (first + timedelta(days=32)).replace(day=1)


def _load_kw(known: Known, steps: Steps) -> Array:
    """The usual of that hour over the last days, drawn towards what is drawn now."""
    by_hour: dict[int, list[float]] = {}
    for record in known.past:
        if known.now - record.at <= timedelta(days=USUAL_DAYS):
            by_hour.setdefault(record.at.hour, []).append(record.load_kwh / (record.step_s / 3600))
    usual = {hour: sum(values) / len(values) for hour, values in by_hour.items()}
    starts = steps.starts()
    deviation = known.load_kw - usual.get(starts[0].hour, known.load_kw)
    hours_ahead = np.arange(steps.count) * steps.hours
    expected = np.array([usual.get(moment.hour, known.load_kw - deviation) for moment in starts])
    return np.asarray(np.maximum(expected + deviation * np.exp(-hours_ahead / DECAY_H), 0.0), dtype=np.float64)


def _own_kw(known: Known, steps: Steps) -> Array:
    """The running step as it is, later ones as the plants' outlook says; nothing where nobody says anything."""
    ahead = [known.own_kw_ahead.get(_hour(moment), 0.0) for moment in steps.starts()]
    return np.array([max(0.0, kw) for kw in (known.own_kw, *ahead[1:])])


def _grid(known: Known, steps: Steps) -> tuple[Array, str]:
    now = known.g_per_kwh
    guessed = ""
    if now is None:
        now = next(iter(known.g_per_kwh_ahead.values()), None)
    if now is None:
        now, guessed = G_PER_KWH_UNKNOWN, f"the grid is unknown: {G_PER_KWH_UNKNOWN:g} g/kWh assumed"
    elif not known.g_per_kwh_ahead:
        guessed = "no forecast of the grid yet: its intensity is assumed to stay the same"
    ahead = [known.g_per_kwh_ahead.get(_hour(moment), now) for moment in steps.starts()]
    return np.array([now, *ahead[1:]]), guessed


def _spot(site: EnergySite, known: Known, steps: Steps) -> tuple[Array | None, str]:
    terms = site.tariff.energy
    if not isinstance(terms, SpotPrice):
        return None, ""
    assumed = site.market.assumed_per_mwh if site.market is not None else 0.0
    if known.spot is None:
        note = f"no price of {terms.zone} is known: {assumed:g} {site.tariff.currency}/MWh assumed, nothing is bid"
        return np.full(steps.count, assumed), note
    prices = expected_spot(known.spot, terms, steps, now=known.now)
    gaps = ~np.isfinite(prices)
    if not gaps.any():
        return prices, ""
    note = f"{int(gaps.sum())} steps have no price of {terms.zone}: {assumed:g} assumed, nothing is bid"
    return np.where(gaps, assumed, prices), note


def _flexible(site: EnergySite, load_kwh: Array, steps: Steps) -> tuple[Array, tuple[FlexibleLoad, ...]]:
    """The load that cannot wait, and for each flexible part its energy of the next hours within its limits."""
    fixed, found = load_kwh.copy(), []
    for one in site.flexible:
        last = min(steps.count, max(1, round(one.within_h / steps.hours)))
        most = one.power_kw_max * steps.hours * last
        energy = min(float(load_kwh[:last].sum()) * one.share, most)
        if energy <= 0:
            continue
        fixed[:last] -= load_kwh[:last] * energy / float(load_kwh[:last].sum())
        found.append(FlexibleLoad(name=one.name, energy_kwh=energy, power_kw=one.power_kw_max, first=0, last=last))
    return np.maximum(fixed, 0.0), tuple(found)


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


# Which plan does the hub follow now? Expectations in; the plan and its prices out, or why there is none.


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where the month stands: what both have emitted since `since`, and what both have stored."""

    since: datetime
    standing: PeriodBalance


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan and everything that is shown with it."""

    made_at: datetime
    expected: Expected
    plan: ProcurementPlan
    prices: CarbonPrices
    account: Account
    rests_on: tuple[str, ...]
    shadow_per_t: float | None


def plan_ahead(
    site: EnergySite,
    known: Known,
    account: Account,
    *,
    import_kw_max: float,
    plants_kwh: dict[str, Array],
    planning: Planning = plan_procurement,
) -> Planned:
    """Raises HarchError: E0340 for a load that nothing can supply, E0242 for figures that no plan can rest on."""
    steps = steps_ahead(site, known.now)
    budget_kg = None
    if site.budget_kg_per_month is not None:
        emitted = account.standing.emitted_kg
        budget_kg = budget_until(steps.end, site.budget_kg_per_month, since=account.since, emitted_kg=emitted)
    expected = expected_problem(
        site,
        known,
        import_kw_max=import_kw_max,
        plants_kwh=plants_kwh,
        stored_kwh=account.standing.stored_kwh,
        budget_kg=budget_kg,
    )
    left = int((month_end(known.now) - steps.start).total_seconds()) // steps.step_s
    plan = _follow(expected, account.standing, left, planning)
    # Without a penalty no optimiser has looked at the budget, and nobody knows what its last tonne is worth.
    shadow = plan.carbon.shadow_per_t if budget_kg is not None and plan.carbon.penalty_per_t else None
    return Planned(
        made_at=known.now,
        expected=expected,
        plan=replace(plan, notes=(*plan.notes, *expected.notes)),
        prices=_prices(site, expected, shadow),
        account=account,
        rests_on=known.rests_on,
        shadow_per_t=shadow,
    )


def _follow(expected: Expected, standing: PeriodBalance, steps_left: int, planning: Planning) -> ProcurementPlan:
    problem = expected.problem
    try:
        plan = plan_within(problem, standing, steps_left=steps_left, planning=planning)
    except HarchError:
        raise
    except Exception as error:  # noqa: BLE001 (the solver is native code: whatever it does, the rule serves)
        plan = plan_by_rule(problem, note=f"planned by the rule: the optimiser failed ({type(error).__name__})")
    if isinstance(plan, PlanFailure):
        raise plan.error()
    return plan


def _prices(site: EnergySite, expected: Expected, shadow_per_t: float | None) -> CarbonPrices:
    problem, currency = expected.problem, site.tariff.currency
    stated = site.carbon_per_t if site.carbon_per_t is not None else (USD_PER_T if currency == "USD" else 0.0)
    return predicted_prices(
        problem.steps,
        problem.import_per_mwh,
        problem.grid_g_per_kwh,
        currency=currency,
        usd_per_t=stated,
        shadow_per_t=shadow_per_t,
        rates=ExchangeRates({currency: 1.0}, "the energy file states the price in the contract's currency"),
    )

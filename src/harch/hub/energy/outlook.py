"""What does the hub expect of the next hours? Its past, forecasts and the contract, put together as a problem. Pure.

Whatever is missing is filled with the most sober stand-in and said in the notes: a plan always rests on something, and
people can read on what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np

from harch.energy.procurement.contract import problem_under
from harch.energy.procurement.problem import FlexibleLoad, Problem
from harch.energy.site import EnergySite
from harch.energy.steps import Array, Steps
from harch.energy.tariffs.prices import SpotSeries, expected_spot
from harch.energy.tariffs.terms import SpotPrice
from harch.hub.energy.step import StepRecord

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

    problem: Problem
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
        now, guessed = G_PER_KWH_UNKNOWN, f"nobody knows the grid: {G_PER_KWH_UNKNOWN:g} g/kWh assumed"
    elif not known.g_per_kwh_ahead:
        guessed = "no forecast of the grid yet: its intensity is taken to stay as it is"
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

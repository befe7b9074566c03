"""What would this piece of work have emitted without carbon routing? At its home hub, started at once, same renewables.

The home hub's plants are shared in proportion with its other own work, as in the ledger. Guests are left out of that
work: without routing they would not have been there. No fixed baseline is ever used; where the home hub's conditions of
that time are not known, there is no answer, and the charge says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import fsum

from msgspec import Struct

from harch.carbon.ledger.charge import Charge, Factors, Grams, Interval, Naive, Supply, grams_of, not_negative
from harch.carbon.values import Evidence

AS_IT_RAN = "naive-1: home hub, started at once; that is how it ran"
MODELLED = "naive-1: home hub, started at once, shares the plants there with the hub's other own work"
HELD = "naive-1: home hub, started at once, never suspended, so nothing was held"

AT_ONCE = timedelta(minutes=5)  # waiting for a free GPU or the next round is no deferral


class HomeConditions(Struct, frozen=True, kw_only=True):
    """A hub as it was observed over the time when the work would have run there."""

    own_load_kwh: float  # at the meter, of its other own work and idle power; neither guests nor this job
    onsite_available_kwh: float
    ppa_share: float  # of what the grid delivered, what an agreement covered
    pue: float
    transmission_loss: float
    factors: Factors

    def __post_init__(self) -> None:
        for number in (self.own_load_kwh, self.onsite_available_kwh, self.ppa_share, self.transmission_loss):
            not_negative("conditions", number)
        not_negative("PUE above 1", self.pue - 1)
        not_negative("share that no agreement covers", 1 - self.ppa_share)


def conditions_of(charges: Sequence[Charge], *, job: str, duration: timedelta) -> HomeConditions:
    """A hub's conditions for `duration`, from all its charges of the interval in which the work would have begun."""
    first = charges[0]
    others = [charge for charge in charges if charge.home == charge.hub and charge.job != job]
    from_grid_kwh = fsum(charge.supply.grid_kwh + charge.supply.ppa_kwh for charge in charges)
    scale = duration / first.interval.duration
    return HomeConditions(
        own_load_kwh=fsum(charge.supply.kwh for charge in others) * scale,
        onsite_available_kwh=first.hub_onsite_kwh * scale,
        ppa_share=min(1.0, fsum(charge.supply.ppa_kwh for charge in charges) / from_grid_kwh) if from_grid_kwh else 0.0,
        pue=first.pue,
        transmission_loss=first.transmission_loss,
        factors=first.factors,
    )


class NaiveQuestion(Struct, frozen=True, kw_only=True):
    """A piece of work as it ran."""

    hub: str
    home: str
    interval: Interval
    submitted_at: datetime
    ran_s_before: float
    running_share: float  # of its energy; the rest went into GPUs that it held while suspended
    it_kwh: float
    supply: Supply
    factors: Factors
    grams: Grams
    evidence: Evidence


def naive_start(submitted_at: datetime, ran_s_before: float) -> datetime:
    """When this piece would have run if the job had started at once: so far into the job it already was."""
    return submitted_at + timedelta(seconds=ran_s_before)


def naive_run(question: NaiveQuestion, conditions: HomeConditions | None) -> tuple[Naive | None, str]:
    """The naive run, or None and why."""
    start = naive_start(question.submitted_at, question.ran_s_before)
    ran = question.running_share
    if ran <= 0:
        return _like(question, start, 0.0, HELD), ""
    if question.home == question.hub and question.interval.start - start <= AT_ONCE:
        return _like(question, start, ran, AS_IT_RAN), ""
    if conditions is None:
        return None, f"the conditions at {question.home} at {start:%Y-%m-%dT%H:%MZ} are not known"
    if conditions.factors.kinds != question.factors.kinds:
        return None, f"the factors at {question.home} are of other kinds than those that are billed"
    supply = _supply_at(conditions, question.it_kwh * ran * conditions.pue)
    return (
        Naive(
            home=question.home,
            start=start,
            supply=supply,
            grid=conditions.factors.grid,
            grams=grams_of(supply, conditions.factors, conditions.transmission_loss),
            evidence=Evidence.ESTIMATED,
            method=MODELLED,
        ),
        "",
    )


def _supply_at(conditions: HomeConditions, kwh: float) -> Supply:
    load_kwh = conditions.own_load_kwh + kwh
    onsite_kwh = kwh * min(1.0, conditions.onsite_available_kwh / load_kwh) if load_kwh > 0 else 0.0
    ppa_kwh = (kwh - onsite_kwh) * conditions.ppa_share
    return Supply(grid_kwh=max(0.0, kwh - onsite_kwh - ppa_kwh), onsite_kwh=onsite_kwh, ppa_kwh=ppa_kwh)


def _like(question: NaiveQuestion, start: datetime, share: float, method: str) -> Naive:
    """So much of what it really took."""
    return Naive(
        home=question.home,
        start=start,
        supply=question.supply.share(share),
        grid=question.factors.grid,
        grams=question.grams.share(share),
        evidence=question.evidence,
        method=method,
    )

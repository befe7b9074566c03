"""Who is charged for the energy of a hub, and what would the work have emitted without carbon routing?

Every kWh of the meter goes to the job that held the power, or to none.
"""

# harch: pure

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import fsum

from msgspec import Struct

from harch.base.errors import InvariantBroken
from harch.carbon.ledger.charge import Activity, Charge, Factors, Grams, Interval, Naive, Supply, grams_of, not_negative
from harch.carbon.values import Evidence

# What would this piece of work have emitted without carbon routing? At its home hub, started at once, same renewables.
#
# The home hub's plants are shared in proportion with its other own work, as in the ledger. Guests are left out of that
# work: without routing they would not have been there. No fixed baseline is ever used; where the home hub's
# conditions of
# that time are not known, there is no answer, and the charge says why.


AS_IT_RAN = "naive-1: home hub, immediate start; same as the actual run"
MODELLED = "naive-1: home hub, immediate start, on-site power shared with the hub's other work"
HELD = "naive-1: home hub, immediate start, never suspended, so nothing held"

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
        not_negative("share not covered by agreements", 1 - self.ppa_share)


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
        return None, f"the factors at {question.home} differ in kind from the billed ones"
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


# Who is charged for a hub's energy? Every kWh of the meter goes to the job that held the power, or to nobody by name.
#
# A job is charged what was measured or modelled for it, times the PUE, and never more. What the meter shows beyond that
# is `unallocated`: shown, and not spread over those who happen to run. Where the pieces exceed the meter, the meter is
# right and all pieces shrink alike. Own power is shared in proportion to energy. Surplus earns nobody a credit.


BALANCE_REL_MAX = 1e-6  # charges of an interval over its meter, minus 1
REMAINDER = "energy of the hub beyond the charges of all jobs"


class HubEnergyUse(Struct, frozen=True, kw_only=True):
    """What a hub used in one interval, by its meter or by a model, and where that came from."""

    kwh: float
    onsite_kwh: float = 0.0  # of own plants, used here at the moment it was made
    onsite_available_kwh: float = 0.0  # what they made, used or not
    ppa_kwh: float = 0.0  # of the grid's delivery, what an agreement covers
    pue: float = 1.0
    transmission_loss: float = 0.0  # of what the grid delivers
    evidence: Evidence
    method: str

    def __post_init__(self) -> None:
        for number in (self.kwh, self.onsite_kwh, self.ppa_kwh, self.transmission_loss):
            not_negative("energy and losses", number)
        not_negative("PUE above 1", self.pue - 1)
        slack = 1e-9 * self.kwh
        if self.onsite_kwh > self.onsite_available_kwh + slack or self.onsite_kwh + self.ppa_kwh > self.kwh + slack:
            raise ValueError("more own or contracted kWh than produced or used: surplus is not charged")

    @property
    def supply(self) -> Supply:
        grid_kwh = max(0.0, self.kwh - self.onsite_kwh - self.ppa_kwh)
        return Supply(grid_kwh=grid_kwh, onsite_kwh=self.onsite_kwh, ppa_kwh=self.ppa_kwh)


class Allocation(Struct, frozen=True, kw_only=True):
    """What one job held in one interval, and the IT energy that it took, measured or modelled."""

    job: str
    tenant: str
    home: str  # the hub that owns it
    submitted_at: datetime
    it_kwh: float
    evidence: Evidence
    method: str  # e.g. `modelled GPU power x share of the allocation`
    holding_it_kwh: float = 0.0  # of `it_kwh`, what a naive run had not needed: GPUs held while suspended, a move
    scheduling_class: str = ""
    data_ids: tuple[str, ...] = ()
    ran_s_before: float = 0.0  # how long it had run before this interval, anywhere
    home_conditions: HomeConditions | None = None  # of its home hub when it would have run there; None: not known

    def __post_init__(self) -> None:
        not_negative("IT energy", self.it_kwh)
        not_negative("IT energy of held GPUs", self.holding_it_kwh)
        not_negative("IT energy beyond that of held GPUs", self.it_kwh - self.holding_it_kwh)
        not_negative("time run", self.ran_s_before)
        if not self.job:
            raise ValueError("an allocation needs a job")

    @property
    def running_share(self) -> float:
        """Of its energy, what went into work. A job that took none did not hold anything either."""
        return 1.0 - self.holding_it_kwh / self.it_kwh if self.it_kwh > 0 else 1.0


def account(
    interval: Interval, hub: str, energy: HubEnergyUse, allocations: Sequence[Allocation], factors: Factors
) -> tuple[Charge, ...]:
    """One charge per job, in their order, and one for what nobody held. Together they are exactly the hub's energy."""
    if len({allocation.job for allocation in allocations}) != len(allocations):
        raise InvariantBroken("one charge per job, hub and interval", hub, interval.start)
    wanted_kwh = fsum(allocation.it_kwh * energy.pue for allocation in allocations)
    scale = min(1.0, energy.kwh / wanted_kwh) if wanted_kwh > 0 else 1.0
    charges = [_job_charge(interval, hub, energy, allocation, factors, scale) for allocation in allocations]
    rest_kwh = max(0.0, energy.kwh - fsum(charge.supply.kwh for charge in charges))
    charges.append(_unallocated(interval, hub, energy, factors, rest_kwh))
    check_balance(charges)
    return tuple(charges)


def check_balance(charges: Sequence[Charge]) -> None:
    """The charges of one interval are the hub's energy, kWh by kWh. Raises InvariantBroken."""
    first = charges[0]
    charged_kwh = fsum(charge.supply.kwh for charge in charges)
    if abs(charged_kwh - first.hub_kwh) > BALANCE_REL_MAX * first.hub_kwh:
        raise InvariantBroken("charges add up to the meter", first.hub, first.interval.start, charged_kwh)


def _job_charge(
    interval: Interval, hub: str, energy: HubEnergyUse, allocation: Allocation, factors: Factors, scale: float
) -> Charge:
    it_kwh = allocation.it_kwh * scale
    kwh = it_kwh * energy.pue
    supply = _share(energy, kwh)
    grams = grams_of(supply, factors, energy.transmission_loss)
    naive, missing = naive_run(
        NaiveQuestion(
            hub=hub,
            home=allocation.home,
            interval=interval,
            submitted_at=allocation.submitted_at,
            ran_s_before=allocation.ran_s_before,
            running_share=allocation.running_share,
            it_kwh=it_kwh,
            supply=supply,
            factors=factors,
            grams=grams,
            evidence=allocation.evidence,
        ),
        allocation.home_conditions,
    )
    return Charge(
        hub=hub,
        interval=interval,
        job=allocation.job,
        tenant=allocation.tenant,
        home=allocation.home,
        scheduling_class=allocation.scheduling_class,
        activity=Activity.RUNNING if allocation.running_share > 0 else Activity.HOLDING,
        data_ids=allocation.data_ids,
        it_kwh=it_kwh,
        holding_it_kwh=allocation.holding_it_kwh * scale,
        evidence=allocation.evidence,
        method=allocation.method if scale == 1 else f"{allocation.method}; times {scale:.6g} to fit the hub's energy",
        pue=energy.pue,
        transmission_loss=energy.transmission_loss,
        supply=supply,
        factors=factors,
        grams=grams,
        hub_kwh=energy.kwh,
        hub_evidence=energy.evidence,
        hub_onsite_kwh=energy.onsite_available_kwh,
        naive=naive,
        naive_missing=missing,
    )


def _unallocated(interval: Interval, hub: str, energy: HubEnergyUse, factors: Factors, kwh: float) -> Charge:
    supply = _share(energy, kwh)
    return Charge(
        hub=hub,
        interval=interval,
        job="",
        tenant="",
        home=hub,
        scheduling_class="",
        activity=Activity.UNALLOCATED,
        data_ids=(),
        it_kwh=kwh / energy.pue,
        holding_it_kwh=0.0,
        evidence=energy.evidence,
        method=f"{REMAINDER}; {energy.method}",
        pue=energy.pue,
        transmission_loss=energy.transmission_loss,
        supply=supply,
        factors=factors,
        grams=grams_of(supply, factors, energy.transmission_loss),
        hub_kwh=energy.kwh,
        hub_evidence=energy.evidence,
        hub_onsite_kwh=energy.onsite_available_kwh,
        naive_missing="no job",
    )


def _share(energy: HubEnergyUse, kwh: float) -> Supply:
    """In proportion to energy: nobody's kWh are greener than a neighbour's at the same moment."""
    return energy.supply.share(kwh / energy.kwh if energy.kwh > 0 else 0.0)

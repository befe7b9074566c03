"""What was the home hub like when a job would have run there? From its own charges, or from what it said of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from harch.carbon.ledger.accounting import Allocation
from harch.carbon.ledger.charge import INTERVAL_MAX, Charge, Factor, Factors, Interval
from harch.carbon.ledger.meter import NO_CONTRACT, STAND_IN
from harch.carbon.ledger.naive import AT_ONCE, HomeConditions, conditions_of, naive_start
from harch.carbon.values import Basis, Evidence, Method, Scope, Signal
from harch.hub.carbon.views import Figure, HubPower

SAID_HOLDS = timedelta(hours=1)  # how far from the naive start what a peer says of itself may serve


def is_deferred(allocation: Allocation, interval: Interval) -> bool:
    return interval.start - naive_start(allocation.submitted_at, allocation.ran_s_before) > AT_ONCE


def with_home(
    allocation: Allocation,
    interval: Interval,
    hub_id: str,
    *,
    said: Mapping[str, HubPower],
    then: Sequence[Charge],
) -> Allocation:
    """The allocation with the conditions that its naive run needs, where they are known.

    `then` are this hub's charges of the interval in which the job would have run here, `said` what peers last told.
    """
    start = naive_start(allocation.submitted_at, allocation.ran_s_before)
    conditions: HomeConditions | None = None
    if allocation.home == hub_id:
        if then and is_deferred(allocation, interval):
            conditions = conditions_of(then, job=allocation.job, duration=interval.duration)
    elif (power := said.get(allocation.home)) is not None and abs(power.at - start) <= SAID_HOLDS:
        conditions = conditions_said(power, interval.duration)
    return allocation if conditions is None else replace(allocation, home_conditions=conditions)


def conditions_said(power: HubPower, duration: timedelta) -> HomeConditions | None:
    """As another hub told them; None if it does not know its own grid."""
    grid = _factor(power.figure(Signal.GRID_AVERAGE_LIFECYCLE), Method.LOCATION)
    if grid is None:
        return None
    pue = power.figure(Signal.PUE).value or 1.0
    hours = duration / timedelta(hours=1)
    by_contract = {"method": Method.MARKET, "evidence": Evidence.ESTIMATED}
    return HomeConditions(
        own_load_kwh=max(0.0, power.load_kw) * hours,
        onsite_available_kwh=max(0.0, power.onsite_kw) * hours,
        ppa_share=0.0,
        pue=max(1.0, pue),
        transmission_loss=0.0,
        factors=Factors(
            grid=grid,
            residual=replace(grid, note=STAND_IN, **by_contract),
            contract=_factor(power.figure(Signal.CONTRACT_LIFECYCLE), Method.MARKET)
            or replace(grid, note=NO_CONTRACT, **by_contract),
            onsite=_factor(power.figure(Signal.ONSITE_LIFECYCLE), Method.ONSITE)
            or replace(grid, method=Method.ONSITE, evidence=Evidence.ESTIMATED),
        ),
    )


def charges_at(charges: Sequence[Charge], moment: datetime) -> list[Charge]:
    """Those of the interval that holds this moment."""
    return [charge for charge in charges if charge.interval.start <= moment < charge.interval.end]


def window_of(moment: datetime) -> tuple[datetime, datetime]:
    """Where intervals that may hold this moment begin."""
    return moment - INTERVAL_MAX, moment + timedelta(seconds=1)


def _factor(figure: Figure, method: Method) -> Factor | None:
    if figure.value is None or figure.at is None:
        return None
    return Factor(
        g_per_kwh=figure.value,
        basis=Basis.AVERAGE,
        scope=Scope.LIFECYCLE,
        method=method,
        source=figure.source,
        evidence=Evidence(figure.evidence),
        as_of=figure.at,
        note=figure.note,
    )

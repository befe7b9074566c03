"""What was the home hub like when a job would have run there? From its own charges, or from what it said of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from msgspec.structs import replace

from harch.carbon.ledger.accounting import Allocation
from harch.carbon.ledger.charge import INTERVAL_MAX, Charge, Factor, Factors, Interval
from harch.carbon.ledger.meter import NO_CONTRACT, STAND_IN
from harch.carbon.ledger.naive import AT_ONCE, HomeConditions, conditions_of, naive_start
from harch.carbon.values import Basis, Evidence, Method, Scope, Signal
from harch.hub.carbon.hours import full_hour
from harch.hub.carbon.views import Figure, HubPower

SAID_HOLDS = timedelta(hours=1)  # how far from the naive start what a peer says of itself may serve


def is_deferred(allocation: Allocation, interval: Interval) -> bool:
    return interval.start - naive_start(allocation.submitted_at, allocation.ran_s_before) > AT_ONCE


class OwnPast:
    """This hub's conditions in past intervals. Each hour is read once, each interval added up once."""

    def __init__(self, read: Callable[[datetime, datetime], Iterable[Charge]], duration: timedelta) -> None:
        self._read, self._duration = read, duration
        self._hours: dict[datetime, dict[datetime, list[Charge]]] = {}
        self._known: dict[datetime, HomeConditions] = {}

    def at(self, moment: datetime, job: str) -> HomeConditions | None:
        """Without what the job itself drew then; None if nothing is booked for that moment."""
        charges = next((found for found in self._hour(full_hour(moment)).values() if _holds(found[0], moment)), None)
        if charges is None:
            return None
        if any(charge.job == job for charge in charges):
            return conditions_of(charges, job=job, duration=self._duration)
        start = charges[0].interval.start
        if start not in self._known:
            self._known[start] = conditions_of(charges, job=job, duration=self._duration)
        return self._known[start]

    def _hour(self, hour: datetime) -> dict[datetime, list[Charge]]:
        """Its charges by interval: none reaches over the end of an hour."""
        if hour not in self._hours:
            by_interval: dict[datetime, list[Charge]] = {}
            for charge in self._read(hour, hour + INTERVAL_MAX):
                by_interval.setdefault(charge.interval.start, []).append(charge)
            self._hours[hour] = by_interval
        return self._hours[hour]


def with_home(
    allocation: Allocation, interval: Interval, hub_id: str, *, said: Mapping[str, HubPower], past: OwnPast
) -> Allocation:
    """The allocation with the conditions that its naive run needs, where they are known. `said`: what peers told."""
    start = naive_start(allocation.submitted_at, allocation.ran_s_before)
    conditions: HomeConditions | None = None
    if allocation.home == hub_id:
        if is_deferred(allocation, interval):
            conditions = past.at(start, allocation.job)
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
        ppa_share=min(max(power.ppa_share, 0.0), 1.0),
        pue=max(1.0, pue),
        transmission_loss=max(0.0, power.transmission_loss),
        factors=Factors(
            grid=grid,
            residual=replace(grid, note=STAND_IN, **by_contract),
            contract=_factor(power.figure(Signal.CONTRACT_LIFECYCLE), Method.MARKET)
            or replace(grid, note=NO_CONTRACT, **by_contract),
            onsite=_factor(power.figure(Signal.ONSITE_LIFECYCLE), Method.ONSITE)
            or replace(grid, method=Method.ONSITE, evidence=Evidence.ESTIMATED),
        ),
    )


def _holds(charge: Charge, moment: datetime) -> bool:
    return charge.interval.start <= moment < charge.interval.end


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

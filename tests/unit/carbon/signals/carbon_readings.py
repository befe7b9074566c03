"""Readings and places for the tests of carbon signals, with as little said as possible."""

from __future__ import annotations

from datetime import datetime, timedelta

from harch.carbon.signals.quality import DEFAULT_LIMITS, Circumstances, SampleHistory, SignalSample
from harch.carbon.signals.sites import NO_PLANTS, OnSite, SignalSite
from harch.carbon.values import EXAMPLES, Evidence, Quantity, Reading, Signal
from harch.testing.clock import START

GRID = Signal.GRID_AVERAGE_LIFECYCLE


def site(hub: str = "dakhla", *, zone: str = "MA", onsite: OnSite = NO_PLANTS) -> SignalSite:
    return SignalSite(hub=hub, country="MA", grid_zone=zone, latitude=23.7, longitude=-15.9, pue=1.2, onsite=onsite)


def reading(
    number: float,
    *,
    signal: Signal = GRID,
    at: datetime = START,
    source: str = "api",
    evidence: Evidence = Evidence.MEASURED,
    valid_until: datetime | None = None,
    ahead: bool = False,
) -> Reading[Quantity]:
    return Reading(
        signal=signal,
        value=EXAMPLES[signal].with_number(number),
        at=at,
        source=source,
        evidence=evidence,
        received_at=at,
        valid_until=valid_until,
        ahead=ahead,
    )


def hourly(numbers: list[float], *, until: datetime = START) -> SampleHistory:
    """One value per hour, the last of them an hour before `until`."""
    first = until - timedelta(hours=len(numbers))
    return SampleHistory(
        tuple(SignalSample(first + timedelta(hours=hour), number) for hour, number in enumerate(numbers))
    )


def seen(
    history: SampleHistory = SampleHistory(),
    *,
    signal: Signal = GRID,
    now: datetime = START,
    number_max: float | None = None,
) -> Circumstances:
    return Circumstances(now=now, limits=DEFAULT_LIMITS[signal], history=history, number_max=number_max)

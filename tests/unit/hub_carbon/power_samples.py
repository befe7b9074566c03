"""Signals of a hub, made by hand."""

from __future__ import annotations

from datetime import datetime

from harch.carbon.signals.choice import HubSignals, Quality, SignalState
from harch.carbon.units import quantity
from harch.carbon.values import Evidence, Reading, Signal
from harch.testing.clock import START

UNITS = {
    Signal.GRID_AVERAGE_LIFECYCLE: "g/kWh",
    Signal.GRID_MARGINAL_LIFECYCLE: "g/kWh",
    Signal.ONSITE_LIFECYCLE: "g/kWh",
    Signal.PV_POWER: "kW",
    Signal.FACILITY_POWER: "kW",
    Signal.WIND_POWER: "kW",
    Signal.PUE: "ratio",
}


def state(
    signal: Signal,
    value: float,
    *,
    at: datetime = START,
    source: str = "meter",
    unit: str = "",
    until: datetime | None = None,
) -> SignalState:
    reading = Reading(
        signal=signal,
        value=quantity(signal, value, unit or UNITS[signal]),
        at=at,
        source=source,
        evidence=Evidence.MEASURED,
        received_at=at,
        valid_until=until,
    )
    return SignalState(signal=signal, reading=reading, quality=Quality.FIRST, age_s=0.0, not_used=())


def signals(*states: SignalState, at: datetime = START) -> HubSignals:
    return HubSignals(hub="dakhla", taken_at=at, states={one.signal: one for one in states})

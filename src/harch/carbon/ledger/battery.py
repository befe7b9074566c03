"""What was a battery's power made from? It remembers what it was filled with, and that is billed when it is used.

Otherwise coal power from the night would leave it as clean as the noon that it is used in. Nothing that was put in is
forgotten: losses stay with those who use what is left, and power that was not put in before our eyes is charged as the
grid's of the moment, with losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

import msgspec
from msgspec import Struct

from harch.carbon.ledger.accounting import HubEnergy
from harch.carbon.ledger.charge import Factor, Factors, Interval, not_negative
from harch.carbon.ledger.meter import load_of, number_of, weighted_samples
from harch.carbon.signals.choice import HubSignals
from harch.carbon.values import Evidence, Signal

ROUND_TRIP = 0.92 * 0.92  # assumed: 0.92 in, 0.92 out
TRACE_KWH = 1e-9  # less is rounding, and ratios of it mean nothing


class Stored(Struct, frozen=True, kw_only=True):
    """What was put in and not yet used: kWh before losses, and their grams, each kind apart."""

    grid_kwh: float = 0.0
    ppa_kwh: float = 0.0
    onsite_kwh: float = 0.0
    location_g: float = 0.0  # of the grid's and the agreement's kWh
    residual_g: float = 0.0  # by contract, of the grid's
    contract_g: float = 0.0  # by contract, of the agreement's
    onsite_g: float = 0.0

    @property
    def kwh(self) -> float:
        return self.grid_kwh + self.ppa_kwh + self.onsite_kwh

    def share(self, fraction: float) -> Stored:
        return Stored(**{name: number * fraction for name, number in msgspec.structs.asdict(self).items()})

    def __add__(self, other: Stored) -> Stored:
        others = msgspec.structs.asdict(other)
        return Stored(**{name: number + others[name] for name, number in msgspec.structs.asdict(self).items()})


class BatteryFlows(Struct, frozen=True, kw_only=True):
    """What went in, from where, and how much of what came out ran the hub. What was sold stays to be billed."""

    onsite_in_kwh: float = 0.0
    grid_in_kwh: float = 0.0
    served_kwh: float = 0.0

    def __post_init__(self) -> None:
        for number in (self.onsite_in_kwh, self.grid_in_kwh, self.served_kwh):
            not_negative("kWh of a battery", number)


class BatteryBill(Struct, frozen=True, kw_only=True):
    """An interval with the battery's power as what it was made from. `stored` is for the next interval."""

    energy: HubEnergy
    factors: Factors
    stored: Stored


def battery_flows(
    interval: Interval, samples: Sequence[HubSignals], *, modelled_it_kw: float, pue: float
) -> BatteryFlows:
    """Own surplus is taken to go in first, then the grid. Own power serves the load before the battery does."""
    onsite_in, grid_in, served = [], [], []
    for sample, hours in weighted_samples(interval, samples):
        load_kw, _, _ = load_of(sample, modelled_it_kw, number_of(sample, Signal.PUE, pue))
        own_kw = max(0.0, number_of(sample, Signal.PV_POWER, 0.0)) + max(0.0, number_of(sample, Signal.WIND_POWER, 0.0))
        battery_kw = number_of(sample, Signal.BATTERY_POWER, 0.0)
        in_kw, spare_kw = max(0.0, -battery_kw), max(0.0, own_kw - load_kw)
        onsite_in.append(min(in_kw, spare_kw) * hours)
        grid_in.append(max(0.0, in_kw - spare_kw) * hours)
        served.append(min(max(0.0, battery_kw), max(0.0, load_kw - own_kw)) * hours)
    return BatteryFlows(onsite_in_kwh=fsum(onsite_in), grid_in_kwh=fsum(grid_in), served_kwh=fsum(served))


def bill_battery(
    energy: HubEnergy, factors: Factors, flows: BatteryFlows, stored: Stored, *, ppa_share: float = 0.0
) -> BatteryBill:
    """`energy` and `factors` as `hub_energy` and `observed_factors` gave them. What goes out was in before."""
    delivered = 1.0 + energy.transmission_loss
    served_kwh = min(flows.served_kwh, energy.kwh - energy.onsite_kwh)
    if served_kwh < TRACE_KWH:
        served_kwh = 0.0
    drawn_kwh = served_kwh / ROUND_TRIP
    known = min(1.0, drawn_kwh / stored.kwh) if stored.kwh > 0 else 0.0
    unseen_kwh = max(0.0, drawn_kwh - stored.kwh)
    used = stored.share(known) + _put_in(unseen_kwh, 0.0, factors, delivered, ppa_share=0.0)
    onsite_in_kwh = min(flows.onsite_in_kwh, energy.onsite_available_kwh - energy.onsite_kwh)
    left = stored.share(1.0 - known) + _put_in(
        flows.grid_in_kwh, max(0.0, onsite_in_kwh), factors, delivered, ppa_share=ppa_share
    )
    if served_kwh <= 0:
        return BatteryBill(energy=_less_surplus(energy, onsite_in_kwh, 0.0), factors=factors, stored=left)
    out = used.share(served_kwh / used.kwh)  # kWh after losses; the grams of what was lost are in `used`
    direct_kwh = energy.kwh - energy.onsite_kwh - served_kwh
    direct_ppa_kwh = max(0.0, min(energy.ppa_kwh, direct_kwh * ppa_share))
    direct_grid_kwh = max(0.0, direct_kwh - direct_ppa_kwh)
    note = f"{served_kwh:.6g} kWh were from the battery, as it was filled"
    billed = msgspec.structs.replace(
        _less_surplus(energy, onsite_in_kwh, out.onsite_kwh),
        onsite_kwh=energy.onsite_kwh + out.onsite_kwh,
        ppa_kwh=direct_ppa_kwh + out.ppa_kwh,
    )
    return BatteryBill(
        energy=billed,
        factors=Factors(
            grid=_blend(
                factors.grid,
                (direct_grid_kwh + direct_ppa_kwh) * delivered,
                used.location_g,
                (out.grid_kwh + out.ppa_kwh) * delivered,
                note,
            ),
            residual=_blend(
                factors.residual, direct_grid_kwh * delivered, used.residual_g, out.grid_kwh * delivered, note
            ),
            contract=_blend(
                factors.contract, direct_ppa_kwh * delivered, used.contract_g, out.ppa_kwh * delivered, note
            ),
            onsite=_blend(factors.onsite, energy.onsite_kwh, used.onsite_g, out.onsite_kwh, note),
        ),
        stored=left,
    )


def _put_in(grid_kwh: float, onsite_kwh: float, factors: Factors, delivered: float, *, ppa_share: float) -> Stored:
    ppa_kwh = grid_kwh * ppa_share
    return Stored(
        grid_kwh=grid_kwh - ppa_kwh,
        ppa_kwh=ppa_kwh,
        onsite_kwh=onsite_kwh,
        location_g=grid_kwh * delivered * factors.grid.g_per_kwh,
        residual_g=(grid_kwh - ppa_kwh) * delivered * factors.residual.g_per_kwh,
        contract_g=ppa_kwh * delivered * factors.contract.g_per_kwh,
        onsite_g=onsite_kwh * factors.onsite.g_per_kwh,
    )


def _less_surplus(energy: HubEnergy, stored_kwh: float, given_kwh: float) -> HubEnergy:
    """Surplus that was stored is there when it comes out, and not also when it went in."""
    made_kwh = max(energy.onsite_kwh, energy.onsite_available_kwh - max(0.0, stored_kwh)) + given_kwh
    return msgspec.structs.replace(energy, onsite_available_kwh=made_kwh)


def _blend(now: Factor, direct_kwh: float, battery_g: float, battery_kwh: float, note: str) -> Factor:
    """The mean over what came directly and what came through the battery."""
    if battery_kwh <= 0:
        return now
    g_per_kwh = (direct_kwh * now.g_per_kwh + battery_g) / (direct_kwh + battery_kwh)
    notes = f"{now.note}; {note}" if now.note else note
    return msgspec.structs.replace(now, g_per_kwh=g_per_kwh, evidence=Evidence.ESTIMATED, note=notes)

"""Which sources does a hub listen to? Those of its carbon file, or the model alone: then nobody is asked.

The file is `carbon.toml` in the state folder of the hub. Web sources, and the library that they need, are loaded only
if it names one.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.carbon.signals.choice import HubSignals, SignalState
from harch.carbon.signals.config import EMPTY, CarbonConfig, load_config
from harch.carbon.signals.registry import SignalRegistry, SourcePlan
from harch.carbon.signals.sites import SignalSite, site_of
from harch.carbon.signals.sources.modelled import NAME as MODELLED
from harch.carbon.signals.sources.modelled import modelled
from harch.carbon.values import Price, Signal
from harch.fleet.model import Fleet, Hub
from harch.wire.carbon import Figure, GridForecast, HubPower, NotUsed

if TYPE_CHECKING:
    import httpx

CARBON_FILE_NAME = "carbon.toml"


@dataclass(frozen=True, slots=True)
class Sources:
    """The board of one hub, and where it stands."""

    signals: SignalRegistry
    site: SignalSite
    config: CarbonConfig
    client: httpx.AsyncClient | None = None  # None: no source speaks to anybody

    async def close(self) -> None:
        if self.client is not None:
            await self.client.aclose()


def open_sources(fleet: Fleet, hub: Hub, folder: Path, clock: Clock) -> Sources:
    """Raises HarchError E0220 with the mistakes of the carbon file."""
    path = folder / CARBON_FILE_NAME
    config = load_config(path) if path.exists() else EMPTY
    for name in config.hubs:
        if fleet.hub(name) is None:
            raise HarchError("E0220", f"hubs.{name[:64]}: no such hub in the fleet", hint="`harch hubs` lists the hubs")
    entry = config.hubs.get(hub.id)
    site = site_of(hub, config.onsite(hub.id), grid_zone=(entry.grid_zone if entry else "") or None)
    if not config.entries:
        return Sources(_modelled_signals(site, config, clock), site, config)
    return _with_sources(fleet, hub, config, site, folder, clock)


def _modelled_signals(site: SignalSite, config: CarbonConfig, clock: Clock) -> SignalRegistry:
    model = modelled()
    orders = {site.hub: dict.fromkeys(model.provides, (MODELLED,))}
    return SignalRegistry([site], [SourcePlan(source=model, is_model=True)], orders, clock, limits=config.limits)


def _with_sources(
    fleet: Fleet, hub: Hub, config: CarbonConfig, site: SignalSite, folder: Path, clock: Clock
) -> Sources:
    import httpx

    from harch.carbon.signals.assembly import SourceContext, build_registry

    client = httpx.AsyncClient(follow_redirects=False)
    world = SourceContext(
        client=client,
        clock=clock,
        jitter=random.random,
        environment=os.environ,
        folder=folder,
    )
    # One file may serve the whole fleet; each hub asks for itself and hears of the others through them.
    own = replace(config, hubs={name: entry for name, entry in config.hubs.items() if name == hub.id})
    return Sources(build_registry(own, replace(fleet, hubs=(hub,), links=()), world), site, config, client)


# On what power does the hub run now? Signals in, one value out that can be shown, published and bid with. Pure.


PUBLISHED_SIGNALS = (
    Signal.GRID_AVERAGE_LIFECYCLE,
    Signal.GRID_MARGINAL_LIFECYCLE,
    Signal.GRID_AVERAGE_DIRECT,
    Signal.GRID_MARGINAL_DIRECT,
    Signal.CONTRACT_LIFECYCLE,
    Signal.ONSITE_LIFECYCLE,
    Signal.PV_POWER,
    Signal.WIND_POWER,
    Signal.BATTERY_POWER,
    Signal.RENEWABLE_SHARE,
    Signal.PRICE,
    Signal.PUE,
)
BID_CURRENCY = "USD"  # of the prices in bids: two currencies cannot be compared


def hub_power(
    hub: Hub, grid_zone: str, signals: HubSignals, *, load_kw: float, supply: tuple[float, float] = (0.0, 0.0)
) -> HubPower:
    """`load_kw` is what the computers are believed to draw, without cooling, where no meter tells it.

    `supply`: transmission loss of the grid, and the share that agreements cover.
    """
    loss, ppa_share = supply
    pue = number(signals, Signal.PUE) or hub.pue
    onsite_kw, metered_kw = onsite_power_kw(signals), number(signals, Signal.FACILITY_POWER)
    drawn_kw = load_kw * pue if metered_kw is None else metered_kw
    marginal, rests_on = _marginal(signals, onsite_kw=onsite_kw, load_kw=drawn_kw, pue=pue, loss=loss)
    price = signals.reading(Signal.PRICE)
    value = price.value if price is not None else None
    return HubPower(
        hub_id=hub.id,
        country=hub.country,
        grid_zone=grid_zone,
        at=signals.taken_at,
        marginal_g_per_kwh=marginal,
        marginal_rests_on=rests_on,
        onsite_kw=onsite_kw,
        transmission_loss=loss,
        ppa_share=ppa_share,
        load_kw=drawn_kw,
        price_per_mwh=value.per_mwh if isinstance(value, Price) else None,
        currency=value.currency if isinstance(value, Price) else "",
        readings=tuple(_figure(signal, signals.states.get(signal)) for signal in PUBLISHED_SIGNALS),
    )


def number(signals: HubSignals, signal: Signal) -> float | None:
    reading = signals.reading(signal)
    return None if reading is None else reading.value.number


def onsite_power_kw(signals: HubSignals) -> float:
    """What panels and turbines give. A battery moves energy in time and makes none."""
    return (number(signals, Signal.PV_POWER) or 0.0) + (number(signals, Signal.WIND_POWER) or 0.0)


def bid_price_per_kwh(power: HubPower) -> float | None:
    """Per kWh of the meter; None without a price, or with one that other bids cannot be compared with."""
    if power.price_per_mwh is None or power.currency != BID_CURRENCY:
        return None
    return power.price_per_mwh / 1000


def figure_age_s(figure: Figure, now: datetime) -> float | None:
    return None if figure.at is None else max(0.0, (now - figure.at).total_seconds())


def _marginal(
    signals: HubSignals, *, onsite_kw: float, load_kw: float, pue: float, loss: float
) -> tuple[float | None, str]:
    onsite_g = number(signals, Signal.ONSITE_LIFECYCLE)
    if onsite_kw > load_kw and onsite_g is not None:
        spare = f"{onsite_kw - load_kw:.0f} kW of own plants to spare"
        return onsite_g * pue, f"{spare}, x PUE {pue:g}"
    times = f"x PUE {pue:g}" + (f", x {1 + loss:g} for losses on the way" if loss else "")
    grid_g = number(signals, Signal.GRID_MARGINAL_LIFECYCLE)
    if grid_g is not None:
        return grid_g * (1 + loss) * pue, f"the grid's marginal intensity, {times}"
    grid_g = number(signals, Signal.GRID_AVERAGE_LIFECYCLE)
    if grid_g is None:
        return None, "no value for the grid"
    return grid_g * (1 + loss) * pue, f"the grid's average stands in for its marginal intensity, {times}"


def _figure(signal: Signal, state: SignalState | None) -> Figure:
    if state is None:
        return Figure(signal=signal, quality="missing", note="no source gives it; name one in carbon.toml")
    not_used = tuple(
        NotUsed(source=no.subject, rule=no.rule, detail=no.detail, nearest_fix=no.nearest_fix) for no in state.not_used
    )
    reading = state.reading
    if reading is None:
        return Figure(signal=signal, quality=str(state.quality), not_used=not_used)
    return Figure(
        signal=signal,
        value=reading.value.number,
        unit=reading.value.unit,
        kind=tuple(str(part) for part in reading.value.kind),
        evidence=str(reading.evidence),
        source=reading.source,
        at=reading.at,
        quality=str(state.quality),
        note=reading.note,
        not_used=not_used,
    )


# What does a hub publish of its power, and what does it read of others? Entries of the gossip.

# Power and price now, every half minute; the forecast, every hour; what is to start at other hubs, with every plan.
CARBON, CARBON_AHEAD, CARBON_PLAN = "carbon", "carbon.ahead", "carbon.plan"
CARBON_SPENT = "carbon.spent"  # of tenants' budgets, where the hub has any

_encode = msgspec.msgpack.Encoder().encode
_power = msgspec.msgpack.Decoder(HubPower).decode
_forecast = msgspec.msgpack.Decoder(GridForecast).decode


def published_power(power: HubPower | None, forecast: GridForecast | None) -> dict[str, bytes]:
    """The entries about power; what is not known yet has none."""
    values = {CARBON: power, CARBON_AHEAD: forecast}
    return {key: _encode(value) for key, value in values.items() if value is not None}


def received_power(value: bytes | None) -> HubPower | None:
    """None if the hub has not published it, or in a form that this version does not know."""
    try:
        return None if value is None else _power(value)
    except msgspec.DecodeError:
        return None


def received_forecast(value: bytes | None) -> GridForecast | None:
    try:
        return None if value is None else _forecast(value)
    except msgspec.DecodeError:
        return None

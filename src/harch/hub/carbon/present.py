"""On what power does the hub run now? Signals in, one value out that can be shown, published and bid with. Pure."""

from __future__ import annotations

from datetime import datetime

from harch.carbon.signals.choice import HubSignals, SignalState
from harch.carbon.values import Price, Signal
from harch.fleet.model import Hub
from harch.hub.carbon.views import Figure, HubPower, NotUsed

SHOWN = (
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
        figures=tuple(_figure(signal, signals.states.get(signal)) for signal in SHOWN),
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
        return None, "no figure of the grid"
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

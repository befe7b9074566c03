"""Where and when would this work run cleanest? Advice for whoever asks: nothing is placed by it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from harch.hub.carbon.views import ForecastHour


class Action(StrEnum):
    """The words of the public clients."""

    SCHEDULE_NOW = "schedule_now"
    DEFER = "defer"
    REJECT = "reject"
    NO_SUITABLE_HUB = "no_suitable_hub"


class Option(Struct, frozen=True, kw_only=True):
    """A hub that could run it now. `g_per_kwh` is of one more kWh at its meter, estimated."""

    hub_id: str
    name: str
    country: str
    grid_zone: str
    g_per_kwh: float
    pue: float
    gpus_free: int
    renewable_share: float | None = None
    ahead: tuple[ForecastHour, ...] = ()


class Advice(Struct, frozen=True, kw_only=True):
    """`start` None: now. `others` are the remaining hubs, cleanest first."""

    action: Action
    reason: str
    option: Option | None = None
    start: datetime | None = None
    g_per_kwh: float = 0.0
    others: tuple[Option, ...] = ()


def advise(
    options: Sequence[Option], *, g_per_kwh_max: float | None, defer_ok: bool, now: datetime, refused: Action
) -> Advice:
    """The cleanest hub; above the ceiling, the first hour at which a forecast is below it, or a refusal."""
    ranked = sorted(options, key=lambda option: (option.g_per_kwh * option.pue, option.hub_id))
    if not ranked:
        return Advice(action=refused, reason="no hub that answers has the GPUs there")
    best, others = ranked[0], tuple(ranked[1:])
    said = f"one more kWh at {best.name} emits {best.g_per_kwh:.0f} g (estimated)"
    if g_per_kwh_max is None or best.g_per_kwh <= g_per_kwh_max:
        return Advice(action=Action.SCHEDULE_NOW, reason=said, option=best, g_per_kwh=best.g_per_kwh, others=others)
    if defer_ok:
        later = [
            (hour.at, hour.g_per_kwh, option.hub_id, option)
            for option in ranked
            for hour in option.ahead
            if hour.at > now and hour.g_per_kwh <= g_per_kwh_max
        ]
        if later:
            at, g_per_kwh, _, option = min(later, key=lambda found: found[:3])
            return Advice(
                action=Action.DEFER,
                reason=f"{said}; from {at:%Y-%m-%d %H:%M} UTC {option.name} is forecast below {g_per_kwh_max:g}",
                option=option,
                start=at,
                g_per_kwh=g_per_kwh,
                others=tuple(other for other in ranked if other is not option),
            )
    return Advice(
        action=refused,
        reason=f"{said}, which is above {g_per_kwh_max:g}, and no forecast hour is below",
        g_per_kwh=best.g_per_kwh,
        others=tuple(ranked),
    )


class GreenWindow(Struct, frozen=True, kw_only=True):
    """Hours in a row at or below a threshold."""

    start: datetime
    end: datetime
    g_per_kwh_min: float
    g_per_kwh_mean: float


def green_windows(hours: Sequence[ForecastHour], g_per_kwh_max: float) -> list[GreenWindow]:
    windows: list[GreenWindow] = []
    run: list[ForecastHour] = []
    for hour in [*hours, None]:
        if hour is not None and hour.g_per_kwh <= g_per_kwh_max:
            run.append(hour)
        elif run:
            values = [one.g_per_kwh for one in run]
            windows.append(
                GreenWindow(
                    start=run[0].at,
                    end=run[-1].at + timedelta(hours=1),
                    g_per_kwh_min=min(values),
                    g_per_kwh_mean=sum(values) / len(values),
                )
            )
            run = []
    return windows

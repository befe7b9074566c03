"""What will the power be like? Trains when it is due, forecasts once an hour, in a thread: nothing waits for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from harch.carbon.forecasts.forecast import Forecast
from harch.carbon.forecasts.history import HOUR
from harch.carbon.forecasts.training import Trained, due, forecast, train
from harch.hub.carbon.hours import KnownHours
from harch.hub.carbon.plants import PlantAhead
from harch.hub.carbon.views import ForecastHour, GridForecast

MODELLED_NOTE = (
    "nobody measures this grid: a yearly mean for every hour, which tells no hour from another, with guessed intervals"
)


@dataclass(slots=True)
class Forecaster:
    """One zone's models, by the hour of the day from which they forecast; each is trained again when it is due."""

    _trained: dict[int, Trained] = field(default_factory=dict)

    def forecast(self, known: KnownHours) -> Forecast:
        """Slow: call it in a thread, one at a time."""
        history = known.history
        trained = self._trained.get(history.end.hour)
        if trained is None or due(trained, history.end) is not None:
            trained = self._trained[history.end.hour] = train(history)
        return forecast(trained, history)


@dataclass(frozen=True, slots=True)
class OnsiteAhead:
    """What the hub's own plants are expected to give, by full hour, and who says so."""

    kw: dict[datetime, float]
    rests_on: str


def onsite_ahead(plants: Sequence[PlantAhead]) -> OnsiteAhead:
    """All plants together."""
    kw: dict[datetime, float] = {}
    for plant in plants:
        for at, power_kw in plant.kw.items():
            kw[at] = kw.get(at, 0.0) + power_kw
    return OnsiteAhead(kw, "; ".join(plant.rests_on for plant in plants))


def grid_forecast(
    made: Forecast, onsite: OnsiteAhead, *, hub_id: str, grid_zone: str, modelled: bool, now: datetime
) -> GridForecast:
    """As it is shown. Without a back-test the errors are left out: no figure is better than a made-up one."""
    low, low_half, high_half, high = (made.quantiles[level] for level in (0.05, 0.25, 0.75, 0.95))
    hours = tuple(
        ForecastHour(
            at=(at := made.start + index * HOUR),
            g_per_kwh=_round(made.mean[index]),
            low=_round(low[index]),
            high=_round(high[index]),
            low_half=_round(low_half[index]),
            high_half=_round(high_half[index]),
            onsite_kw=onsite.kw.get(at),
        )
        for index in range(len(made.mean))
    )
    tested = made.error.days > 0
    return GridForecast(
        hub_id=hub_id,
        grid_zone=grid_zone,
        made_at=now,
        hours=hours,
        model=made.model,
        error_days=made.error.days,
        error_pct_by_day=_known(made.error.by_day_pct) if tested else (),
        persistence_error_pct_by_day=_known(made.error.persistence_by_day_pct) if tested else (),
        trained_from=made.trained_on.start,
        trained_until=made.trained_on.end,
        hours_observed=made.trained_on.hours_observed,
        onsite_rests_on=onsite.rests_on,
        notes=(MODELLED_NOTE,) if modelled else made.notes,
    )


def cut_to(forecast: GridForecast, hours: int, now: datetime) -> tuple[ForecastHour, ...]:
    """The next hours that are not over yet."""
    return tuple(hour for hour in forecast.hours if hour.at + timedelta(hours=1) > now)[:hours]


def _known(errors: tuple[float, ...]) -> tuple[float, ...]:
    """Days ahead in order; a day whose error is not known ends the list."""
    known: list[float] = []
    for error in errors:
        if not math.isfinite(error):
            break
        known.append(_round(error))
    return tuple(known)


def _round(value: float) -> float:
    return round(float(value), 2)

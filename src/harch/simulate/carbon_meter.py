"""How much power did a hub draw, and from where? A meter that bills what the plants really gave, never the forecast."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from harch.carbon.planning.outlook import Floats
from harch.simulate.carbon_weather import HISTORY_DAYS, STEP_S, STEPS_PER_DAY, STEPS_PER_HOUR


@dataclass(eq=False)
class Plants:
    """What really happens at a hub, per step of the weather."""

    pv_kw: Floats
    wind_kw: Floats
    grid_g_per_kwh: Floats
    onsite_g_per_kwh: float
    pue: float

    def __post_init__(self) -> None:
        self.onsite_kw: Floats = self.pv_kw + self.wind_kw

    def step(self, now_s: float) -> int:
        """The step that holds this moment of the replay; after the end of the weather, its last."""
        return min(HISTORY_DAYS * STEPS_PER_DAY + int(now_s // STEP_S), len(self.onsite_kw) - 1)


@dataclass
class Meter:
    """Facility energy of one hub: from on site while it lasts, the rest from the grid."""

    plants: Plants
    it_kw: float = 0.0
    grid_kwh: float = 0.0
    onsite_kwh: float = 0.0
    grams: float = 0.0
    it_kwh: float = 0.0
    _now_s: float = 0.0
    hourly_kwh: dict[int, tuple[float, float]] = field(default_factory=dict)  # by hour: on site, grid

    def advance(self, now_s: float) -> None:
        while self._now_s < now_s:
            step = self.plants.step(self._now_s)
            until_s = min(now_s, (self._now_s // STEP_S + 1) * STEP_S)
            hours = (until_s - self._now_s) / 3600
            load_kw = self.it_kw * self.plants.pue
            onsite = min(load_kw, float(self.plants.onsite_kw[step])) * hours
            self._book(step, onsite, load_kw * hours - onsite)
            self.it_kwh += self.it_kw * hours
            self._now_s = until_s

    def change(self, now_s: float, it_kw: float) -> None:
        self.advance(now_s)
        self.it_kw = max(self.it_kw + it_kw, 0.0)

    def transfer(self, now_s: float, kwh: float) -> None:
        """Energy of moving data, billed as the grid's: nobody knows whose surplus the routers used."""
        self.advance(now_s)
        self._book(self.plants.step(now_s), 0.0, kwh)

    def _book(self, step: int, onsite_kwh: float, grid_kwh: float) -> None:
        plants = self.plants
        self.onsite_kwh += onsite_kwh
        self.grid_kwh += grid_kwh
        self.grams += onsite_kwh * plants.onsite_g_per_kwh + grid_kwh * float(plants.grid_g_per_kwh[step])
        hour = int(self._now_s // 3600)
        before = self.hourly_kwh.get(hour, (0.0, 0.0))
        self.hourly_kwh[hour] = (before[0] + onsite_kwh, before[1] + grid_kwh)

    @property
    def kwh(self) -> float:
        return self.grid_kwh + self.onsite_kwh


def hourly_until(series_kw: Floats, step: int, hours: int) -> Floats:
    """Means of the last hours up to a step; the last is what the meter shows at this moment."""
    first = step - hours * STEPS_PER_HOUR
    if first < 0:
        raise ValueError("the weather does not reach so far back")
    means: Floats = series_kw[first:step].reshape(hours, STEPS_PER_HOUR).mean(axis=1)
    return np.concatenate([means[1:], series_kw[step : step + 1]])


def hourly_from(series_kw: Floats, step: int, hours: int) -> Floats:
    """What will really be: for the oracle only."""
    wanted = np.minimum(np.arange(step, step + hours * STEPS_PER_HOUR), len(series_kw) - 1)
    means: Floats = series_kw[wanted].reshape(hours, STEPS_PER_HOUR).mean(axis=1)
    return means

"""What does a hub tell about its power? Figures that name their kind, their source and whether they were measured."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class NotUsed(Struct, frozen=True, kw_only=True):
    """A source that the figure does not rest on, and why not."""

    source: str
    rule: str
    detail: str
    nearest_fix: str = ""


class Figure(Struct, frozen=True, kw_only=True):
    """One signal. `value` None: no source has one, and `not_used` says why. `evidence`: measured or estimated."""

    signal: str
    value: float | None = None
    unit: str = ""
    kind: tuple[str, ...] = ()
    evidence: str = ""
    source: str = ""
    at: datetime | None = None
    quality: str = ""
    note: str = ""
    not_used: tuple[NotUsed, ...] = ()


class HubPower(Struct, frozen=True, kw_only=True):
    """What one hub knows of its power. Intensities are in g CO2eq per kWh, over the life of the plants.

    `marginal_g_per_kwh` is what one more kWh of computing emits here: own plants as far as they have power to spare,
    then the grid with what is lost on the way, times the PUE. It is estimated, and `marginal_rests_on` says from what.
    """

    hub_id: str
    country: str
    grid_zone: str
    at: datetime
    marginal_g_per_kwh: float | None = None
    marginal_rests_on: str = ""
    onsite_kw: float = 0.0
    transmission_loss: float = 0.0  # of what the grid delivers to the meter
    ppa_share: float = 0.0  # of the grid's delivery, what agreements cover
    load_kw: float = 0.0  # of the whole hub with its PUE; estimated unless `facility-power` is measured
    price_per_mwh: float | None = None
    currency: str = ""
    figures: tuple[Figure, ...] = ()

    def figure(self, signal: str) -> Figure:
        found = next((figure for figure in self.figures if figure.signal == signal), None)
        return found or Figure(signal=signal, quality="missing")


class PowerView(Struct, frozen=True, kw_only=True):
    """The power of one hub as seen from here. `age_s` is how old its intensity is; `error` why nothing is known."""

    hub_id: str
    own: bool = False
    age_s: float | None = None
    power: HubPower | None = None
    error: str = ""


class PastHour(Struct, frozen=True, kw_only=True):
    """The mean of what was read of the grid in one hour. `estimated`: by the model alone."""

    at: datetime
    g_per_kwh: float
    estimated: bool


class ForecastHour(Struct, frozen=True, kw_only=True):
    """One hour: the mean, the interval that holds 9 of 10 values, and the one that holds every second."""

    at: datetime
    g_per_kwh: float
    low: float
    high: float
    low_half: float
    high_half: float
    onsite_kw: float | None = None


class GridForecast(Struct, frozen=True, kw_only=True):
    """The average intensity of a hub's grid in the hours to come. Always estimated.

    Errors are those of a replay over the last `error_days` days, in % of what came, per day ahead; empty: unknown.
    """

    hub_id: str
    grid_zone: str
    made_at: datetime
    hours: tuple[ForecastHour, ...]
    model: str
    evidence: str = "estimated"
    kind: tuple[str, ...] = ("average", "lifecycle", "location")
    error_days: int = 0
    error_pct_by_day: tuple[float, ...] = ()
    persistence_error_pct_by_day: tuple[float, ...] = ()
    trained_from: datetime | None = None
    trained_until: datetime | None = None
    hours_observed: int = 0
    onsite_rests_on: str = ""
    notes: tuple[str, ...] = ()

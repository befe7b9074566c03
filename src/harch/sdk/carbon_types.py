"""What does a hub answer about its power? The values that `client.carbon` returns; see `types` on versions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct


class CarbonChoice(Struct, frozen=True, kw_only=True):
    """Where and when it should run for cleaner power. `start_by` is a promise, the rest a plan."""

    action: str
    hub_id: str
    decided_at: datetime
    reason: str = ""
    held: bool = False  # kept out of the queue until its hour
    start_at: datetime | None = None
    start_by: datetime | None = None
    refused: str = ""


class NotUsed(Struct, frozen=True, kw_only=True):
    """A source that a figure does not rest on, and why not."""

    source: str
    rule: str = ""
    detail: str = ""
    nearest_fix: str = ""


class Figure(Struct, frozen=True, kw_only=True):
    """One signal, measured or estimated; `value` None: no source has one."""

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
    """What a hub knows of its power. `marginal_g_per_kwh` is of one more kWh of computing, estimated."""

    hub_id: str
    country: str = ""
    grid_zone: str = ""
    at: datetime | None = None
    marginal_g_per_kwh: float | None = None
    marginal_rests_on: str = ""
    onsite_kw: float = 0.0
    load_kw: float = 0.0
    price_per_mwh: float | None = None
    currency: str = ""
    figures: tuple[Figure, ...] = ()

    def figure(self, signal: str) -> Figure:
        found = next((figure for figure in self.figures if figure.signal == signal), None)
        return found or Figure(signal=signal, quality="missing")


class PowerView(Struct, frozen=True, kw_only=True):
    """The power of one hub as the asked one sees it; `error` says why nothing is known."""

    hub_id: str
    own: bool = False
    age_s: float | None = None
    power: HubPower | None = None
    error: str = ""


class PowerList(Struct, frozen=True, kw_only=True):
    items: list[PowerView]
    total: int = 0


class ForecastHour(Struct, frozen=True, kw_only=True):
    """One hour: the mean, the interval that holds 9 of 10 values, and the one that holds every second."""

    at: datetime
    g_per_kwh: float
    low: float
    high: float
    low_half: float = 0.0
    high_half: float = 0.0
    onsite_kw: float | None = None


class GridForecast(Struct, frozen=True, kw_only=True):
    """The intensity of a hub's grid in the hours to come, and how wrong such forecasts were lately."""

    hub_id: str
    grid_zone: str = ""
    made_at: datetime | None = None
    hours: tuple[ForecastHour, ...] = ()
    model: str = ""
    evidence: str = "estimated"
    kind: tuple[str, ...] = ()
    error_days: int = 0
    error_pct_by_day: tuple[float, ...] = ()
    persistence_error_pct_by_day: tuple[float, ...] = ()
    trained_from: datetime | None = None
    trained_until: datetime | None = None
    hours_observed: int = 0
    onsite_rests_on: str = ""
    notes: tuple[str, ...] = ()


class PlannedHub(Struct, frozen=True, kw_only=True):
    """One hub as a plan sees it, by step; all of it is forecast."""

    hub_id: str
    rests_on: str = ""
    figures_at: datetime | None = None
    pue: float = 1.0
    transmission_loss: float = 0.0
    grid_g_per_kwh: tuple[float, ...] = ()
    spare_kw: tuple[float, ...] = ()


class CarbonPlanView(Struct, frozen=True, kw_only=True):
    """The newest plan of a hub; `at` None: there is none yet."""

    hub_id: str
    at: datetime | None = None
    fresh: bool = False
    applies_to: str = ""
    step_s: float = 3600.0
    held: int = 0
    asked_elsewhere: int = 0
    decisions: int = 0
    all_g_left: float | None = None
    tenant_g_left: dict[str, float] = {}
    hubs: tuple[PlannedHub, ...] = ()
    notes: tuple[str, ...] = ()


class HubReport(Struct, frozen=True, kw_only=True):
    """What work used at one hub. `report` is in the words of the GHG Protocol, as is `csv`."""

    hub_id: str
    at: datetime | None = None
    not_booked_kwh: float = 0.0
    report: dict[str, Any] = {}
    csv: str = ""


class Piece(Struct, frozen=True, kw_only=True):
    """One interval of a job. Grams are by location, with own plants."""

    start: datetime
    end: datetime
    kwh: float = 0.0
    onsite_kwh: float = 0.0
    g: float = 0.0
    grid_g_per_kwh: float = 0.0
    grid_source: str = ""
    grid_evidence: str = ""
    booked: bool = True
    naive_g: float | None = None
    naive_home: str = ""
    naive_missing: str = ""


class JobCarbon(Struct, frozen=True, kw_only=True):
    """What one job used at one hub, and what the naive choice would have cost."""

    workload_id: str
    hub_id: str = ""
    at: datetime | None = None
    report: dict[str, Any] = {}
    pieces: tuple[Piece, ...] = ()
    pieces_total: int = 0
    choice: dict[str, Any] | None = None  # of the hub that owns it: what was decided about its power
    plan: tuple[str, ...] = ()  # the same in sentences

"""What does a hub answer about its power? Figures that name their kind, their source and whether they were measured."""

# harch: pure

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct, field


class CarbonOption(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A hub and a start that were weighed. All of it is forecast."""

    hub_id: str
    start_at: datetime
    grams: float
    kwh: float
    cost_g: float = 0.0  # what was compared: grams, what others need there and then, money if it counts
    rests_on: str = ""
    data_at: datetime | None = field(default=None, name="figures_at")  # the oldest figure that it rests on


class CarbonChoice(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What the hub decided for a workload, kept with it. `start_by` is a promise; everything else is a plan.

    `held`: it is kept out of the queue until `release_at`, or until a newer plan says so.
    """

    action: str  # start, wait, move, suspend
    decided_at: datetime
    hub_id: str  # where it should run
    reason: str = ""
    held: bool = False
    start_at: datetime | None = None  # planned
    start_by: datetime | None = None  # promised
    release_at: datetime | None = None  # into the queue at the latest: a gang may have to wait for its nodes
    chosen: CarbonOption | None = None
    at_once: CarbonOption | None = None  # the same job, at once, at home
    options: tuple[CarbonOption, ...] = ()
    move_cost_g: float = 0.0
    reserved_g: float = 0.0  # of budgets; what it is expected to emit
    refused: str = ""  # why no hub and hour would do, by the newest plan
    # The other hub was queried once; from then on home comes first.
    requested_there: bool = field(default=False, name="asked_there")
    moves: int = 0
    moved_at: datetime | None = None
    ran_s: float = 0.0  # before it was suspended or moved

    @property
    def saves_g(self) -> float:
        """Against running at once at home; forecast, estimated."""
        if self.chosen is None or self.at_once is None:
            return 0.0
        return self.at_once.grams - self.chosen.grams - self.move_cost_g


class NotUsed(Struct, frozen=True, kw_only=True):
    """A source that the figure does not rest on, and why not."""

    source: str
    rule: str = ""
    detail: str = ""
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
    country: str = ""
    grid_zone: str = ""
    at: datetime
    marginal_g_per_kwh: float | None = None
    marginal_rests_on: str = ""
    onsite_kw: float = 0.0
    transmission_loss: float = 0.0  # of what the grid delivers to the meter
    ppa_share: float = 0.0  # of the grid's delivery, what agreements cover
    load_kw: float = 0.0  # of the whole hub with its PUE; estimated unless `facility-power` is measured
    price_per_mwh: float | None = None
    currency: str = ""
    readings: tuple[Figure, ...] = field(default=(), name="figures")

    def figure(self, signal: str) -> Figure:
        found = next((figure for figure in self.readings if figure.signal == signal), None)
        return found or Figure(signal=signal, quality="missing")


class PowerView(Struct, frozen=True, kw_only=True):
    """The power of one hub as seen from here. `age_s` is how old its intensity is; `error` why nothing is known."""

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
    """The average intensity of a hub's grid in the hours to come. Always estimated.

    Errors are those of a replay over the last `error_days` days, in % of what came, per day ahead; empty: unknown.
    """

    hub_id: str
    grid_zone: str = ""
    made_at: datetime
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
    """One hub as the plan sees it, by step. `spare_kw` is own power that no load takes yet; all of it is forecast."""

    hub_id: str
    rests_on: str = ""
    data_at: datetime | None = field(default=None, name="figures_at")
    pue: float = 1.0
    transmission_loss: float = 0.0
    grid_g_per_kwh: tuple[float, ...] = ()
    spare_kw: tuple[float, ...] = ()


class CarbonPlanView(Struct, frozen=True, kw_only=True):
    """`at` None: there is no plan yet. `notes`: hubs that were left out, and what else went wrong."""

    hub_id: str
    at: datetime | None = None
    fresh: bool = False  # else work starts as if nobody planned
    applies_to: str = ""
    step_s: float = 3600.0
    held: int = 0
    requested_elsewhere: int = field(default=0, name="asked_elsewhere")
    decisions: int = 0
    all_g_left: float | None = None  # of this month's budget of the hub
    tenant_g_left: dict[str, float] = {}
    hubs: tuple[PlannedHub, ...] = ()
    notes: tuple[str, ...] = ()


class Used(Struct, frozen=True, kw_only=True):
    """The sum of a report, by location with own plants. `saved_g` is against the naive choice, where that is known."""

    kwh: float = 0.0
    g: float = 0.0
    saved_g: float = 0.0
    estimated_share: float = 0.0
    onsite_kwh: float = 0.0  # part of `kwh`
    jobs: int = 0
    jobs_away: int = 0  # jobs that another hub owns: they ran here instead of at home


class HubReport(Struct, frozen=True, kw_only=True):
    """One hub's part. `not_booked_kwh` is of the interval that still runs: its figures may yet change."""

    hub_id: str
    at: datetime
    not_booked_kwh: float = 0.0
    report: dict[str, Any] = {}
    csv: str = ""
    used: Used = Used()


class Piece(Struct, frozen=True, kw_only=True):
    """One interval of a job. Grams are with own plants, by location."""

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
    """What one job used at one hub, what the naive choice would have cost, and on what the figures rest."""

    workload_id: str
    hub_id: str = ""
    at: datetime | None = None
    report: dict[str, Any] = {}
    pieces: tuple[Piece, ...] = ()
    pieces_total: int = 0
    choice: CarbonChoice | None = None  # of the hub that owns it: what was decided, and promised
    plan: tuple[str, ...] = ()  # the same in sentences

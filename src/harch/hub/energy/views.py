"""What does a hub tell about its purchases? Plans, bids, book and prices, with what they rest on."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class PlanStep(Struct, frozen=True, kw_only=True):
    """One step, as mean power in kW. `battery_kw` is above 0 when it gives."""

    at: datetime
    load_kw: float
    own_kw: float
    grid_kw: float
    agreements_kw: float
    battery_kw: float
    sold_kw: float
    curtailed_kw: float
    flexible_kw: float
    stored_kwh: float
    per_mwh: float
    g_per_kwh: float


class PlanCosts(Struct, frozen=True, kw_only=True):
    bill: float
    energy: float
    agreements: float
    demand: float
    sales: float
    wear: float


class PlanCarbon(Struct, frozen=True, kw_only=True):
    """Of bought energy over the horizon, estimated. `budget_kg` is the month's as far as the horizon reaches."""

    emitted_kg: float
    budget_kg: float | None = None
    budget_kept: bool = True
    over_kg: float = 0.0
    shadow_per_t: float | None = None


class StandingView(Struct, frozen=True, kw_only=True):
    """This month, since `since`: what was emitted for bought energy, and what the plain rule would have emitted."""

    since: datetime
    emitted_kg: float
    rule_emitted_kg: float
    stored_kwh: float
    rule_stored_kwh: float


class PlanView(Struct, frozen=True, kw_only=True):
    """Everything ahead is estimated. `modelled`: nobody stated a contract, the shipped one stands in."""

    hub_id: str
    made_at: datetime
    planner: str
    objective: str
    contract: str
    currency: str
    modelled: bool
    step_s: int
    steps: tuple[PlanStep, ...]
    costs: PlanCosts
    carbon: PlanCarbon
    standing: StandingView
    solved_ms: float
    rests_on: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class BidView(Struct, frozen=True, kw_only=True):
    """`state`: planned (not sent yet), submitted, filled, partially filled, not filled, settled."""

    id: str
    market: str
    delivery: datetime
    part: str
    kwh: float
    limit_per_mwh: float
    currency: str
    state: str
    filled_kwh: float = 0.0
    amount: float = 0.0


class RefusedBid(Struct, frozen=True, kw_only=True):
    """A bid that was not sent, and why."""

    bid_id: str
    rule: str
    detail: str
    nearest_fix: str = ""


class BidList(Struct, frozen=True, kw_only=True):
    """Bids of the last days and of the next market day. `why_none`: why this hub makes none."""

    hub_id: str
    at: datetime
    market: str
    paper: bool
    prices: str
    items: tuple[BidView, ...] = ()
    total: int = 0
    refused: tuple[RefusedBid, ...] = ()
    why_none: str = ""
    stopped_why: str = ""
    trouble: str = ""
    sends_from: datetime | None = None


class BookRow(Struct, frozen=True, kw_only=True):
    """One entry of the book. `per_mwh` is the limit when planned or submitted, the price when filled or settled."""

    bid_id: str
    event: str
    at: datetime
    delivery: datetime
    part: str
    kwh: float
    per_mwh: float
    amount: float
    currency: str
    market: str


class BookSum(Struct, frozen=True, kw_only=True):
    market: str
    currency: str
    event: str
    kwh: float
    amount: float


class BookView(Struct, frozen=True, kw_only=True):
    """Rows in the order in which they came. Sums are by market and currency: paper is never added to money."""

    hub_id: str
    at: datetime
    since: datetime
    paper: bool
    rows: tuple[BookRow, ...] = ()
    total: int = 0
    sums: tuple[BookSum, ...] = ()
    why_none: str = ""


class PriceStep(Struct, frozen=True, kw_only=True):
    at: datetime
    tariff_per_mwh: float
    carbon_per_mwh: float
    total_per_mwh: float
    g_per_kwh: float


class PricesView(Struct, frozen=True, kw_only=True):
    """What a MWh costs in each step with its carbon. `shadow_per_t`: of the budget's last tonne; None: no budget."""

    hub_id: str
    made_at: datetime
    contract: str
    currency: str
    modelled: bool
    step_s: int
    carbon_per_t: float
    carbon_basis: str
    shadow_per_t: float | None
    steps: tuple[PriceStep, ...]
    rests_on: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

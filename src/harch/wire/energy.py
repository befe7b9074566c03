"""What does a hub answer about the power it buys? Plans, bids, book and prices, with what they rest on."""

# harch: pure

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class PlanStep(Struct, frozen=True, kw_only=True):
    """One step, as mean power in kW. `battery_kw` is above 0 when it gives."""

    at: datetime
    load_kw: float = 0.0
    own_kw: float = 0.0
    grid_kw: float = 0.0
    agreements_kw: float = 0.0
    battery_kw: float = 0.0
    sold_kw: float = 0.0
    curtailed_kw: float = 0.0
    flexible_kw: float = 0.0
    stored_kwh: float = 0.0
    per_mwh: float = 0.0
    g_per_kwh: float = 0.0


class PlanCosts(Struct, frozen=True, kw_only=True):
    bill: float = 0.0
    energy: float = 0.0
    agreements: float = 0.0
    demand: float = 0.0
    sales: float = 0.0
    wear: float = 0.0


class PlanCarbon(Struct, frozen=True, kw_only=True):
    """Of bought energy over the horizon, estimated. `budget_kg` is the month's as far as the horizon reaches."""

    emitted_kg: float = 0.0
    budget_kg: float | None = None
    budget_kept: bool = True
    over_kg: float = 0.0
    shadow_per_t: float | None = None


class StandingView(Struct, frozen=True, kw_only=True):
    """This month, since `since`: what was emitted for bought energy, and what the plain rule would have emitted."""

    since: datetime
    emitted_kg: float = 0.0
    rule_emitted_kg: float = 0.0
    stored_kwh: float = 0.0
    rule_stored_kwh: float = 0.0


class PlanView(Struct, frozen=True, kw_only=True):
    """Everything ahead is estimated. `modelled`: nobody stated a contract, the shipped one stands in."""

    hub_id: str
    made_at: datetime
    planner: str = ""
    objective: str = ""
    contract: str = ""
    currency: str = ""
    modelled: bool = False
    step_s: int = 3600
    steps: tuple[PlanStep, ...] = ()
    costs: PlanCosts = PlanCosts()
    carbon: PlanCarbon = PlanCarbon()
    standing: StandingView | None = None
    solved_ms: float = 0.0
    rests_on: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class BidView(Struct, frozen=True, kw_only=True):
    """`state`: planned (not sent yet), submitted, filled, partially filled, not filled, settled."""

    id: str
    market: str = ""
    delivery: datetime
    part: str = ""
    kwh: float = 0.0
    limit_per_mwh: float = 0.0
    currency: str = ""
    state: str = ""
    filled_kwh: float = 0.0
    amount: float = 0.0


class RefusedBid(Struct, frozen=True, kw_only=True):
    """A bid that was not sent, and why."""

    bid_id: str
    rule: str = ""
    detail: str = ""
    nearest_fix: str = ""


class BidList(Struct, frozen=True, kw_only=True):
    """Bids of the last days and of the next market day. `why_none`: why this hub makes none."""

    hub_id: str
    at: datetime | None = None
    market: str = ""
    paper: bool = False
    prices: str = ""
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
    part: str = ""
    kwh: float = 0.0
    per_mwh: float = 0.0
    amount: float = 0.0
    currency: str = ""
    market: str = ""


class BookSum(Struct, frozen=True, kw_only=True):
    market: str
    currency: str
    event: str
    kwh: float = 0.0
    amount: float = 0.0


class BookView(Struct, frozen=True, kw_only=True):
    """Rows in the order in which they came. Sums are by market and currency: paper is never added to money."""

    hub_id: str
    at: datetime | None = None
    since: datetime | None = None
    paper: bool = False
    rows: tuple[BookRow, ...] = ()
    total: int = 0
    sums: tuple[BookSum, ...] = ()
    why_none: str = ""


class PriceStep(Struct, frozen=True, kw_only=True):
    at: datetime
    tariff_per_mwh: float = 0.0
    carbon_per_mwh: float = 0.0
    total_per_mwh: float = 0.0
    g_per_kwh: float = 0.0


class PricesView(Struct, frozen=True, kw_only=True):
    """What a MWh costs in each step with its carbon. `shadow_per_t`: of the budget's last tonne; None: no budget."""

    hub_id: str
    made_at: datetime
    contract: str = ""
    currency: str = ""
    modelled: bool = False
    step_s: int = 3600
    carbon_per_t: float = 0.0
    carbon_basis: str = ""
    shadow_per_t: float | None = None
    steps: tuple[PriceStep, ...] = ()
    rests_on: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

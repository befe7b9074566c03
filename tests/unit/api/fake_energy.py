"""What a hub would say about its purchases, as fixed values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from harch.base.errors import HarchError
from harch.wire.energy import (
    BidList,
    BidView,
    BookRow,
    BookView,
    PlanCarbon,
    PlanCosts,
    PlanStep,
    PlanView,
    PriceStep,
    PricesView,
    StandingView,
)

AT = datetime(2026, 3, 1, 8, tzinfo=UTC)


class FakeEnergy:
    def __init__(self) -> None:
        self.failure: HarchError | None = None
        self.days_asked = 0

    def plan(self) -> PlanView:
        if self.failure is not None:
            raise self.failure
        step = PlanStep(
            at=AT,
            load_kw=10.0,
            own_kw=4.0,
            grid_kw=6.0,
            agreements_kw=0.0,
            battery_kw=0.0,
            sold_kw=0.0,
            curtailed_kw=0.0,
            flexible_kw=0.0,
            stored_kwh=0.0,
            per_mwh=85.0,
            g_per_kwh=630.0,
        )
        return PlanView(
            hub_id="dakhla",
            made_at=AT,
            planner="optimiser",
            objective="profit",
            contract="modelled contract",
            currency="USD",
            modelled=True,
            step_s=3600,
            steps=(step,),
            costs=PlanCosts(bill=1.0, energy=1.0, agreements=0.0, demand=0.0, sales=0.0, wear=0.0),
            carbon=PlanCarbon(emitted_kg=3.8),
            standing=StandingView(since=AT, emitted_kg=1.0, rule_emitted_kg=2.0, stored_kwh=0.0, rule_stored_kwh=0.0),
            solved_ms=3.0,
        )

    def prices(self) -> PricesView:
        step = PriceStep(at=AT, tariff_per_mwh=85.0, carbon_per_mwh=50.4, total_per_mwh=135.4, g_per_kwh=630.0)
        return PricesView(
            hub_id="dakhla",
            made_at=AT,
            contract="modelled contract",
            currency="USD",
            modelled=True,
            step_s=3600,
            carbon_per_t=80.0,
            carbon_basis="stated",
            shadow_per_t=None,
            steps=(step,),
        )

    def bids(self) -> BidList:
        bid = BidView(
            id="bid-1",
            market="paper",
            delivery=AT + timedelta(days=1),
            part="firm",
            kwh=10.0,
            limit_per_mwh=500.0,
            currency="USD",
            state="planned",
        )
        return BidList(hub_id="dakhla", at=AT, market="paper", paper=True, prices="modelled", items=(bid,), total=1)

    async def book(self, days: int) -> BookView:
        self.days_asked = days
        row = BookRow(
            bid_id="bid-1",
            event="submitted",
            at=AT,
            delivery=AT,
            part="firm",
            kwh=10.0,
            per_mwh=500.0,
            amount=5.0,
            currency="USD",
            market="paper",
        )
        return BookView(hub_id="dakhla", at=AT, since=AT, paper=True, rows=(row,), total=1)

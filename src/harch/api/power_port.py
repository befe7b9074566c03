"""What does the API need of a hub about power? The doors to its carbon figures and to its purchases of energy."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from harch.hub.carbon.plan_view import CarbonPlanView
from harch.hub.carbon.reports import HubReport, JobCarbon, ReportQuery
from harch.hub.carbon.views import GridForecast, PastHour, PowerView
from harch.hub.energy.views import BidList, BookView, PlanView, PricesView


class CarbonPort(Protocol):
    """On what power this hub and the others run, what it will be, and what the work here used."""

    def now(self) -> list[PowerView]:
        """Every hub, this one first."""
        ...

    def forecast(self, hub_id: str, hours: int) -> GridForecast:
        """E0305 for a hub that is not there, E0801 while nothing can be said."""
        ...

    async def past(self, start: datetime, end: datetime) -> list[PastHour]:
        """The grid of this hub, hour by hour."""
        ...

    def plan(self, *, tenant: str | None) -> CarbonPlanView:
        """The newest plan; budgets of this tenant only, or of all."""
        ...

    async def report(self, query: ReportQuery) -> HubReport: ...

    async def why(self, workload_id: str, *, tenant: str | None) -> JobCarbon: ...


class EnergyPort(Protocol):
    """What power this hub plans to buy, and what it has bought."""

    def plan(self) -> PlanView:
        """E0801 before the first plan, E0340 if nothing can supply the load."""
        ...

    def prices(self) -> PricesView: ...

    def bids(self) -> BidList: ...

    async def book(self, days: int) -> BookView:
        """Of bids that were delivered in the last days, or will be."""
        ...

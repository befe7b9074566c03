"""What can be asked of a hub about its power? Keeps its signals fresh, its past on disk and its forecast new.

Nothing here is on the way of a submission or a placement: the job machine only finds two numbers for its bids. A source
that fails, a forecast that cannot be made and a full disk cost a log line, and the figures say how old they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from harch.base.errors import HarchError
from harch.base.steady import SteadyClock
from harch.carbon.forecasts.history import NothingKnown
from harch.carbon.signals.board import ROUND_S
from harch.carbon.signals.sites import Site
from harch.carbon.values import Quantity, Reading, Signal
from harch.fleet.model import Fleet, Hub
from harch.hub.carbon.accounts import Accounts
from harch.hub.carbon.ahead import Forecaster, OnsiteAhead, cut_to, grid_forecast, onsite_ahead
from harch.hub.carbon.board import open_sources
from harch.hub.carbon.hours import HourBook, full_hour, known_hours, past_hours
from harch.hub.carbon.plan_view import CarbonPlanView, plan_view
from harch.hub.carbon.planner import Planner, intents_heard
from harch.hub.carbon.plants import PlantAhead, plants_ahead
from harch.hub.carbon.present import bid_price_per_kwh, figure_age_s, hub_power
from harch.hub.carbon.reports import HubReport, JobCarbon, ReportQuery, hub_report, job_carbon
from harch.hub.carbon.shared_budgets import spent_heard
from harch.hub.carbon.snapshot import Told
from harch.hub.carbon.views import GridForecast, HubPower, PastHour, PowerView
from harch.hub.driver import Driver
from harch.hub.federation.published import (
    CARBON,
    CARBON_AHEAD,
    CARBON_PLAN,
    CARBON_SPENT,
    forecast_heard,
    power_heard,
    power_said,
)
from harch.hub.routing.telling import sentences
from harch.hub.store.database import Database
from harch.hub.views import PeerView
from harch.workloads.lifecycle import Workload

FIRST_LOOK_S = 0.2  # the model answers at once; whoever has just started the hub should not see an empty page
WRITE_EVERY_S = 300.0
FORECAST_LOOK_S = 10.0
HOURS_AHEAD_MAX = 96

_log = logging.getLogger("harch.hub")


class HubCarbon:
    """Behind the API. `folder` may hold a carbon file; `peers` and `heard` tell what other hubs said."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        hub: Hub,
        folder: Path,
        clock: SteadyClock,
        database: Database,
        driver: Driver,
        peers: Callable[[], list[PeerView]],
        heard: Callable[[str], dict[str, bytes]],
    ) -> None:
        self._hub, self._clock, self._database, self._driver = hub, clock, database, driver
        self._peers, self._heard = peers, heard
        self._sources = open_sources(fleet, hub, folder, clock)
        self._hours, self._forecaster = HourBook(), Forecaster()
        self._supply = self._sources.config.supply(hub.id)
        self._accounts = Accounts(hub, clock, database, driver, self._told, self._supply)
        self.planner = Planner(
            fleet=fleet,
            hub_id=hub.id,
            clock=clock,
            database=database,
            driver=driver,
            settings=self._sources.config.plan,
            peers=peers,
            told=self._told_of_power,
        )
        self._written_s = clock.monotonic_s()
        self._power: HubPower | None = None
        # What the hub's contract asks now, in the currency of bids; serves where no source tells a price.
        self.contract_per_kwh: float | None = None
        self._forecast: GridForecast | None = None
        self._said: dict[str, bytes] = {}

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._driver.kept_up("reading carbon sources", self._sources.board.run))
                group.create_task(self._keep_looking())
                group.create_task(self._keep_forecasting())
                group.create_task(self.planner.run(self._survived))
        finally:
            await self._sources.close()

    async def close(self) -> None:
        """Books what was used up to now, while the disk is still there."""
        with self._survived("closing the energy accounts"):
            await self._accounts.close()

    def said(self) -> dict[str, bytes]:
        """For the gossip: power now, the forecast, what is to start at other hubs, and what tenants have spent."""
        if not self._said:
            return {}
        spent = self.planner.spent_said
        return self._said | {CARBON_PLAN: self.planner.said()} | ({} if spent is None else {CARBON_SPENT: spent})

    def now(self) -> list[PowerView]:
        """Every hub, this one first. What others said is as old as it says."""
        now, told = self._clock.now(), self._told()
        views = [self._view(self._hub.id, self.power(), "", now, own=True)]
        for peer in self._peers():
            if not peer.own:
                why = peer.error or "has not told its power"
                views.append(self._view(peer.hub_id, told.get(peer.hub_id), why, now))
        return views

    def power(self) -> HubPower:
        """Of this hub, at this moment."""
        site, signals = self._sources.site, self._sources.board.now(self._hub.id)
        return hub_power(self._hub, site.grid_zone, signals, load_kw=self._accounts.load_kw, supply=self._supply)

    @property
    def site(self) -> Site:
        """Where the hub stands, and what it generates itself."""
        return self._sources.site

    def battery_kwh(self) -> float | None:
        """What the meter of the battery says is in it; None: there is no such meter."""
        reading = self._sources.board.now(self._hub.id).reading(Signal.BATTERY_CHARGE)
        return None if reading is None else reading.value.number

    def onsite_ahead(self) -> OnsiteAhead:
        """What the hub's own plants are expected to give, by full hour."""
        return onsite_ahead(self._plants_ahead())

    def _plants_ahead(self) -> tuple[PlantAhead, ...]:
        board = self._sources.board
        return plants_ahead(lambda signal: board.outlook(self._hub.id, signal), self._sources.site)

    def prices_ahead(self) -> tuple[Reading[Quantity], ...]:
        """Prices that sources have published for the time from now on."""
        return self._sources.board.outlook(self._hub.id, Signal.PRICE)

    def forecast(self, hub_id: str, hours: int = HOURS_AHEAD_MAX) -> GridForecast:
        """Raises E0305 for a hub that is not there, E0801 while nothing can be said."""
        if hub_id == self._hub.id:
            found = self._forecast
        elif hub_id in {peer.hub_id for peer in self._peers()}:
            found = forecast_heard(self._heard(CARBON_AHEAD).get(hub_id))
        else:
            raise HarchError("E0305", f"no hub is called `{hub_id[:64]}`", hint="`harch hubs` lists the hubs")
        if found is None:
            raise HarchError("E0801", f"hub {hub_id} has no forecast yet", hint="try again", retry_after_s=2)
        return msgspec.structs.replace(found, hours=cut_to(found, hours, self._clock.now()))

    async def past(self, start: datetime, end: datetime) -> list[PastHour]:
        """The grid of this hub, hour by hour, as far as it has been written."""
        signal = Signal.GRID_AVERAGE_LIFECYCLE
        return await asyncio.to_thread(past_hours, self._database, signal, start, end)

    async def report(self, query: ReportQuery) -> HubReport:
        """What was used here. Raises E0201 for what is no month."""
        rows = await self._accounts.rows(*query.span(), tenant=query.tenant, job=query.job)
        return await asyncio.to_thread(hub_report, rows, query, hub_id=self._hub.id, at=self._clock.now())

    def plan(self, *, tenant: str | None) -> CarbonPlanView:
        """The newest plan of this hub."""
        memory, clock = self._driver.machine.desk.carbon, self._clock
        return plan_view(memory, self._hub.id, now=clock.now(), boot_s=clock.boot_s(), tenant=tenant)

    async def why(self, workload_id: str, *, tenant: str | None) -> JobCarbon:
        """What one job used here, and what was decided for it, if it is this hub's."""
        rows = await self._accounts.rows(*ReportQuery().span(), tenant=tenant, job=workload_id)
        found = job_carbon(rows, workload_id, hub_id=self._hub.id, at=self._clock.now())
        workload = await self._workload(workload_id, tenant)
        choice = workload.carbon if workload is not None else None
        if choice is None:
            return found
        return msgspec.structs.replace(found, choice=choice, plan=sentences(choice, self._clock.now()))

    async def _workload(self, workload_id: str, tenant: str | None) -> Workload | None:
        known = self._driver.machine.desk.registry.workloads.get(workload_id)
        found = known or await asyncio.to_thread(self._database.workload, workload_id, tenant=tenant)
        return found if found is not None and tenant in (None, found.tenant) and not found.guest else None

    def _told(self) -> dict[str, HubPower]:
        """What other hubs last said of themselves."""
        told = {hub_id: power_heard(said) for hub_id, said in self._heard(CARBON).items()}
        return {hub_id: power for hub_id, power in told.items() if power is not None}

    def _told_of_power(self) -> Told:
        """Of all hubs, this one included."""
        forecasts = {hub_id: forecast_heard(said) for hub_id, said in self._heard(CARBON_AHEAD).items()}
        forecasts[self._hub.id] = self._forecast
        return Told(
            powers=self._told() | {self._hub.id: self.power()},
            forecasts={hub_id: one for hub_id, one in forecasts.items() if one is not None},
            intents={hub_id: intents_heard(said) for hub_id, said in self._heard(CARBON_PLAN).items()},
            plants=tuple(plant.kw for plant in self._plants_ahead()),
            spent={hub_id: one for hub_id, said in self._heard(CARBON_SPENT).items() if (one := spent_heard(said))},
        )

    def _view(self, hub_id: str, power: HubPower | None, error: str, now: datetime, *, own: bool = False) -> PowerView:
        if power is None:
            return PowerView(hub_id=hub_id, own=own, error=error)
        age_s = figure_age_s(power.figure(Signal.GRID_AVERAGE_LIFECYCLE), now)
        return PowerView(hub_id=hub_id, own=own, age_s=age_s, power=power)

    # Beside each other, until cancelled

    async def _keep_looking(self) -> None:
        await self._clock.sleep(FIRST_LOOK_S)
        while True:
            with self._survived("looking at the power"):
                self._look()
                await self._write_if_due()
            with self._survived("charging work for its energy"):
                await self._accounts.look(self._sources.board.now(self._hub.id))
            await self._clock.sleep(ROUND_S)

    async def _keep_forecasting(self) -> None:
        await self._clock.sleep(2 * FIRST_LOOK_S)
        while True:
            if self._forecast is None or self._forecast.made_at < full_hour(self._clock.now()):
                with self._survived("forecasting"):
                    await self._make_forecast()
            await self._clock.sleep(FORECAST_LOOK_S)

    def _look(self) -> None:
        self._hours.note(self._sources.board.now(self._hub.id))
        self._power = self.power()
        board = self._driver.machine.desk.spill
        board.carbon_g_per_kwh = self._power.marginal_g_per_kwh
        told = bid_price_per_kwh(self._power)
        board.price_per_kwh = self.contract_per_kwh if told is None else told
        self._said = power_said(self._power, self._forecast)

    async def _write_if_due(self, *, now: bool = False) -> None:
        if now or self._clock.monotonic_s() - self._written_s >= WRITE_EVERY_S:
            self._written_s = self._clock.monotonic_s()
            await self._driver.write(self._hours.take(self._clock.now()), [])

    async def _make_forecast(self) -> None:
        await self._write_if_due(now=True)
        now = self._clock.now()
        known = await asyncio.to_thread(known_hours, self._database, Signal.GRID_AVERAGE_LIFECYCLE, now)
        if known is None:
            return
        try:
            made = await asyncio.to_thread(self._forecaster.forecast, known)
        except NothingKnown:
            return
        self._forecast = grid_forecast(
            made,
            self.onsite_ahead(),
            hub_id=self._hub.id,
            grid_zone=self._sources.site.grid_zone,
            modelled=known.modelled,
            now=now,
        )
        self._said = power_said(self._power, self._forecast)

    def _survived(self, what: str) -> contextlib.AbstractContextManager[None]:
        """The edge of everything about power: its faults must not end the hub."""
        return self._driver.survived(what)

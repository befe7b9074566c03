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

from harch.base.clock import SteadyClock
from harch.base.errors import HarchError
from harch.carbon.forecasts.history import NothingKnown
from harch.carbon.ledger.chain import LedgerHead
from harch.carbon.signals.registry import ROUND_S
from harch.carbon.signals.sites import SignalSite
from harch.carbon.values import Quantity, Reading, Signal
from harch.fleet.model import Fleet, Hub
from harch.hub.carbon.accounts import Accounts
from harch.hub.carbon.budgets import received_spent
from harch.hub.carbon.forecast import (
    Forecaster,
    HourBook,
    OnsiteAhead,
    PlantAhead,
    cut_to,
    full_hour,
    grid_forecast,
    known_hours,
    onsite_ahead,
    past_hours,
    plants_ahead,
)
from harch.hub.carbon.planner import Planner, received_intents
from harch.hub.carbon.signals import (
    CARBON,
    CARBON_AHEAD,
    CARBON_PLAN,
    CARBON_SPENT,
    bid_price_per_kwh,
    figure_age_s,
    hub_power,
    open_sources,
    published_power,
    received_forecast,
    received_power,
)
from harch.hub.carbon.snapshot import KnownPower
from harch.hub.carbon.views import PastHour, ReportQuery, hub_report, job_carbon, plan_view
from harch.hub.jobs.carbon_routing.explanations import sentences
from harch.hub.jobs.events import BidPower
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.store.database import Database
from harch.hub.views import PeerView
from harch.wire.carbon import CarbonPlanView, GridForecast, HubPower, HubReport, JobCarbon, PowerView
from harch.workloads.lifecycle import Workload

FIRST_LOOK_S = 0.2  # the model answers at once; whoever has just started the hub should not see an empty page
WRITE_EVERY_S = 300.0
FORECAST_LOOK_S = 10.0
HOURS_AHEAD_MAX = 96

_log = logging.getLogger("harch.hub")


class HubCarbon:
    """Behind the API. `folder` may hold a carbon file; `peers` and `received` tell what other hubs said."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        hub: Hub,
        folder: Path,
        clock: SteadyClock,
        database: Database,
        jobs: JobRuntime,
        peers: Callable[[], list[PeerView]],
        received: Callable[[str], dict[str, bytes]],
    ) -> None:
        self._hub, self._clock, self._database, self._jobs = hub, clock, database, jobs
        self._peers, self._received = peers, received
        self._sources = open_sources(fleet, hub, folder, clock)
        self._hours, self._forecaster = HourBook(), Forecaster()
        self._supply = self._sources.config.supply(hub.id)
        self._accounts = Accounts(hub, clock, database, jobs, self._known_home, self._supply)
        self.planner = Planner(
            fleet=fleet,
            hub_id=hub.id,
            clock=clock,
            database=database,
            jobs=jobs,
            settings=self._sources.config.plan,
            peers=peers,
            known=self._known_power,
        )
        self._written_s = clock.monotonic_s()
        self._power: HubPower | None = None
        # What the hub's contract asks now, in the currency of bids; serves where no source tells a price.
        self.contract_per_kwh: float | None = None
        self._forecast: GridForecast | None = None
        self._published: dict[str, bytes] = {}

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._jobs.kept_up("reading carbon sources", self._sources.signals.run))
                group.create_task(self._keep_reading())
                group.create_task(self._keep_forecasting())
                group.create_task(self.planner.run(self._survived))
        finally:
            await self._sources.close()

    async def close(self) -> None:
        """Books what was used up to now, while the disk is still there."""
        with self._survived("closing the energy accounts"):
            await self._accounts.close()

    def published(self) -> dict[str, bytes]:
        """For the gossip: power now, the forecast, what is to start at other hubs, and what tenants have spent."""
        if not self._published:
            return {}
        spent = self.planner.published_spent
        return (
            self._published | {CARBON_PLAN: self.planner.published()} | ({} if spent is None else {CARBON_SPENT: spent})
        )

    def now(self) -> list[PowerView]:
        """Every hub, this one first. What others said is as old as it says."""
        now, known = self._clock.now(), self._known_home()
        views = [self._view(self._hub.id, self.power(), "", now, own=True)]
        for peer in self._peers():
            if not peer.own:
                why = peer.error or "has not reported its power"
                views.append(self._view(peer.hub_id, known.get(peer.hub_id), why, now))
        return views

    def power(self) -> HubPower:
        """Of this hub, at this moment."""
        site, signals = self._sources.site, self._sources.signals.now(self._hub.id)
        return hub_power(self._hub, site.grid_zone, signals, load_kw=self._accounts.load_kw, supply=self._supply)

    @property
    def site(self) -> SignalSite:
        """Where the hub stands, and what it generates itself."""
        return self._sources.site

    def battery_kwh(self) -> float | None:
        """What the meter of the battery says is in it; None: there is no such meter."""
        reading = self._sources.signals.now(self._hub.id).reading(Signal.BATTERY_CHARGE)
        return None if reading is None else reading.value.number

    def onsite_ahead(self) -> OnsiteAhead:
        """What the hub's own plants are expected to give, by full hour."""
        return onsite_ahead(self._plants_ahead())

    def _plants_ahead(self) -> tuple[PlantAhead, ...]:
        registry = self._sources.signals
        return plants_ahead(lambda signal: registry.outlook(self._hub.id, signal), self._sources.site)

    def prices_ahead(self) -> tuple[Reading[Quantity], ...]:
        """Prices that sources have published for the time from now on."""
        return self._sources.signals.outlook(self._hub.id, Signal.PRICE)

    def forecast(self, hub_id: str, hours: int = HOURS_AHEAD_MAX) -> GridForecast:
        """Raises E0305 for a hub that is not there, E0801 while nothing can be said."""
        if hub_id == self._hub.id:
            found = self._forecast
        elif hub_id in {peer.hub_id for peer in self._peers()}:
            found = received_forecast(self._received(CARBON_AHEAD).get(hub_id))
        else:
            raise HarchError("E0305", f"no hub named `{hub_id[:64]}`", hint="`harch hubs` lists the hubs")
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

    async def ledger_head(self) -> LedgerHead:
        """Where the ledger on disk ends."""
        return await self._accounts.ledger_head()

    async def ledger_lines(self, *, after: int, upto: int, limit: int) -> list[tuple[int, bytes]]:
        """Lines of an export of the ledger with their numbers."""
        return await self._accounts.ledger_lines(after=after, upto=upto, limit=limit)

    def plan(self, *, tenant: str | None) -> CarbonPlanView:
        """The newest plan of this hub."""
        memory, clock = self._jobs.machine.state.carbon, self._clock
        applies_to = str(self._sources.config.plan.planning.applies_to)
        return plan_view(
            memory, self._hub.id, applies_to=applies_to, now=clock.now(), boot_s=clock.boot_s(), tenant=tenant
        )

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
        known = self._jobs.machine.state.registry.workloads.get(workload_id)
        found = known or await asyncio.to_thread(self._database.workload, workload_id, tenant=tenant)
        return found if found is not None and tenant in (None, found.tenant) and not found.borrowed else None

    def _known_home(self) -> dict[str, HubPower]:
        """What other hubs last said of themselves."""
        known = {hub_id: received_power(value) for hub_id, value in self._received(CARBON).items()}
        return {hub_id: power for hub_id, power in known.items() if power is not None}

    def _known_power(self) -> KnownPower:
        """Of all hubs, this one included."""
        forecasts = {hub_id: received_forecast(value) for hub_id, value in self._received(CARBON_AHEAD).items()}
        forecasts[self._hub.id] = self._forecast
        return KnownPower(
            powers=self._known_home() | {self._hub.id: self.power()},
            forecasts={hub_id: one for hub_id, one in forecasts.items() if one is not None},
            intents={hub_id: received_intents(value) for hub_id, value in self._received(CARBON_PLAN).items()},
            plants=tuple(plant.kw for plant in self._plants_ahead()),
            spent={
                hub_id: one for hub_id, value in self._received(CARBON_SPENT).items() if (one := received_spent(value))
            },
        )

    def _view(self, hub_id: str, power: HubPower | None, error: str, now: datetime, *, own: bool = False) -> PowerView:
        if power is None:
            return PowerView(hub_id=hub_id, own=own, error=error)
        age_s = figure_age_s(power.figure(Signal.GRID_AVERAGE_LIFECYCLE), now)
        return PowerView(hub_id=hub_id, own=own, age_s=age_s, power=power)

    # Beside each other, until cancelled

    async def _keep_reading(self) -> None:
        await self._clock.sleep(FIRST_LOOK_S)
        while True:
            with self._survived("sampling the power"):
                self._look()
                await self._write_if_due()
            with self._survived("accounting for energy"):
                await self._accounts.look(self._sources.signals.now(self._hub.id))
            await self._clock.sleep(ROUND_S)

    async def _keep_forecasting(self) -> None:
        await self._clock.sleep(2 * FIRST_LOOK_S)
        while True:
            if self._forecast is None or self._forecast.made_at < full_hour(self._clock.now()):
                with self._survived("forecasting"):
                    await self._make_forecast()
            await self._clock.sleep(FORECAST_LOOK_S)

    def _look(self) -> None:
        self._hours.note(self._sources.signals.now(self._hub.id))
        self._power = self.power()
        price = bid_price_per_kwh(self._power)
        self._jobs.bid_with(BidPower(self._power.marginal_g_per_kwh, self.contract_per_kwh if price is None else price))
        self._published = published_power(self._power, self._forecast)

    async def _write_if_due(self, *, now: bool = False) -> None:
        if now or self._clock.monotonic_s() - self._written_s >= WRITE_EVERY_S:
            self._written_s = self._clock.monotonic_s()
            await self._jobs.write(self._hours.take(self._clock.now()), [])

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
        self._published = published_power(self._power, self._forecast)

    def _survived(self, what: str) -> contextlib.AbstractContextManager[None]:
        """The edge of everything about power: its faults must not end the hub."""
        return self._jobs.survived(what)

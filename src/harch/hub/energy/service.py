"""What can be asked of a hub about buying power? Keeps a plan fresh, follows it in its accounts, bids and keeps book.

Nothing here is on the way of a submission or a placement. Plans are made in a thread, markets are spoken to on another;
what fails costs a log line, and the figures say how old they are and who made them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np

from harch.base.clock import Clock, iso
from harch.base.errors import HarchError
from harch.carbon.signals.sites import OnSite, SignalSite
from harch.carbon.signals.sources.modelled import Modelled, modelled
from harch.carbon.values import Price, Signal
from harch.energy.market.ledger import BidLedger, Row, row_from_plain
from harch.energy.site import EnergySite, Plant
from harch.energy.steps import Array, Steps
from harch.energy.tariffs.prices import SpotSeries
from harch.energy.tariffs.terms import SpotPrice
from harch.fleet.model import Fleet, Hub
from harch.hub.carbon.service import HubCarbon
from harch.hub.carbon.signals import BID_CURRENCY
from harch.hub.energy.following import Follower
from harch.hub.energy.market import HubMarket, without_old
from harch.hub.energy.outlook import REMEMBER, Account, Known, Planned, StepRecord, plan_ahead, step_of, steps_ahead
from harch.hub.energy.prices import SpotPrices, import_kw_max, open_site
from harch.hub.energy.views import bid_views, book_rows, book_sums, is_paper, plan_view, prices_view, refused_views
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement
from harch.wire.energy import BidList, BookView, PlanView, PricesView

FIRST_LOOK_S = 1.0  # the signals have their first values by then
ROUND_S = 30.0
PLAN_EVERY_S = 300.0
KEEP_LIMIT_S = 20.0
BIDS_LISTED = timedelta(days=3)
ROWS_LISTED_MAX = 5000

_log = logging.getLogger("harch.hub")


class HubEnergy:
    """Behind the API. `folder` may hold an energy file."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        hub: Hub,
        folder: Path,
        clock: Clock,
        database: Database,
        jobs: JobRuntime,
        carbon: HubCarbon,
    ) -> None:
        self._hub, self._clock, self._database, self._jobs, self._carbon = hub, clock, database, jobs, carbon
        self._site = open_site(fleet, hub, folder, carbon.site.onsite)
        self._import_kw_max = import_kw_max(self._site, hub)
        self._follower = Follower(self._site, steps_since(database, clock.now() - REMEMBER))
        self._loop = asyncio.get_running_loop()
        self._market: HubMarket | None = None
        self._prices: SpotPrices | None = None
        terms = self._site.tariff.energy
        if isinstance(terms, SpotPrice) and self._site.market is not None:
            self._market = HubMarket(self._site, terms, self._site.market, hub.id, self._keep)
            self._prices = SpotPrices(terms, self._site.market, self._site.tariff.currency, self._site.step_s, folder)
        self._model = modelled()
        self._spot: SpotSeries | None = None
        self._book_is_stale = True
        self._planned: Planned | None = None
        self._why_none: HarchError | None = None
        self._solved_ms = 0.0
        self._planned_s = -PLAN_EVERY_S
        self._lacks_forecast = True

    async def run(self) -> None:
        """Until cancelled."""
        await self._clock.sleep(FIRST_LOOK_S)
        while True:
            with self._survived("following the energy plan"):
                await self._look()
            with self._survived("planning energy"):
                if self._is_due():
                    await self._plan()
            if self._market is not None:
                with self._survived("trading energy"):
                    await self._trade(self._market)
            await self._clock.sleep(ROUND_S)

    def close(self) -> None:
        if self._market is not None:
            self._market.close()

    # Asked by the API

    def plan(self) -> PlanView:
        """Raises E0801 before the first plan, and whatever speaks against any plan."""
        return plan_view(self._made(), self._site, self._hub.id, self._solved_ms)

    def prices(self) -> PricesView:
        return prices_view(self._made(), self._site, self._hub.id)

    def bids(self) -> BidList:
        now, market = self._clock.now(), self._market
        if market is None:
            return BidList(hub_id=self._hub.id, at=now, market="", paper=False, prices="", why_none=self._no_market())
        items = bid_views(market.planned, market.book, now - BIDS_LISTED, market.name)
        return BidList(
            hub_id=self._hub.id,
            at=now,
            market=market.name,
            paper=market.paper,
            prices=self._prices.source if self._prices is not None else "",
            items=tuple(items),
            total=len(items),
            refused=refused_views(market.refused),
            stopped_why=market.stopped_why,
            trouble=market.trouble,
            sends_from=market.sends_from(now),
        )

    async def book(self, days: int) -> BookView:
        """Rows of bids that were delivered in the last days, or will be."""
        now = self._clock.now()
        since = now - timedelta(days=days)
        rows = await asyncio.to_thread(rows_since, self._database, since)
        rows.sort(key=lambda row: row.at)
        return BookView(
            hub_id=self._hub.id,
            at=now,
            since=since,
            paper=is_paper(rows, self._market.name if self._market is not None else ""),
            rows=book_rows(rows[-ROWS_LISTED_MAX:]),
            total=len(rows),
            sums=book_sums(rows),
            why_none="" if rows or self._market is not None else self._no_market(),
        )

    def gauges(self) -> dict[str, float]:
        """For metrics: what the plan says about the running step and its carbon."""
        if self._planned is None:
            return {}
        planned, hours = self._planned, self._planned.plan.steps.hours
        found = {
            "energy_plan_import_kw": float(planned.plan.import_kwh[0]) / hours,
            "energy_tariff_per_mwh": float(planned.prices.tariff_per_mwh[0]),
            "energy_carbon_price_per_t": planned.prices.per_t,
            "energy_month_emitted_kg": planned.account.standing.emitted_kg,
            "energy_month_rule_emitted_kg": planned.account.standing.rule_emitted_kg,
            "energy_carbon_budget_over_kg": planned.plan.carbon.over_kg,
        }
        if planned.shadow_per_t is not None:
            found["energy_carbon_shadow_price_per_t"] = planned.shadow_per_t
        return found

    @property
    def currency(self) -> str:
        return self._site.tariff.currency

    def _made(self) -> Planned:
        if self._planned is not None:
            return self._planned
        raise self._why_none or HarchError(
            "E0801", f"hub {self._hub.id} has no energy plan yet", hint="try again", retry_after_s=2
        )

    def _no_market(self) -> str:
        return f"the contract `{self._site.tariff.name}` has fixed prices: there is nothing to bid for"

    # Every round

    async def _look(self) -> None:
        """Gathers what is drawn, and closes steps that are over."""
        power, now = self._carbon.power(), self._clock.now()
        record = self._follower.note(
            now,
            load_kw=power.load_kw,
            own_kw=power.onsite_kw,
            g_per_kwh=power.figure("grid-average-lifecycle").value,
            per_mwh=power.price_per_mwh if power.currency == self.currency else None,
            stored_kwh=self._carbon.battery_kwh(),
            plan=self._planned,
        )
        if record is not None:
            await self._jobs.write(save_step(record), [])

    def _is_due(self) -> bool:
        if self._planned is None or self._clock.monotonic_s() - self._planned_s >= PLAN_EVERY_S:
            return True
        if self._lacks_forecast:  # it may be there by now
            return True
        return self._planned.plan.steps.start != step_of(self._clock.now(), self._site.step_s)

    async def _plan(self) -> None:
        self._planned_s = self._clock.monotonic_s()
        now = self._clock.now()
        if self._prices is not None:
            read = prices_read(self._carbon, self._follower.past, self._site, now)
            self._spot = None  # a file that cannot be read costs a log line; the plan then assumes prices and says so
            with self._survived("reading prices"):
                self._spot = await asyncio.to_thread(self._prices.known, now, read)
        source = self._prices.source if self._prices is not None else ""
        known = known_now(self._carbon, self._hub.id, now, self._follower.past, spot=self._spot, prices=source)
        self._lacks_forecast = not known.g_per_kwh_ahead
        account = self._follower.account(now, self._carbon.battery_kwh())
        started = self._clock.monotonic_s()
        try:
            self._planned = await asyncio.to_thread(self._planned_from, known, account)
        except HarchError as error:
            self._planned, self._why_none = None, error
            raise
        self._solved_ms = (self._clock.monotonic_s() - started) * 1000
        if self.currency == BID_CURRENCY and not self._site.modelled:
            self._carbon.contract_per_kwh = float(self._planned.prices.tariff_per_mwh[0]) / 1000
        if self._market is not None:
            assumed = self._planned.expected.prices_assumed
            self._market.plan_bids(self._planned.plan, assumed=assumed, now=now)

    def _planned_from(self, known: Known, account: Account) -> Planned:
        """In a thread: the optimiser and the model of plants take their time."""
        steps = steps_ahead(self._site, known.now)
        plants_kwh = plants_ahead(self._site.plants, self._carbon.site, self._model, steps)
        return plan_ahead(self._site, known, account, import_kw_max=self._import_kw_max, plants_kwh=plants_kwh)

    async def _trade(self, market: HubMarket) -> None:
        now, book = self._clock.now(), None
        if self._book_is_stale:
            await self._jobs.write([forget_rows(now)], [])  # also waits for rows that are on their way
            rows = await asyncio.to_thread(rows_since, self._database, now - REMEMBER)
            book, self._book_is_stale = BidLedger.of(rows), False
        elif len(young := without_old(market.book, now - REMEMBER).rows) < len(market.book.rows):
            book = BidLedger.of(young)
        try:
            await market.trade(book, self._spot, now=now)
        except BaseException:
            self._book_is_stale = True  # what was written may be more than memory knows
            raise

    def _keep(self, rows: Sequence[Row]) -> None:
        """Called on the market's thread, before anything is sent: returns when the rows are on disk."""
        book = self._market.book if self._market is not None else BidLedger()
        statements = save_rows(rows, {row.bid_id: len(book.history(row.bid_id)) for row in rows})

        async def write() -> None:
            await self._jobs.write(statements, [])

        asyncio.run_coroutine_threadsafe(write(), self._loop).result(KEEP_LIMIT_S)

    def _survived(self, what: str) -> contextlib.AbstractContextManager[None]:
        """The edge of everything about energy: its faults must not end the hub."""
        return self._jobs.survived(what)


# What does the hub know of the next hours? Its signals and forecasts, as the planning of energy wants them.


HOURS_AHEAD = 96


def known_now(
    carbon: HubCarbon, hub_id: str, now: datetime, past: Sequence[StepRecord], *, spot: SpotSeries | None, prices: str
) -> Known:
    """Asks nobody: signals and forecasts are as the hub last heard or made them."""
    power = carbon.power()
    grid = power.figure("grid-average-lifecycle")
    g_ahead, rests_on = {}, [f"load: {power.load_kw:.0f} kW now, what the hub draws with its PUE (estimated)"]
    if grid.value is not None:
        rests_on.append(f"grid now: {grid.source} ({grid.evidence})")
    try:
        forecast = carbon.forecast(hub_id, HOURS_AHEAD)
        g_ahead = {hour.at: hour.g_per_kwh for hour in forecast.hours}
        rests_on.append(f"grid ahead: {forecast.model} ({forecast.evidence})")
    except HarchError:
        rests_on.append("grid ahead: no forecast yet")
    onsite = carbon.onsite_ahead()
    if any(onsite.kw.values()):
        rests_on.append(f"own plants: {onsite.rests_on} (estimated)")
    if prices:
        rests_on.append(f"spot prices: {prices}")
    return Known(
        now=now,
        load_kw=power.load_kw,
        own_kw=power.onsite_kw,
        g_per_kwh=grid.value,
        own_kw_ahead=onsite.kw,
        g_per_kwh_ahead=g_ahead,
        past=past,
        spot=spot,
        rests_on=tuple(rests_on),
    )


def prices_read(
    carbon: HubCarbon, past: Sequence[StepRecord], site: EnergySite, now: datetime
) -> dict[datetime, float]:
    """Prices by step as the hub's sources reported them: past steps, the running one, and what is published ahead."""
    currency = site.tariff.currency
    found = {record.at: record.per_mwh for record in past if record.per_mwh is not None}
    power = carbon.power()
    if power.price_per_mwh is not None and power.currency == currency:
        found[step_of(now, site.step_s)] = power.price_per_mwh
    for reading in carbon.prices_ahead():
        if isinstance(reading.value, Price) and reading.value.currency == currency:
            found[step_of(reading.at, site.step_s)] = reading.value.per_mwh
    return found


def plants_ahead(plants: Mapping[str, Plant], site: SignalSite, model: Modelled, steps: Steps) -> dict[str, Array]:
    """What plants elsewhere give, by the model of the hub's own ones."""
    return {name: _plant_kw(plant, site, model, steps) * steps.hours for name, plant in plants.items()}


def _plant_kw(plant: Plant, site: SignalSite, model: Modelled, steps: Steps) -> Array:
    there = replace(
        site,
        latitude=site.latitude if plant.latitude is None else plant.latitude,
        longitude=site.longitude if plant.longitude is None else plant.longitude,
        onsite=OnSite(
            pv_kw_peak=plant.pv_kw_peak, wind_kw=plant.wind_kw, wind_capacity_factor=plant.wind_capacity_factor
        ),
    )
    kw = []
    for moment in steps.starts():
        middle = moment + timedelta(seconds=steps.step_s / 2)
        found = model.readings(there, middle, received_at=moment)
        kw.append(sum(one.value.number for one in found if one.signal in (Signal.PV_POWER, Signal.WIND_POWER)))
    return np.array(kw)


# What is kept of steps and bids? Statements to run in somebody's transaction, and what to read back.


KEEP = timedelta(days=400)  # on disk: more than a year, so that a month can be compared with the one before it
ROWS_READ_MAX = 50_000

_encode = msgspec.json.Encoder().encode


def save_step(record: StepRecord) -> list[Statement]:
    """Written once: a second record of one step, after a clock that was set back, is none."""
    return [
        ("INSERT INTO energy_steps (at, body) VALUES (?, ?) ON CONFLICT DO NOTHING", (iso(record.at), _encode(record))),
        ("DELETE FROM energy_steps WHERE at < ?", (iso(record.at - KEEP),)),
    ]


def steps_since(database: Database, since: datetime) -> list[StepRecord]:
    found = database.query("SELECT body FROM energy_steps WHERE at >= ? ORDER BY at", (iso(since),))
    return [msgspec.json.decode(body, type=StepRecord) for (body,) in found]


def save_rows(rows: Sequence[Row], counts: dict[str, int]) -> list[Statement]:
    """Rows of the book. `counts`: how many rows each bid has before these; a row that is there already stays."""
    statements: list[Statement] = []
    numbers = dict(counts)
    for row in rows:
        number = numbers[row.bid_id] = numbers.get(row.bid_id, 0) + 1
        values = (row.bid_id, number, iso(row.delivery), iso(row.at), _encode(row.as_plain()))
        statements.append(
            (
                "INSERT INTO energy_book (bid_id, number, delivery, at, body) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                values,
            )
        )
    return statements


def forget_rows(now: datetime) -> Statement:
    """Whole bids of long ago; what is younger stays whatever became of it."""
    return "DELETE FROM energy_book WHERE delivery < ?", (iso(now - KEEP),)


def rows_since(database: Database, delivered_since: datetime) -> list[Row]:
    """Of bids whose delivery begins from then on; the rows of each bid in the order in which they were written."""
    found = database.query(
        "SELECT body FROM energy_book WHERE delivery >= ? ORDER BY delivery, bid_id, number LIMIT ?",
        (iso(delivered_since), ROWS_READ_MAX),
    )
    return [row_from_plain(msgspec.json.decode(body)) for (body,) in found]

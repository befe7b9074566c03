"""How do bids reach a market without the hub waiting for it? On a thread of their own, with limits on everything.

An adapter is code of others: it may hang, fail and lie. It runs on an event loop of its own, each round has a deadline,
and a market whose answer cannot be is traded with no more until a person has looked.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.energy.market.adapter import PAPER, MarketAdapter, PaperMarket
from harch.energy.market.bids import Bid, bids_from
from harch.energy.market.ledger import BidLedger
from harch.energy.market.trading import Keep, Switch, TradingService
from harch.energy.plugins import MarketContext, open_adapter
from harch.energy.procurement.plan import ProcurementPlan
from harch.energy.site import EnergySite, MarketTerms
from harch.energy.tariffs.prices import SpotSeries
from harch.energy.tariffs.terms import SpotPrice

ROUND_LIMIT_S = 60.0
LIED = "E0441"


class MarketThread:
    """An event loop beside the hub's. One call at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="market", daemon=True)
        self.busy = False

    async def call(self, work: Coroutine[Any, Any, None], limit_s: float) -> None:
        """Raises TimeoutError after the limit, and at once while an earlier call has not ended."""
        if self.busy:
            work.close()
            raise TimeoutError("the market has not answered an earlier request")
        if not self._thread.is_alive():
            self._thread.start()
        self.busy = True
        done = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._watched(work), self._loop))
        finished, _ = await asyncio.wait([done], timeout=limit_s)
        if not finished:
            done.cancel()
            raise TimeoutError(f"the market did not answer within {limit_s:g} s")
        done.result()

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        """A cancelled call may go on for a while: code that does not yield cannot be ended."""
        try:
            await work
        finally:
            self.busy = False

    def close(self) -> None:
        """What hangs is left behind: the thread is a daemon."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=1.0)
        if not self._thread.is_alive():
            self._loop.close()


class HubMarket:
    """One hub's bids. `keep` makes rows durable and is called on the market's thread."""

    def __init__(self, site: EnergySite, terms: SpotPrice, market: MarketTerms, hub_id: str, keep: Keep) -> None:
        self._site, self._terms, self._market, self._hub_id = site, terms, market, hub_id
        self._thread = MarketThread()
        self._paper: PaperMarket | None = None
        self._adapter: MarketAdapter | None = None
        if market.adapter != PAPER:
            context = MarketContext(hub=hub_id, zone=terms.zone, currency=site.tariff.currency, options=market.options)
            self._adapter = open_adapter(market.adapter, context)
        self._keep, self._trading = keep, None  # type: Keep, TradingService | None
        self._send_again = True  # at the start: what the book calls submitted may never have left
        self._lied = False
        self.stopped_why, self.trouble = market.stopped_why, ""
        self.refused: tuple[Rejection, ...] = ()
        self.planned: tuple[Bid, ...] = ()

    @property
    def name(self) -> str:
        return PAPER if self._adapter is None else self._adapter.name

    @property
    def paper(self) -> bool:
        return self.name == PAPER

    @property
    def book(self) -> BidLedger:
        return self._trading.book if self._trading is not None else BidLedger()

    def sends_from(self, now: datetime) -> datetime:
        """When bids for the next open market day begin to be sent."""
        opens = self._terms.known_until(now).astimezone(self._terms.market_time)
        published = datetime.combine(
            opens.date() - timedelta(days=1), self._terms.published_at, tzinfo=self._terms.market_time
        )
        return published.astimezone(now.tzinfo) - timedelta(minutes=self._market.send_before_min)

    def plan_bids(self, plan: ProcurementPlan, *, assumed: bool, now: datetime) -> None:
        """What would be bid for the next market day. On assumed prices nothing is, nor twice for one day."""
        day = self._next_day(now)
        self.planned = ()
        if assumed or self.book.submitted(day):
            return
        bids = bids_from(
            plan,
            self._terms,
            hub=self._hub_id,
            now=now,
            firm_limit_per_mwh=self._market.firm_limit_per_mwh,
            fee_per_mwh=self._site.tariff.fee_per_mwh,
        )
        self.planned = tuple(bid for bid in bids if self._terms.day_of(bid.delivery) == day)

    async def trade(self, book: BidLedger | None, spot: SpotSeries | None, *, now: datetime) -> None:
        """One round: sends what is due, writes down fills, settles. `book` replaces the one in memory.

        Whatever goes wrong ends up in `trouble`; a market that lies is not traded with again.
        """
        # The book of a round that still hangs is not exchanged under its hands; the call below refuses, too.
        if not self._ready(None if self._thread.busy else book, spot):
            return
        # Planned before the book was read, perhaps: what was sent for a day is all that is sent for it.
        if self.book.submitted(self._next_day(now)):
            self.planned = ()
        bids = self.planned if now >= self.sends_from(now) else ()
        if not bids and not self.book.bid_ids:
            return
        try:
            await self._thread.call(self._round(bids, now), ROUND_LIMIT_S)
        except HarchError as error:
            self._failed(error.message)
            if error.code == LIED:
                known, self._lied = self._lied, True
                self.stopped_why = f"the market {self.name} returned an impossible answer: {error.message}"
                if known:  # it says so in every round; one line in the log is enough
                    return
            raise
        except Exception as error:  # code of others: whatever it raises is reported, and tried again
            self._failed(f"{type(error).__name__}: {error}")
            hint = "submitted bids are sent again under their ids; `harch energy bids` shows more"
            raise HarchError("E0442", f"the market {self.name}: {self.trouble}", hint=hint) from error
        self.trouble = ""

    def _next_day(self, now: datetime) -> str:
        """The first market day whose prices are not published."""
        return self._terms.day_of(self._terms.known_until(now))

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._thread.close()

    def _ready(self, book: BidLedger | None, spot: SpotSeries | None) -> bool:
        if self._adapter is None and spot is not None:
            if self._paper is None:
                self._paper = PaperMarket(spot, self._terms)
            self._paper.spot = spot
        adapter = self._adapter or self._paper
        if adapter is None:
            return False
        if self._trading is None:
            self._trading = TradingService(adapter, self._terms, self._market.limits, self._keep, book or BidLedger())
        elif book is not None:
            self._trading.book = book
        return True

    async def _round(self, bids: Sequence[Bid], now: datetime) -> None:
        trading, switch = self._trading, Switch(self.stopped_why)
        if trading is None:
            return
        if self._send_again:
            await trading.resume(switch, now=now)
            self._send_again = False
        if bids:
            self.refused = await trading.submit(tuple(bids), switch, now=now)
            self.planned = ()
        await trading.collect(now=now)
        trading.settle(now=now)

    def _failed(self, why: str) -> None:
        self.trouble, self._send_again = why[:300], True


def without_old(book: BidLedger, since: datetime) -> BidLedger:
    """The book of bids that are delivered from then on: memory does not grow with the years."""
    young = [row for row in book.rows if row.delivery >= since]
    return book if len(young) == len(book.rows) else BidLedger.of(young)

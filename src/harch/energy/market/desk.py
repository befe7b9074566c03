"""How does a plan become a purchase? Admit, write down, send, ask for fills, settle: each step can be repeated safely.

Rows are written before bids are sent. After a crash between the two, the same bids are sent again under the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from harch.base.rejection import Rejection
from harch.energy.market.adapter import MarketAdapter
from harch.energy.market.bids import Bid
from harch.energy.market.book import ROUNDING_KWH, Book, Event, Row
from harch.energy.market.limits import Switch, TradingLimits, admit
from harch.energy.tariffs.terms import SpotPrice

# Makes rows durable before it returns. An exception stops everything that would rest on them.
Keep = Callable[[Sequence[Row]], None]


@dataclass(slots=True)
class TradingDesk:
    """One hub's desk at one market zone. `book` is what `keep` was given, in order."""

    adapter: MarketAdapter
    terms: SpotPrice
    limits: TradingLimits
    keep: Keep
    book: Book

    async def submit(self, bids: tuple[Bid, ...], switch: Switch, *, now: datetime) -> tuple[Rejection, ...]:
        """Sends what may be sent; what was sent before is sent again under its id, which changes nothing."""
        admission = admit(bids, self.book, self.limits, switch, self.terms, now=now)
        rows = [
            self._row(bid, event, now, bid.kwh, bid.limit_per_mwh)
            for bid in admission.accepted
            for event in (Event.PLANNED, Event.SUBMITTED)
        ]
        self._write(rows)
        again = () if switch.stopped_why else admission.sent_before
        if admission.accepted or again:
            await self.adapter.submit((*admission.accepted, *again), now=now)
        return admission.rejected

    async def collect(self, bids: tuple[Bid, ...], *, now: datetime) -> None:
        """Writes down what the market gave since the last time."""
        waiting = {bid.id: bid for bid in bids if bid.id in self.book and self._is_open(bid)}
        rows = []
        for fill in await self.adapter.fills(tuple(waiting.values()), now=now):
            bid = waiting[fill.bid_id]
            more = fill.kwh - self.book.state(bid.id).filled_kwh
            if more > ROUNDING_KWH:
                rows.append(self._row(bid, Event.FILLED, now, more, fill.per_mwh))
            if fill.final and fill.kwh < bid.kwh - ROUNDING_KWH:
                rows.append(self._row(bid, Event.CLOSED, now, 0.0, fill.per_mwh))
        self._write(rows)

    def settle(self, bids: tuple[Bid, ...], *, now: datetime) -> None:
        """After delivery: what was filled is due."""
        rows = []
        for bid in bids:
            state = self.book.state(bid.id)
            over = now >= bid.delivery and state.last in (Event.FILLED, Event.CLOSED)
            if over and (state.last is Event.CLOSED or state.filled_kwh >= bid.kwh - ROUNDING_KWH):
                mean = 1000 * state.filled_amount / state.filled_kwh if state.filled_kwh else 0.0
                rows.append(self._row(bid, Event.SETTLED, now, state.filled_kwh, mean))
        self._write(rows)

    def _is_open(self, bid: Bid) -> bool:
        state = self.book.state(bid.id)
        filled = state.filled_kwh >= state.submitted_kwh - ROUNDING_KWH
        return state.last is Event.SUBMITTED or (state.last is Event.FILLED and not filled)

    def _row(self, bid: Bid, event: Event, now: datetime, kwh: float, per_mwh: float) -> Row:
        return Row(
            bid_id=bid.id,
            event=event,
            at=now,
            delivery=bid.delivery,
            day=self.terms.day_of(bid.delivery),
            kwh=kwh,
            per_mwh=per_mwh,
            currency=bid.currency,
            market=self.adapter.name,
        )

    def _write(self, rows: Sequence[Row]) -> None:
        if rows:
            book = self.book.append(*rows)
            self.keep(rows)
            self.book = book

"""How does a plan become a purchase? Admit, write down, send, ask for fills, settle: each step can be repeated safely.

Rows are written before bids are sent. After a crash between the two, the same bids are sent again under the same ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.energy.market.adapter import Fill, MarketAdapter
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

    async def collect(self, *, now: datetime) -> None:
        """Writes down what the market gave since the last time, for all bids of the book that wait.

        Fills of bids that do not wait are none of ours. One that cannot be (beyond its bid, or taken back) is not
        written and, after all others are, raises HarchError E0441: people must look.
        """
        waiting = {bid.id: bid for bid in self.book.waiting()}
        refused: HarchError | None = None
        for fill in await self.adapter.fills(tuple(waiting.values()), now=now):
            bid = waiting.pop(fill.bid_id, None)
            if bid is None:
                continue
            try:
                self._write(self._rows_of(bid, fill, now))
            except HarchError as error:
                if error.code != "E0441":
                    raise
                refused = refused or error
        if refused is not None:
            raise refused

    def _rows_of(self, bid: Bid, fill: Fill, now: datetime) -> list[Row]:
        before_kwh = self.book.state(bid.id).filled_kwh
        if not fill.kwh >= before_kwh - ROUNDING_KWH:  # also what is not a number
            raise HarchError(
                "E0441",
                f"{bid.id} cannot be filled: the market says {fill.kwh:g} kWh in all, {before_kwh:g} kWh are booked",
                hint="`harch energy book` shows the history of a bid; ask the market",
            )
        rows = []
        if fill.kwh - before_kwh > ROUNDING_KWH:
            rows.append(self._row(bid, Event.FILLED, now, fill.kwh - before_kwh, fill.per_mwh))
        if fill.final and fill.kwh < bid.kwh - ROUNDING_KWH:
            # What nobody bought has a price too, as long as the market names one.
            per_mwh = fill.per_mwh if math.isfinite(fill.per_mwh) else 0.0
            rows.append(self._row(bid, Event.CLOSED, now, 0.0, per_mwh))
        return rows

    async def resume(self, switch: Switch, *, now: datetime) -> None:
        """After a restart: what the book calls submitted may never have been sent, and is sent again under its id."""
        if not switch.stopped_why and (waiting := self.book.waiting()):
            await self.adapter.submit(waiting, now=now)

    def settle(self, *, now: datetime) -> None:
        """After delivery: what was filled is due."""
        rows = []
        for bid_id in self.book.bid_ids:
            submission, state = self.book.submission(bid_id), self.book.state(bid_id)
            if submission is None or state.last is Event.SETTLED or not self.book.answered(bid_id):
                continue
            if now >= submission.delivery:
                mean = 1000 * state.filled_amount / state.filled_kwh if state.filled_kwh else 0.0
                rows.append(self._row(submission.bid, Event.SETTLED, now, state.filled_kwh, mean))
        self._write(rows)

    def _row(self, bid: Bid, event: Event, now: datetime, kwh: float, per_mwh: float) -> Row:
        return Row(
            bid_id=bid.id,
            hub=bid.hub,
            zone=bid.zone,
            part=bid.part,
            delivery=bid.delivery,
            step_s=bid.step_s,
            day=self.terms.day_of(bid.delivery),
            event=event,
            at=now,
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

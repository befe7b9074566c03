"""How does a plan become a purchase, and may this bid be sent?

Admit within limits, write down, send, read fills, settle: each step can be repeated safely.
"""

# harch: pure

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.energy.market.adapter import Fill, MarketAdapter
from harch.energy.market.bids import Bid
from harch.energy.market.ledger import ROUNDING_KWH, BidEvent, BidLedger, Row
from harch.energy.tariffs.terms import SpotPrice


@dataclass(frozen=True, slots=True, kw_only=True)
class TradingLimits:
    """What may be bid at most, in the contract's currency. Money counts at the limit price: the most it can cost."""

    kwh_per_bid_max: float
    kwh_per_day_max: float
    amount_per_day_max: float
    per_mwh_max: float
    currency: str


@dataclass(frozen=True, slots=True)
class Switch:
    """The kill switch: with `stopped_why`, nothing is sent, whatever the plan says."""

    stopped_why: str = ""


@dataclass(frozen=True, slots=True)
class BidAdmission:
    """What may be sent, what was sent before, and what may not with the reason."""

    accepted: tuple[Bid, ...]
    sent_before: tuple[Bid, ...]
    rejected: tuple[Rejection, ...]


def admit(
    bids: tuple[Bid, ...], book: BidLedger, limits: TradingLimits, switch: Switch, terms: SpotPrice, *, now: datetime
) -> BidAdmission:
    """In the order of the bids; what is accepted counts for those behind it."""
    days: dict[str, tuple[float, float]] = {}
    accepted, before, rejected = [], [], []
    # An id that comes twice in one call is one bid too.
    once: dict[str, Bid] = {}
    for bid in bids:
        once.setdefault(bid.id, bid)
    for bid in once.values():
        submission = book.submission(bid.id)
        day = terms.day_of(bid.delivery)
        if day not in days:
            rows = book.submitted(day)
            days[day] = (sum(row.kwh for row in rows), sum(max(row.amount, 0.0) for row in rows))
        if submission is not None and (submission.kwh, submission.per_mwh) == (bid.kwh, bid.limit_per_mwh):
            before.append(bid)
            continue
        used_kwh, used_amount = days[day]
        no = (
            _stopped(bid, switch)
            or _changed(bid, submitted=submission is not None)
            or _closed(bid, terms, now)
            or _too_large(bid, limits)
            or _day_full(bid, limits, used_kwh, used_amount, day)
        )
        if no is not None:
            rejected.append(no)
            continue
        accepted.append(bid)
        days[day] = (used_kwh + bid.kwh, used_amount + max(bid.amount_max, 0.0))
    return BidAdmission(tuple(accepted), tuple(before), tuple(rejected))


def _stopped(bid: Bid, switch: Switch) -> Rejection | None:
    if not switch.stopped_why:
        return None
    return Rejection(bid.id, "kill-switch", f"trading is stopped: {switch.stopped_why}", "resume trading")


def _changed(bid: Bid, *, submitted: bool) -> Rejection | None:
    if not submitted:
        return None
    return Rejection(bid.id, "submitted", "was sent with a different quantity or limit", "keep it as sent")


def _closed(bid: Bid, terms: SpotPrice, now: datetime) -> Rejection | None:
    if bid.delivery >= terms.known_until(now):
        return None
    return Rejection(bid.id, "closed", "the prices of that hour are already published", "bid for a later day")


def _too_large(bid: Bid, limits: TradingLimits) -> Rejection | None:
    if bid.currency != limits.currency:
        detail = f"is in {bid.currency}, the limits are in {limits.currency}"
        return Rejection(bid.id, "currency", detail, f"state limits in {bid.currency}")
    if not 0 < bid.kwh <= limits.kwh_per_bid_max:  # also what is not a number
        detail = f"{bid.kwh:g} kWh, the limit per bid is {limits.kwh_per_bid_max:g}"
        return Rejection(bid.id, "bid-size", detail, "raise `kwh_per_bid_max`")
    if not -limits.per_mwh_max <= bid.limit_per_mwh <= limits.per_mwh_max:
        detail = f"{bid.limit_per_mwh:g} per MWh, the limit is {limits.per_mwh_max:g}"
        return Rejection(bid.id, "price", detail, "raise `per_mwh_max`")
    return None


def _day_full(bid: Bid, limits: TradingLimits, kwh: float, amount: float, day: str) -> Rejection | None:
    if kwh + bid.kwh > limits.kwh_per_day_max:
        detail = f"{kwh + bid.kwh:g} kWh for {day}, the limit is {limits.kwh_per_day_max:g}"
        return Rejection(bid.id, "day-size", detail, "raise `kwh_per_day_max`")
    if amount + max(bid.amount_max, 0.0) > limits.amount_per_day_max:
        detail = f"{amount + bid.amount_max:.2f} {bid.currency} for {day}, the limit is {limits.amount_per_day_max:g}"
        return Rejection(bid.id, "day-money", detail, "raise `amount_per_day_max`")
    return None


# How does a plan become a purchase? Admit, write down, send, ask for fills, settle: each step can be repeated safely.
#
# Rows are written before bids are sent. After a crash between the two, the same bids are sent again under the same ids.


# Makes rows durable before it returns. An exception stops everything that would rest on them.
Keep = Callable[[Sequence[Row]], None]


@dataclass(slots=True)
class TradingService:
    """One hub's desk at one market zone. `book` is what `keep` was given, in order."""

    adapter: MarketAdapter
    terms: SpotPrice
    limits: TradingLimits
    keep: Keep
    book: BidLedger

    async def submit(self, bids: tuple[Bid, ...], switch: Switch, *, now: datetime) -> tuple[Rejection, ...]:
        """Sends what may be sent; what was sent before is sent again under its id, which changes nothing."""
        admission = admit(bids, self.book, self.limits, switch, self.terms, now=now)
        rows = [
            self._row(bid, event, now, bid.kwh, bid.limit_per_mwh)
            for bid in admission.accepted
            for event in (BidEvent.PLANNED, BidEvent.SUBMITTED)
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
                f"{bid.id} cannot be filled: the market reports {fill.kwh:g} kWh total, {before_kwh:g} kWh are booked",
                hint="`harch energy book` shows the history of a bid; check with the market",
            )
        rows = []
        if fill.kwh - before_kwh > ROUNDING_KWH:
            rows.append(self._row(bid, BidEvent.FILLED, now, fill.kwh - before_kwh, fill.per_mwh))
        if fill.final and fill.kwh < bid.kwh - ROUNDING_KWH:
            # What nobody bought has a price too, as long as the market names one.
            per_mwh = fill.per_mwh if math.isfinite(fill.per_mwh) else 0.0
            rows.append(self._row(bid, BidEvent.CLOSED, now, 0.0, per_mwh))
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
            if submission is None or state.last is BidEvent.SETTLED or not self.book.answered(bid_id):
                continue
            if now >= submission.delivery:
                mean = 1000 * state.filled_amount / state.filled_kwh if state.filled_kwh else 0.0
                rows.append(self._row(submission.bid, BidEvent.SETTLED, now, state.filled_kwh, mean))
        self._write(rows)

    def _row(self, bid: Bid, event: BidEvent, now: datetime, kwh: float, per_mwh: float) -> Row:
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

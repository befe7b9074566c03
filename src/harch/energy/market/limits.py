"""May this bid be sent? Limits on size and money per market day, the market's closing, and a switch to stop it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from harch.base.rejection import Rejection
from harch.energy.market.bids import Bid
from harch.energy.market.book import Book
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
class Admission:
    """What may be sent, what was sent before, and what may not with the reason."""

    accepted: tuple[Bid, ...]
    sent_before: tuple[Bid, ...]
    rejected: tuple[Rejection, ...]


def admit(
    bids: tuple[Bid, ...], book: Book, limits: TradingLimits, switch: Switch, terms: SpotPrice, *, now: datetime
) -> Admission:
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
    return Admission(tuple(accepted), tuple(before), tuple(rejected))


def _stopped(bid: Bid, switch: Switch) -> Rejection | None:
    if not switch.stopped_why:
        return None
    return Rejection(bid.id, "kill-switch", f"trading is stopped: {switch.stopped_why}", "switch trading on again")


def _changed(bid: Bid, *, submitted: bool) -> Rejection | None:
    if not submitted:
        return None
    return Rejection(bid.id, "submitted", "was sent with another quantity or limit", "leave it as it was sent")


def _closed(bid: Bid, terms: SpotPrice, now: datetime) -> Rejection | None:
    if bid.delivery >= terms.known_until(now):
        return None
    return Rejection(bid.id, "closed", "the prices of that hour are published already", "bid for a later day")


def _too_large(bid: Bid, limits: TradingLimits) -> Rejection | None:
    if bid.currency != limits.currency:
        detail = f"is in {bid.currency}, the limits are in {limits.currency}"
        return Rejection(bid.id, "currency", detail, f"state limits in {bid.currency}")
    if not 0 < bid.kwh <= limits.kwh_per_bid_max:  # also what is not a number
        detail = f"{bid.kwh:g} kWh, the limit of one bid is {limits.kwh_per_bid_max:g}"
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

"""What became of every bid? Rows that are only ever added: planned, submitted, filled, settled. Their sums add up.

A book is a value: `append` gives a new one or raises HarchError E0441. Who keeps it writes the rows; read back in order
they give the same book.
"""

# harch: pure

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum

from harch.base.errors import HarchError
from harch.energy.market.bids import Bid, BidPart

ROUNDING_KWH = 1e-6


class BidEvent(StrEnum):
    PLANNED = "planned"
    SUBMITTED = "submitted"
    FILLED = "filled"  # also in parts, several times
    CLOSED = "closed"  # the market is over: what is not filled stays so
    SETTLED = "settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One entry. `per_mwh` is the limit when planned or submitted, the price when filled or settled.

    `market` names the adapter, `paper` included, so that no figure of the book can pass for a real trade.
    """

    bid_id: str
    hub: str
    zone: str
    part: BidPart
    delivery: datetime
    step_s: int
    day: str  # of the market: limits are counted by it
    event: BidEvent
    at: datetime
    kwh: float
    per_mwh: float
    currency: str
    market: str

    @property
    def amount(self) -> float:
        return self.kwh * self.per_mwh / 1000

    @property
    def bid(self) -> Bid:
        """The bid that was planned or submitted by this row."""
        return Bid(
            hub=self.hub,
            zone=self.zone,
            delivery=self.delivery,
            step_s=self.step_s,
            part=self.part,
            kwh=self.kwh,
            limit_per_mwh=self.per_mwh,
            currency=self.currency,
        )

    def as_plain(self) -> dict[str, object]:
        plain = asdict(self)
        plain.update(part=str(self.part), event=str(self.event))
        plain.update(at=self.at.isoformat(), delivery=self.delivery.isoformat())
        return {**plain, "amount": self.amount}


def row_from_plain(plain: Mapping[str, object]) -> Row:
    """The opposite of `as_plain`."""
    return Row(
        bid_id=str(plain["bid_id"]),
        hub=str(plain["hub"]),
        zone=str(plain["zone"]),
        part=BidPart(str(plain["part"])),
        delivery=datetime.fromisoformat(str(plain["delivery"])),
        step_s=int(str(plain["step_s"])),
        day=str(plain["day"]),
        event=BidEvent(str(plain["event"])),
        at=datetime.fromisoformat(str(plain["at"])),
        kwh=float(str(plain["kwh"])),
        per_mwh=float(str(plain["per_mwh"])),
        currency=str(plain["currency"]),
        market=str(plain["market"]),
    )


@dataclass(frozen=True, slots=True)
class BidState:
    """One bid, summed up from its rows."""

    last: BidEvent
    planned_kwh: float
    submitted_kwh: float
    filled_kwh: float
    filled_amount: float
    settled_kwh: float
    settled_amount: float

    @property
    def word(self) -> str:
        """For people: `partially filled` is a fill that left something."""
        partial = self.filled_kwh < self.submitted_kwh - ROUNDING_KWH
        if self.last is BidEvent.FILLED:
            return "partially filled" if partial else "filled"
        if self.last is BidEvent.CLOSED:
            return "partially filled" if self.filled_kwh else "not filled"
        return str(self.last)


@dataclass(frozen=True, slots=True)
class BidLedger:
    """Rows in the order in which they came."""

    rows: tuple[Row, ...] = ()
    _by_bid: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> BidLedger:
        return cls().append(*rows)

    def append(self, *rows: Row) -> BidLedger:
        """All of them or none. Raises HarchError E0441 for what the history of a bid does not allow."""
        by_bid = dict(self._by_bid)
        for row in rows:
            history = by_bid.get(row.bid_id, ())
            _check(row, history)
            by_bid[row.bid_id] = (*history, row)
        return BidLedger((*self.rows, *rows), by_bid)

    def __contains__(self, bid_id: object) -> bool:
        return bid_id in self._by_bid

    @property
    def bid_ids(self) -> tuple[str, ...]:
        return tuple(self._by_bid)

    def history(self, bid_id: str) -> tuple[Row, ...]:
        return self._by_bid.get(bid_id, ())

    def state(self, bid_id: str) -> BidState:
        return _state(self.history(bid_id))

    def answered(self, bid_id: str) -> bool:
        """Whether the market has nothing more to say: filled as a whole, or closed."""
        state = self.state(bid_id)
        whole = state.filled_kwh >= state.submitted_kwh - ROUNDING_KWH
        return state.last in (BidEvent.CLOSED, BidEvent.SETTLED) or (state.last is BidEvent.FILLED and whole)

    def waiting(self) -> tuple[Bid, ...]:
        """Bids that were submitted and may still be filled, as they were submitted."""
        rows = (self.submission(bid_id) for bid_id in self._by_bid)
        return tuple(row.bid for row in rows if row is not None and not self.answered(row.bid_id))

    def submission(self, bid_id: str) -> Row | None:
        return _latest(self.history(bid_id), BidEvent.SUBMITTED)

    def submitted(self, day: str) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.event is BidEvent.SUBMITTED and row.day == day)


def _check(row: Row, history: tuple[Row, ...]) -> None:
    if not (math.isfinite(row.kwh) and row.kwh >= 0 and math.isfinite(row.per_mwh)):
        _refuse(row, f"{row.kwh:g} kWh at {row.per_mwh:g} is not a trade")
    if history and row.at < history[-1].at:
        _refuse(row, f"it is dated {row.at:%Y-%m-%dT%H:%MZ}, before the bid's last row")
    first = history[0] if history else row
    if row.bid_id != row.bid.id or (row.step_s, row.currency, row.day) != (first.step_s, first.currency, first.day):
        _refuse(row, "hub, delivery or currency differ from the bid's")
    state = _state(history)
    submission = _latest(history, BidEvent.SUBMITTED)
    match row.event:
        case BidEvent.PLANNED:
            if submission is not None:
                _refuse(row, "it is already submitted")
        case BidEvent.SUBMITTED:
            planned = _latest(history, BidEvent.PLANNED)
            if submission is not None or planned is None:
                _refuse(row, "it is already submitted" if submission else "it was not planned")
            elif (row.kwh, row.per_mwh) != (planned.kwh, planned.per_mwh):
                _refuse(row, "it was planned with another quantity or limit")
        case BidEvent.FILLED:
            if submission is None or state.last not in (BidEvent.SUBMITTED, BidEvent.FILLED):
                _refuse(row, "it is not open")
            elif row.per_mwh > submission.per_mwh or row.market != submission.market:
                _refuse(row, "the fill is above its limit, or from another market")
            elif state.filled_kwh + row.kwh > submission.kwh + ROUNDING_KWH:
                _refuse(row, f"{state.filled_kwh + row.kwh:g} kWh filled of {submission.kwh:g} submitted")
        case BidEvent.CLOSED:
            if state.last not in (BidEvent.SUBMITTED, BidEvent.FILLED) or row.kwh:
                _refuse(row, "only a submitted bid can be closed, and closing trades nothing")
        case BidEvent.SETTLED:
            if state.last not in (BidEvent.FILLED, BidEvent.CLOSED):
                _refuse(row, "only a bid that the market has answered can be settled")
            elif abs(row.kwh - state.filled_kwh) > ROUNDING_KWH or abs(row.amount - state.filled_amount) > 0.01:
                _refuse(row, f"{row.kwh:g} kWh settled, {state.filled_kwh:g} kWh filled")


def _refuse(row: Row, what: str) -> None:
    raise HarchError(
        "E0441",
        f"{row.bid_id} cannot be {row.event}: {what}",
        hint="`harch energy book` shows the history of a bid",
        meta={"bid_id": row.bid_id, "event": str(row.event)},
    )


def _latest(history: tuple[Row, ...], event: BidEvent) -> Row | None:
    return next((row for row in reversed(history) if row.event is event), None)


def _state(history: tuple[Row, ...]) -> BidState:
    def total(event: BidEvent, name: str) -> float:
        return math.fsum(getattr(row, name) for row in history if row.event is event)

    planned = _latest(history, BidEvent.PLANNED)
    return BidState(
        last=history[-1].event if history else BidEvent.PLANNED,
        planned_kwh=planned.kwh if planned else 0.0,
        submitted_kwh=total(BidEvent.SUBMITTED, "kwh"),
        filled_kwh=total(BidEvent.FILLED, "kwh"),
        filled_amount=total(BidEvent.FILLED, "amount"),
        settled_kwh=total(BidEvent.SETTLED, "kwh"),
        settled_amount=total(BidEvent.SETTLED, "amount"),
    )

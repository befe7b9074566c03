"""Who carries bids to a market? The interface of adapters, and the one that only pretends: paper trading."""

# harch: pure

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import numpy as np

from harch.energy.market.bids import Bid
from harch.energy.steps import Steps
from harch.energy.tariffs.prices import SpotSeries, known_spot
from harch.energy.tariffs.terms import SpotPrice

PAPER = "paper"


@dataclass(frozen=True, slots=True)
class Fill:
    """What a market gave of one bid, and whether more may come."""

    bid_id: str
    kwh: float
    per_mwh: float
    final: bool


class MarketAdapter(Protocol):
    """A market. Both calls may be repeated after a crash: a bid id that was taken is not taken twice."""

    @property
    def name(self) -> str:
        """Shown with every row of the book."""

    async def submit(self, bids: Sequence[Bid], *, now: datetime) -> None:
        """Hands bids over. Returns when all are taken; raises what the transport raises, and then none is certain."""

    async def fills(self, bids: Sequence[Bid], *, now: datetime) -> Sequence[Fill]:
        """The whole fill of each of these bids so far, as one entry. No entry: not answered yet."""


@dataclass(slots=True)
class PaperMarket:
    """Fills at the published price whatever limit allows it. No order leaves the machine.

    With `depth_kwh` a bid is filled up to it only, to try what partial fills do.
    """

    spot: SpotSeries
    terms: SpotPrice
    depth_kwh: float = float("inf")
    _taken: dict[str, Bid] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return PAPER

    async def submit(self, bids: Sequence[Bid], *, now: datetime) -> None:
        for bid in bids:
            self._taken.setdefault(bid.id, bid)

    async def fills(self, bids: Sequence[Bid], *, now: datetime) -> Sequence[Fill]:
        return tuple(fill for bid in bids if (fill := self._fill(bid, now)) is not None)

    def _fill(self, bid: Bid, now: datetime) -> Fill | None:
        taken = self._taken.get(bid.id)
        if taken is None:
            return None
        price = float(known_spot(self.spot, self.terms, Steps(taken.delivery, taken.step_s, 1), now=now)[0])
        if np.isnan(price):
            return None
        kwh = min(taken.kwh, self.depth_kwh) if price <= taken.limit_per_mwh else 0.0
        return Fill(taken.id, kwh, price, final=True)

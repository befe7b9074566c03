"""What does a hub answer about the power it buys? The values that `client.energy` returns; see `types` on versions."""

from __future__ import annotations

from harch.wire.energy import BidList as EnergyBids
from harch.wire.energy import BidView as EnergyBid
from harch.wire.energy import BookRow, BookSum, PlanCarbon, PlanCosts, PlanStep, PriceStep, RefusedBid
from harch.wire.energy import BookView as EnergyBook
from harch.wire.energy import PlanView as EnergyPlan
from harch.wire.energy import PricesView as EnergyPrices
from harch.wire.energy import StandingView as Standing

__all__ = [
    "BookRow",
    "BookSum",
    "EnergyBid",
    "EnergyBids",
    "EnergyBook",
    "EnergyPlan",
    "EnergyPrices",
    "PlanCarbon",
    "PlanCosts",
    "PlanStep",
    "PriceStep",
    "RefusedBid",
    "Standing",
]

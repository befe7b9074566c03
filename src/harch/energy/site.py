"""What does a hub's power come from, on which terms? One site: contract, battery, budget, market. Values only."""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harch.energy.market.adapter import PAPER
from harch.energy.market.trading import TradingLimits
from harch.energy.procurement.problem import Battery, Objective
from harch.energy.tariffs.terms import Tariff

# What an hour is taken to cost while nobody has named a price of the spot market yet.
ASSUMED_PER_MWH = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flexibility:
    """A share of the load that may be used at any time within the next hours."""

    name: str
    share: float
    within_h: float
    power_kw_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A plant elsewhere, of which an agreement buys a share. It is modelled; 0 means that it has none of it."""

    pv_kw_peak: float
    wind_kw: float
    wind_capacity_factor: float | None
    latitude: float | None  # None: where the hub stands
    longitude: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketTerms:
    """How bids are made. `adapter` is `paper`, the name of an installed adapter, or `module:factory`.

    `prices`: `signals` takes what sources of the carbon file publish, `NAME.csv` what a file beside the energy file
    holds, `modelled` a made-up day to try things out.
    """

    adapter: str = PAPER
    prices: str = "signals"
    stopped_why: str = ""
    send_before_min: float = 90.0  # how long before the prices are published bids begin to be sent
    assumed_per_mwh: float = ASSUMED_PER_MWH
    firm_limit_per_mwh: float
    limits: TradingLimits
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergySite:
    """One hub. `modelled`: nobody stated a contract, and the shipped one stands in."""

    tariff: Tariff
    modelled: bool = False
    import_kw_max: float | None = None  # None: what the hub can draw at most, and a quarter more
    step_s: int = 3600
    objective: Objective = Objective.PROFIT
    carbon_per_t: float | None = None  # in the contract's currency
    budget_kg_per_month: float | None = None
    battery: Battery | None = None
    battery_stored_share: float = 0.5  # how full it is taken to be where no meter tells it, at the first start
    flexible: tuple[Flexibility, ...] = ()
    plants: Mapping[str, Plant] = field(default_factory=dict)
    market: MarketTerms | None = None  # None: the contract's prices are fixed, and there is nothing to bid for

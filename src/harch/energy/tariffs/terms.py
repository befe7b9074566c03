"""Which terms can a supply contract have? Values only; prices are per MWh in the contract's currency."""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo

QUARTER_MINUTES = 15
QUARTERS_PER_DAY = 24 * 60 // QUARTER_MINUTES
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class FlatPrice:
    """One price, always."""

    per_mwh: float


@dataclass(frozen=True, slots=True)
class Season:
    """Days of the year, both ends included, and which band holds in each quarter hour of each weekday."""

    name: str
    first: tuple[int, int]  # month, day
    last: tuple[int, int]
    bands: tuple[tuple[str, float], ...]  # name, price per MWh
    band_of_quarter: tuple[tuple[int, ...], ...]  # 7 weekdays x 96 quarter hours -> index of a band

    def holds_on(self, month: int, day: int) -> bool:
        """A season may run over the turn of the year."""
        if self.first <= self.last:
            return self.first <= (month, day) <= self.last
        return (month, day) >= self.first or (month, day) <= self.last


@dataclass(frozen=True, slots=True)
class TimeOfUse:
    """Prices by season, weekday and hour of the contract's local time. Seasons cover the year, bands each day."""

    seasons: tuple[Season, ...]

    def band_at(self, local: datetime) -> tuple[str, float]:
        """The band of a local moment, with its season before its name: `summer peak`."""
        season = next(season for season in self.seasons if season.holds_on(local.month, local.day))
        quarter = (local.hour * 60 + local.minute) // QUARTER_MINUTES
        name, per_mwh = season.bands[season.band_of_quarter[local.weekday()][quarter]]
        return f"{season.name} {name}", per_mwh


@dataclass(frozen=True, slots=True)
class SpotPrice:
    """The day-ahead price of a market zone. All hours of a market day are published at once, the day before."""

    zone: str
    market_time: tzinfo
    published_at: time  # local time of the market, on the day before delivery

    def known_until(self, now: datetime) -> datetime:
        """The end of the last market day whose prices are published at `now`."""
        local = now.astimezone(self.market_time)
        days = 2 if local.time() >= self.published_at else 1
        midnight = datetime.combine(local.date() + timedelta(days=days), time(0), tzinfo=self.market_time)
        return midnight.astimezone(now.tzinfo)

    def day_of(self, moment: datetime) -> str:
        """The market day of a delivery, e.g. `2026-03-01`: limits of trading are counted by it."""
        return f"{moment.astimezone(self.market_time):%Y-%m-%d}"


EnergyPrice = FlatPrice | TimeOfUse | SpotPrice


@dataclass(frozen=True, slots=True)
class DemandCharge:
    """Paid once per local month for the highest mean power of any step of it."""

    per_kw_month: float


@dataclass(frozen=True, slots=True)
class Ppa:
    """A power purchase agreement: a fixed price for a constant volume, or for a share of what a plant produces.

    Exactly one of `volume_kw` and `share` is given. What must be taken is paid for whether it is used or not.
    """

    name: str
    per_mwh: float
    volume_kw: float | None
    share: float | None
    plant: str
    must_take: bool
    contract_g_per_kwh: float  # of the plant, for the market-based method only


@dataclass(frozen=True, slots=True)
class Sale:
    """What own surplus earns: a fixed feed-in price, or a share of the spot price of the contract's zone."""

    per_mwh: float | None
    share_of_spot: float | None


@dataclass(frozen=True, slots=True)
class Tariff:
    """One hub's supply contract."""

    name: str
    currency: str
    local_time: tzinfo
    energy: EnergyPrice
    fee_per_mwh: float  # network and levies, on top of every imported MWh
    demand: DemandCharge | None
    ppas: tuple[Ppa, ...]
    sale: Sale | None

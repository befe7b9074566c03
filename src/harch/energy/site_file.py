"""Which sites does an energy file describe?

TOML in, one `EnergySite` per hub out, or one error with all mistakes; round values of no supplier where no contract
is stated.
"""

from __future__ import annotations

import math
import re
import tomllib
from datetime import datetime
from pathlib import Path

import numpy as np

from harch.base.errors import HarchError, Problems
from harch.energy.market.adapter import PAPER
from harch.energy.market.trading import TradingLimits
from harch.energy.procurement.problem import EFFICIENCY, WEAR_PER_MWH, Battery, Objective
from harch.energy.site import ASSUMED_PER_MWH, EnergySite, Flexibility, MarketTerms, Plant
from harch.energy.steps import STEP_S_ALLOWED, Steps
from harch.energy.tariffs.file import PER_MWH_MAX, TariffEntry, load_tariff, parse_tariff, read_tariff
from harch.energy.tariffs.prices import SpotSeries
from harch.energy.tariffs.terms import SpotPrice, Tariff

CONTRACT = """
name = "modelled contract (not a supplier's)"
currency = "USD"
time_zone = "UTC"

[energy]
kind = "time-of-use"

[[energy.seasons]]
name = "year"
from = "01-01"
to = "12-31"
[[energy.seasons.bands]]
name = "peak"
price_per_mwh = 150
hours = "17:00-22:00"
[[energy.seasons.bands]]
name = "night"
price_per_mwh = 85
hours = "22:00-07:00"
[[energy.seasons.bands]]
name = "day"
price_per_mwh = 110
"""
_MEAN_PER_MWH, _SWING_PER_MWH, _NOON_DIP_PER_MWH = 90.0, 20.0, 30.0


def modelled_site() -> EnergySite:
    return EnergySite(tariff=parse_tariff(CONTRACT, "the modelled contract"), modelled=True)


def modelled_spot(terms: SpotPrice, currency: str, steps: Steps) -> SpotSeries:
    """A day that repeats: dear mornings and evenings, cheap noons and nights. For trying bids out, never for money."""
    prices = [_price(moment.astimezone(terms.market_time)) for moment in steps.starts()]
    return SpotSeries(terms.zone, currency, steps, np.array(prices))


def _price(local: datetime) -> float:
    hour = local.hour + local.minute / 60
    two_peaks = -math.cos(4 * math.pi * (hour - 1.5) / 24)
    noon = math.exp(-(((hour - 13) / 2.5) ** 2))
    return round(_MEAN_PER_MWH + _SWING_PER_MWH * two_peaks - _NOON_DIP_PER_MWH * noon, 2)


# Which sites does an energy file describe? TOML in, one `EnergySite` per hub out, or one error with all mistakes.


CODE = "E0243"
HINT = "docs/reference/energy.md describes the file and shows examples"
FILE_CHARS_MAX = 256 * 1024
HUBS_MAX = 1000
KW_MAX = 1e7
AMOUNT_MAX = 1e12
_ADAPTER = re.compile(r"[\w.-]+(:[\w.]+)?")


def load_sites(path: Path) -> dict[str, EnergySite]:
    """Reads and checks an energy file, and the contracts that it names. Raises HarchError E0243 or E0240."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(FILE_CHARS_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise HarchError(CODE, f"{path}: cannot be read ({reason})", hint=HINT) from error
    return parse_sites(text, str(path), folder=path.parent)


def parse_sites(text: str, source_name: str = "energy.toml", *, folder: Path = Path()) -> dict[str, EnergySite]:
    """Checks the text of an energy file; contracts in other files are looked up in `folder`."""
    if len(text) > FILE_CHARS_MAX:
        raise HarchError(CODE, f"{source_name}: larger than {FILE_CHARS_MAX // 1024} KiB", hint=HINT)
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise HarchError(CODE, f"{source_name}: not valid TOML: {str(error)[:200]}", hint=HINT) from error
    problems = Problems()
    root = TariffEntry(raw, "", problems)
    root.only("hubs")
    hubs = root.table("hubs")
    sites: dict[str, EnergySite] = {}
    for name in list(hubs.raw)[:HUBS_MAX] if hubs is not None else ():
        entry = hubs.table(name) if hubs is not None else None
        if entry is not None:
            sites[name] = _read_site(entry, folder)
    if problems:
        meta: dict[str, object] = {"problems": [{"where": where, "what": what} for where, what in problems.found]}
        raise HarchError(CODE, f"{source_name}: {problems}", hint=HINT, field=problems.found[0][0], meta=meta)
    return sites


def _read_site(entry: TariffEntry, folder: Path) -> EnergySite:
    entry.only(
        "tariff",
        "import_kw_max",
        "step_min",
        "objective",
        "carbon_per_t",
        "budget_kg_per_month",
        "battery",
        "flexible",
        "plants",
        "market",
    )
    tariff = _read_contract(entry, folder)
    plants = _read_plants(entry)
    for ppa in tariff.ppas if tariff is not None else ():
        if ppa.share is not None and ppa.plant not in plants:
            what = f"the agreement {ppa.name} buys a share of it; write `[{entry.at('plants')}.{ppa.plant}]`"
            entry.wrong(f"plants.{ppa.plant}", what)
    battery, stored_share = _read_battery(entry)
    return EnergySite(
        tariff=tariff or parse_tariff(CONTRACT),
        modelled=tariff is None,
        import_kw_max=_optional(entry, "import_kw_max", low=0.001, high=KW_MAX),
        step_s=_read_step(entry),
        objective=_read_objective(entry),
        carbon_per_t=_optional(entry, "carbon_per_t", low=0, high=1e7),
        budget_kg_per_month=_optional(entry, "budget_kg_per_month", low=0, high=1e12),
        battery=battery,
        battery_stored_share=stored_share,
        flexible=_read_flexible(entry),
        plants=plants,
        market=_read_market(entry, tariff),
    )


def _read_contract(entry: TariffEntry, folder: Path) -> Tariff | None:
    """Of a file beside this one, or written here; None: the modelled one stands in."""
    named = entry.raw.get("tariff")
    if named is None:
        return None
    if isinstance(named, str):
        return load_tariff(folder / named)
    table = entry.table("tariff")
    return read_tariff(table) if table is not None else None


def _read_step(entry: TariffEntry) -> int:
    minutes = entry.raw.get("step_min", 60)
    allowed = [seconds // 60 for seconds in STEP_S_ALLOWED]
    if minutes not in allowed or isinstance(minutes, bool):
        entry.wrong("step_min", f"is {minutes!r}; use {', '.join(map(str, allowed))}")
        return 3600
    return int(str(minutes)) * 60


def _read_objective(entry: TariffEntry) -> Objective:
    word = entry.text("objective", Objective.PROFIT)
    if word not in list(Objective):
        entry.wrong("objective", f"`{word}` is not known; use {', '.join(Objective)}")
        return Objective.PROFIT
    return Objective(word)


def _read_battery(site: TariffEntry) -> tuple[Battery | None, float]:
    entry = site.table("battery")
    if entry is None:
        return None, 0.5
    entry.only(
        "energy_kwh",
        "power_kw",
        "floor_kwh",
        "charge_efficiency",
        "discharge_efficiency",
        "wear_per_mwh",
        "to_grid",
        "from_grid",
        "stored_share",
    )
    energy_kwh = entry.number("energy_kwh", low=0.001, high=KW_MAX)
    battery = Battery(
        energy_kwh=energy_kwh,
        power_kw=entry.number("power_kw", low=0.001, high=KW_MAX),
        floor_kwh=entry.number("floor_kwh", low=0, high=energy_kwh, default=0.0),
        charge_efficiency=entry.number("charge_efficiency", low=0.01, high=1, default=EFFICIENCY),
        discharge_efficiency=entry.number("discharge_efficiency", low=0.01, high=1, default=EFFICIENCY),
        wear_per_mwh=entry.number("wear_per_mwh", low=0, high=PER_MWH_MAX, default=WEAR_PER_MWH),
        to_grid=entry.flag("to_grid", False),
        from_grid=entry.flag("from_grid", True),
    )
    return battery, entry.number("stored_share", low=0, high=1, default=0.5)


def _read_flexible(site: TariffEntry) -> tuple[Flexibility, ...]:
    found = []
    for entry in site.tables("flexible"):
        entry.only("name", "share", "within_h", "power_kw_max")
        found.append(
            Flexibility(
                name=entry.text("name"),
                share=entry.number("share", low=0, high=1),
                within_h=entry.number("within_h", low=1, high=36),
                power_kw_max=entry.number("power_kw_max", low=0.001, high=KW_MAX),
            )
        )
    if sum(one.share for one in found) > 1:
        site.wrong("flexible", "the shares add up to more than 1")
    if len({one.name for one in found}) != len(found):
        site.wrong("flexible", "two loads have the same name")
    return tuple(found)


def _read_plants(site: TariffEntry) -> dict[str, Plant]:
    table = site.table("plants")
    found = {}
    for name in table.raw if table is not None else ():
        entry = table.table(name) if table is not None else None
        if entry is None:
            continue
        entry.only("pv_kw_peak", "wind_kw", "wind_capacity_factor", "latitude", "longitude")
        found[name] = Plant(
            pv_kw_peak=entry.number("pv_kw_peak", low=0, high=KW_MAX, default=0.0),
            wind_kw=entry.number("wind_kw", low=0, high=KW_MAX, default=0.0),
            wind_capacity_factor=_optional(entry, "wind_capacity_factor", low=0, high=1),
            latitude=_optional(entry, "latitude", low=-90, high=90),
            longitude=_optional(entry, "longitude", low=-180, high=180),
        )
    return found


def _read_market(site: TariffEntry, tariff: Tariff | None) -> MarketTerms | None:
    """A spot contract without a market table trades on paper within small limits; others have nothing to bid for."""
    entry = site.table("market")
    if tariff is None or not isinstance(tariff.energy, SpotPrice):
        if entry is not None:
            site.wrong("market", 'needs a contract with `kind = "spot"`: other contracts have no auction')
        return None
    entry = entry or TariffEntry({}, site.at("market"), site.problems)
    entry.only(
        "adapter",
        "prices",
        "stopped",
        "send_before_min",
        "assumed_per_mwh",
        "firm_limit_per_mwh",
        "kwh_per_bid_max",
        "kwh_per_day_max",
        "amount_per_day_max",
        "options",
    )
    adapter, prices = entry.text("adapter", PAPER), entry.text("prices", "signals")
    if not _ADAPTER.fullmatch(adapter):
        entry.wrong("adapter", "must be `paper`, the name of an installed adapter, or `module:factory`")
    if prices not in ("signals", "modelled") and not prices.endswith(".csv"):
        entry.wrong("prices", f"`{prices}` is not known; use signals, modelled or the name of a CSV file")
    if prices == "modelled" and adapter != PAPER:
        entry.wrong("prices", "modelled prices are for the paper market only")
    firm = entry.number("firm_limit_per_mwh", low=0, high=PER_MWH_MAX, default=500.0)
    return MarketTerms(
        adapter=adapter,
        prices=prices,
        stopped_why=entry.text("stopped", "") if entry.raw.get("stopped") else "",
        send_before_min=entry.number("send_before_min", low=1, high=720, default=90.0),
        assumed_per_mwh=entry.price("assumed_per_mwh", ASSUMED_PER_MWH),
        firm_limit_per_mwh=firm,
        limits=TradingLimits(
            kwh_per_bid_max=entry.number("kwh_per_bid_max", low=0, high=KW_MAX, default=10_000.0),
            kwh_per_day_max=entry.number("kwh_per_day_max", low=0, high=1e9, default=100_000.0),
            amount_per_day_max=entry.number("amount_per_day_max", low=0, high=AMOUNT_MAX, default=50_000.0),
            per_mwh_max=firm,
            currency=tariff.currency,
        ),
        options=_read_options(entry),
    )


def _read_options(market: TariffEntry) -> dict[str, str]:
    """Texts for the adapter. Keys do not belong here: an option names the variable or the file that holds one."""
    entry = market.table("options")
    return {name: entry.text(name) for name in entry.raw} if entry is not None else {}


def _optional(entry: TariffEntry, name: str, *, low: float, high: float) -> float | None:
    return entry.number(name, low=low, high=high) if name in entry.raw else None

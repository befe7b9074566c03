"""Which site is this hub? From the energy file in its state folder, or the modelled one."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from harch.base.clock import parse_iso
from harch.base.errors import HarchError
from harch.carbon.signals.sites import OnSite
from harch.energy.procurement.problem import Battery
from harch.energy.site import EnergySite, MarketTerms
from harch.energy.site_file import load_sites, modelled_site, modelled_spot
from harch.energy.steps import Steps
from harch.energy.tariffs.prices import SpotSeries
from harch.energy.tariffs.terms import SpotPrice
from harch.fleet.model import Fleet, Hub

FILE_NAME = "energy.toml"
CONNECTION_HEADROOM = 1.25  # of everything that stands there at full power, cooling included


def open_site(fleet: Fleet, hub: Hub, folder: Path, onsite: OnSite) -> EnergySite:
    """`onsite` is what the carbon file says stands there: its battery counts if the energy file names none.

    Raises HarchError E0243 or E0240 with the mistakes of the file.
    """
    path = folder / FILE_NAME
    sites = load_sites(path) if path.exists() else {}
    for name in sites:
        if fleet.hub(name) is None:
            raise HarchError(
                "E0243",
                f"{path}: hubs.{name[:64]}: no such hub in the fleet",
                hint="`harch hubs` lists the hubs",
                field=f"hubs.{name[:64]}",
            )
    site = sites.get(hub.id) or modelled_site()
    if site.battery is None and onsite.battery_kwh > 0 and onsite.battery_kw > 0:
        site = replace(site, battery=Battery(energy_kwh=onsite.battery_kwh, power_kw=onsite.battery_kw))
    return site


def import_kw_max(site: EnergySite, hub: Hub) -> float:
    """What may come through the connection: as the file says, else what the hub can draw at most and a quarter more."""
    if site.import_kw_max is not None:
        return site.import_kw_max
    plates_w = sum(node.host_power_w + sum(gpu.model.power_w for gpu in node.gpus) for node in hub.nodes)
    charging_kw = site.battery.power_kw if site.battery is not None else 0.0
    return CONNECTION_HEADROOM * (plates_w / 1000 * hub.pue + charging_kw)


# Which spot prices are known? From a file, from the hub's signals, or made up to try things out.


MODELLED, SIGNALS = "modelled", "signals"
ROWS_MAX = 100_000
BACK, AHEAD = timedelta(days=10), timedelta(days=4)


@dataclass(slots=True)
class SpotPrices:
    """One hub's prices. `folder` is where the file is; it is read again when it has changed."""

    terms: SpotPrice
    market: MarketTerms
    currency: str
    step_s: int
    folder: Path
    _file: tuple[tuple[int, int], dict[datetime, float]] | None = None

    @property
    def source(self) -> str:
        if self.market.prices == MODELLED:
            return "modelled: a made-up day that repeats"
        return "the hub's signals" if self.market.prices == SIGNALS else self.market.prices

    def known(self, now: datetime, read: Mapping[datetime, float]) -> SpotSeries | None:
        """`read` is what the hub's signals said, by step. Reads a file, so call it in a thread. Raises E0243."""
        first = datetime.fromtimestamp((now - BACK).timestamp() // self.step_s * self.step_s, UTC)
        steps = Steps(first, self.step_s, int((BACK + AHEAD).total_seconds()) // self.step_s)
        if self.market.prices == MODELLED:
            return modelled_spot(self.terms, self.currency, steps)
        prices = read if self.market.prices == SIGNALS else self._from_file()
        found = np.array([prices.get(moment, math.nan) for moment in steps.starts()])
        return SpotSeries(self.terms.zone, self.currency, steps, found) if np.isfinite(found).any() else None

    def _from_file(self) -> dict[datetime, float]:
        path = self.folder / self.market.prices
        try:
            state = path.stat()
            stamp = (state.st_mtime_ns, state.st_size)
            if self._file is None or self._file[0] != stamp:
                self._file = (stamp, _read(path, self.step_s))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise _refusal(path, f"cannot be read ({type(error).__name__})") from error
        return self._file[1]


def _read(path: Path, step_s: int) -> dict[datetime, float]:
    """Columns `time` (with a zone) and `per_mwh`. Rows without a number are gaps; a price holds for a whole hour."""
    found: dict[datetime, float] = {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        if not {"time", "per_mwh"} <= set(rows.fieldnames or ()):
            raise _refusal(path, "has no columns `time` and `per_mwh`")
        for number, row in enumerate(rows):
            if number >= ROWS_MAX:
                raise _refusal(path, f"has more than {ROWS_MAX} rows")
            try:
                moment, price = parse_iso(row["time"]), float(row["per_mwh"])
            except (TypeError, ValueError):
                continue
            if math.isfinite(price):
                for part in range(max(1, 3600 // step_s)):
                    found.setdefault(moment + timedelta(seconds=part * step_s), price)
    return found


def _refusal(path: Path, why: str) -> HarchError:
    return HarchError(
        "E0243", f"{path.name}: {why}", hint="a file of prices is CSV with the columns `time` and `per_mwh`"
    )

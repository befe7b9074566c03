"""What is known about a place without asking anybody? Yearly means and capacity factors, each with where it is from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The shipped figures. A country without an entry gets the mean of the world, and the reading says so."""

    citation: str
    world_g_per_kwh: float
    grid_g_per_kwh: Mapping[str, float]  # by country
    wind_capacity_factors: Mapping[str, float]  # by hub
    wind_capacity_factor_elsewhere: float
    onsite_g_per_kwh: float

    def grid(self, grid_zone: str, country: str) -> tuple[float, str]:
        """The yearly mean of a zone's country, and its citation.

        Zones are named after the country whose power they carry (`SE-SE3`), which need not be the jurisdiction. A zone
        that is named otherwise gets the mean of the jurisdiction.
        """
        for name in (grid_zone.partition("-")[0], country):
            if name in self.grid_g_per_kwh:
                return self.grid_g_per_kwh[name], f"yearly mean of {name}: {self.citation}"
        return self.world_g_per_kwh, f"no figure for {grid_zone}: mean of the world, {self.citation}"


@cache
def shipped_facts() -> Facts:
    raw = tomllib.loads(resources.files("harch.carbon.signals").joinpath("shipped/facts.toml").read_text("utf-8"))
    return Facts(
        citation=raw["citation"],
        world_g_per_kwh=raw["world"],
        grid_g_per_kwh=raw["grid"],
        wind_capacity_factors=raw["wind"],
        wind_capacity_factor_elsewhere=raw["wind_elsewhere"]["capacity_factor"],
        onsite_g_per_kwh=raw["onsite"]["g_per_kwh"],
    )

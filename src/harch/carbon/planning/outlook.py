"""What does the planner know of the hubs? Step by step from now: own power, the grid's intensity, prices, and GPUs.

Step 0 begins now, and each lasts `step_h` hours: arrays count in steps, all else in hours, kW and kWh. Everything is a
forecast, so `rests_on` says whose and whether it was measured or estimated.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RestsOn:
    """Where the figures of a hub are from."""

    source: str
    evidence: str = "estimated"  # or `measured`
    kind: str = "average, lifecycle, location"

    def __str__(self) -> str:
        return f"{self.evidence}, {self.source}, {self.kind}"


ASSUMED = RestsOn("no source named")


@dataclass(frozen=True, eq=False, kw_only=True)
class HubHours:
    """One hub. Arrays have one value per step; powers are of the facility, at the meter."""

    hub: str
    grid_g_per_kwh: Floats
    onsite_kw: Floats
    onsite_sd_kw: Floats | None = None  # how far off the forecast usually is; None: taken as certain
    onsite_g_per_kwh: float = 0.0
    pue: float = 1.0
    transmission_loss: float = 0.0  # of what the grid delivers
    price_per_mwh: Floats | None = None
    rests_on: RestsOn = ASSUMED

    def __post_init__(self) -> None:
        arrays = [self.grid_g_per_kwh, self.onsite_kw, self.onsite_sd_kw, self.price_per_mwh]
        for values in arrays:
            if values is not None and (len(values) != self.steps or not np.isfinite(values).all()):
                raise ValueError(f"forecasts of hub {self.hub} must be finite and cover {self.steps} steps")
        if (self.onsite_kw < 0).any() or (self.grid_g_per_kwh < 0).any():
            raise ValueError(f"hub {self.hub}: power and intensity cannot be negative")
        if self.pue < 1 or self.transmission_loss < 0:
            raise ValueError(f"hub {self.hub}: PUE must be at least 1, losses at least 0")

    @property
    def steps(self) -> int:
        return len(self.grid_g_per_kwh)

    @property
    def grid_g_per_kwh_used(self) -> Floats:
        """With what is lost on the way to the meter."""
        return self.grid_g_per_kwh * (1.0 + self.transmission_loss)


@dataclass(frozen=True, slots=True)
class Pool:
    """GPUs of one model at one hub. `gpus_kept` are left to work that cannot wait."""

    hub: str
    model: str
    gpus: int
    kw_per_gpu: float  # IT power of a GPU that works, with its share of the node
    gpus_kept: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return (self.hub, self.model)


@dataclass(frozen=True, slots=True)
class Aims:
    """What is minimised: grams, and if wished money, at so many grams per unit of money."""

    g_per_money: float = 0.0

    def grid_cost(self, hub: HubHours) -> Floats:
        """Weighted grams per kWh at the meter that the grid delivers."""
        grams = hub.grid_g_per_kwh_used
        if hub.price_per_mwh is None or self.g_per_money == 0:
            return grams
        return grams + self.g_per_money * hub.price_per_mwh / 1000.0

    def onsite_cost(self, hub: HubHours) -> Floats:
        return np.full(hub.steps, hub.onsite_g_per_kwh)


@dataclass(frozen=True, eq=False)
class PowerOutlook:
    """All hubs and pools over the same steps."""

    hubs: tuple[HubHours, ...]
    pools: tuple[Pool, ...]
    aims: Aims = field(default_factory=Aims)
    step_h: float = 1.0

    def __post_init__(self) -> None:
        if not self.hubs or len({hub.steps for hub in self.hubs}) != 1:
            raise ValueError("an outlook needs hubs, all with the same number of steps")
        if not self.step_h > 0:
            raise ValueError("a step lasts some time")
        known = {hub.hub for hub in self.hubs}
        if any(pool.hub not in known for pool in self.pools):
            raise ValueError("a GPU pool is at a hub without forecasts")

    @property
    def steps(self) -> int:
        return self.hubs[0].steps

    def index(self) -> dict[str, int]:
        return {hub.hub: row for row, hub in enumerate(self.hubs)}

"""How much carbon may be spent? Ceilings and budgets of jobs, tenants and months: hard limits, unlike all costs.

A limit can make a job wait past its promise, or never run. That is what a hard limit means, and the reason says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harch.carbon.planning.book import Windows
from harch.carbon.planning.work import FlexibleWork


@dataclass
class Budgets:
    """What is left this month, in grams: of each tenant that has a budget, and of all together."""

    tenant_g_left: Mapping[str, float] = field(default_factory=dict)
    all_g_left: float | None = None
    _spent: dict[str, float] = field(default_factory=dict)

    def bind(self, work: FlexibleWork) -> bool:
        """False: nothing limits this job's grams."""
        own = work.g_max is not None or work.g_per_kwh_max is not None
        return own or self.all_g_left is not None or work.tenant in self.tenant_g_left

    def left_g(self, work: FlexibleWork) -> float:
        """The tightest of the limits on this job's grams."""
        limits = [work.g_max if work.g_max is not None else np.inf]
        if work.tenant in self.tenant_g_left:
            limits.append(self.tenant_g_left[work.tenant] - self._spent.get(work.tenant, 0.0))
        if self.all_g_left is not None:
            limits.append(self.all_g_left - sum(self._spent.values()))
        return float(min(limits))

    def spend(self, work: FlexibleWork, grams: float) -> None:
        """What starts now is counted at once, so that a plan never gives the same grams twice."""
        self._spent[work.tenant] = self._spent.get(work.tenant, 0.0) + grams


def within_limits(work: FlexibleWork, windows: Windows, budgets: Budgets) -> NDArray[np.bool_]:
    """Which hubs and hours keep every limit."""
    allowed: NDArray[np.bool_] = windows.grams <= budgets.left_g(work)
    if work.g_per_kwh_max is not None:
        allowed &= windows.grams <= work.g_per_kwh_max * windows.kwh[:, None]
    return allowed


def limit_reason(work: FlexibleWork, windows: Windows, budgets: Budgets) -> str:
    """Why no hub and hour will do, with the number that is nearest."""
    least, left = float(windows.grams.min()), budgets.left_g(work)
    if least > left:
        return f"needs at least {least:,.0f} g, and {max(left, 0.0):,.0f} g are left of its carbon budget"
    lowest = float((windows.grams / windows.kwh[:, None]).min())
    return f"at best {lowest:.0f} g/kWh, and its ceiling is {work.g_per_kwh_max:.0f} g/kWh"

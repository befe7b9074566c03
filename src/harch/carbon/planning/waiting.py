"""How long is it worth waiting? No longer than what power changes by can pay for.

Where power is the same in every hour, work could only wait for room at a cleaner hub. Room that comes free is taken by
whoever comes, so such a wait gains nothing for all together, and what waits may find a queue later. So a wait is
credited with no more than power changes by, and each hour of it has a price.
"""

from __future__ import annotations

import numpy as np

from harch.carbon.planning.book import Windows
from harch.carbon.planning.outlook import Floats

# Of almost equally clean hours the earlier is better: clean GPU-hours that nobody takes now do not come back. It is far
# less than grid and own power differ by, so nobody starts before the sun rises because of it.
WAIT_G_PER_KWH_HOUR = 1.5
# What an hour of waiting risks: forecasts err, and work that has not come yet may stand before it in a queue.
RISK_G_PER_KWH_HOUR = 10.0


def waiting_costs_g(windows: Windows) -> Floats:
    """By start hour: what a wait weighs, in grams; endless from where on it risks more than it can gain."""
    hours = np.arange(windows.cost_g.shape[1], dtype=np.float64)
    costs: Floats = WAIT_G_PER_KWH_HOUR * float(windows.kwh.min()) * hours
    costs[hours * RISK_G_PER_KWH_HOUR > windows.swing_g_per_kwh] = np.inf
    return costs


def is_flat(windows: Windows) -> bool:
    """Power will not change: there is nothing to wait for but room."""
    return windows.swing_g_per_kwh < RISK_G_PER_KWH_HOUR


def why_not(windows: Windows, *, room: bool) -> str:
    """The words for work that could wait, and is not told to."""
    words = []
    if windows.cost_g.shape[1] > 1 and is_flat(windows):
        words.append("power hardly changes in the hours ahead, by less than forecasts err: no wait pays")
    if not room:
        words.append("there is no room for all of it now: the scheduler's queue decides")
    return "; ".join(words)

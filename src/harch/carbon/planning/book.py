"""What does one more job cost at each hub and hour? A book of the power and GPUs that are spoken for.

Each job that is entered uses up some of the hub's own renewables, so the next one sees a higher cost there: that is the
guard against sending everything to the same place. A forecast is not certain: the more it usually errs, the softer the
edge between own power and the grid's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harch.carbon.planning.outlook import Floats, Outlook
from harch.carbon.planning.program import ClassPlan
from harch.carbon.planning.work import FlexibleWork

# Among hours of the same cost to this job, those are better that others need less. The job's own cost leads: where own
# power is scarce everywhere, shadow prices are the grid's everywhere, and would hide the difference that it makes.
SCARCITY_WEIGHT = 0.3
NO_ROOM_G_PER_GPU_HOUR = 5_000.0  # above any grid's: a window without room is chosen only if all are
_LOGISTIC = 1.702  # a logistic curve of scale sd / 1.702 follows the normal one within 0.01


@dataclass(frozen=True, eq=False)
class Windows:
    """Costs of a job by hub (rows) and start hour (columns): what to minimise, and the grams among it."""

    hubs: tuple[str, ...]
    cost_g: Floats
    grams: Floats
    kwh: Floats  # by hub
    no_room_g: Floats  # a charge for hours without room for it

    @property
    def room(self) -> NDArray[np.bool_]:
        return self.no_room_g <= 0


class Book:
    """Mutable while one plan is made; it decides nothing."""

    def __init__(self, outlook: Outlook, busy_kw: Floats, gpus_free: Mapping[tuple[str, str], Floats]) -> None:
        hubs, aims = outlook.hubs, outlook.aims
        self.outlook = outlook
        self._hub_row = outlook.index()
        self._pool_row = {pool.key: row for row, pool in enumerate(outlook.pools)}
        self._pool_hub = np.array([self._hub_row[pool.hub] for pool in outlook.pools])
        self._kept = np.array([pool.gpus_kept for pool in outlook.pools], dtype=np.float64)
        pues = np.array([hub.pue for hub in hubs])
        self._kw_per_gpu = np.array([pool.kw_per_gpu for pool in outlook.pools]) * pues[self._pool_hub]
        self._onsite_kw = np.array([hub.onsite_kw for hub in hubs])
        sd = [np.zeros(hub.hours) if hub.onsite_sd_kw is None else hub.onsite_sd_kw for hub in hubs]
        self._onsite_sd = np.array(sd)
        self._grid_cost = np.array([aims.grid_cost(hub) for hub in hubs])
        self._grid_g = np.array([hub.grid_g_per_kwh_used for hub in hubs])
        # What is minimised beside grams: money, where it counts.
        self._beside = self._grid_cost - self._grid_g if aims.g_per_money else None
        self._onsite_g = np.array([hub.onsite_g_per_kwh for hub in hubs])[:, None]
        self._load_kw = busy_kw.copy()
        self._free = np.array([gpus_free[pool.key] for pool in outlook.pools])
        self._scarcity = np.zeros_like(self._grid_cost)
        self._room_price = np.zeros_like(self._free)
        self._rows_of: dict[tuple[frozenset[str], str], tuple[NDArray[np.int64], tuple[str, ...]]] = {}

    @property
    def hours(self) -> int:
        return self.outlook.hours

    def heed(self, plan: ClassPlan) -> None:
        """Takes the plan's shadow prices, and keeps what it gives to urgent work that is still to come."""
        if plan.failure or not plan.hub_g_per_kwh:
            return
        for hub, prices in plan.hub_g_per_kwh.items():
            row = self._hub_row[hub]
            # Above the grid's own cost a price speaks of late work, which is not a matter of this hour's power.
            self._scarcity[row] = SCARCITY_WEIGHT * np.clip(prices, 0.0, self._grid_cost[row])
        for key, prices in plan.pool_g_per_gpu_hour.items():
            row = self._pool_row[key]
            most = self._kw_per_gpu[row] * self._grid_cost[self._pool_hub[row]]
            self._room_price[row] = np.minimum(prices, most)
        for (job_class, hub), gpus in plan.quotas.items():
            if not job_class.deferrable:
                row = self._pool_row[hub, job_class.model]
                to_come = plan.to_come.get(job_class, 1.0) * gpus
                self._free[row] -= to_come
                self._load_kw[self._pool_hub[row]] += to_come * self._kw_per_gpu[row]

    def enter(self, work: FlexibleWork, hub: str, start_h: int, *, sign: int = 1) -> None:
        """Books the job from that hour on (or takes it out again)."""
        row = self._pool_row[hub, work.model]
        share = hours_share(start_h, work.hours_left, self.hours)
        self._free[row] -= sign * work.gpus * share
        self._load_kw[self._pool_hub[row]] += sign * work.gpus * self._kw_per_gpu[row] * share

    def windows(self, work: FlexibleWork, *, starts: int, keeps: bool = True) -> Windows | None:
        """Costs of all starts within the next `starts` hours. None: no allowed hub has such GPUs at all.

        `keeps`: it leaves the GPUs alone that are kept for work that cannot wait.
        """
        rows, hubs = self._rows(work)
        if not hubs:
            return None
        at, gpus = self._pool_hub[rows], float(work.gpus)
        kw = gpus * self._kw_per_gpu[rows]
        until = min(starts + int(work.hours_left) + 1, self.hours)  # no window reaches beyond
        onsite_g, grid_g = self._onsite_g[at], self._grid_g[at, :until]
        own = self._own_share(at, until, kw[:, None])
        grams = (own * onsite_g + (1.0 - own) * grid_g) * kw[:, None]
        beside = self._beside[at, :until] if self._beside is not None else 0.0
        cost = grams + ((1.0 - own) * beside + self._scarcity[at, :until]) * kw[:, None]
        cost += gpus * self._room_price[rows, :until]
        lacks = self._free[rows, :until] - (self._kept[rows][:, None] if keeps else 0.0) < gpus - 1e-6
        sums = _window_sums(
            np.stack([cost, grams, np.where(lacks, NO_ROOM_G_PER_GPU_HOUR * gpus, 0.0)]), work.hours_left, starts
        )
        return Windows(hubs, sums[0], sums[1], kw * work.hours_left, sums[2])

    def _own_share(self, at: NDArray[np.int64], until: int, kw: Floats) -> Floats:
        """Of a load of `kw` more, the part that own power is expected to cover, by hub and hour.

        It is the mean of clip((forecast - load) / kw, 0, 1) over the forecast's error, which is taken as logistic.
        """
        scale = np.maximum(self._onsite_sd[at, :until] / _LOGISTIC, 1e-3 * kw)
        onsite_kw = self._onsite_kw[at, :until]
        left = onsite_kw - self._load_kw[at, :until]
        covered = scale * (np.logaddexp(0.0, left / scale) - np.logaddexp(0.0, (left - kw) / scale))
        own: Floats = np.minimum(covered, 2.0 * onsite_kw) / kw  # nothing comes of nothing, however uncertain
        return np.clip(own, 0.0, 1.0)

    def grid_g_per_kwh(self, hub: str) -> float:
        return float(self._grid_g[self._hub_row[hub], 0])

    def _rows(self, work: FlexibleWork) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        key = (work.hubs, work.model)
        found = self._rows_of.get(key)
        if found is None:
            hubs = tuple(hub for hub in self._hub_row if hub in work.hubs and (hub, work.model) in self._pool_row)
            found = np.array([self._pool_row[hub, work.model] for hub in hubs], dtype=np.int64), hubs
            self._rows_of[key] = found
        return found


def hours_share(start_h: int, hours_left: float, hours: int) -> Floats:
    """Of each hour, the part that a job runs which starts then and lasts so long."""
    share = np.zeros(hours)
    end_h = start_h + hours_left
    share[start_h : int(end_h)] = 1.0
    if int(end_h) < hours:
        share[int(end_h)] = end_h - int(end_h)
    return share


def _window_sums(hourly: Floats, lasts: float, starts: int) -> Floats:
    """Sum over [s, s + lasts) for each s; beyond the horizon the last hour stands for all that follow."""
    whole, rest = int(lasts), lasts - int(lasts)
    beyond = starts + whole + 1 - hourly.shape[-1]
    if beyond > 0:
        hourly = np.concatenate([hourly, np.repeat(hourly[..., -1:], beyond, axis=-1)], axis=-1)
    sums = np.zeros((*hourly.shape[:-1], hourly.shape[-1] + 1))
    np.cumsum(hourly, axis=-1, out=sums[..., 1:])
    found: Floats = sums[..., whole : whole + starts] - sums[..., :starts] + rest * hourly[..., whole : whole + starts]
    return found

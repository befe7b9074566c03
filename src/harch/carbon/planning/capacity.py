"""What does one more job cost at each hub and start? A book of the power and GPUs that are spoken for.

Each job that is entered uses up some of the hub's own renewables, so the next one sees a higher cost there: that is the
guard against sending everything to the same place. A forecast is not certain: the more it usually errs, the softer the
edge between own power and the grid's.
"""

# harch: pure

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harch.carbon.planning.outlook import Floats, PowerOutlook
from harch.carbon.planning.program import ClassPlan
from harch.carbon.planning.work import ClassKey, FlexibleWork

# Among hours of the same cost to this job, those are better that others need less. The job's own cost leads: where own
# power is scarce everywhere, shadow prices are the grid's everywhere, and would hide the difference that it makes.
SCARCITY_WEIGHT = 0.3
ROOM_WEIGHT = 0.3  # more, and everybody leaves dear hours to somebody else: they stay empty
NO_ROOM_G_PER_GPU_HOUR = 5_000.0  # above any grid's: a window without room is chosen only if all are
# Work that may run elsewhere leaves GPUs to work that may not: this share of a pool over the root of all GPUs that the
# latter may use, at most that. It does not where it would emit far more elsewhere: taking them has a price, per kWh in
# grams of the grid.
BORROWED_LEAVE, BORROWED_LEAVE_MAX = 2.0, 0.25
BORROWED_PAY_SHARE = 0.4
HOSTS_NEED_MOST = 0.6  # of a pool, on average
FLAT_SHARE = 0.1  # of its intensity: power that changes by no more is the same in every hour, for all that is known
_LOGISTIC = 1.702  # a logistic curve of scale sd / 1.702 follows the normal one within 0.01


@dataclass(frozen=True, eq=False)
class StartWindows:
    """Costs of a job by hub (rows) and start, in steps (columns): what to minimise, and the grams among it."""

    hubs: tuple[str, ...]
    cost_g: Floats
    grams: Floats
    power_g: Floats  # grams, and money if it counts: what the power costs, without shadow prices
    kwh: Floats  # by hub
    no_room_g: Floats  # a charge for hours without room for it
    swing_g_per_kwh: float  # between the dirtiest and the cleanest hour of a hub, within all that is planned
    step_h: float

    @property
    def room(self) -> NDArray[np.bool_]:
        return self.no_room_g <= 0


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """The pools of one model at some hubs: rows of the book's arrays, one row per hub."""

    hubs: tuple[str, ...]
    rows: NDArray[np.int64]
    at: NDArray[np.int64]  # their hubs' rows
    kw_per_gpu: Floats
    kept: Floats
    for_hosts: Floats | None  # GPUs that are dear to it, because others can run nowhere else; None: none anywhere
    onsite_kw: Floats
    onsite_scale: Floats
    grid_g: Floats
    own_saves_g: Floats  # per kWh that own power covers instead of the grid
    beside: Floats  # g/kWh that are minimised beside grams, whatever the source
    beside_grid: Floats | None  # and for what the grid delivers
    room_price: Floats
    swing_g_per_kwh: float


class CapacityLedger:
    """Mutable while one plan is made; it decides nothing."""

    def __init__(self, outlook: PowerOutlook, busy_kw: Floats, gpus_free: Mapping[tuple[str, str], Floats]) -> None:
        hubs, aims = outlook.hubs, outlook.aims
        self.outlook = outlook
        self._hub_row = outlook.index()
        self._pool_row = {pool.key: row for row, pool in enumerate(outlook.pools)}
        self._pool_hub = np.array([self._hub_row[pool.hub] for pool in outlook.pools])
        self._kept = np.array([pool.gpus_kept for pool in outlook.pools], dtype=np.float64)
        self._expected: Mapping[ClassKey, float] = {}  # GPUs that each known class will use, on average
        pues = np.array([hub.pue for hub in hubs])
        self._kw_per_gpu = np.array([pool.kw_per_gpu for pool in outlook.pools]) * pues[self._pool_hub]
        self._onsite_kw = np.array([hub.onsite_kw for hub in hubs])
        sd = [np.zeros(hub.steps) if hub.onsite_sd_kw is None else hub.onsite_sd_kw for hub in hubs]
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
        self._places: dict[tuple[frozenset[str], str], _Place] = {}

    @property
    def steps(self) -> int:
        return self.outlook.steps

    def heed(self, plan: ClassPlan) -> None:
        """Takes the plan's shadow prices, and keeps what it gives to urgent work that is still to come."""
        if plan.failure or not plan.hub_g_per_kwh:
            return
        self._places.clear()
        self._expected = plan.gpus_expected
        for hub, prices in plan.hub_g_per_kwh.items():
            row = self._hub_row[hub]
            # Above the grid's own cost a price speaks of late work, which is not a matter of this hour's power.
            self._scarcity[row] = SCARCITY_WEIGHT * np.clip(prices, 0.0, self._grid_cost[row])
        for key, prices in plan.pool_g_per_gpu_hour.items():
            row = self._pool_row[key]
            most = self._kw_per_gpu[row] * self._grid_cost[self._pool_hub[row]]
            self._room_price[row] = ROOM_WEIGHT * np.minimum(prices, most)
        for (job_class, hub), gpus in plan.quotas.items():
            if not job_class.deferrable:
                row = self._pool_row[hub, job_class.model]
                to_come = plan.to_come.get(job_class, 1.0) * gpus
                self._free[row] -= to_come
                self._load_kw[self._pool_hub[row]] += to_come * self._kw_per_gpu[row]

    def enter(self, work: FlexibleWork, hub: str, start_step: int, *, sign: int = 1) -> None:
        """Books the job from that step on (or takes it out again)."""
        row = self._pool_row[hub, work.model]
        gpus, kw = sign * work.gpus, sign * work.gpus * self._kw_per_gpu[row]
        free, load_kw = self._free[row], self._load_kw[self._pool_hub[row]]
        end = start_step + work.hours_left / self.outlook.step_h
        full = int(end)
        free[start_step:full] -= gpus
        load_kw[start_step:full] += kw
        if full < self.steps:
            free[full] -= gpus * (end - full)
            load_kw[full] += kw * (end - full)

    def windows(self, work: FlexibleWork, *, starts: int, keeps: bool = True) -> StartWindows | None:
        """Costs of a start at each of the next `starts` steps. None: no allowed hub has such GPUs at all.

        `keeps`: it leaves the GPUs alone that are kept for work that cannot wait.
        """
        place = self._place(work)
        if not place.hubs:
            return None
        gpus = float(work.gpus)
        step_h = self.outlook.step_h
        lasts = work.hours_left / step_h
        until = min(starts + int(lasts) + 1, self.steps)  # no window reaches beyond
        kw = gpus * place.kw_per_gpu
        own = self._own_share(place, until, kw)
        hourly = np.empty((3 if place.beside_grid is None else 4, len(place.hubs), until))
        cost, grams, no_room = hourly[:3]
        np.multiply(own, place.own_saves_g[:, :until], out=grams)
        np.subtract(place.grid_g[:, :until], grams, out=grams)
        grams *= kw
        np.multiply(place.beside[:, :until], kw, out=cost)
        if place.beside_grid is None:
            cost += grams
        else:
            hourly[3] = grams + kw * (1.0 - own) * place.beside_grid[:, :until]
            cost += hourly[3]
        cost += gpus * place.room_price[:, :until]
        if place.for_hosts is not None:
            scarce = self._free[place.rows, :until] < gpus + place.for_hosts[:, :until]
            cost += scarce * (BORROWED_PAY_SHARE * kw * place.grid_g[:, :until])
        needed = gpus - 1e-6 + place.kept if keeps else gpus - 1e-6
        np.multiply(self._free[place.rows, :until] < needed, NO_ROOM_G_PER_GPU_HOUR * gpus, out=no_room)
        sums = _window_sums(hourly, lasts, starts)
        sums *= step_h  # what is per hour, over hours
        power_g = sums[1] if place.beside_grid is None else sums[3]
        kwh = kw[:, 0] * work.hours_left
        return StartWindows(place.hubs, sums[0], sums[1], power_g, kwh, sums[2], place.swing_g_per_kwh, step_h)

    def _own_share(self, place: _Place, until: int, kw: Floats) -> Floats:
        """Of a load of `kw` more, the part that own power is expected to cover, by hub and step.

        It is the mean of clip((forecast - load) / kw, 0, 1) over the forecast's error, which is taken as logistic.
        """
        scale = np.maximum(place.onsite_scale[:, :until], 1e-3 * kw)
        onsite_kw = place.onsite_kw[:, :until]
        left = onsite_kw - self._load_kw[place.at, :until]
        left /= scale
        own = np.logaddexp(0.0, left)
        left -= kw / scale
        own -= np.logaddexp(0.0, left)
        own *= scale
        # Nothing comes of nothing, however uncertain.
        np.minimum(own, 2.0 * onsite_kw, out=own)
        own /= kw
        np.clip(own, 0.0, 1.0, out=own)
        return own

    def grid_g_per_kwh(self, hub: str) -> float:
        return float(self._grid_g[self._hub_row[hub], 0])

    def _place(self, work: FlexibleWork) -> _Place:
        """What does not change while jobs are entered, gathered once for all work of the same hubs and model."""
        key = (work.hubs, work.model)
        found = self._places.get(key)
        if found is None:
            hubs = tuple(hub for hub in self._hub_row if hub in work.hubs and (hub, work.model) in self._pool_row)
            rows = np.array([self._pool_row[hub, work.model] for hub in hubs], dtype=np.int64)
            at = self._pool_hub[rows]
            leaves = [self._gpus_for_hosts(work, hub) for hub in hubs]
            by_borrowed = np.array([np.zeros(self.steps) if one is None else one for one in leaves])
            found = self._places[key] = _Place(
                hubs=hubs,
                rows=rows,
                at=at,
                kw_per_gpu=self._kw_per_gpu[rows][:, None],
                kept=self._kept[rows][:, None],
                for_hosts=by_borrowed if by_borrowed.any() else None,
                onsite_kw=self._onsite_kw[at],
                onsite_scale=self._onsite_sd[at] / _LOGISTIC,
                grid_g=self._grid_g[at],
                own_saves_g=self._grid_g[at] - self._onsite_g[at],
                beside=self._scarcity[at],
                beside_grid=None if self._beside is None else self._beside[at],
                room_price=self._room_price[rows],
                swing_g_per_kwh=self._swing_g_per_kwh(rows, at),
            )
        return found

    def _gpus_for_hosts(self, work: FlexibleWork, hub: str) -> Floats | None:
        """What work that may run at more hubs than others leaves, by step, to those who have fewer to choose from.

        What comes and goes by itself varies by the root of its number, so small sets of hubs need a larger share. Where
        hosts need most of a pool, all that they are expected to use and do not use yet is theirs too.
        """
        hosts = {
            key: gpus
            for key, gpus in self._expected.items()
            if key.model == work.model and hub in key.hubs and key.hubs < work.hubs
        }
        if not hosts:
            return None
        gpus = {pool.hub: pool.gpus for pool in self.outlook.pools if pool.model == work.model}
        in_reach = {key: max(sum(gpus.get(one, 0) for one in key.hubs), 1) for key in hosts}
        leaves = gpus[hub] * min(BORROWED_LEAVE / math.sqrt(min(in_reach.values())), BORROWED_LEAVE_MAX)
        expected = sum(used * gpus[hub] / in_reach[key] for key, used in hosts.items())
        if expected < HOSTS_NEED_MOST * gpus[hub]:
            return np.full(self.steps, leaves)
        in_use = gpus[hub] - self._free[self._pool_row[hub, work.model]]
        needed: Floats = leaves + np.maximum(expected - in_use, 0.0)
        return needed

    def _swing_g_per_kwh(self, rows: NDArray[np.int64], at: NDArray[np.int64]) -> float:
        """How much power changes with the hour, at that of these hubs where it changes most. 0: hardly at all.

        Own plants count in full even if they are foretold to give power in every hour: they may not.
        """
        if not len(rows):
            return 0.0
        dirtiest, cleanest = self._grid_cost[at].max(axis=1), self._grid_cost[at].min(axis=1)
        pool_kw = self._kw_per_gpu[rows] * np.array([self.outlook.pools[row].gpus for row in rows])
        has_plants = self._onsite_kw[at].max(axis=1) > FLAT_SHARE * pool_kw
        swing = dirtiest - np.where(has_plants, np.minimum(self._onsite_g[at, 0], cleanest), cleanest)
        return float(np.where(swing > FLAT_SHARE * dirtiest, swing, 0.0).max())


def _window_sums(hourly: Floats, lasts: float, starts: int) -> Floats:
    """Sum over the steps [s, s + lasts) for each s; beyond the horizon the last one stands for all that follow."""
    whole, rest = int(lasts), lasts - int(lasts)
    beyond = starts + whole + 1 - hourly.shape[-1]
    if beyond > 0:
        hourly = np.concatenate([hourly, np.repeat(hourly[..., -1:], beyond, axis=-1)], axis=-1)
    sums = np.zeros((*hourly.shape[:-1], hourly.shape[-1] + 1))
    np.cumsum(hourly, axis=-1, out=sums[..., 1:])
    found: Floats = sums[..., whole : whole + starts] - sums[..., :starts] + rest * hourly[..., whole : whole + starts]
    return found

"""Who decides where and when in a carbon replay?

The naive way, and the planner with meters until now, rates of what came lately, and a forecast or a perfect one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from harch.carbon.forecasts.site_generation import onsite_nowcast
from harch.carbon.planning.capacity import CapacityLedger
from harch.carbon.planning.decisions import CarbonDecision, DecisionKind
from harch.carbon.planning.dispatch import Budgets, MoveRules, decide
from harch.carbon.planning.outlook import Floats, HubHours, Pool, PowerOutlook, RestsOn
from harch.carbon.planning.plan import CarbonPlan, plan_carbon
from harch.carbon.planning.slack import crowd_of
from harch.carbon.planning.work import ClassKey, ExpectedWork, FlexibleWork, WorkDemand
from harch.fleet.model import Fleet
from harch.simulate.carbon_replay import CarbonReplay, CarbonRun
from harch.simulate.carbon_room import LOOK_S, RoomMaker, Slack
from harch.simulate.carbon_scenario import CarbonJob
from harch.simulate.carbon_weather import HISTORY_DAYS, Plants, hourly_from, hourly_until

# What does the planner know of power and GPUs at a moment of a replay? Meters until now, and forecasts from them.
#
# PV is forecast as HarchOS does on site: the usual day, moved by the present. Wind has no usual day: it returns from
# where it is to its mean, as slowly as it did in the last weeks. The oracle is told what will be instead.


HORIZON_H = 48
# GPUs of a pool that are left to work that cannot wait: a share, and in small pools a node's worth, at most a quarter.
KEPT_SHARE, KEPT_MIN, KEPT_OF_POOL_MAX = 0.06, 8, 0.25
LOAD_SPREAD = 0.1  # of a hub's power: what comes and ends meanwhile is not known either
FADE_H = 12.0
_FADING = float(np.exp(-1 / FADE_H))
_DAYS_OF_SUN = 7
_MEMORY_MAX = 0.995
FORECAST = RestsOn("on-site meters of the last weeks, yearly mean of the grid")
PERFECT = RestsOn("actual values, yearly mean of the grid")


def outlook_of(
    fleet: Fleet, plants: Mapping[str, Plants], pools: tuple[Pool, ...], now_s: float, *, perfect: bool
) -> PowerOutlook:
    hubs = []
    for hub in fleet.hubs:
        own = plants[hub.id]
        load_kw = LOAD_SPREAD * sum(node.power_w_max for node in hub.nodes) / 1000
        variance = load_kw**2 * _unknown(_FADING)
        if perfect:
            onsite_kw = hourly_from(own.onsite_kw, own.step(now_s), HORIZON_H)
        else:
            pv_kw, pv_variance = forecast_pv(hourly_until(own.pv_kw, own.step(now_s), _DAYS_OF_SUN * 24))
            wind_kw, wind_variance = forecast_wind(hourly_until(own.wind_kw, own.step(now_s), (HISTORY_DAYS - 1) * 24))
            onsite_kw = pv_kw + wind_kw
            variance = variance + pv_variance + wind_variance
        hubs.append(
            HubHours(
                hub=hub.id,
                grid_g_per_kwh=np.full(HORIZON_H, float(own.grid_g_per_kwh[own.step(now_s)])),
                onsite_kw=onsite_kw,
                onsite_sd_kw=np.sqrt(variance),
                onsite_g_per_kwh=own.onsite_g_per_kwh,
                pue=own.pue,
                rests_on=PERFECT if perfect else FORECAST,
            )
        )
    return PowerOutlook(tuple(hubs), pools)


def forecast_pv(measured_kw: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of the next hours, from a week of them. The present hour is what the meter shows."""
    mean = onsite_nowcast(measured_kw, HORIZON_H)
    mean[0] = measured_kw[-1]
    by_day = np.resize(measured_kw.reshape(-1, 24).var(axis=0), HORIZON_H)
    return mean, by_day * _unknown(_FADING)


def forecast_wind(measured_kw: Floats) -> tuple[Floats, Floats]:
    """As above: a mean-reverting process with the mean, the spread and the memory of the hours that were measured."""
    mean, variance = float(measured_kw.mean()), float(measured_kw.var())
    away = measured_kw - mean
    square = float(away @ away)
    memory = float(np.clip(away[1:] @ away[:-1] / square, 0.0, _MEMORY_MAX)) if square > 0 else 0.0
    ahead = mean + (measured_kw[-1] - mean) * memory ** np.arange(HORIZON_H)
    return np.maximum(ahead, 0.0), variance * _unknown(memory)


def _unknown(memory: float) -> Floats:
    """How much of the variance is open again after so many hours."""
    hours = np.arange(HORIZON_H, dtype=np.float64)
    return 1.0 - memory ** (2.0 * hours)


def pools_of(fleet: Fleet) -> tuple[Pool, ...]:
    pools = []
    for hub in fleet.hubs:
        for model in hub.gpu_models:
            nodes = [node for node in hub.nodes if node.gpu_model.name == model]
            gpus = sum(len(node.gpus) for node in nodes)
            kw = sum(node.power_w_max for node in nodes) / 1000 / gpus
            kept = max(round(KEPT_SHARE * gpus), min(KEPT_MIN, int(KEPT_OF_POOL_MAX * gpus)))
            pools.append(Pool(hub.id, model, gpus, kw, gpus_kept=kept))
    return tuple(pools)


# How much work of each class comes, and how well does it know its own duration? Counted from what came lately.


ARRIVALS_KNOWN_S = 48 * 3600.0


@dataclass
class Rates:
    """How much work of each class came lately, and how well it knew its own duration."""

    _came: deque[tuple[float, ClassKey, float, float]] = field(default_factory=deque)
    _work: defaultdict[ClassKey, float] = field(default_factory=lambda: defaultdict(float))  # GPU-hours, as stated
    _width: defaultdict[ClassKey, float] = field(default_factory=lambda: defaultdict(float))  # GPUs
    _stated_s: float = 0.0
    _lasted_s: float = 0.0

    def came(self, job: CarbonJob, now_s: float) -> None:
        key, gpus = ClassKey(job.hubs, job.model, job.deferrable), float(job.kind.gpus)
        self._came.append((now_s, key, gpus, gpus * job.stated_s / 3600))
        self._count(key, gpus, gpus * job.stated_s / 3600)

    def _count(self, key: ClassKey, gpus: float, gpu_hours: float) -> None:
        self._width[key] += gpus
        self._work[key] += gpu_hours

    def ended(self, job: CarbonJob) -> None:
        self._stated_s += job.stated_s
        self._lasted_s += job.duration_s

    @property
    def truth(self) -> float:
        """Actual over stated duration, of what has ended."""
        return self._lasted_s / self._stated_s if self._stated_s else 1.0

    def expected(self, now_s: float, slack_h: Mapping[bool, float]) -> dict[ClassKey, ExpectedWork]:
        while self._came and self._came[0][0] < now_s - ARRIVALS_KNOWN_S:
            _, key, gpus, gpu_hours = self._came.popleft()
            self._count(key, -gpus, -gpu_hours)
        hours = min(now_s, ARRIVALS_KNOWN_S) / 3600
        if hours < 1:
            return {}
        return {
            key: ExpectedWork(work * self.truth / hours, work * self.truth / self._width[key], slack_h[key.deferrable])
            for key, work in self._work.items()
            if self._width[key] >= 1
        }


# Who decides where and when in a carbon replay? The naive way, and the planner with a forecast or a perfect one.


REPLAN_S = 3600.0  # classes are planned anew, and what runs may move
MOVE_SLACK_S = 3600.0
LOOKS_FOR_ROOM_S = 3600.0
GANG_GPUS = 8  # a node's worth: from here on room by count is not yet a place


class NaiveRouter:
    """At once, where it came in; elsewhere only if its hub is full. It owns the same plants, unseen."""

    def __init__(self, fleet: Fleet) -> None:
        self._neighbours = {}
        for hub in fleet.hubs:
            rtt_ms = {end: link.rtt_ms for link in fleet.links_of(hub.id) for end in link.ends}
            others = [other.id for other in fleet.hubs if other is not hub]
            self._neighbours[hub.id] = sorted(others, key=partial(_distance, rtt_ms))

    def arrived(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> None:
        for hub in (job.home, *self._neighbours[job.home]):
            if hub in job.hubs and replay.try_start(job, hub, now_s):
                return
        replay.queue(job, job.home, now_s)


class PlannedRouter:
    """HarchOS: plans anew every hour, weighs each arrival on the plan's book. The same class is the oracle."""

    replan_s: float = LOOK_S

    def __init__(
        self,
        fleet: Fleet,
        plants: Mapping[str, Plants],
        *,
        perfect: bool,
        moves: MoveRules | None,
        slack_h: float,
    ) -> None:
        self._plants, self._perfect, self._moves = plants, perfect, moves
        self._fleet, self._slack_h = fleet, slack_h
        self._pools = pools_of(fleet)
        self._slack = Slack(self._pools)
        self._room = RoomMaker(self._slack)
        self._held: dict[str, CarbonJob] = {}
        self._targets: dict[str, str] = {}  # where a job that is being stopped goes on
        self._rates = Rates()
        self._counted: set[str] = set()
        self._plan: CarbonPlan | None = None
        self._planned_s = 0.0

    # Happenings

    def arrived(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> None:
        self._rates.came(job, now_s)
        if self._plan is None:
            self._plan = self._new_plan(replay, now_s, whole=True)
        if not job.deferrable:
            self._place_now(replay, job, now_s)
            return
        if self._slack.wait_s(replay, job, now_s) <= 0:
            self._place_now(replay, job, now_s)
            return
        self._held[job.request.id] = job
        decision = decide(self._work(replay, job, now_s), self._plan.book, Budgets())
        if not self._carried_out(replay, job, decision, now_s) and self._slack.is_crowded(job):
            self._start_soon(replay, job, now_s)

    def stopped(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> None:
        target = self._targets.pop(job.request.id, None)
        if target is not None and replay.try_start(job, target, now_s):
            return
        if job.deferrable:
            self._held[job.request.id] = job
        else:
            self._place_now(replay, job, now_s)

    def replan(self, replay: CarbonReplay, now_s: float) -> None:
        for job_id in sorted(replay.counts.ended_s.keys() - self._counted):
            self._counted.add(job_id)
            self._rates.ended(replay.job(job_id))
        whole = self._plan is None or now_s >= self._planned_s + REPLAN_S
        self._plan = self._new_plan(replay, now_s, whole=whole)
        for decision in self._plan.decisions:
            job = self._held.get(decision.work_id)
            if job is None and decision.verb in (DecisionKind.MOVE, DecisionKind.SUSPEND) and decision.hub is not None:
                if decision.verb is DecisionKind.MOVE:
                    self._targets[decision.work_id] = decision.hub
                replay.stop(decision.work_id, now_s)
            elif job is not None:
                self._carried_out(replay, job, decision, now_s)
        for job in [one for one in self._held.values() if self._slack.wait_s(replay, one, now_s) <= 0]:
            del self._held[job.request.id]
            self._place_now(replay, job, now_s)
        crowded = [job for job in self._held.values() if self._slack.is_crowded(job)]
        for job in sorted(crowded, key=lambda one: (-one.kind.gpus, one.starts_by_s, one.request.id)):
            self._start_soon(replay, job, now_s)
        self._room.help_queued(replay, now_s)

    # Acting

    def _carried_out(self, replay: CarbonReplay, job: CarbonJob, decision: CarbonDecision, now_s: float) -> bool:
        """Starts it if the plan says so. A gang that waits for nothing but room goes into a queue, where nodes are kept
        for it; what is small looks for room for a while, and leaves alone what is kept for inference. Where too much
        comes nothing queues: a queue takes every GPU that comes free, and inference would have to stop somebody."""
        hub = decision.hub if decision.verb is DecisionKind.START and decision.room else None
        awaited = hub is None or self._room.is_awaited(replay, hub, job, now_s)
        if hub is not None and not awaited and replay.try_start(job, hub, now_s):
            del self._held[job.request.id]
            return True
        looked_s = now_s - job.request.submitted_s
        if not decision.queues or self._slack.is_crowded(job):
            return False
        if job.kind.gpus >= GANG_GPUS or looked_s >= LOOKS_FOR_ROOM_S:
            del self._held[job.request.id]
            self._place_now(replay, job, now_s)
            return True
        return False

    def _start_soon(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> None:
        """Where all slack will be needed it does not wait for clean hours, but it pushes nobody either."""
        work = self._work(replay, job, now_s)
        for hub in self._cleanest(replay, job, work, now_s):
            if not self._room.is_awaited(replay, hub, job, now_s) and replay.try_start(job, hub, now_s):
                self._book.enter(work, hub, 0)
                del self._held[job.request.id]
                return

    def _place_now(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> None:
        """The cleanest allowed hub that can start it at once; else the queue of the one with most room to come."""
        work = self._work(replay, job, now_s)
        by_cost = self._cleanest(replay, job, work, now_s)
        for hub in by_cost:
            if replay.try_start(job, hub, now_s):
                self._book.enter(work, hub, 0)
                return
        # Work that cannot wait is served before a queue of others; what is only due is not.
        is_due = self._room.wait_s(replay, job, now_s) <= 0
        clear = [hub for hub in by_cost if is_due and (not job.deferrable or not replay.queued_gpus(hub, job.model))]
        cleared = self._room.clear(replay, job, clear, now_s)
        if cleared is None:
            gpus = {pool.hub: pool.gpus for pool in self._pools if pool.model == job.model}
            # With itself: a gang must not stand in a queue of a pool that it would need all of.
            queues = {name: (replay.queued_gpus(name, job.model) + job.kind.gpus) / gpus[name] for name in by_cost}
            cleared = min(queues, key=lambda name: (queues[name], name != job.home))
        self._book.enter(work, cleared, 0)
        replay.queue(job, cleared, now_s)

    def _cleanest(self, replay: CarbonReplay, job: CarbonJob, work: FlexibleWork, now_s: float) -> list[str]:
        """Allowed hubs by the cost of a start now, with that of bringing its checkpoint there."""
        windows = self._book.windows(work, starts=1, keeps=False)
        if windows is None:
            raise RuntimeError(f"no hub can ever hold {job.request.id}")
        cost_g = windows.cost_g[:, 0] + self._transfers_g(replay, job, windows.hubs, now_s)
        return [windows.hubs[row] for row in np.argsort(cost_g, kind="stable").tolist()]

    def _transfers_g(self, replay: CarbonReplay, job: CarbonJob, hubs: Iterable[str], now_s: float) -> Floats:
        """What it costs to bring its checkpoint to each hub."""
        here = replay.left_from.get(job.request.id)
        kwh = job.kind.gpus * replay.moving.checkpoint_gb_per_gpu * replay.moving.transfer_kwh_per_gb
        return np.array([0.0 if here in (None, hub) else kwh * replay.grid_g_per_kwh(hub, now_s) for hub in hubs])

    # Knowing

    @property
    def _book(self) -> CapacityLedger:
        if self._plan is None:
            raise RuntimeError("work is placed only in the book of a plan")
        return self._plan.book

    def _new_plan(self, replay: CarbonReplay, now_s: float, *, whole: bool) -> CarbonPlan:
        waiting = tuple(self._work(replay, job, now_s) for job in self._held.values())
        running = [self._running(replay, run, now_s, whole) for run in replay.running.values() if not run.stopping]
        running += [self._queued(replay, job_id, hub) for job_id, hub in replay.queued.items()]
        outlook = outlook_of(self._fleet, self._plants, self._pools, now_s, perfect=self._perfect)
        if self._plan is not None and not whole:
            return plan_carbon(outlook, WorkDemand(waiting), running, classes=self._plan.classes)
        self._planned_s = now_s
        demand = WorkDemand(waiting, self._rates.expected(now_s, {True: self._slack_h, False: 0.0}))
        self._slack.crowd = crowd_of(self._pools, demand, running)
        return plan_carbon(outlook, demand, running, moves=self._moves)

    def _work(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> FlexibleWork:
        left_s = job.stated_s * self._rates.truth - replay.kept_s.get(job.request.id, 0.0)
        wait_h = max(self._slack.wait_s(replay, job, now_s), 0.0) / 3600 if job.deferrable else 0.0
        work = _flexible(job, left_s, wait_h, replay, running_at=None)
        here = replay.left_from.get(job.request.id)
        # What was suspended goes on where its checkpoint lies: a transfer costs as much as an hour on the grid.
        return work if here is None or wait_h <= 0 else replace(work, hubs=frozenset({here}))

    def _running(self, replay: CarbonReplay, run: CarbonRun, now_s: float, whole: bool) -> FlexibleWork:
        job = run.job
        before_s = replay.kept_s.get(job.request.id, 0.0)
        left_to_do_s = job.stated_s * self._rates.truth - before_s - max(now_s - run.started_s - run.idle_s, 0.0)
        if not whole:
            return _flexible(job, left_to_do_s, 0.0, replay, running_at=run.hub, movable=False)
        kept_s = run.kept_s(now_s, replay.moving.checkpoint_every_s)
        wait_h = 0.0
        if job.deferrable and self._slack.may_pause(job):
            wait_h = max(self._slack.wait_s(replay, job, now_s, run), 0.0) / 3600
        # A move delays it too: what has used up its slack stays where it is.
        movable = not job.deferrable or job.starts_by_s + before_s + kept_s - now_s > MOVE_SLACK_S
        return _flexible(job, left_to_do_s, wait_h, replay, running_at=run.hub, movable=movable)

    def _queued(self, replay: CarbonReplay, job_id: str, hub: str) -> FlexibleWork:
        job = replay.job(job_id)
        return _flexible(job, job.stated_s, 0.0, replay, running_at=hub, movable=False)


def _distance(rtt_ms: Mapping[str, float], hub: str) -> float:
    return rtt_ms.get(hub, 1e9)


def _flexible(
    job: CarbonJob,
    left_s: float,
    wait_h: float,
    replay: CarbonReplay,
    *,
    running_at: str | None,
    movable: bool = True,
) -> FlexibleWork:
    return FlexibleWork(
        id=job.request.id,
        hubs=job.hubs,
        model=job.model,
        gpus=job.kind.gpus,
        hours_left=max(left_s / 3600, 0.25),
        wait_h_max=wait_h,
        tenant=job.request.tenant,
        home=job.home,
        running_at=running_at,
        movable=job.kind.movable and movable,
        checkpoint_gb=job.kind.gpus * replay.moving.checkpoint_gb_per_gpu,
    )

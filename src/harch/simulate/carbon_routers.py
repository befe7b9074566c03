"""Who decides where and when in a carbon replay? The naive way, and the planner with a forecast or a perfect one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, partial

import numpy as np

from harch.carbon.planning.crowding import slack_shares
from harch.carbon.planning.decisions import Verb
from harch.carbon.planning.dispatch import decide
from harch.carbon.planning.limits import Budgets
from harch.carbon.planning.moves import MoveRules
from harch.carbon.planning.plan import CarbonPlan, plan_carbon
from harch.carbon.planning.work import Demand, FlexibleWork
from harch.carbon.planning.yielding import Holder, who_yields
from harch.fleet.model import Fleet
from harch.simulate.carbon_jobs import CarbonJob
from harch.simulate.carbon_meter import Plants
from harch.simulate.carbon_outlook import outlook_of, pools_of
from harch.simulate.carbon_rates import Rates
from harch.simulate.carbon_replay import CarbonReplay, Run

LOOK_S = 900.0  # what waits is looked at again
REPLAN_S = 3600.0  # classes are planned anew, and what runs may move
# Deferrable work enters a scheduler's queue so long before its promise, by GPUs: a gang may have to wait for its nodes.
MARGINS_S = ((1, 2 * 3600.0), (8, 6 * 3600.0), (16, 9 * 3600.0))
MOVE_SLACK_S = 3600.0
YIELD_WAIT_H_MIN = 1.0  # what gives way can still wait so long
YIELD_LEFT_S_MIN = 600.0  # what ends soon makes room by itself


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
        self._held: dict[str, CarbonJob] = {}
        self._targets: dict[str, str] = {}  # where a job that is being stopped goes on
        self._rates = Rates()
        self._counted: set[str] = set()
        self._plan: CarbonPlan | None = None
        self._planned_s = 0.0
        self._queued_s: dict[str, float] = {}  # since when a job has been seen in a queue
        self._slack_shares: dict[tuple[frozenset[str], str], float] = {}

    # Happenings

    def arrived(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> None:
        self._rates.came(job, now_s)
        if self._plan is None:
            self._plan = self._new_plan(replay, now_s, whole=True)
        if not job.deferrable:
            self._place_now(replay, job, now_s)
            return
        if self._wait_s(replay, job, now_s) <= 0:
            self._place_now(replay, job, now_s)
            return
        self._held[job.request.id] = job
        decision = decide(self._work(replay, job, now_s), self._plan.book, Budgets())
        if decision.verb is Verb.START and decision.room and decision.hub is not None:
            self._start(replay, job, decision.hub, now_s)

    def stopped(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> None:
        target = self._targets.pop(job.request.id, None)
        if target is not None and replay.try_start(job, target, now_s):
            return
        if job.deferrable:
            self._held[job.request.id] = job
        else:
            self._place_now(replay, job, now_s)

    def replan(self, replay: CarbonReplay, now_s: float) -> None:
        for job_id in replay.counts.ended_s.keys() - self._counted:
            self._counted.add(job_id)
            self._rates.ended(replay.job(job_id))
        whole = self._plan is None or now_s >= self._planned_s + REPLAN_S
        self._plan = self._new_plan(replay, now_s, whole=whole)
        for decision in self._plan.decisions:
            job = self._held.get(decision.work_id)
            if job is None and decision.verb in (Verb.MOVE, Verb.SUSPEND) and decision.hub is not None:
                if decision.verb is Verb.MOVE:
                    self._targets[decision.work_id] = decision.hub
                replay.stop(decision.work_id, now_s)
            elif job is not None and decision.hub is not None and decision.verb is Verb.START and decision.room:
                self._start(replay, job, decision.hub, now_s)
        for job in [one for one in self._held.values() if self._wait_s(replay, one, now_s) <= 0]:
            del self._held[job.request.id]
            self._place_now(replay, job, now_s)
        self._help_queued(replay, now_s)

    # Acting

    def _start(self, replay: CarbonReplay, job: CarbonJob, hub: str, now_s: float) -> None:
        if replay.try_start(job, hub, now_s):
            del self._held[job.request.id]

    def _place_now(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> None:
        """The cleanest allowed hub that can start it at once; else the queue of the one with most room to come."""
        plan = self._plan
        if plan is None:
            raise RuntimeError("work is placed on a plan's book only")
        work = self._work(replay, job, now_s)
        windows = plan.book.windows(work, starts=1, keeps=False)
        if windows is None:
            raise RuntimeError(f"no hub can ever hold {job.request.id}")
        for row in np.argsort(windows.cost_g[:, 0], kind="stable").tolist():
            if replay.try_start(job, windows.hubs[row], now_s):
                plan.book.enter(work, windows.hubs[row], 0)
                return
        by_cost = [windows.hubs[row] for row in np.argsort(windows.cost_g[:, 0], kind="stable").tolist()]
        no_queue = [hub for hub in by_cost if not replay.queued_gpus(hub, job.model)]
        hub = self._cleared(replay, job, no_queue, now_s)
        if hub is None:
            gpus = {pool.hub: pool.gpus for pool in self._pools if pool.model == job.model}
            # With itself: a gang must not stand in a queue of a pool that it would need all of.
            queues = {name: (replay.queued_gpus(name, job.model) + job.kind.gpus) / gpus[name] for name in windows.hubs}
            hub = min(queues, key=lambda name: (queues[name], name != job.home))
        plan.book.enter(work, hub, 0)
        replay.queue(job, hub, now_s)

    def _cleared(self, replay: CarbonReplay, job: CarbonJob, hubs: Iterable[str], now_s: float) -> str | None:
        """The first hub where deferrable work can give way to it; that work is told to stop."""
        for hub in hubs:
            holders = [
                holder
                for run in replay.running.values()
                if run.hub == hub and run.job.model == job.model
                if (holder := self._holder(replay, run, now_s)) is not None
            ]
            yields = who_yields(job.kind.tasks, job.kind.gpus_per_task, replay.gpus_free(hub, job.model), holders)
            if yields:
                for job_id in yields:
                    replay.stop(job_id, now_s)
                return hub
        return None

    def _holder(self, replay: CarbonReplay, run: Run, now_s: float) -> Holder | None:
        """What it would give way with, if it can: it has slack left and does not end soon anyway."""
        if run.stopping or not run.job.deferrable or run.ends_s - now_s <= YIELD_LEFT_S_MIN:
            return None
        wait_h = self._wait_s(replay, run.job, now_s, run) / 3600
        if wait_h < YIELD_WAIT_H_MIN:
            return None
        on: Counter[int] = Counter()
        for slot in run.slots:
            on[slot.row] += len(slot.devices)
        return Holder(run.job.request.id, on, wait_h)

    def _help_queued(self, replay: CarbonReplay, now_s: float) -> None:
        """Who has stood in a scheduler's queue since the last look gets room, one of each pool at a time."""
        helped: set[tuple[str, str]] = set()
        for job_id, hub in list(replay.queued.items()):
            job = replay.job(job_id)
            since_s = self._queued_s.get(job_id, now_s)
            if (hub, job.model) not in helped and now_s - since_s >= LOOK_S:
                helped.add((hub, job.model))
                self._cleared(replay, job, (hub,), now_s)
        self._queued_s = {job_id: self._queued_s.get(job_id, now_s) for job_id in replay.queued}

    # Knowing

    def _new_plan(self, replay: CarbonReplay, now_s: float, *, whole: bool) -> CarbonPlan:
        waiting = tuple(self._work(replay, job, now_s) for job in self._held.values())
        running = [self._running(replay, run, now_s, whole) for run in replay.running.values() if not run.stopping]
        running += [self._queued(replay, job_id, hub) for job_id, hub in replay.queued.items()]
        outlook = outlook_of(self._fleet, self._plants, self._pools, now_s, perfect=self._perfect)
        if self._plan is not None and not whole:
            return plan_carbon(outlook, Demand(waiting), running, classes=self._plan.classes)
        self._planned_s = now_s
        demand = Demand(waiting, self._rates.expected(now_s, {True: self._slack_h, False: 0.0}))
        self._slack_shares = slack_shares(self._pools, demand, slack_h=self._slack_h)
        return plan_carbon(outlook, demand, running, moves=self._moves)

    def _wait_s(self, replay: CarbonReplay, job: CarbonJob, now_s: float, run: Run | None = None) -> float:
        """How long it may still wait, if it runs: once stopped. What it has done is no delay, a restart is."""
        kept_s = replay.kept_s.get(job.request.id)
        if run is not None:
            kept_s = (kept_s or 0.0) + run.kept_s(now_s, replay.moving.checkpoint_every_s)
        slack_s = job.slack_s * self._slack_shares.get((job.hubs, job.model), 1.0)
        latest_s = job.request.submitted_s + slack_s - margin_of(job.kind.gpus)
        if kept_s is None:
            return latest_s - now_s
        # What was interrupted once has used its luck: it goes back early.
        again_s = replay.moving.restart_s + replay.moving.stop_s + margin_of(job.kind.gpus)
        return latest_s + kept_s - again_s - now_s

    def _work(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> FlexibleWork:
        left_s = job.stated_s * self._rates.truth - replay.kept_s.get(job.request.id, 0.0)
        wait_h = max(self._wait_s(replay, job, now_s), 0.0) / 3600 if job.deferrable else 0.0
        work = _flexible(job, left_s, wait_h, replay, running_at=None)
        here = replay.left_from.get(job.request.id)
        # What was suspended goes on where its checkpoint lies: a transfer costs as much as an hour on the grid.
        return work if here is None or wait_h <= 0 else replace(work, hubs=frozenset({here}))

    def _running(self, replay: CarbonReplay, run: Run, now_s: float, whole: bool) -> FlexibleWork:
        job = run.job
        before_s = replay.kept_s.get(job.request.id, 0.0)
        left_to_do_s = job.stated_s * self._rates.truth - before_s - max(now_s - run.started_s - run.idle_s, 0.0)
        if not whole:
            return _flexible(job, left_to_do_s, 0.0, replay, running_at=run.hub, movable=False)
        kept_s = run.kept_s(now_s, replay.moving.checkpoint_every_s)
        wait_h = 0.0
        if job.deferrable and self._slack_shares.get((job.hubs, job.model), 1.0) >= 1:
            wait_h = max(self._wait_s(replay, job, now_s, run), 0.0) / 3600
        # A move delays it too: what has used up its slack stays where it is.
        movable = not job.deferrable or job.starts_by_s + before_s + kept_s - now_s > MOVE_SLACK_S
        return _flexible(job, left_to_do_s, wait_h, replay, running_at=run.hub, movable=movable)

    def _queued(self, replay: CarbonReplay, job_id: str, hub: str) -> FlexibleWork:
        job = replay.job(job_id)
        return _flexible(job, job.stated_s, 0.0, replay, running_at=hub, movable=False)


@cache
def margin_of(gpus: int) -> float:
    return max(margin_s for least, margin_s in MARGINS_S if gpus >= least)


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

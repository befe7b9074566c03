"""Who decides where and when in a carbon replay? The naive way, and the planner with a forecast or a perfect one."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from harch.carbon.planning.crowding import slack_shares
from harch.carbon.planning.decisions import Verb
from harch.carbon.planning.dispatch import decide
from harch.carbon.planning.limits import Budgets
from harch.carbon.planning.moves import MoveRules
from harch.carbon.planning.plan import CarbonPlan, plan_carbon
from harch.carbon.planning.work import ClassKey, Demand, Expected, FlexibleWork
from harch.fleet.model import Fleet
from harch.simulate.carbon_jobs import CarbonJob
from harch.simulate.carbon_meter import Plants
from harch.simulate.carbon_outlook import outlook_of, pools_of
from harch.simulate.carbon_replay import CarbonReplay, Run

REPLAN_S = 3600.0
ARRIVALS_KNOWN_S = 48 * 3600.0
# Deferrable work enters a scheduler's queue so long before its promise, by GPUs: a gang may have to wait for its nodes.
MARGINS_S = ((1, 1.5 * 3600.0), (8, 4 * 3600.0), (16, 6 * 3600.0))
MOVE_SLACK_S = 3600.0


class NaiveRouter:
    """At once, where it came in; elsewhere only if its hub is full. It owns the same plants, unseen."""

    replan_s: float | None = None

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

    def stopped(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> None:
        raise NotImplementedError("the naive policy stops nothing")

    def replan(self, replay: CarbonReplay, now_s: float) -> None:
        raise NotImplementedError("the naive policy does not plan")


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

    def expected(self, now_s: float, slack_h: Mapping[bool, float]) -> dict[ClassKey, Expected]:
        while self._came and self._came[0][0] < now_s - ARRIVALS_KNOWN_S:
            _, key, gpus, gpu_hours = self._came.popleft()
            self._count(key, -gpus, -gpu_hours)
        hours = min(now_s, ARRIVALS_KNOWN_S) / 3600
        if hours < 1:
            return {}
        return {
            key: Expected(work * self.truth / hours, work * self.truth / self._width[key], slack_h[key.deferrable])
            for key, work in self._work.items()
            if self._width[key] >= 1
        }


class PlannedRouter:
    """HarchOS: plans anew every hour, weighs each arrival on the plan's book. The same class is the oracle."""

    replan_s: float | None = REPLAN_S

    def __init__(
        self,
        fleet: Fleet,
        plants: Mapping[str, Plants],
        *,
        perfect: bool,
        moves: MoveRules | None,
    ) -> None:
        self._plants, self._perfect, self._moves = plants, perfect, moves
        self._fleet = fleet
        self._pools = pools_of(fleet)
        self._held: dict[str, CarbonJob] = {}
        self._targets: dict[str, str] = {}  # where a job that is being stopped goes on
        self._rates = Rates()
        self._counted: set[str] = set()
        self._plan: CarbonPlan | None = None
        self._slack_shares: dict[tuple[frozenset[str], str], float] = {}

    # Happenings

    def arrived(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> None:
        self._rates.came(job, now_s)
        if self._plan is None:
            self._plan = self._new_plan(replay, now_s)
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
        self._plan = self._new_plan(replay, now_s)
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

    # Acting

    def _start(self, replay: CarbonReplay, job: CarbonJob, hub: str, now_s: float) -> None:
        if not any(where == hub for where in replay.queued.values()) and replay.try_start(job, hub, now_s):
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
        gpus = {pool.hub: pool.gpus for pool in self._pools if pool.model == job.model}
        hub = min(windows.hubs, key=lambda name: (replay.queued_gpus(name, job.model) / gpus[name], name != job.home))
        plan.book.enter(work, hub, 0)
        replay.queue(job, hub, now_s)

    # Knowing

    def _new_plan(self, replay: CarbonReplay, now_s: float) -> CarbonPlan:
        slack_h = max((job.kind.slack_h for job in replay.jobs), default=0.0)
        expected = self._rates.expected(now_s, {True: slack_h, False: 0.0})
        held_back = Demand(tuple(self._work(replay, job, now_s) for job in self._held.values()), expected)
        self._slack_shares = slack_shares(self._pools, held_back, slack_h=slack_h)
        waiting = tuple(self._work(replay, job, now_s) for job in self._held.values())
        running = [self._running(replay, run, now_s) for run in replay.running.values() if not run.stopping]
        running += [self._queued(replay, job_id, hub, now_s) for job_id, hub in replay.queued.items()]
        outlook = outlook_of(self._fleet, self._plants, self._pools, now_s, perfect=self._perfect)
        return plan_carbon(outlook, Demand(waiting, expected), running, moves=self._moves)

    def _wait_s(self, replay: CarbonReplay, job: CarbonJob, now_s: float, kept_more_s: float = 0.0) -> float:
        """How long it may still wait; what it has done already is no delay, a restart is."""
        kept_s = replay.kept_s.get(job.request.id, 0.0) + kept_more_s
        # What was interrupted once has used its luck: it goes back early.
        margin_s = max(margin_s for gpus, margin_s in MARGINS_S if job.kind.gpus >= gpus) * (2 if kept_s else 1)
        again_s = replay.moving.restart_s + replay.moving.stop_s if kept_s else 0.0
        slack_s = job.slack_s * self._slack_shares.get((job.hubs, job.model), 1.0)
        return job.request.submitted_s + slack_s + kept_s - again_s - margin_s - now_s

    def _work(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> FlexibleWork:
        left_s = job.stated_s * self._rates.truth - replay.kept_s.get(job.request.id, 0.0)
        wait_h = max(self._wait_s(replay, job, now_s), 0.0) / 3600 if job.deferrable else 0.0
        return _flexible(job, left_s, wait_h, replay, running_at=None)

    def _running(self, replay: CarbonReplay, run: Run, now_s: float) -> FlexibleWork:
        job = run.job
        done_s = replay.kept_s.get(job.request.id, 0.0) + max(now_s - run.started_s - run.idle_s, 0.0)
        kept_s = run.kept_s(now_s, replay.moving.checkpoint_every_s)
        wait_h = 0.0
        if job.deferrable and self._slack_shares.get((job.hubs, job.model), 1.0) >= 1:
            wait_h = max(self._wait_s(replay, job, now_s, kept_s), 0.0) / 3600
        # A move delays it too: what has used up its slack stays where it is.
        left_s = job.starts_by_s + replay.kept_s.get(job.request.id, 0.0) + kept_s - now_s
        movable = not job.deferrable or left_s > MOVE_SLACK_S
        left_to_do_s = job.stated_s * self._rates.truth - done_s
        return _flexible(job, left_to_do_s, wait_h, replay, running_at=run.hub, movable=movable)

    def _queued(self, replay: CarbonReplay, job_id: str, hub: str, now_s: float) -> FlexibleWork:
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

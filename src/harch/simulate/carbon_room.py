"""How does work get room in a replay where there is none, and how long may it still wait?

Running deferrable work with slack left gives way to it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from harch.carbon.planning.outlook import Pool
from harch.carbon.planning.slack import SCARCE_MARGIN_S, Crowd, Holder, scarcity, who_yields
from harch.placement.queueing.settings import CLASS_ORDER
from harch.simulate.carbon_replay import CarbonReplay, CarbonRun
from harch.simulate.carbon_scenario import CarbonJob

# Deferrable work enters a scheduler's queue so long before its promise, by GPUs: a gang may have to wait for its nodes.
MARGINS_S = ((1, 2 * 3600.0), (8, 3 * 3600.0), (16, 4 * 3600.0))


@dataclass
class Slack:
    """Margins of all classes, and which of them are crowded by the last whole plan."""

    pools: tuple[Pool, ...]
    crowd: Crowd = field(default_factory=Crowd)
    _margins_s: dict[tuple[frozenset[str], str, int], float] = field(default_factory=dict)

    def wait_s(self, replay: CarbonReplay, job: CarbonJob, now_s: float, run: CarbonRun | None = None) -> float:
        """Until it must be in a queue. If it runs: once stopped. What it has done is no delay, a restart is."""
        kept_s = replay.kept_s.get(job.request.id)
        if run is not None:
            kept_s = (kept_s or 0.0) + run.kept_s(now_s, replay.moving.checkpoint_every_s)
        margin_s = self._margin_s(job)
        latest_s = job.starts_by_s - margin_s
        if kept_s is None:
            return latest_s - now_s
        # What was interrupted once has used its luck: it goes back early.
        again_s = replay.moving.restart_s + replay.moving.stop_s + margin_s
        return latest_s + kept_s - again_s - now_s

    def is_crowded(self, job: CarbonJob) -> bool:
        """Where all slack will be needed it does not wait for clean hours."""
        return job.request.id in self.crowd.due or (job.hubs, job.model) in self.crowd.tight

    def may_pause(self, job: CarbonJob) -> bool:
        return (job.hubs, job.model) not in self.crowd.full

    def _margin_s(self, job: CarbonJob) -> float:
        key = (job.hubs, job.model, job.kind.gpus)
        if key not in self._margins_s:
            gpus = sum(pool.gpus for pool in self.pools if pool.hub in job.hubs and pool.model == job.model)
            self._margins_s[key] = margin_of(job.kind.gpus, gpus)
        return self._margins_s[key]


def margin_of(gpus: int, gpus_in_reach: int) -> float:
    """A gang that needs much of what it may use needs more time to get it."""
    longer_s = scarcity(gpus, gpus_in_reach) * SCARCE_MARGIN_S
    return max(margin_s for least, margin_s in MARGINS_S if gpus >= least) + longer_s


# How does work get room in a replay where there is none? Running deferrable work with slack left gives way to it.
#
# Work that cannot wait is helped when it comes, and whoever stands in a scheduler's queue at every look: first what
# cannot wait, then what has least slack. Nodes that a scheduler keeps for somebody are left to him.


LOOK_S = 900.0  # what waits is looked at again
LARGE_SHARE = 0.15  # of a pool: whole nodes for such a gang come free only if others leave them alone
LEAVES_ALONE_S = 8 * 3600.0  # who can wait so long does
YIELD_WAIT_H_MIN = 1.0  # what gives way can still wait so long, and so much longer than whom it gives way to
YIELD_LEFT_S_MIN = 600.0  # what ends soon makes room by itself
HELPED_PER_POOL = 4  # at one look
# To work that is due so soon, by GPUs, urgent training gives way too, once, and restarts.
LAST_RESORTS_S = ((1, 3 * 3600.0), (16, 9 * 3600.0))


@dataclass
class RoomMaker:
    """Tells running work to stop; it starts nothing."""

    slack: Slack
    _queued_s: dict[str, float] = field(default_factory=dict)  # since when a job has been seen in a queue

    def clear(self, replay: CarbonReplay, job: CarbonJob, hubs: Iterable[str], now_s: float) -> str | None:
        """The first hub where others can give way to it; they are told to stop."""
        for hub in hubs:
            holders = self._holders(replay, job, hub, now_s)
            free = replay.gpus_free(hub, job.model)
            for closed in _closed_nodes(replay, job, hub, len(free)):
                yields = who_yields(job.kind.tasks, job.kind.gpus_per_task, free, holders, closed=closed)
                if yields:
                    for job_id in yields:
                        replay.stop(job_id, now_s)
                    return hub
        return None

    def is_awaited(self, replay: CarbonReplay, hub: str, job: CarbonJob, now_s: float) -> bool:
        """A large gang stands in the queue for this pool: what comes free there is not for work that can wait long."""
        gpus = next(pool.gpus for pool in self.slack.pools if pool.key == (hub, job.model))
        if job.kind.gpus >= LARGE_SHARE * gpus or self.slack.wait_s(replay, job, now_s) < LEAVES_ALONE_S:
            return False
        queued = (replay.job(job_id) for job_id, where in replay.queued.items() if where == hub)
        return any(one.model == job.model and one.kind.gpus >= LARGE_SHARE * gpus for one in queued)

    def wait_s(self, replay: CarbonReplay, job: CarbonJob, now_s: float) -> float:
        """For how long it can still stand back."""
        return self.slack.wait_s(replay, job, now_s) if job.deferrable else -inf

    def help_queued(self, replay: CarbonReplay, now_s: float) -> None:
        """Who has stood in a scheduler's queue since the last look gets room, a few of each pool at a time."""
        waited: defaultdict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
        for job_id, hub in replay.queued.items():
            if now_s - self._queued_s.get(job_id, now_s) >= LOOK_S:
                job = replay.job(job_id)
                waited[hub, job.model].append((self.wait_s(replay, job, now_s), job_id))
        for hub in sorted({hub for hub, _ in waited}):
            replay.serve(hub, now_s)
        for (hub, _), jobs in waited.items():
            # What only waits for room pushes nobody: where all is full, everybody would push everybody forever.
            jobs = [one for one in jobs if one[1] in replay.queued and one[0] <= 0]
            for _, job_id in sorted(jobs)[:HELPED_PER_POOL]:
                self.clear(replay, replay.job(job_id), (hub,), now_s)
        self._queued_s = {job_id: self._queued_s.get(job_id, now_s) for job_id in replay.queued}

    def _holders(self, replay: CarbonReplay, job: CarbonJob, hub: str, now_s: float) -> list[Holder]:
        wait_h_min, last_resort = YIELD_WAIT_H_MIN, False
        if job.deferrable:
            wait_h_min += max(self.slack.wait_s(replay, job, now_s) / 3600, 0.0)
            left_s = job.starts_by_s + replay.kept_s.get(job.request.id, 0.0) - now_s
            last_resort = left_s < max(before_s for least, before_s in LAST_RESORTS_S if job.kind.gpus >= least)
        found = []
        for run in replay.running.values():
            if run.hub != hub or run.job.model != job.model or run.stopping:
                continue
            if run.ends_s - now_s <= YIELD_LEFT_S_MIN:
                continue
            wait_h = self._wait_h(replay, run, now_s, last_resort=last_resort)
            if wait_h >= wait_h_min or (wait_h == 0 and not run.job.deferrable):
                found.append(Holder(run.job.request.id, _gpus_on(run), wait_h))
        return found

    def _wait_h(self, replay: CarbonReplay, run: CarbonRun, now_s: float, *, last_resort: bool) -> float:
        """How long it could wait; 0 for urgent training that gives way as a last resort; negative: not at all."""
        job = run.job
        if job.deferrable:
            return self.slack.wait_s(replay, job, now_s, run) / 3600
        return 0.0 if last_resort and job.kind.movable and job.request.id not in replay.kept_s else -1.0


def _closed_nodes(replay: CarbonReplay, job: CarbonJob, hub: str, nodes: int) -> tuple[frozenset[int], ...]:
    """Nodes that are not to be had, in the order in which to try.

    On the nodes that are kept for it nobody else takes what comes free, so they are tried first. After a while a
    scheduler opens nodes that it keeps for a lower class: they come last.
    """
    owners = {row: replay.job(owner) for row, owner in replay.kept(hub).items()}
    own = frozenset(row for row, owner in owners.items() if owner is job)
    others = frozenset(owners) - own
    still = frozenset(row for row in others if not _is_above(job, owners[row]))
    first = (frozenset(range(nodes)) - own,) if own else ()
    return tuple(dict.fromkeys((*first, others, still)))


def _is_above(job: CarbonJob, other: CarbonJob) -> bool:
    return CLASS_ORDER.index(job.request.turn_class) < CLASS_ORDER.index(other.request.turn_class)


def _gpus_on(run: CarbonRun) -> Counter[int]:
    on: Counter[int] = Counter()
    for slot in run.slots:
        on[slot.row] += len(slot.devices)
    return on

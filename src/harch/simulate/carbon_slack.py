"""How long may a job of a replay still wait? Its slack, less the time to find GPUs, to restart, and to make room."""

from __future__ import annotations

from dataclasses import dataclass, field

from harch.carbon.planning.crowding import Crowd
from harch.carbon.planning.margins import SCARCE_MARGIN_S, scarcity
from harch.carbon.planning.outlook import Pool
from harch.simulate.carbon_jobs import CarbonJob
from harch.simulate.carbon_replay import CarbonReplay, Run

# Deferrable work enters a scheduler's queue so long before its promise, by GPUs: a gang may have to wait for its nodes.
MARGINS_S = ((1, 2 * 3600.0), (8, 3 * 3600.0), (16, 4 * 3600.0))


@dataclass
class Slack:
    """Margins of all classes, and which of them are crowded by the last whole plan."""

    pools: tuple[Pool, ...]
    crowd: Crowd = field(default_factory=Crowd)
    _margins_s: dict[tuple[frozenset[str], str, int], float] = field(default_factory=dict)

    def wait_s(self, replay: CarbonReplay, job: CarbonJob, now_s: float, run: Run | None = None) -> float:
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

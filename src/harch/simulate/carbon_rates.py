"""How much work of each class comes, and how well does it know its own duration? Counted from what came lately."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from harch.carbon.planning.work import ClassKey, Expected
from harch.simulate.carbon_jobs import CarbonJob

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

"""What has been asked for lately, and when is it time to learn from it again? A bounded memory of requests."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from harch.placement.policy.shapes import GIVE_BACK, Ints, Request


@dataclass(frozen=True, slots=True)
class LearningSchedule:
    """Arrivals after which lessons are built anew: at doubling counts first, then steadily.

    Waiting for the first 200 arrivals cost a full point of allocation on a public trace: plain best fit had spoilt
    nodes that no later lesson could mend. A picture from eight requests is poor, but better than none.
    """

    first_arrivals: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)
    every_arrivals: int = 2000

    def due(self, arrivals: int, learned_at: int) -> bool:
        """True when a learning point lies in (learned_at, arrivals]."""
        if any(learned_at < point <= arrivals for point in self.first_arrivals):
            return True
        last_early = max(self.first_arrivals, default=0)
        return arrivals > last_early and arrivals - max(learned_at, last_early) >= self.every_arrivals


@dataclass(slots=True)
class History:
    """The last `limit` requests, refused ones too: a ring buffer, so a drifting mix replaces the old one."""

    limit: int = 8192
    schedule: LearningSchedule = field(default_factory=LearningSchedule)
    arrivals: int = 0
    learned_at: int = 0
    taken: float = 0.0  # placements, older ones fading
    departed: float = 0.0
    _rows: Ints = field(init=False)

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError("history needs room for at least one request")
        self._rows = np.zeros((self.limit, 5), dtype=np.int64)

    def add(self, request: Request) -> None:
        self._rows[self.arrivals % self.limit] = request
        self.arrivals += 1

    @property
    def turnover(self) -> float:
        """Departures per placement lately, from 0 (nothing leaves) to 1 (as much leaves as comes, or more)."""
        return min(1.0, self.departed / self.taken) if self.taken > 0 else 0.0

    def moved(self, direction: int) -> None:
        """Work was placed, or it left."""
        if direction == GIVE_BACK:
            self.departed += 1.0
        else:
            self.taken += 1.0

    def learned(self, arrivals: int) -> None:
        """Lessons were built from the first `arrivals`; counts halve, so that turnover follows the present."""
        self.learned_at = arrivals
        self.taken /= 2
        self.departed /= 2

    @property
    def learning_due(self) -> bool:
        return self.schedule.due(self.arrivals, self.learned_at)

    def rows(self) -> Ints:
        """A copy of the remembered requests, oldest first."""
        if self.arrivals <= self.limit:
            return self._rows[: self.arrivals].copy()
        return np.roll(self._rows, -(self.arrivals % self.limit), axis=0)

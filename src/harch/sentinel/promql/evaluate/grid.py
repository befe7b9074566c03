"""At which times is an expression evaluated? Steps from a start, all alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Grid:
    """`count` times, `step_ms` apart. An instant query has one, and its step is 0."""

    start_ms: int
    step_ms: int
    count: int

    @staticmethod
    def instant(at_ms: int) -> Grid:
        return Grid(at_ms, 0, 1)

    @staticmethod
    def between(start_ms: int, end_ms: int, step_ms: int) -> Grid:
        """All steps up to the end, which is included; none if it lies before the start."""
        return Grid(start_ms, step_ms, max((end_ms - start_ms) // step_ms + 1, 0))

    @property
    def end_ms(self) -> int:
        """The last time of the grid."""
        return self.start_ms + max(self.count - 1, 0) * self.step_ms

    @property
    def times(self) -> Ints:
        return self.start_ms + np.arange(self.count, dtype=np.int64) * self.step_ms

    @property
    def first_only(self) -> Grid:
        return Grid(self.start_ms, self.step_ms, min(self.count, 1))

"""Which moments does a series speak about? Equal steps from a start; arrays have one entry per step."""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harch.base.errors import HarchError

Array = NDArray[np.float64]
STEP_S_ALLOWED = (900, 1800, 3600)
STEPS_MAX = 40_000  # more than a year of quarter hours
KWH_PER_MWH = 1000.0


@dataclass(frozen=True, slots=True)
class Steps:
    """`count` steps of `step_s` seconds from `start`. Raises HarchError E0242 for times that are no such thing."""

    start: datetime
    step_s: int
    count: int

    def __post_init__(self) -> None:
        if self.start.tzinfo is None:
            raise HarchError("E0242", f"the start {self.start} has no time zone", hint="give times in UTC")
        if self.step_s not in STEP_S_ALLOWED:
            allowed = ", ".join(str(seconds) for seconds in STEP_S_ALLOWED)
            raise HarchError("E0242", f"steps of {self.step_s} s are not supported", hint=f"use one of {allowed} s")
        if not 0 < self.count <= STEPS_MAX:
            raise HarchError("E0242", f"{self.count} steps", hint=f"give 1 to {STEPS_MAX} steps")
        if self.start.timestamp() % self.step_s:
            raise HarchError("E0242", f"{self.start} is not the start of a step", hint="round it to whole steps")

    @property
    def hours(self) -> float:
        """How long one step is."""
        return self.step_s / 3600

    @property
    def end(self) -> datetime:
        return self.at(self.count)

    def at(self, index: int) -> datetime:
        """The start of a step, in UTC."""
        return self.start.astimezone(UTC) + timedelta(seconds=self.step_s * index)

    def starts(self) -> list[datetime]:
        return [self.at(index) for index in range(self.count)]

    def months(self, zone: tzinfo) -> tuple[str, ...]:
        """The local month of each step, e.g. `2026-03`: demand charges are counted by it."""
        return tuple(f"{moment.astimezone(zone):%Y-%m}" for moment in self.starts())


def series(values: ArrayLike, steps: Steps, name: str, *, floor: float | None = None) -> Array:
    """`values` as one finite number per step. Raises HarchError E0242 that names the first entry that is none."""
    found = np.asarray(values, dtype=np.float64)
    if found.ndim == 0:
        found = np.full(steps.count, float(found))
    if found.shape != (steps.count,):
        raise HarchError(
            "E0242",
            f"{name} has {found.size} values for {steps.count} steps",
            hint="give one value per step",
            field=name,
        )
    wrong = ~np.isfinite(found) if floor is None else ~(np.isfinite(found) & (found >= floor))
    if wrong.any():
        first = int(np.argmax(wrong))
        wanted = "a number" if floor is None else f"a number of {floor:g} or more"
        raise HarchError(
            "E0242",
            f"{name} is {found[first]:g} at {steps.at(first):%Y-%m-%dT%H:%MZ} ({int(wrong.sum())} such steps)",
            hint=f"every step needs {wanted}; fill gaps by a forecast first",
            field=name,
        )
    return found

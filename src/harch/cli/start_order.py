"""Is a hub on its way, or stuck? Judged by what it does, never by how long the whole fleet takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

QUIET_S_MAX = 60.0  # without a step and without use of the processor
CPU_S_OF_PROGRESS = 1.0  # a process that loads uses more, one that waits for something less
CPU_S_MAX = 300.0  # for one step: a start takes some seconds of a processor, however many share it
ENDS_MAX = 3

PAUSE_S_FIRST, PAUSE_S_MAX = 0.5, 60.0
STEADY_S = 120.0  # after so long, an end is a new trouble and not the old one


class Step(IntEnum):
    STARTED = 0
    ANSWERS = 1
    READY = 2


@dataclass
class StartWatch:
    """One hub and its agent, on the way to be ready."""

    began_s: float
    step: Step = Step.STARTED
    _progress_s: float = 0.0
    _progress_cpu_s: float = 0.0
    _step_cpu_s: float = 0.0

    def __post_init__(self) -> None:
        self._progress_s = self.began_s

    def stuck(self, now_s: float, step: Step, *, cpu_s: float, ends: int) -> str:
        """Why it is not waited for any longer; empty while it is on its way. `cpu_s` is what its processes have used,
        `ends` how often one of them has ended."""
        if step > self.step:
            self.step = step
            self._step_cpu_s = cpu_s
            self._made_progress(now_s, cpu_s)
        elif cpu_s < self._progress_cpu_s:  # a new process
            self._step_cpu_s = self._progress_cpu_s = cpu_s
        elif cpu_s - self._progress_cpu_s >= CPU_S_OF_PROGRESS:
            self._made_progress(now_s, cpu_s)
        what = "has no agent yet" if self.step is Step.ANSWERS else "does not answer yet"
        if ends >= ENDS_MAX:
            return f"has ended {ends} times"
        if now_s - self._progress_s > QUIET_S_MAX:
            return f"{what} and has done nothing for {QUIET_S_MAX:g} s"
        if cpu_s - self._step_cpu_s > CPU_S_MAX:
            return f"{what} after {CPU_S_MAX:g} s of a processor's time"
        return ""

    def _made_progress(self, now_s: float, cpu_s: float) -> None:
        self._progress_s, self._progress_cpu_s = now_s, cpu_s


@dataclass
class Backoff:
    """How long to wait before a process that has ended is started again: longer each time, until it runs steadily."""

    ends: int = 0
    pause_s: float = 0.0

    def ended(self, lived_s: float) -> float:
        if lived_s >= STEADY_S:
            self.ends, self.pause_s = 0, 0.0
        self.ends += 1
        self.pause_s = min(2 * self.pause_s, PAUSE_S_MAX) if self.pause_s else PAUSE_S_FIRST
        return self.pause_s


def starts_at_once(cores: int) -> int:
    """How many hubs start side by side: a start is bound by the processor, so more would only slow each other down."""
    return max(2, cores)

"""What may a plan say about one job, and why?

Start here or there, wait, stay, move, suspend; in sentences, with the numbers behind it and what they rest on.
"""

# harch: pure

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class DecisionKind(StrEnum):
    """What to do now."""

    START = "start"
    WAIT = "wait"
    STAY = "stay"
    MOVE = "move"  # stop gracefully, start at the other hub from the last checkpoint
    SUSPEND = "suspend"  # stop gracefully, start later from the last checkpoint
    REFUSE = "refuse"  # a hard limit leaves no hub and hour


class HubOption(NamedTuple):
    """One hub and start that was weighed. Figures are forecasts. A tuple, because a plan holds tens of thousands."""

    hub: str
    start_step: int  # of the outlook, from now
    cost_g: float  # what was compared: grams, shadow prices, money if it counts
    grams: float
    kwh: float

    @property
    def g_per_kwh(self) -> float:
        return self.grams / self.kwh if self.kwh else 0.0


@dataclass(frozen=True, slots=True)
class CarbonDecision:
    """For one job. `starts_by_h` is the promise: hours from now by which it runs at the latest, whatever the power."""

    work_id: str
    verb: DecisionKind
    hub: str | None
    start_step: int  # of the outlook, from now
    starts_by_h: float
    chosen: HubOption | None = None
    at_once: HubOption | None = None  # the same job, now, where it is or came in
    options: tuple[HubOption, ...] = ()  # the best start at each of the best hubs
    move_cost_g: float = 0.0
    room: bool = True  # False: no window has GPUs enough for all of it
    queues: bool = False  # power will not change: if it cannot start, a queue is the place for it
    reason: str = ""

    @property
    def saves_g(self) -> float:
        """Against running at once at home; forecast, estimated."""
        if self.chosen is None or self.at_once is None:
            return 0.0
        return self.at_once.grams - self.chosen.grams - self.move_cost_g

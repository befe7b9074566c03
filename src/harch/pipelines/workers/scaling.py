"""How many workers should a stage have, and which of them should hold which partition?

From backlog, latency and load, moving as little as possible. Pure.
"""

# harch: pure

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated

from msgspec import Meta, Struct

# How many workers should a stage have? From its backlog, its latency and how busy it is, with patience. Pure.
#
# It adds at once when work piles up, and takes away one at a time, only after everything was quiet for a while: adding
# too late loses time, taking away too early costs a move of partitions.


Count = Annotated[int, Meta(ge=1, le=1024)]


class ScalingRules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When to grow and when to shrink. Between `busy_low` and `busy_high` nothing changes."""

    workers_min: Count = 1
    workers_max: Count = 1
    busy_high: Annotated[float, Meta(gt=0, le=1)] = 0.75
    busy_low: Annotated[float, Meta(ge=0, lt=1)] = 0.3
    lag_s_max: Annotated[float, Meta(gt=0, le=3600)] = 2.0  # how long the backlog may take to work off
    latency_p99_ms_max: Annotated[float, Meta(gt=0)] | None = None
    grow_cooldown_s: Annotated[float, Meta(ge=0, le=3600)] = 10.0
    shrink_cooldown_s: Annotated[float, Meta(ge=0, le=86_400)] = 120.0


class StageLoad(Struct, frozen=True, kw_only=True):
    """How a stage does: its workers, their mean utilisation (0 to 1), what waits, and how fast it goes."""

    workers: int
    busy: float
    lag: float = 0.0  # messages or events that wait
    rate: float = 0.0  # of the same, worked off per second by all workers together
    latency_p99_ms: float = 0.0

    @property
    def lag_s(self) -> float:
        if self.lag <= 0:
            return 0.0
        return self.lag / self.rate if self.rate > 0 else math.inf


class ScalingState(Struct, frozen=True, kw_only=True):
    """What is remembered between two decisions, on the monotonic clock of whoever decides."""

    changed_s: float = -math.inf
    quiet_since_s: float | None = None


class ScalingDecision(Struct, frozen=True, kw_only=True):
    """How many workers, and why."""

    workers: int
    reason: str
    state: ScalingState


def decide_scale(rules: ScalingRules, load: StageLoad, state: ScalingState, now_s: float) -> ScalingDecision:
    """The number of workers wanted now. Limits hold at once; everything else waits for its cool-down."""
    low, high = min(rules.workers_min, rules.workers_max), rules.workers_max
    bounded = min(max(load.workers, low), high)
    if bounded != load.workers:
        return _changed(bounded, f"the limits are {low} to {high}", now_s)
    if pressing := _pressing(rules, load):
        waiting = ScalingState(changed_s=state.changed_s)
        if bounded == high:
            return ScalingDecision(workers=bounded, reason=f"{pressing}, but {high} is the limit", state=waiting)
        if now_s - state.changed_s < rules.grow_cooldown_s:
            return ScalingDecision(workers=bounded, reason=f"{pressing}; waiting for the last change", state=waiting)
        return _changed(min(high, _grown(rules, load)), pressing, now_s)
    if not _quiet(rules, load):
        return ScalingDecision(workers=bounded, reason="fits", state=ScalingState(changed_s=state.changed_s))
    since_s = now_s if state.quiet_since_s is None else state.quiet_since_s
    calm = ScalingState(changed_s=state.changed_s, quiet_since_s=since_s)
    if bounded == low:
        return ScalingDecision(workers=bounded, reason="quiet, and at the minimum", state=calm)
    if now_s - max(since_s, state.changed_s) < rules.shrink_cooldown_s:
        return ScalingDecision(workers=bounded, reason="idle, but not for long enough", state=calm)
    return _changed(bounded - 1, f"busy {load.busy:.0%} for {rules.shrink_cooldown_s:g} s", now_s)


def _pressing(rules: ScalingRules, load: StageLoad) -> str:
    if load.lag_s > rules.lag_s_max:
        return f"{load.lag:.0f} pending, which takes {load.lag_s:.1f} s" if load.rate > 0 else f"{load.lag:.0f} pending"
    if load.busy > rules.busy_high:
        return f"busy {load.busy:.0%}"
    limit_ms = rules.latency_p99_ms_max
    if limit_ms is not None and load.latency_p99_ms > limit_ms and load.busy > rules.busy_low:
        return f"p99 is {load.latency_p99_ms:.1f} ms"  # of a busy stage: more workers do not help an idle one
    return ""


def _quiet(rules: ScalingRules, load: StageLoad) -> bool:
    """Whether one worker less would still be in the calm range: the rest share its work."""
    without_one = load.busy * load.workers / max(1, load.workers - 1)
    calm = min(rules.busy_low, rules.busy_high)
    return load.busy < calm and without_one < rules.busy_high and load.lag_s <= rules.lag_s_max / 2


def _grown(rules: ScalingRules, load: StageLoad) -> int:
    """Enough for the work at hand, at least one more and at most twice as many."""
    for_busy = math.ceil(load.workers * load.busy / rules.busy_high)
    over = load.lag_s / rules.lag_s_max
    for_lag = math.ceil(load.workers * min(2.0, over)) if over > 1 else load.workers
    return min(2 * load.workers, max(load.workers + 1, for_busy, for_lag))


def _changed(workers: int, reason: str, now_s: float) -> ScalingDecision:
    return ScalingDecision(workers=workers, reason=reason, state=ScalingState(changed_s=now_s))


# Which worker should hold which partition? Evenly, and moving as few as possible from where they are. Pure.


class PartitionAssignment(Struct, frozen=True):
    """Partitions by worker. `version` grows with every change, so that workers know the newest."""

    version: int
    partitions: dict[str, tuple[int, ...]]

    def of(self, worker: str) -> tuple[int, ...]:
        return self.partitions.get(worker, ())


UNASSIGNED = PartitionAssignment(0, {})


def assign(partitions: int, workers: Iterable[str], before: Mapping[str, Iterable[int]]) -> dict[str, tuple[int, ...]]:
    """Every partition to exactly one of the workers, at most one more for any than for another.

    A partition stays where it is while its worker is there and has not too many. No workers: nobody has any.
    """
    names = sorted(set(workers))
    if not names:
        return {}
    held: dict[str, list[int]] = {name: [] for name in names}
    placed: set[int] = set()
    for name in names:
        for partition in sorted(set(before.get(name, ()))):
            if 0 <= partition < partitions and partition not in placed:
                held[name].append(partition)
                placed.add(partition)
    # The larger shares go to those who have most already: that moves the fewest.
    least, larger = divmod(partitions, len(names))
    ranked = sorted(names, key=lambda name: (-len(held[name]), name))
    room = {name: least + (place < larger) for place, name in enumerate(ranked)}
    homeless = [partition for partition in range(partitions) if partition not in placed]
    for name in names:
        homeless += held[name][room[name] :]
        del held[name][room[name] :]
    homeless.sort(reverse=True)
    for name in ranked:
        while homeless and len(held[name]) < room[name]:
            held[name].append(homeless.pop())
    return {name: tuple(sorted(held[name])) for name in names}


def reassigned(before: PartitionAssignment, partitions: int, workers: Iterable[str]) -> PartitionAssignment:
    """The next assignment; the same value if nothing changes."""
    wanted = assign(partitions, workers, before.partitions)
    return before if wanted == before.partitions else PartitionAssignment(before.version + 1, wanted)

"""Somebody abroad who asks hundreds of harmless questions and then solves equations, to learn of a few GPUs.

What such an attacker could learn is known from the questions alone: GPUs that no told sum tells apart are a *block*,
and every combination of sums has all of a block, with one factor, or none of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from harch.sentinel.federated.messages import SeriesTold
from harch.sentinel.model.labels import Labels, labels
from harch.testing.federated_telemetry import MemoryMetrics

MARKS = {"model": ("a", "b", "c"), "zone": ("n", "s"), "type": ("1", "2", "3"), "status": ("up", "down")}

Ask = Callable[[str], Sequence[SeriesTold]]


@dataclass(slots=True)
class Victim:
    """GPUs with marks that may be named abroad; each has a value of its own at the time `at_ms`."""

    store: MemoryMetrics
    marks: list[dict[str, str]]
    values: npt.NDArray[np.float64]
    at_ms: int


def victim(chance: random.Random, count: int = 60, at_ms: int = 3_600_000) -> Victim:
    marks = [{name: chance.choice(options) for name, options in MARKS.items()} for _ in range(count)]
    values = np.array([chance.uniform(0, 1000) for _ in range(count)])
    times = range(at_ms - 600_000, at_ms + 60_000, 15_000)
    series: dict[Labels, list[tuple[int, float]]] = {}
    for number, mark in enumerate(marks):
        one = labels({"__name__": "load", "device": f"gpu-{number}", "job": "gpus", **mark})
        series[one] = [(time_ms, float(values[number])) for time_ms in times]
    return Victim(MemoryMetrics(series), marks, values, at_ms)


@dataclass(slots=True)
class Learned:
    """`members[i]` says who is in the i-th told sum, `sums[i]` what it was."""

    members: list[npt.NDArray[np.float64]] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)

    @property
    def matrix(self) -> npt.NDArray[np.float64]:
        return np.array(self.members)

    def fewest(self) -> int:
        """Of how many GPUs the smallest thing speaks that any combination of the told sums can speak of."""
        told = self.matrix[:, self.matrix.any(axis=0)]
        _, sizes = np.unique(told, axis=1, return_counts=True)
        return int(sizes.min())


def attack(chance: random.Random, marks: Sequence[dict[str, str]], ask: Ask, questions: int) -> Learned:
    """Random matchers and groups; the attacker knows who has which marks."""
    learned = Learned()
    for _ in range(questions):
        named = chance.sample(sorted(MARKS), chance.randrange(0, 4))
        chosen = {name: set(chance.sample(MARKS[name], chance.randrange(1, len(MARKS[name]) + 1))) for name in named}
        negative = {name: chance.random() < 0.3 for name in named}
        parts = [f'{name}{"!~" if negative[name] else "=~"}"{"|".join(sorted(chosen[name]))}"' for name in named]
        by = chance.sample(sorted(MARKS), chance.randrange(0, 3))
        for one in ask(f"sum by ({', '.join(by)}) (load{{{','.join(parts)}}})"):
            group = dict(one.labels)
            inside = [
                all((mark[name] in chosen[name]) is not negative[name] for name in named)
                and all(mark[name] == value for name, value in group.items())
                for mark in marks
            ]
            learned.members.append(np.array(inside, np.float64))
            learned.sums.append(one.values[0])
    return learned

"""How fast is one decision at 10,000 GPUs? One engine over all nodes, and 20 hubs with an engine each, as they run.

Whole runs to 100 % arrived on one thread, against FGD recomputed over all nodes with the same kernels and flags. They
take turns of some hundred arrivals, so that other work on the machine slows all of them alike. Rates are CPU time,
Python included; decisions are timed by the wall as well, with the machine's load average beside.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harch.placement.policy.engine import PlacementEngine
from harch.placement.policy.shapes import GPU_MILLI, ShapeRequest, request_rows
from harch.simulate.placement import NodeList, Placer, arrivals, new_placer, permuted
from placement_data import HUBS

_HOME_STREAM = 3  # homes draw from their own stream of the seed
_TURN = 250  # arrivals; short against changes of the machine's load, long against refilling the processor's caches


@dataclass(frozen=True)
class Speed:
    per_s: float
    p50_us: float
    p99_us: float
    p99_wall_us: float
    slowest_wall_ms: float
    memory_mb: float
    allocation_pct: float
    load_average: float
    ratio: float = 1.0  # to FGD


class Hubs:
    """An engine per hub. A request is placed at home, or at the next hub that has room."""

    def __init__(self, nodes: NodeList, trace: Sequence[ShapeRequest], seed: int) -> None:
        shapes = permuted(nodes.shapes, seed)
        self.engines = [PlacementEngine(shapes[hub::HUBS], models=len(nodes.models)) for hub in range(HUBS)]
        for engine in self.engines:
            engine.learn_from(request_rows(trace))
        # Drawn beforehand: a request comes with its home.
        self._homes = iter(np.random.default_rng([seed, _HOME_STREAM]).integers(HUBS, size=4 * len(trace)).tolist())

    def place(self, request: ShapeRequest) -> object | None:
        home = next(self._homes)
        for step in range(HUBS):
            decision = self.engines[(home + step) % HUBS].place(request)
            if decision is not None:
                return decision
        return None

    @property
    def memory_bytes(self) -> int:
        return sum(engine.memory_bytes for engine in self.engines)


def measure(nodes: NodeList, trace: Sequence[ShapeRequest], seed: int) -> dict[str, Speed]:
    """FGD, one engine, and an engine per hub, in turns, over the same arrivals."""
    come = arrivals(trace, nodes.gpus * GPU_MILLI, 1.0, seed)
    placers: dict[str, Placer] = {
        "FGD": new_placer(nodes, trace, policy="fgd", seed=seed)[0],
        "one engine": new_placer(nodes, trace, policy="harch", seed=seed)[0],
        f"{HUBS} hubs": Hubs(nodes, trace, seed),
    }
    runs = {name: _Run(placer) for name, placer in placers.items()}
    for first in range(0, len(come), _TURN):
        for run in runs.values():
            run.go_on(come[first : first + _TURN])
    found = {name: run.speed(nodes.gpus) for name, run in runs.items()}
    return {name: replace(speed, ratio=speed.per_s / found["FGD"].per_s) for name, speed in found.items()}


class _Run:
    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        placer.place(ShapeRequest(0, 0))  # compiled before the clock starts
        self._times: list[tuple[int, int]] = []
        self._placed_milli = 0

    def go_on(self, come: Sequence[ShapeRequest]) -> None:
        for request in come:
            started = time.thread_time_ns(), time.perf_counter_ns()
            placed = self._placer.place(request)
            self._times.append((time.thread_time_ns() - started[0], time.perf_counter_ns() - started[1]))
            self._placed_milli += request.gpu_milli_total if placed is not None else 0

    def speed(self, gpus: int) -> Speed:
        cpu_us, wall_us = np.array(self._times).T / 1000
        placer = self._placer
        return Speed(
            per_s=len(cpu_us) / float(cpu_us.sum()) * 1e6,
            p50_us=float(np.quantile(cpu_us, 0.5)),
            p99_us=float(np.quantile(cpu_us, 0.99)),
            p99_wall_us=float(np.quantile(wall_us, 0.99)),
            slowest_wall_ms=float(wall_us.max()) / 1000,
            memory_mb=placer.memory_bytes / 1e6 if isinstance(placer, PlacementEngine | Hubs) else 0.0,
            allocation_pct=100.0 * self._placed_milli / (gpus * GPU_MILLI),
            load_average=os.getloadavg()[0],
        )

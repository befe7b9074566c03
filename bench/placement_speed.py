"""How fast is one decision at 10,000 GPUs? One engine over all nodes, and 20 hubs with an engine each, as they run.

Whole runs to 100 % arrived on one thread, against FGD recomputed over all nodes with the same kernels and flags. Rates
are CPU time, Python included; decisions are timed by the wall as well, with the machine's load average beside.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harch.placement.policy.engine import PlacementEngine
from harch.placement.policy.shapes import GPU_MILLI, Request, request_rows
from harch.simulate.openb import NodeList
from harch.simulate.placement import new_placer
from harch.simulate.replay import Placer, arrivals, permuted
from placement_data import HUBS

_HOME_STREAM = 3  # homes draw from their own stream of the seed


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

    def __init__(self, nodes: NodeList, trace: Sequence[Request], seed: int) -> None:
        shapes = permuted(nodes.shapes, seed)
        self.engines = [PlacementEngine(shapes[hub::HUBS], models=len(nodes.models)) for hub in range(HUBS)]
        for engine in self.engines:
            engine.learn_from(request_rows(trace))
        self._homes = np.random.default_rng([seed, _HOME_STREAM])

    def place(self, request: Request) -> object | None:
        home = int(self._homes.integers(HUBS))
        for step in range(HUBS):
            decision = self.engines[(home + step) % HUBS].place(request)
            if decision is not None:
                return decision
        return None

    @property
    def memory_bytes(self) -> int:
        return sum(engine.memory_bytes for engine in self.engines)


def measure(nodes: NodeList, trace: Sequence[Request], seed: int) -> dict[str, Speed]:
    """FGD, one engine, and an engine per hub, in turn, over the same arrivals."""
    come = arrivals(trace, nodes.gpus * GPU_MILLI, 1.0, seed)
    fgd = _timed(new_placer(nodes, trace, policy="fgd", seed=seed)[0], come, nodes.gpus)
    found = {"FGD": fgd}
    for name, placer in (
        ("one engine", new_placer(nodes, trace, policy="harch", seed=seed)[0]),
        (f"{HUBS} hubs", Hubs(nodes, trace, seed)),
    ):
        speed = _timed(placer, come, nodes.gpus)
        found[name] = replace(speed, ratio=speed.per_s / fgd.per_s)
    return found


def _timed(placer: Placer, come: Sequence[Request], gpus: int) -> Speed:
    placer.place(Request(0, 0))  # compiled before the clock starts
    times = []
    placed_milli = 0
    for request in come:
        started = time.thread_time_ns(), time.perf_counter_ns()
        placed = placer.place(request)
        times.append((time.thread_time_ns() - started[0], time.perf_counter_ns() - started[1]))
        placed_milli += request.gpu_milli_total if placed is not None else 0
    cpu_us, wall_us = np.array(times).T / 1000
    return Speed(
        per_s=len(come) / float(cpu_us.sum()) * 1e6,
        p50_us=float(np.quantile(cpu_us, 0.5)),
        p99_us=float(np.quantile(cpu_us, 0.99)),
        p99_wall_us=float(np.quantile(wall_us, 0.99)),
        slowest_wall_ms=float(wall_us.max()) / 1000,
        memory_mb=placer.memory_bytes / 1e6 if isinstance(placer, PlacementEngine | Hubs) else 0.0,
        allocation_pct=100.0 * placed_milli / (gpus * GPU_MILLI),
        load_average=os.getloadavg()[0],
    )

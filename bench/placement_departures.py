"""How full does a fleet stay when work also leaves? Resampled arrivals at a chosen load, beside FGD and best fit.

Requests are drawn from a public trace, come at random times and stay for random times; the load is above capacity, so
the fleet is saturated. What finds no room is lost, or it waits: every place that falls free is offered to all who wait,
oldest first, and whoever does not fit is passed over. The policy learns online, from nothing.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harch.placement.policy.baselines import BaselinePlacement, BaselinePolicy, BaselineRule
from harch.placement.policy.engine import PlacementDecision, PlacementEngine
from harch.placement.policy.shapes import GPU_MILLI, NodeShape, ShapeRequest, canonical, request_rows
from harch.simulate.placement import NodeList, permuted

Refused = Literal["lost", "waits"]
_STREAM = 77  # arrivals draw from their own stream of the seed
_LOG_NORMAL_SIGMA = 1.5


@dataclass(frozen=True)
class Setting:
    """Times are in mean stays."""

    refused: Refused
    load: float = 1.2
    node_step: int = 2  # every second node: a quick look needs no full fleet
    lasts: float = 4.0
    measured_from: float = 2.0
    stays: Literal["exponential", "log-normal"] = "exponential"


@dataclass
class Outcome:
    allocation_pct: float  # time-weighted, over the measured part
    refused: int  # found no room when they came, in the measured part
    named_refused: int  # of these, requests that name a model


class Fleet:
    """A policy, who is in, and who waits."""

    def __init__(self, policy: PlacementEngine | BaselinePolicy) -> None:
        self.policy = policy
        self.used_milli = 0
        self.ends: list[tuple[float, int, ShapeRequest, int, tuple[int, ...]]] = []
        self.waiting: dict[ShapeRequest, deque[int]] = {}

    def arrives(self, request: ShapeRequest, number: int, ends_s: float) -> bool:
        placed = self.policy.place(request)
        return placed is not None and self._starts(request, number, ends_s, placed)

    def passes_on(self, node: int, now: float, stays: Sequence[float]) -> None:
        """Only this node has more room than before, and nobody who waits fitted elsewhere."""
        nodes = self.policy.nodes
        cpu_milli, memory_mib, gpu_milli = (
            int(free[node]) for free in (nodes.cpu_milli_free, nodes.memory_mib_free, nodes.gpu_milli_free_sum)
        )
        heads = sorted(
            (line[0], kind)
            for kind, line in self.waiting.items()
            if line
            and kind.cpu_milli <= cpu_milli
            and kind.memory_mib <= memory_mib
            and kind.gpu_milli_total <= gpu_milli
        )
        for _, kind in heads:
            line = self.waiting[kind]
            while line and self._retries(kind, line[0], now + stays[line[0]]):
                line.popleft()

    def leaves(self) -> tuple[float, int]:
        ends, _, request, node, devices = heapq.heappop(self.ends)
        self.policy.release(request, node, devices)
        self.used_milli -= request.gpu_milli_total
        return ends, node

    def _retries(self, request: ShapeRequest, number: int, ends: float) -> bool:
        if isinstance(self.policy, BaselinePolicy):
            return self.arrives(request, number, ends)
        decision = self.policy.choose(request)  # a retry is no new arrival
        if decision is None:
            return False
        self.policy.take(request, decision.node, decision.devices)
        return self._starts(request, number, ends, decision)

    def _starts(
        self, request: ShapeRequest, number: int, ends: float, placed: PlacementDecision | BaselinePlacement
    ) -> bool:
        heapq.heappush(self.ends, (ends, number, request, placed.node, placed.devices))
        self.used_milli += request.gpu_milli_total
        return True


def depart_and_arrive(
    nodes: NodeList, trace: Sequence[ShapeRequest], policy: str, seed: int, setting: Setting
) -> Outcome:
    """One run; the same seed gives every policy the same nodes, arrivals and stays."""
    models = len(nodes.models)
    shapes = permuted(nodes.shapes, seed)[:: setting.node_step]
    known = [canonical(request, models) for request in trace]
    come = [request for request in known if _fits_empty(request, shapes)]
    capacity_milli = sum(shape.gpus for shape in shapes) * GPU_MILLI
    gap = float(np.mean([request.gpu_milli_total for request in come])) / (setting.load * capacity_milli)
    random = np.random.default_rng([seed, _STREAM])
    arrivals = int(setting.lasts / gap)
    drawn = random.integers(len(come), size=arrivals)
    times = np.cumsum(random.exponential(gap, arrivals)).tolist()
    if setting.stays == "exponential":
        stays = random.exponential(1.0, arrivals).tolist()
    else:
        stays = random.lognormal(-0.5 * _LOG_NORMAL_SIGMA**2, _LOG_NORMAL_SIGMA, arrivals).tolist()
    if policy == "harch":
        engine = PlacementEngine(shapes, models=models)
        fleet = Fleet(engine)
    else:
        fleet = Fleet(
            BaselinePolicy(
                shapes, models=models, rule=BaselineRule[policy.upper()], history=request_rows(known), seed=seed
            )
        )
    area = 0.0
    last = 0.0
    refused = named_refused = 0

    def passes(now: float) -> None:
        nonlocal area, last
        area += fleet.used_milli * max(0.0, now - max(last, setting.measured_from))
        last = now

    for number, now in enumerate(times):
        while fleet.ends and fleet.ends[0][0] <= now:
            passes(fleet.ends[0][0])
            ended, node = fleet.leaves()
            if setting.refused == "waits":
                fleet.passes_on(node, ended, stays)
        passes(now)
        request = come[drawn[number]]
        if policy == "harch" and engine.learning_due:
            engine.relearn()
        if fleet.waiting.get(request):  # others of its kind wait already, so it fits nowhere
            if policy == "harch":
                engine.observe(request)
            placed = False
        else:
            placed = fleet.arrives(request, number, now + stays[number])
        if not placed:
            refused += now > setting.measured_from
            named_refused += now > setting.measured_from and request.models != (1 << models) - 1
            if setting.refused == "waits":
                fleet.waiting.setdefault(request, deque()).append(number)
    measured = max(last - setting.measured_from, 1e-9)
    return Outcome(100.0 * area / measured / capacity_milli, int(refused), int(named_refused))


def _fits_empty(request: ShapeRequest, shapes: Sequence[NodeShape]) -> bool:
    return any(
        shape.cpu_milli >= request.cpu_milli
        and shape.memory_mib >= request.memory_mib
        and shape.gpus >= request.gpus
        and (request.models >> shape.model) & 1
        for shape in set(shapes)
    )

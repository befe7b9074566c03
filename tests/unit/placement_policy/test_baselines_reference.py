"""Do the published policies decide as they were published? Against the same rules over plain lists."""

from __future__ import annotations

from math import exp, floor
from random import Random

import numpy as np
import pytest

from harch.base.errors import InvariantBroken
from harch.placement.policy.baselines import BaselinePolicy, BaselineRule, fragments_sum
from harch.placement.policy.lessons import common_kinds
from harch.placement.policy.shapes import NodeShape, ShapeRequest, canonical, empty_nodes, request_rows

MODELS = 3
SHAPES = (
    NodeShape(24_000, 32_768, 2, 0),
    NodeShape(16_000, 32_768, 4, 1),
    NodeShape(96_000, 65_536, 8, 0),
    NodeShape(9000, 65_536, 1, 2),
    NodeShape(32_000, 32_768, 0, 2),
)
KINDS = (
    ShapeRequest(2000, 4096),
    ShapeRequest(500, 1024, 1, 110),
    ShapeRequest(2000, 8192, 1, 300),
    ShapeRequest(3000, 2048, 1, 300, 0b001),
    ShapeRequest(1000, 1024, 1, 500),
    ShapeRequest(2000, 4096, 1, 700, 0b110),
    ShapeRequest(4000, 4096, 1, 1000),
    ShapeRequest(6000, 8192, 2, 1000),
    ShapeRequest(3000, 3000, 2, 250),
    ShapeRequest(12_000, 12_288, 4, 1000),
)


class Fleet:
    """What is free, as lists."""

    def __init__(self, shapes: list[NodeShape]) -> None:
        self.shapes = shapes
        self.cpu = [shape.cpu_milli for shape in shapes]
        self.memory = [shape.memory_mib for shape in shapes]
        self.devices = [[1000] * shape.gpus for shape in shapes]

    def fits(self, node: int, kind: ShapeRequest) -> bool:
        roomy = [free for free in self.devices[node] if kind.gpus and free >= kind.gpu_milli]
        return (
            self.cpu[node] >= kind.cpu_milli
            and self.memory[node] >= kind.memory_mib
            and len(roomy) >= kind.gpus
            and (not kind.gpus or bool(kind.models >> self.shapes[node].model & 1))
        )

    def by_rule(self, node: int, kind: ShapeRequest) -> tuple[int, ...]:
        """The fullest devices that fit."""
        fitting = sorted((free, index) for index, free in enumerate(self.devices[node]) if free >= kind.gpu_milli)
        return tuple(index for _, index in fitting[: kind.gpus])

    def take(self, node: int, kind: ShapeRequest, devices: tuple[int, ...], sign: int = 1) -> None:
        self.cpu[node] -= sign * kind.cpu_milli
        self.memory[node] -= sign * kind.memory_mib
        for device in devices:
            self.devices[node][device] -= sign * kind.gpu_milli


def fragment(cpu: int, devices: list[int], model: int, kinds: list[tuple[list[int], int]]) -> float:
    stuck = 0
    for (kind_cpu, gpus, milli, models), count in kinds:
        usable = gpus and kind_cpu <= cpu and models >> model & 1
        enough = sum(free >= milli for free in devices) >= gpus
        stuck += count * (sum(free for free in devices if free < milli) if usable and enough else sum(devices))
    return stuck / max(1, sum(count for _, count in kinds))


def fgd(fleet: Fleet, kind: ShapeRequest, kinds: list[tuple[list[int], int]]) -> tuple[int, tuple[int, ...]] | None:
    best: tuple[int, tuple[int, ...]] | None = None
    best_score = -1
    for node, shape in enumerate(fleet.shapes):
        if not fleet.fits(node, kind):
            continue
        devices, cpu = fleet.devices[node], fleet.cpu[node]
        before = fragment(cpu, devices, shape.model, kinds)
        shared = kind.gpus == 1 and kind.gpu_milli < 1000
        options = [(index,) for index, free in enumerate(devices) if free >= kind.gpu_milli] if shared else [None]
        for option in options:
            left = list(devices)
            if option is not None:
                left[option[0]] -= kind.gpu_milli
            else:  # as whole devices, however much of each is wanted
                idle = [index for index, free in enumerate(left) if free == 1000]
                for index in idle[: kind.gpus]:
                    left[index] = 0
            after = fragment(cpu - kind.cpu_milli, left, shape.model, kinds)
            score = floor(100 / (1 + exp((after - before) / 1000)))
            if score > best_score:
                best_score, best = score, (node, fleet.by_rule(node, kind) if option is None else option)
    return best


def packing(devices: list[int], kind: ShapeRequest) -> int:
    idle = sum(free == 1000 for free in devices)
    if not kind.gpus:
        return 0
    if idle == len(devices):
        return max(33 - idle, idle)
    in_use = sorted(free for free in devices if kind.gpu_milli <= free < 1000)[: kind.gpus]
    if len(in_use) < kind.gpus:
        return max(50 - (kind.gpus - len(in_use)), 33)
    return max(100 - sum(free * 100 // 1000 for free in in_use) // 10, 50)


def simple(fleet: Fleet, kind: ShapeRequest, rule: BaselineRule) -> tuple[int, tuple[int, ...]] | None:
    best, best_score = None, 0
    cpu_wanted, gpu_wanted = kind.cpu_milli / 128_000, kind.gpu_milli_total / 8000
    for node in range(len(fleet.shapes)):
        if not fleet.fits(node, kind):
            continue
        cpu, gpu = fleet.cpu[node] / 128_000, sum(fleet.devices[node]) / 8000
        if rule is BaselineRule.BESTFIT:
            score = int(100 * (1 - 0.5 * (cpu - cpu_wanted) - 0.5 * (gpu - gpu_wanted)))
        elif rule is BaselineRule.DOTPROD:
            score = int(100 * (1 - 0.5 * (cpu * cpu_wanted + gpu * gpu_wanted)))
        else:
            score = packing(fleet.devices[node], kind)
        if best is None or score > best_score:
            best_score, best = score, (node, fleet.by_rule(node, kind) if kind.gpus else ())
    return best


def by_chance(
    fleet: Fleet, kind: ShapeRequest, node_draw: float, device_draw: float
) -> tuple[int, tuple[int, ...]] | None:
    fitting = [node for node in range(len(fleet.shapes)) if fleet.fits(node, kind)]
    if not fitting:
        return None
    node = fitting[int(node_draw * len(fitting))]
    if not kind.gpus:
        return node, ()
    if kind.gpus > 1 or kind.gpu_milli == 1000:
        return node, fleet.by_rule(node, kind)
    roomy = [index for index, free in enumerate(fleet.devices[node]) if free >= kind.gpu_milli]
    return node, (roomy[int(device_draw * len(roomy))],)


@pytest.mark.parametrize("rule", list(BaselineRule))
@pytest.mark.parametrize("seed", range(6))
def test_a_baseline_decides_as_its_rule_over_plain_lists_does(rule: BaselineRule, seed: int) -> None:
    random = Random(seed)
    shapes = random.choices(SHAPES, k=5)
    history = random.choices(KINDS, k=30)
    policy = BaselinePolicy(shapes, models=MODELS, rule=rule, history=request_rows(history), seed=seed)
    draws = np.random.default_rng(seed)
    fleet = Fleet(shapes)
    found_kinds, counts = common_kinds(request_rows(canonical(one, MODELS) for one in history), 0.95)
    kinds = list(zip(found_kinds.tolist(), counts.tolist(), strict=True))
    held: list[tuple[ShapeRequest, int, tuple[int, ...]]] = []
    for _ in range(40):
        kind = canonical(random.choice(KINDS), MODELS)
        if rule is BaselineRule.FGD:
            expected = fgd(fleet, kind, kinds)
        elif rule is BaselineRule.RANDOM:
            expected = by_chance(fleet, kind, draws.random(), draws.random())
        else:
            expected = simple(fleet, kind, rule)
        placed = policy.place(kind)
        assert placed == expected
        if placed is not None:
            fleet.take(placed.node, kind, placed.devices)
            held.append((kind, placed.node, placed.devices))
        if held and random.random() < 0.3:
            gone, node, devices = held.pop(random.randrange(len(held)))
            policy.release(gone, node, devices)
            fleet.take(node, gone, devices, -1)
        expected_sum = sum(
            fragment(fleet.cpu[node], fleet.devices[node], shape.model, kinds) for node, shape in enumerate(shapes)
        )
        assert fragments_sum(policy.nodes, found_kinds, counts, np.zeros(9, np.int64)) == pytest.approx(expected_sum)


@pytest.mark.parametrize("seed", range(10))
def test_packing_prefers_full_devices_then_nodes_in_use_then_idle_ones_of_any_size(seed: int) -> None:
    random = Random(seed)
    shapes = [NodeShape(10**6, 10**6, gpus, 0) for gpus in random.choices((1, 2, 16, 17, 18, 40, 72), k=6)]
    policy, fleet = BaselinePolicy(shapes, models=1, rule=BaselineRule.PACKING), Fleet(shapes)
    for _ in range(25):
        gpus, milli = random.choice(((1, 300), (1, 500), (2, 500), (3, 300), (1, 1000), (16, 1000), (18, 1000)))
        kind = canonical(ShapeRequest(0, 0, gpus, milli), 1)
        placed = policy.place(kind)
        assert placed == simple(fleet, kind, BaselineRule.PACKING)
        if placed is not None:
            fleet.take(placed.node, kind, placed.devices)


@pytest.mark.parametrize("rule", list(BaselineRule))
def test_nodes_above_the_published_scale_are_used_as_well(rule: BaselineRule) -> None:
    """More than 128 cores and 8 GPUs: best fit and dot product score them below 0."""
    shapes = [NodeShape(384_000, 10**6, 16, 0), NodeShape(256_000, 10**6, 16, 0)]
    policy = BaselinePolicy(shapes, models=1, rule=rule)
    large = ShapeRequest(200_000, 1024, 12, 1000)
    assert policy.place(large) is not None
    assert policy.place(large) is not None
    if rule in (BaselineRule.BESTFIT, BaselineRule.DOTPROD):
        fresh = BaselinePolicy(shapes, models=1, rule=rule)
        assert fresh.place(large) == (1, tuple(range(12))), "the higher score, below 0 or not"


def test_a_history_is_needed_by_no_rule_and_fragments_nothing() -> None:
    policy = BaselinePolicy([SHAPES[0]] * 2, models=1, rule=BaselineRule.FGD)
    placed = policy.place(KINDS[2])
    assert placed == (0, (0,))
    with pytest.raises(InvariantBroken):
        policy.release(KINDS[2], 0, (1,))
    policy.release(KINDS[2], 0, (0,))
    assert policy.nodes.gpu_milli_free_sum.tolist() == [2000, 2000]
    nodes = empty_nodes([SHAPES[0]])
    assert fragments_sum(nodes, np.zeros((0, 4), np.int64), np.zeros(0, np.int64), np.zeros(3, np.int64)) == 0.0


def test_the_rare_tail_of_the_history_does_not_count_for_fgd() -> None:
    """One request in twenty wants a whole device; what is left beside it decides nothing."""
    common, rare = [ShapeRequest(0, 0, 1, 500)] * 19, [ShapeRequest(0, 0, 1, 1000)]
    shapes = [NodeShape(1000, 1000, 2, 0)] * 2
    policy = BaselinePolicy(shapes, models=1, rule=BaselineRule.FGD, history=request_rows(common + rare))
    nodes = policy.nodes
    nodes.gpu_milli_free[0, 0] = 500
    nodes.gpu_milli_free_sum[0] = 1500
    assert policy.place(ShapeRequest(0, 0, 1, 500)) == (0, (0,))
    kinds, counts = common_kinds(request_rows(common + rare), 0.95)
    assert (len(kinds), counts.tolist()) == (1, [19])

"""Does the engine decide as its design says? Against the same rules written plainly: no arrays, no cache, no bound."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest

from harch.base.errors import InvariantBroken
from harch.placement.policy.engine import PlacementEngine, PreparedLessons
from harch.placement.policy.lessons import ITEM_FIELDS, SEQUENCES, Lessons, learn
from harch.placement.policy.node_values import (
    REFRESH_EVENTS,
    new_scratch,
    new_values,
    no_prices,
    refresh,
    revalue_all,
)
from harch.placement.policy.shapes import NodeShape, ShapeRequest, canonical, empty_nodes, request_rows
from harch.placement.policy.value import new_memo

MODELS = 3
NEVER = -np.inf
POSITIONS = 6  # of a learned sequence: enough to fill a node, few enough to be quick


@dataclass
class NaiveNode:
    cpu: int
    memory: int
    devices: list[int]
    model: int
    available: bool = True

    def fits(self, request: ShapeRequest) -> bool:
        if self.cpu < request.cpu_milli or self.memory < request.memory_mib:
            return False
        if request.gpus == 0:
            return True
        roomy = [free for free in self.devices if free >= request.gpu_milli]
        return len(roomy) >= request.gpus and bool(request.models >> self.model & 1)

    def after(self, request: ShapeRequest, devices: tuple[int, ...], sign: int = -1) -> NaiveNode:
        free = [
            left + sign * request.gpu_milli if device in devices else left for device, left in enumerate(self.devices)
        ]
        cpu, memory = self.cpu + sign * request.cpu_milli, self.memory + sign * request.memory_mib
        return NaiveNode(cpu, memory, free, self.model, self.available)


@dataclass
class NaivePolicy:
    """The whole policy as a page of plain Python."""

    lessons: Lessons
    nodes: list[NaiveNode]
    sizes: list[int]  # devices of each node
    model_prices: list[float] = field(default_factory=list)
    block_prices: list[float] = field(default_factory=list)
    _left: dict[tuple[object, ...], float] = field(default_factory=dict)

    # What a node is worth

    def value(self, node: NaiveNode) -> float:
        stranded = sum(free * (1000 - free) / 1000 for free in node.devices)
        return (
            self._unused(node) + self.lessons.fragment_weight * self._fragment(node) + self.lessons.turnover * stranded
        )

    def _unused(self, node: NaiveNode) -> float:
        """Mean GPU that is left once the learned sequences were best-fitted."""
        key = (node.cpu, node.memory, *sorted(node.devices), node.model)
        if key not in self._left:
            sequences = self.lessons.items[node.model].reshape(-1, ITEM_FIELDS, SEQUENCES)
            total = 0
            for sequence in range(SEQUENCES):
                cpu, memory, free = node.cpu, node.memory, sorted(node.devices)
                for item_cpu, item_memory, gpus, milli in sequences[:, :4, sequence].tolist():
                    if item_cpu > cpu or item_memory > memory:
                        continue
                    first = next((place for place, amount in enumerate(free) if amount >= milli), len(free))
                    if first + gpus > len(free):
                        continue
                    for place in range(first, first + gpus):
                        free[place] -= milli
                    free.sort()
                    cpu, memory = cpu - item_cpu, memory - item_memory
                total += sum(free)
            self._left[key] = total / SEQUENCES
        return self._left[key]

    def _fragment(self, node: NaiveNode) -> float:
        """Mean GPU that a request of the mix could not use."""
        stuck = 0
        for (cpu, gpus, milli, models), count in zip(
            self.lessons.kinds.tolist(), self.lessons.kind_counts.tolist(), strict=True
        ):
            request = ShapeRequest(cpu, 0, gpus, milli, models)
            if gpus and node.fits(request):
                stuck += count * sum(free for free in node.devices if free < milli)
            else:
                stuck += count * sum(node.devices)
        return stuck / max(1, int(self.lessons.kind_counts.sum()))

    def blocks(self, node: NaiveNode) -> list[int]:
        """Per scarce shape: how many of it the node's idle devices could take."""
        idle = sum(free == 1000 for free in node.devices)
        found = []
        lessons = self.lessons
        for gpus, cpu, memory, models in zip(
            lessons.block_gpus.tolist(),
            lessons.block_cpu_milli.tolist(),
            lessons.block_memory_mib.tolist(),
            lessons.block_models.tolist(),
            strict=True,
        ):
            may = models >> node.model & 1
            found.append(min(idle // gpus, node.cpu // cpu, node.memory // memory) if may else 0)
        return found

    # What is scarce

    def refresh(self) -> None:
        lessons = self.lessons
        open_nodes = [(node, size) for node, size in zip(self.nodes, self.sizes, strict=True) if node.available]
        free = np.zeros(MODELS)
        supply = np.zeros(MODELS)
        for node, size in open_nodes:
            left = sum(node.devices)
            free[node.model] += left
            supply[node.model] += left + lessons.turnover * (1000 * size - left)
        member = np.array([[sets >> model & 1 for model in range(MODELS)] for sets in lessons.set_models.tolist()])
        member = member.reshape(-1, MODELS)
        wanted = lessons.set_shares[:, None] * supply.sum()
        demand = member * supply
        demand = np.divide(
            wanted * demand,
            demand.sum(axis=1, keepdims=True),
            out=np.zeros_like(demand),
            where=demand.sum(axis=1, keepdims=True) > 0,
        )
        for _ in range(11):
            pressure = np.maximum(demand.sum(axis=0) / np.maximum(supply, 1.0), 1e-9)
            pull = demand / pressure
            total = pull.sum(axis=1, keepdims=True)
            demand = np.divide(wanted * pull, total, out=np.zeros_like(pull), where=total > 0)
        pressure = demand.sum(axis=0) / np.maximum(supply, 1.0)
        weight = 3.0 * (1 - lessons.turnover) + 0.3 * lessons.turnover
        self.model_prices = (weight * np.minimum(pressure, 3.0)).tolist()
        self.block_prices = []
        for block, (gpus, rate) in enumerate(
            zip(lessons.block_gpus.tolist(), lessons.block_rates.tolist(), strict=True)
        ):
            held = sum(self.blocks(node)[block] for node, _ in open_nodes)
            pressed = min(1.0, rate * free.sum() / max(held, 1))
            self.block_prices.append(1000 * gpus * pressed**2.5)

    # What a placement scores

    def placed(self, request: ShapeRequest, node: NaiveNode) -> tuple[tuple[int, ...], NaiveNode]:
        """The devices that the design takes on this node, and the node afterwards."""
        fitting = sorted(
            (free, device) for device, free in enumerate(node.devices) if request.gpus and free >= request.gpu_milli
        )
        if request.gpus == 1 and request.gpu_milli < 1000:
            options = [(node.after(request, (device,)), free, device) for free, device in fitting]
            best = min(options, key=lambda option: (round(self.value(option[0]), 6), option[1], option[2]))
            return (best[2],), best[0]
        devices = tuple(device for _, device in fitting[: request.gpus])
        return devices, node.after(request, devices)

    def score(self, request: ShapeRequest, node: NaiveNode) -> float:
        if not (node.available and node.fits(request)):
            return NEVER
        _, after = self.placed(request, node)
        lost = [before - left for before, left in zip(self.blocks(node), self.blocks(after), strict=True)]
        return (
            self.value(node)
            - self.value(after)
            - 50 * after.cpu / 128_000
            - 50 * sum(after.devices) / 8000
            - request.gpu_milli_total * self.model_prices[node.model]
            - sum(price * count for price, count in zip(self.block_prices, lost, strict=True))
        )


SHAPES = (
    NodeShape(24_000, 32_768, 2, 0),
    NodeShape(24_000, 16_384, 2, 0),
    NodeShape(16_000, 32_768, 4, 1),
    NodeShape(64_000, 65_536, 4, 0),
    NodeShape(8000, 65_536, 1, 2),
    NodeShape(32_000, 32_768, 0, 2),
)
KINDS = (
    ShapeRequest(2000, 4096),
    ShapeRequest(0, 6000),
    ShapeRequest(500, 1024, 1, 110),
    ShapeRequest(2000, 8192, 1, 300),
    ShapeRequest(3000, 2048, 1, 300, 0b001),
    ShapeRequest(1000, 1024, 1, 500),
    ShapeRequest(2000, 4096, 1, 700, 0b110),
    ShapeRequest(4000, 4096, 1, 1000),
    ShapeRequest(4000, 9000, 1, 1000, 0b010),
    ShapeRequest(6000, 8192, 2, 1000),
    ShapeRequest(9000, 8192, 2, 1000, 0b001),
    ShapeRequest(3000, 3000, 2, 250),
    ShapeRequest(12_000, 12_288, 4, 1000),
)


def taught(
    fleet: list[NodeShape], history: list[ShapeRequest], turnover: float = 0.0, **options: int
) -> tuple[PlacementEngine, NaivePolicy]:
    """An engine that was given lessons with short sequences, and the plain policy with the same."""
    engine = PlacementEngine(fleet, models=MODELS, **options)
    lessons = learn(request_rows(canonical(one, MODELS) for one in history), engine.nodes, MODELS, turnover)
    lessons = lessons._replace(items=np.ascontiguousarray(lessons.items[:, :POSITIONS]))
    values, memo = new_values(len(fleet)), new_memo(len(fleet))
    revalue_all(engine.nodes, values, lessons, memo, new_scratch(engine.nodes))
    engine.adopt(PreparedLessons(lessons, values, memo, engine.snapshot().versions, arrivals=0))
    nodes = [NaiveNode(shape.cpu_milli, shape.memory_mib, [1000] * shape.gpus, shape.model) for shape in fleet]
    naive = NaivePolicy(lessons, nodes, [shape.gpus for shape in fleet])
    naive.refresh()
    return engine, naive


def check_decision(engine: PlacementEngine, naive: NaivePolicy, kind: ShapeRequest, allowed: np.ndarray) -> None:
    """Every score, the decision and its devices, and the parts of its score."""
    expected = [naive.score(kind, node) for node in naive.nodes]
    seen = np.where(allowed, expected, NEVER)
    decision = engine.choose(kind, allowed)
    if seen.max() == NEVER:
        assert decision is None
    else:
        assert decision is not None
        first = int(np.flatnonzero(seen >= seen.max() - 1e-6)[0])
        assert decision.node == first
        node = naive.nodes[first]
        devices, after = naive.placed(kind, node)
        assert decision.devices == devices
        assert decision.score == pytest.approx(seen.max(), abs=1e-6)
        parts = decision.parts
        assert parts.value == pytest.approx(naive.value(node) - naive.value(after), abs=1e-6)
        assert parts.cpu_left == pytest.approx(-50 * after.cpu / 128_000)
        assert parts.gpu_left == pytest.approx(-50 * sum(after.devices) / 8000)
        assert parts.model_price == pytest.approx(-kind.gpu_milli_total * naive.model_prices[node.model])
        assert sum(parts) == pytest.approx(decision.score)
    np.testing.assert_allclose(engine.node_scores(kind, allowed), seen, rtol=0, atol=1e-6)
    best = engine.top_candidates(kind, 3, allowed)
    found = [seen[candidate.node] for candidate in best]
    assert found == pytest.approx(sorted(seen[seen > NEVER], reverse=True)[:3], abs=1e-6)
    assert best[:1] == ([] if decision is None else [decision])


@pytest.mark.parametrize("seed", range(14))
def test_the_engine_decides_as_the_plain_policy_does(seed: int) -> None:
    random = Random(seed)
    fleet = random.choices(SHAPES, k=random.choice((2, 4, 5)))
    history = random.choices(KINDS, k=10)
    engine, naive = taught(fleet, history, random.choice((0.0, 0.6, 1.0)), kind_slots_max=random.choice((1, 2, 512)))
    held: list[tuple[ShapeRequest, int, tuple[int, ...]]] = []
    for step in range(9):
        kind = canonical(random.choice(KINDS[step % 2 * 6 :]), MODELS)
        allowed = np.array([random.random() < 0.9 for _ in fleet])
        check_decision(engine, naive, kind, allowed)
        decision = engine.choose(kind)
        if decision is not None:
            engine.take(kind, decision.node, decision.devices)
            naive.nodes[decision.node] = naive.nodes[decision.node].after(kind, decision.devices)
            held.append((kind, decision.node, decision.devices))
        if held and random.random() < 0.3:
            gone, node, devices = held.pop(random.randrange(len(held)))
            engine.release(gone, node, devices)
            naive.nodes[node] = naive.nodes[node].after(gone, devices, 1)
        if random.random() < 0.3:
            node = random.randrange(len(fleet))
            naive.nodes[node].available = not naive.nodes[node].available
            engine.set_node_available(node, naive.nodes[node].available)
        if step % 3 == 2:
            engine.refresh_prices()
            naive.refresh()


@pytest.mark.parametrize("turnover", [0.0, 0.5, 1.0])
def test_a_whole_history_of_full_sequences_is_valued_as_the_plain_policy_does(turnover: float) -> None:
    """All 32 positions, on a node that memory closes first, one that CPU closes first, and one with many shares."""
    fleet = [NodeShape(64_000, 20_000, 4, 0), NodeShape(9000, 65_536, 4, 1), NodeShape(64_000, 65_536, 3, 0)]
    engine = PlacementEngine(fleet, models=MODELS)
    engine.history.taken, engine.history.departed = 1.0, turnover
    engine.learn_from(request_rows(KINDS * 3))
    held = [(KINDS[5], 2, (0,)), (KINDS[3], 2, (1,)), (KINDS[2], 2, (1,)), (KINDS[7], 0, (3,))]
    for kind, node, devices in held:
        engine.take(kind, node, devices)
    lessons = learn(request_rows(canonical(one, MODELS) for one in KINDS * 3), engine.nodes, MODELS, turnover)
    nodes = [NaiveNode(shape.cpu_milli, shape.memory_mib, [1000] * shape.gpus, shape.model) for shape in fleet]
    naive = NaivePolicy(lessons, nodes, [shape.gpus for shape in fleet])
    naive.refresh()
    for kind, node, devices in held:
        nodes[node] = nodes[node].after(kind, devices)
    for kind in (KINDS[3], KINDS[9], KINDS[11]):
        check_decision(engine, naive, canonical(kind, MODELS), np.ones(3, np.bool_))


def lessons_of(**fields: object) -> Lessons:
    nothing = learn(np.zeros((0, 5), np.int64), empty_nodes([SHAPES[0]]), MODELS)
    given = {name: np.array(value) if isinstance(value, list) else value for name, value in fields.items()}
    return nothing._replace(**given)


@pytest.mark.parametrize("seed", range(12))
def test_prices_level_the_pressure_of_models_and_weigh_what_blocks_are_left(seed: int) -> None:
    random = Random(seed)
    fleet = random.choices(SHAPES[:5], k=6)
    nodes = empty_nodes(fleet)
    naive_nodes = []
    for row, shape in enumerate(fleet):
        for device in range(shape.gpus):
            nodes.gpu_milli_free[row, device] = random.choice((0, 300, 1000, 1000))
        nodes.gpu_milli_free_sum[row] = nodes.gpu_milli_free[row].sum()
        nodes.available[row] = random.random() < 0.8
        free = nodes.gpu_milli_free[row, : shape.gpus].tolist()
        naive_nodes.append(NaiveNode(shape.cpu_milli, shape.memory_mib, free, shape.model, bool(nodes.available[row])))
    sets = random.sample([0b001, 0b010, 0b011, 0b110, 0b101], k=random.choice((1, 2, 3)))
    shares = [random.choice((0.05, 0.2, 0.6)) for _ in sets]
    lessons = lessons_of(
        turnover=random.choice((0.0, 0.4, 1.0)),
        set_models=sets,
        set_shares=shares,
        block_gpus=[2, 4],
        block_cpu_milli=[6000, 12_000],
        block_memory_mib=[8192, 12_288],
        block_models=[0b111, 0b001],
        block_rates=[random.choice((1e-5, 2e-4, 1e-2)), 1e-4],
    )
    naive = NaivePolicy(lessons, naive_nodes, [shape.gpus for shape in fleet])
    naive.refresh()
    prices = no_prices(MODELS, 2)
    refresh(nodes, np.array([naive.blocks(node) for node in naive_nodes], np.int64), lessons, prices)
    assert prices.model.tolist() == pytest.approx(naive.model_prices, rel=1e-9, abs=1e-12)
    assert prices.block.tolist() == pytest.approx(naive.block_prices, rel=1e-9)


def test_a_price_follows_pressure_up_to_three_and_a_quarter_block_up_to_one() -> None:
    """By hand: 2 GPUs of model 0 and 6 of model 1; requests that name model 0 are 90 % of the demand."""
    nodes = empty_nodes([NodeShape(1, 1, 2, 0), NodeShape(1, 1, 6, 1)])
    lessons = lessons_of(set_models=[0b01], set_shares=[0.9], block_gpus=[2, 2], block_rates=[1.0 / 32_000, 1.0 / 2000])
    prices = no_prices(2, 2)
    refresh(nodes, np.array([[0, 0], [1, 3]], np.int64), lessons, prices)
    assert prices.model.tolist() == [9.0, 0.0], "pressure 0.9 * 8 / 2 = 3.6 counts as 3, times the weight 3"
    assert prices.block.tolist() == pytest.approx([2000 * 0.25**2.5, 2000.0]), "1/4 and 4/3 of what is there"
    refresh(nodes, np.array([[0, 0], [1, 3]], np.int64), lessons._replace(set_shares=np.array([0.5])), prices)
    assert prices.model.tolist() == pytest.approx([6.0, 0.0])
    nodes.available[0] = False
    refresh(nodes, np.array([[0, 0], [1, 3]], np.int64), lessons, prices)
    assert prices.model.tolist() == [0.0, 0.0], "demand for what is not there presses on nothing"


def test_prices_are_refreshed_after_so_many_arrivals_and_departures_and_not_before() -> None:
    fleet = [SHAPES[0], SHAPES[3]]
    engine, naive = taught(fleet, [KINDS[9], KINDS[10], KINDS[4]])
    before = engine.choose(KINDS[4])
    assert before is not None
    kind = canonical(KINDS[10], MODELS)
    engine.take(kind, 1, (0, 1))
    engine.release(kind, 1, (0, 1))
    engine.take(kind, 1, (0, 1))  # one departure so far
    naive.nodes[1] = naive.nodes[1].after(kind, (0, 1))
    for _ in range(REFRESH_EVENTS - 1):
        engine.observe(KINDS[0])
    stale = engine.choose(KINDS[4])
    assert stale is not None
    assert stale.parts.model_price == before.parts.model_price
    engine.observe(KINDS[0])
    naive.refresh()
    assert engine.choose(KINDS[4]) != stale
    check_decision(engine, naive, canonical(KINDS[4], MODELS), np.ones(2, np.bool_))
    assert engine.history.arrivals == REFRESH_EVENTS
    engine.release(kind, 1, (0, 1))
    naive.nodes[1] = naive.nodes[1].after(kind, (0, 1), 1)
    check_decision(engine, naive, canonical(KINDS[4], MODELS), np.ones(2, np.bool_))


def test_a_refresh_counts_from_the_last_one() -> None:
    engine, naive = taught([SHAPES[0], SHAPES[2], SHAPES[3]], [KINDS[4], KINDS[8], KINDS[9]])
    for _ in range(REFRESH_EVENTS + 1):
        engine.observe(KINDS[0])
    kind = canonical(KINDS[10], MODELS)
    engine.take(kind, 2, (0, 1))
    naive.nodes[2] = naive.nodes[2].after(kind, (0, 1))
    before = naive.model_prices
    for _ in range(REFRESH_EVENTS - 1):
        engine.observe(KINDS[0])
    check_decision(engine, naive, canonical(KINDS[4], MODELS), np.ones(3, np.bool_))
    engine.observe(KINDS[0])
    naive.refresh()
    assert naive.model_prices != pytest.approx(before)
    check_decision(engine, naive, canonical(KINDS[4], MODELS), np.ones(3, np.bool_))


def test_a_twin_decides_alike_and_is_apart_from_then_on() -> None:
    fleet = [SHAPES[0], SHAPES[2], SHAPES[3]]
    engine, naive = taught(fleet, list(KINDS), 0.5)
    full = canonical(KINDS[12], MODELS)
    everywhere = np.ones(3, np.bool_)
    for kind in (KINDS[3], KINDS[9], full):
        engine.choose(kind)
    twin = deepcopy(engine)
    original, copy = deepcopy(naive), deepcopy(naive)
    for one, book, kind in ((twin, copy, full), (engine, original, canonical(KINDS[3], MODELS)), (twin, copy, full)):
        decision = one.place(kind)
        assert decision is not None
        book.nodes[decision.node] = book.nodes[decision.node].after(kind, decision.devices)
    twin.set_node_available(0, False)
    copy.nodes[0].available = False
    twin.refresh_prices()
    copy.refresh()
    for one, book in ((twin, copy), (engine, original)):
        assert one.nodes.gpu_milli_free_sum.tolist() == [sum(node.devices) for node in book.nodes]
        for kind in (KINDS[3], KINDS[9], KINDS[0], full):
            check_decision(one, book, canonical(kind, MODELS), everywhere)
    assert (engine.history.arrivals, twin.history.arrivals) == (1, 2)
    assert twin.choose(full) is None
    assert engine.choose(full) is not None, "what a twin was refused says nothing about the original"


def test_more_kinds_than_the_cache_first_has_room_for_are_scored_as_before() -> None:
    engine, naive = taught([SHAPES[0], SHAPES[3]], [KINDS[5], KINDS[7]])
    wide = [canonical(ShapeRequest(100 * index, 64, 1, 500), MODELS) for index in range(40)]
    bytes_before = engine.memory_bytes
    first = [engine.choose(kind) for kind in wide]
    grown = engine.memory_bytes - bytes_before
    assert grown == 32 * 2 * (8 + 1 + 8 + 4), "from 32 kinds to 64, of two nodes each"
    assert [engine.choose(kind) for kind in wide] == first
    engine.take(wide[7], 0, (0,))
    naive.nodes[0] = naive.nodes[0].after(wide[7], (0,))
    for kind in (wide[0], wide[31], wide[32], wide[39]):
        check_decision(engine, naive, kind, np.ones(2, np.bool_))


def test_the_kind_that_was_not_requested_longest_makes_room_and_its_refusal_is_forgotten() -> None:
    engine, naive = taught([SHAPES[0]], [KINDS[5], KINDS[7]], kind_slots_max=2)
    refused, small = canonical(KINDS[12], MODELS), [canonical(kind, MODELS) for kind in KINDS[2:6]]
    assert engine.choose(refused) is None
    assert engine.choose(small[0]) is not None
    assert engine.choose(refused) is None  # was requested later than the other
    for kind in small:  # each takes the place of the one before, and one of them that of the refused kind
        assert engine.choose(kind) is not None
        check_decision(engine, naive, kind, np.ones(1, np.bool_))
    assert engine.choose(refused) is None
    bytes_of_two = engine.memory_bytes
    engine.choose(KINDS[7])
    assert engine.memory_bytes == bytes_of_two


def test_what_changed_between_a_snapshot_and_its_lessons_is_valued_again() -> None:
    engine, naive = taught([SHAPES[0], SHAPES[3], SHAPES[0]], [KINDS[5]])
    snapshot = engine.snapshot()
    lessons = naive.lessons._replace(turnover=1.0)
    values, memo = new_values(3), new_memo(3)
    revalue_all(snapshot.nodes, values, lessons, memo, new_scratch(snapshot.nodes))
    kind = canonical(KINDS[5], MODELS)
    for one in (KINDS[3], KINDS[7], KINDS[9]):
        engine.node_scores(one)  # by the lessons before
    engine.take(kind, 1, (2,))
    engine.adopt(PreparedLessons(lessons, values, memo, snapshot.versions, arrivals=0))
    naive = NaivePolicy(lessons, naive.nodes, naive.sizes)
    naive.nodes[1] = naive.nodes[1].after(kind, (2,))
    naive.refresh()
    for one in (KINDS[3], KINDS[7], KINDS[9]):
        check_decision(engine, naive, canonical(one, MODELS), np.ones(3, np.bool_))
    assert snapshot.versions.tolist() != engine.snapshot().versions.tolist()


def test_a_snapshot_stays_comparable_after_other_lessons_were_adopted() -> None:
    """As many changes before it as after the swap: only versions that go on counting tell them apart."""
    engine, naive = taught([SHAPES[0], SHAPES[3]], [KINDS[5], KINDS[7]])
    share = canonical(KINDS[5], MODELS)
    for _ in range(2):
        engine.take(share, 0, (0,))
        engine.release(share, 0, (0,))
    snapshot = engine.snapshot()
    values, memo = new_values(2), new_memo(2)
    revalue_all(snapshot.nodes, values, naive.lessons, memo, new_scratch(snapshot.nodes))
    engine.relearn()
    for kind, devices in ((share, (0,)), (share, (0,)), (share, (1,)), (canonical(KINDS[0], MODELS), ())):
        engine.take(kind, 0, devices)
        naive.nodes[0] = naive.nodes[0].after(kind, devices)
    engine.adopt(PreparedLessons(naive.lessons, values, memo, snapshot.versions, arrivals=0))
    naive.refresh()
    for one in (KINDS[3], KINDS[7]):
        check_decision(engine, naive, canonical(one, MODELS), np.ones(2, np.bool_))


@pytest.mark.parametrize(
    ("kind", "node", "devices"),
    [
        (ShapeRequest(24_001, 0), 0, ()),
        (ShapeRequest(0, 32_769), 0, ()),
        (ShapeRequest(0, 0, 1, 600), 1, (0,)),
        (ShapeRequest(0, 0, 1, 1000), 0, (2,)),
        (ShapeRequest(0, 0, 1, 1000), 0, (-1,)),
        (ShapeRequest(0, 0, 2, 100), 0, (1, 1)),
        (ShapeRequest(0, 0, 2, 1000), 0, (0,)),
        (ShapeRequest(0, 0), 2, ()),
        (ShapeRequest(0, 0), -1, ()),
    ],
)
def test_what_is_not_there_is_never_taken(kind: ShapeRequest, node: int, devices: tuple[int, ...]) -> None:
    engine = PlacementEngine([SHAPES[0], SHAPES[3]], models=MODELS)
    engine.take(ShapeRequest(0, 0, 1, 500), 1, (0,))
    before = [array.copy() for array in engine.nodes]
    with pytest.raises(InvariantBroken):
        engine.take(kind, node, devices)
    for old, new in zip(before, engine.nodes, strict=True):
        assert np.array_equal(old, new)


@pytest.mark.parametrize(
    ("kind", "devices"),
    [
        (ShapeRequest(1, 0), ()),
        (ShapeRequest(0, 1), ()),
        (ShapeRequest(0, 0, 1, 501), (0,)),
        (ShapeRequest(0, 0, 1, 1), (1,)),
    ],
)
def test_what_was_not_taken_is_never_given_back(kind: ShapeRequest, devices: tuple[int, ...]) -> None:
    engine = PlacementEngine([SHAPES[0]], models=MODELS)
    engine.take(ShapeRequest(0, 0, 1, 500), 0, (0,))
    with pytest.raises(InvariantBroken):
        engine.release(kind, 0, devices)
    engine.release(ShapeRequest(0, 0, 1, 500), 0, (0,))
    assert engine.nodes.gpu_milli_free.tolist() == [[1000, 1000]]
    assert engine.nodes.gpu_milli_free_sum.tolist() == [2000]


def test_everything_of_a_node_can_be_taken_and_given_back() -> None:
    engine = PlacementEngine([SHAPES[0]], models=MODELS)
    everything = ShapeRequest(24_000, 32_768, 2, 1000)
    engine.take(everything, 0, (0, 1))
    assert engine.nodes.cpu_milli_free.tolist() == [0]
    assert engine.nodes.memory_mib_free.tolist() == [0]
    assert engine.nodes.gpu_milli_free_sum.tolist() == [0]
    assert (engine.history.taken, engine.history.departed) == (1.0, 0.0)
    engine.release(everything, 0, (1, 0))
    assert engine.nodes.cpu_milli_free.tolist() == [24_000]
    assert (engine.history.taken, engine.history.departed) == (1.0, 1.0)


def test_placements_are_counted_for_turnover_and_refusals_only_as_arrivals() -> None:
    engine = PlacementEngine([SHAPES[0]], models=MODELS)
    assert engine.place(KINDS[9]) is not None
    assert engine.place(KINDS[9]) is None
    assert (engine.history.arrivals, engine.history.taken) == (2, 1.0)
    assert engine.history.rows().tolist() == [list(canonical(KINDS[9], MODELS))] * 2


@pytest.mark.parametrize("kind", [ShapeRequest(9000, 1024, 1, 500), ShapeRequest(9000, 1024, 2, 1000)])
def test_a_mix_of_one_kind_that_is_short_of_cpu_counts_its_fragment(kind: ShapeRequest) -> None:
    engine, naive = taught([SHAPES[0], SHAPES[2], SHAPES[4]], [kind])
    assert naive.lessons.fragment_weight > 0.01
    for one in (KINDS[0], KINDS[3], KINDS[7], KINDS[9]):
        check_decision(engine, naive, canonical(one, MODELS), np.ones(3, np.bool_))


@pytest.mark.parametrize("taken", range(4))
def test_a_share_that_opens_a_device_costs_the_blocks_that_it_breaks(taken: int) -> None:
    engine, naive = taught([SHAPES[3], SHAPES[3]], [KINDS[9], KINDS[9], KINDS[12], KINDS[3]])
    whole = canonical(KINDS[7], MODELS)
    for device in range(taken):
        engine.take(whole, 0, (device,))
        naive.nodes[0] = naive.nodes[0].after(whole, (device,))
    assert min(naive.block_prices) > 0.0
    for one in (KINDS[3], KINDS[5], KINDS[11]):
        check_decision(engine, naive, canonical(one, MODELS), np.ones(2, np.bool_))


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [(SHAPES[0], (KINDS[3], KINDS[7], KINDS[9])), (SHAPES[4], (KINDS[7],))],  # the last leaves nothing of any worth
)
def test_the_first_of_equals_is_chosen_though_another_was_valued_anew(
    shape: NodeShape, kinds: tuple[ShapeRequest, ...]
) -> None:
    engine, _ = taught([shape] * 3, [KINDS[5], KINDS[7]])
    for kind in kinds:
        for changed in (2, 1, 0):
            engine.node_scores(kind)  # all are known but the one that changes
            engine.take(KINDS[7], changed, (0,))
            engine.release(KINDS[7], changed, (0,))
            decision = engine.choose(kind)
            assert decision is not None
            assert decision.node == 0


@pytest.mark.parametrize("slots", [0, -1])
def test_an_engine_without_kind_slots_is_refused(slots: int) -> None:
    with pytest.raises(ValueError, match="at least one kind slot"):
        PlacementEngine([SHAPES[0]], models=MODELS, kind_slots_max=slots)


def test_a_node_of_a_model_that_the_fleet_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="not one of the fleet's 2"):
        PlacementEngine([SHAPES[4]], models=2)
    assert PlacementEngine([SHAPES[4]], models=3).models == 3


def test_a_mask_of_numbers_is_refused_and_one_that_is_not_contiguous_is_not() -> None:
    engine = PlacementEngine([SHAPES[0]] * 3, models=MODELS)
    for wrong in (np.ones(3, np.int64), np.ones((3, 1), np.bool_), np.ones(4, np.bool_)):
        with pytest.raises(ValueError, match="`allowed` must hold 3 booleans"):
            engine.choose(KINDS[0], wrong)
    decision = engine.choose(KINDS[0], np.array([False, True, False, False, True, False])[::2])
    assert decision is not None
    assert decision.node == 2


def test_no_more_candidates_are_listed_than_were_wanted() -> None:
    engine = PlacementEngine([SHAPES[0]] * 4, models=MODELS)
    assert [len(engine.top_candidates(KINDS[3], k)) for k in (-1, 0, 1, 3, 9)] == [0, 0, 1, 3, 4]


# What was worked out once is not worked out again: remembered figures are changed, and the change is seen


def test_scores_are_remembered_until_their_node_changes() -> None:
    engine, _ = taught([SHAPES[0], SHAPES[0], SHAPES[0], SHAPES[3], SHAPES[4]], [KINDS[5], KINDS[7]])
    engine.take(KINDS[7], 4, (0,))  # full: it fits there no more
    for kind in (KINDS[3], KINDS[9], KINDS[0]):
        before = engine.choose(kind)
        assert before is not None
        engine._cache.score[:] += 1000.0
        after = engine.choose(kind)
        assert after is not None
        assert (after.node, after.score) == (before.node, pytest.approx(before.score + 1000))
        engine._cache.score[:] -= 1000.0
    engine, _ = taught([SHAPES[0]] * 3, [KINDS[5], KINDS[7]])
    engine.choose(KINDS[3])
    engine._cache.score[:] += 1e6
    scores = engine.node_scores(KINDS[3])
    assert scores.min() > 9e5, "nodes in the same state have the score of the first"
    engine.take(KINDS[7], 1, (0,))
    changed = engine.node_scores(KINDS[3])
    assert changed[1] < 9e5
    assert (changed[0], changed[2]) == (scores[0], scores[2])
    engine._cache.score[:] += 1e6
    assert engine.node_scores(KINDS[3]).tolist() == pytest.approx((changed + 1e6).tolist())


def test_what_did_not_fit_is_not_looked_at_again_until_its_node_changes() -> None:
    engine, _ = taught([SHAPES[4], SHAPES[3]], [KINDS[5]])
    assert engine.choose(KINDS[9]) is not None
    engine._cache.score[:, 0] = 1e6  # the node of one GPU, found too small
    decision = engine.choose(KINDS[9])
    assert decision is not None
    assert decision.node == 0, "by the remembered score"


@pytest.mark.parametrize(
    ("memory_mib", "remembered"), [(32_768, True), (30_000, True), (4096, True), (4095, False), (0, False)]
)
def test_the_value_of_a_state_holds_for_as_much_memory_or_more(memory_mib: int, remembered: bool) -> None:
    """Two GPUs take four shares with 1,024 MiB each, so 4,096 MiB and more are worth the same."""
    engine, naive = taught([SHAPES[0]], [KINDS[5]])
    engine._memo.values[:, 4] = 7.0
    engine.take(ShapeRequest(0, 32_768 - memory_mib), 0, ())
    value = engine._values.value[0]
    node = NaiveNode(24_000, memory_mib, [1000, 1000], 0)
    assert value == pytest.approx(7.0 if remembered else naive.value(node))


def test_a_value_for_which_memory_refused_work_holds_for_that_memory_only() -> None:
    engine, naive = taught([SHAPES[0]], [KINDS[5]])
    engine.take(ShapeRequest(0, 32_768 - 3000), 0, ())
    assert engine._values.value[0] == pytest.approx(naive.value(NaiveNode(24_000, 3000, [1000, 1000], 0)))
    engine._memo.values[:, 4] = 7.0
    elsewhere = ShapeRequest(0, 0, 1, 100)
    engine.take(elsewhere, 0, (0,))
    engine.release(elsewhere, 0, (0,))
    assert engine._values.value[0] == 7.0
    engine.take(ShapeRequest(0, 1), 0, ())
    assert engine._values.value[0] == pytest.approx(naive.value(NaiveNode(24_000, 2999, [1000, 1000], 0)))
    engine.release(ShapeRequest(0, 2), 0, ())
    assert engine._values.value[0] == pytest.approx(naive.value(NaiveNode(24_000, 3001, [1000, 1000], 0)))


def test_states_with_other_cpu_devices_or_model_are_different() -> None:
    engine, naive = taught([SHAPES[0], SHAPES[0]._replace(model=1), SHAPES[0]], [KINDS[5], KINDS[7]])
    engine._memo.values[:, 4] = 7.0
    share, whole = canonical(KINDS[5], MODELS), canonical(KINDS[7], MODELS)
    cpu = ShapeRequest(1, 0, 0, 0, 0b111)
    for kind, node, devices in ((cpu, 0, ()), (share, 1, (0,)), (whole, 2, (1,))):
        engine.take(kind, node, devices)
        naive.nodes[node] = naive.nodes[node].after(kind, devices)
        assert engine._values.value[node] == pytest.approx(naive.value(naive.nodes[node]))
    engine.release(share, 1, (0,))
    assert engine._values.value[1] == 7.0, "as it was before"
    engine.take(whole, 2, (0,))
    engine.release(whole, 2, (0,))
    engine.release(whole, 2, (1,))
    assert engine._values.value[2] == 7.0

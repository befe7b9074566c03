"""Do lessons say what the history says? Against the same rules over plain lists."""

from __future__ import annotations

from collections import Counter
from random import Random
from statistics import median

import numpy as np
import pytest

from harch.placement.policy.lessons import (
    BLOCK_CLASSES_MAX,
    ITEM_FIELDS,
    MODEL_SETS_MAX,
    SEQUENCE_LENGTH,
    SEQUENCES,
    LearningSchedule,
    RequestHistory,
    common_kinds,
    learn,
)
from harch.placement.policy.shapes import (
    AMOUNT_MAX,
    GIVE_BACK,
    TAKE,
    NodeShape,
    ShapeRequest,
    canonical,
    empty_nodes,
    request_rows,
)

MODELS = 3
FLEET = (
    [NodeShape(24_000, 32_768, 2, 0)] * 3 + [NodeShape(16_000, 32_768, 4, 1)] * 2 + [NodeShape(90_000, 65_536, 8, 2)]
)
Item = tuple[int, ...]


def split_mix(seed: int):
    """SplitMix64 as it was published."""
    state, low = seed, 2**64 - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & low
        mixed = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & low
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & low
        yield mixed ^ (mixed >> 31)


def shuffled(size: int, random) -> list[int]:
    """Fisher and Yates, from the end."""
    order = list(range(size))
    for last in range(size - 1, 0, -1):
        other = next(random) % (last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def naive_sequences(history: list[ShapeRequest]) -> list[list[list[Item]]]:
    """[model][sequence] -> items, without those that a node of the model may not get."""
    ordered = sorted(history, key=lambda one: (one.gpus, one.gpu_milli, one.models, one.cpu_milli, one.memory_mib))
    ordered = [
        one._replace(cpu_milli=one.cpu_milli // one.gpus, memory_mib=one.memory_mib // one.gpus, gpus=1)
        if one.gpus > 1 and one.gpu_milli < 1000
        else one
        for one in ordered
    ]
    random = split_mix(1)
    offsets = shuffled(SEQUENCES, random)
    found: list[list[list[Item]]] = [[] for _ in range(MODELS)]
    for sequence in range(SEQUENCES):
        drawn = []
        for step in range(SEQUENCE_LENGTH):
            place = (step + (offsets[sequence] + 0.5) / SEQUENCES) / SEQUENCE_LENGTH * len(ordered)
            drawn.append(ordered[int(place)])
        drawn = [drawn[place] for place in shuffled(SEQUENCE_LENGTH, random)]
        for model in range(MODELS):
            usable = [one for one in drawn if one.models >> model & 1]
            items = []
            for place, one in enumerate(usable):
                ahead = [later for later in usable[place:] if later.gpus]
                items.append(
                    (
                        one.cpu_milli,
                        one.memory_mib,
                        one.gpus,
                        one.gpu_milli,
                        one.gpu_milli_total,
                        min((later.gpu_milli for later in ahead), default=AMOUNT_MAX),
                        min((later.cpu_milli for later in ahead), default=AMOUNT_MAX),
                    )
                )
            items += [(0, 0, 0, 0, 0, AMOUNT_MAX, AMOUNT_MAX)] * (SEQUENCE_LENGTH - len(items))
            found[model].append(items)
    return found


def test_the_generator_of_the_shuffles_is_the_published_one() -> None:
    assert next(split_mix(0)) == 0xE220A8397B1DCDAF


def some_history(random: Random, size: int) -> list[ShapeRequest]:
    found = []
    for _ in range(size):
        gpus, milli = random.choice(((0, 0), (1, 110), (1, 500), (1, 1000), (2, 250), (3, 300), (2, 1000), (4, 1000)))
        found.append(
            ShapeRequest(
                random.choice((0, 500, 3001, 9000)),
                random.choice((0, 1025, 8192)),
                gpus,
                milli,
                random.choice((-1, -1, 0b001, 0b110)),
            )
        )
    return [canonical(one, MODELS) for one in found]


@pytest.mark.parametrize(("seed", "size"), [(1, 7), (2, 40), (3, 150)])
def test_sequences_walk_the_sorted_history_from_offsets_of_their_own(seed: int, size: int) -> None:
    history = some_history(Random(seed), size)
    items = learn(request_rows(history), empty_nodes(FLEET), MODELS).items
    assert items.dtype == np.int32
    found = items.reshape(MODELS, SEQUENCE_LENGTH, ITEM_FIELDS, SEQUENCES).transpose(0, 3, 1, 2)
    assert found.tolist() == [
        [[list(item) for item in items] for items in sequences] for sequences in naive_sequences(history)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_kinds_are_the_commonest_first_up_to_the_coverage_and_then_by_device_share(seed: int) -> None:
    history = some_history(Random(seed), 60)
    counts = Counter((one.cpu_milli, one.gpus, one.gpu_milli, one.models) for one in history)
    commonest = sorted(counts, key=lambda kind: (-counts[kind], kind))
    for coverage in (0.3, 0.8, 0.95, 1.0):
        kept, covered = [], 0
        for kind in commonest:
            if covered >= coverage * len(history):
                break
            kept.append(kind)
            covered += counts[kind]
        kinds, found = common_kinds(request_rows(history), coverage)
        expected = sorted(kept, key=lambda kind: kind[2])
        assert [tuple(kind) for kind in kinds.tolist()] == expected
        assert found.tolist() == [counts[kind] for kind in expected]


def test_no_history_has_no_kinds() -> None:
    kinds, counts = common_kinds(np.zeros((0, 5), np.int64), 1.0)
    assert (kinds.shape, counts.shape) == ((0, 4), (0,))


@pytest.mark.parametrize("seed", range(8))
def test_model_sets_have_their_share_of_all_demand_for_gpus(seed: int) -> None:
    history = some_history(Random(seed), 30)
    lessons = learn(request_rows(history), empty_nodes(FLEET), MODELS)
    demand: Counter[int] = Counter()
    for one in history:
        demand[one.models] += one.gpu_milli_total
    named = sorted(models for models in demand if models != 0b111 and demand[models])
    assert lessons.set_models.tolist() == named
    assert lessons.set_shares.tolist() == pytest.approx([demand[models] / demand.total() for models in named])


def test_without_demand_for_a_named_model_no_model_is_scarce() -> None:
    for history in ([ShapeRequest(1, 1, 1, 500, 0b111)], [ShapeRequest(1, 1, 0, 0, 0b111)]):
        assert learn(request_rows(history), empty_nodes(FLEET), MODELS).set_models.tolist() == []


def test_the_smallest_share_of_a_named_model_counts() -> None:
    lessons = learn(request_rows([ShapeRequest(1, 1, 1, 1, 0b001)]), empty_nodes(FLEET), MODELS)
    assert (lessons.set_models.tolist(), lessons.set_shares.tolist()) == ([0b001], [1.0])


def test_only_the_model_sets_of_most_demand_are_kept() -> None:
    models = 8
    history = [ShapeRequest(1, 1, 1, 100 + mask, mask) for mask in range(1, MODEL_SETS_MAX + 7)]
    lessons = learn(request_rows(history), empty_nodes(FLEET), models)
    assert lessons.set_models.tolist() == list(range(7, MODEL_SETS_MAX + 7))
    total = sum(one.gpu_milli for one in history)
    assert lessons.set_shares[0] == pytest.approx(107 / total)


@pytest.mark.parametrize("seed", range(8))
def test_the_fragment_weighs_by_the_fourth_power_of_the_pressure_on_cpu(seed: int) -> None:
    history = some_history(Random(seed), 20)
    nodes = empty_nodes(FLEET)
    demand_cpu = sum(one.cpu_milli for one in history)
    demand_gpu = sum(one.gpu_milli_total for one in history)
    pressure = min(1.0, demand_cpu / demand_gpu * (22 * 1000) / (3 * 24_000 + 2 * 16_000 + 90_000))
    assert learn(request_rows(history), nodes, MODELS).fragment_weight == pytest.approx(0.1 * pressure**4)


def test_the_fragment_weighs_nothing_without_demand_or_without_cpu() -> None:
    cpu_only = request_rows([ShapeRequest(100, 1, 0, 0, 0b111)])
    assert learn(cpu_only, empty_nodes(FLEET), MODELS).fragment_weight == 0.0
    share = request_rows([ShapeRequest(100, 1, 1, 500, 0b111)])
    assert learn(share, empty_nodes([NodeShape(0, 1, 2, 0)]), MODELS).fragment_weight == 0.0


# Shapes of several GPUs


def naive_blocks(history: list[ShapeRequest], fleet: list[NodeShape]) -> list[tuple[float, ...]]:
    """(gpus, cpu, memory, models, rate), those under most pressure first."""
    demand = sum(one.gpu_milli_total for one in history)
    groups: dict[tuple[int, object], list[ShapeRequest]] = {}
    room: dict[ShapeRequest, int] = {}
    for one in history:
        if one.gpus < 2:
            continue
        holders = frozenset(
            shape
            for shape in fleet
            if shape.cpu_milli >= one.cpu_milli
            and shape.memory_mib >= one.memory_mib
            and shape.gpus >= one.gpus
            and one.models >> shape.model & 1
        )
        room[one] = sum(shape.gpus // one.gpus for shape in fleet if shape in holders)
        everything = sum(shape.gpus // one.gpus for shape in fleet)
        groups.setdefault((one.gpus, holders if room[one] < 0.5 * everything else None), []).append(one)
    found = []
    for (gpus, _), members in groups.items():
        cpu = max(1, int(median(one.cpu_milli for one in members)))
        memory = max(1, int(median(one.memory_mib for one in members)))
        models = 0
        for one in members:
            models |= one.models
        pressure = gpus * len(members) / max(1, max(room[one] for one in members))
        found.append((-pressure, gpus, cpu, memory, models, len(members) / demand))
    return [row[1:] for row in sorted(found)[:BLOCK_CLASSES_MAX]]


def blocks_of(history: list[ShapeRequest], fleet: list[NodeShape]) -> list[tuple[float, ...]]:
    lessons = learn(request_rows(history), empty_nodes(fleet), MODELS)
    return list(
        zip(
            lessons.block_gpus.tolist(),
            lessons.block_cpu_milli.tolist(),
            lessons.block_memory_mib.tolist(),
            lessons.block_models.tolist(),
            lessons.block_rates.tolist(),
            strict=True,
        )
    )


@pytest.mark.parametrize("seed", range(25))
def test_scarce_shapes_are_classes_by_the_nodes_that_hold_them(seed: int) -> None:
    random = Random(seed)
    shapes = [
        NodeShape(random.choice((9000, 24_000)), random.choice((8192, 65_536)), random.choice((2, 4, 8)), model)
        for model in (0, 1, 2)
    ]
    fleet = random.choices(shapes, k=6)
    history = []
    for _ in range(random.choice((3, 12, 40))):
        gpus = random.choice((1, 2, 2, 3, 4, 8))
        history.append(
            ShapeRequest(
                random.choice((0, 8000, 9000, 24_000)),
                random.choice((0, 8192, 9000)),
                gpus,
                random.choice((300, 1000)),
                random.choice((0b001, 0b011, 0b111)),
            )
        )
    assert blocks_of(history, fleet) == [pytest.approx(row) for row in naive_blocks(history, fleet)]


def test_half_of_the_room_is_not_scarce_and_less_than_half_is() -> None:
    easy, hard = ShapeRequest(1000, 1, 2, 1000, 0b111), ShapeRequest(9000, 1, 2, 1000, 0b111)
    small, large = NodeShape(4000, 10, 2, 0), NodeShape(9000, 10, 2, 0)
    assert blocks_of([easy, hard], [small, large]) == [(2, 5000, 1, 0b111, 2 / 4000)]
    assert [row[:2] for row in blocks_of([easy, hard], [small, small, large])] == [(2, 9000), (2, 1000)]


def test_only_the_eight_classes_under_most_pressure_are_priced() -> None:
    history = [ShapeRequest(1000, 1, gpus, 1000, 0b111) for gpus in range(2, 13) for _ in range(gpus)]
    fleet = [NodeShape(9000, 10, 12, 0)]
    assert [row[0] for row in blocks_of(history, fleet)] == [12, 11, 10, 9, 8, 7, 6, 5]


# What is remembered, and when it is time to learn


@pytest.mark.parametrize("limit", [1, 3, 4])
def test_the_ring_holds_the_last_requests_whatever_came_before(limit: int) -> None:
    history = RequestHistory(limit=limit)
    for arrivals in range(10):
        expected = [[number, 0, 0, 0, 0b111] for number in range(arrivals)][-limit:]
        assert history.rows().tolist() == expected
        history.rows().fill(-1)  # a copy
        history.add(ShapeRequest(arrivals, 0, 0, 0, 0b111))


def test_a_history_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one request"):
        RequestHistory(limit=0)


def test_turnover_is_one_where_more_leaves_than_comes_and_zero_where_nothing_came() -> None:
    history = RequestHistory()
    history.moved(GIVE_BACK)
    assert (history.taken, history.departed, history.turnover) == (0.0, 1.0, 0.0)
    history.moved(TAKE)
    assert history.turnover == 1.0
    for _ in range(3):
        history.moved(TAKE)
    assert history.turnover == 0.25
    history.learned(7)
    assert (history.learned_at, history.taken, history.departed) == (7, 2.0, 0.5)


@pytest.mark.parametrize(
    ("arrivals", "learned_at", "due"),
    [
        (9, 0, False),
        (10, 0, True),
        (10, 9, True),
        (10, 10, False),
        (39, 10, True),
        (40, 20, False),
        (119, 20, False),
        (120, 20, True),
        (120, 21, False),
        (121, 21, True),
        (20, 0, True),
        (19, 10, False),
    ],
)
def test_learning_is_due_once_a_point_has_passed(arrivals: int, learned_at: int, due: bool) -> None:
    assert LearningSchedule(first_arrivals=(10, 20), every_arrivals=100).due(arrivals, learned_at) is due


def test_without_early_points_learning_is_steady_from_the_start() -> None:
    schedule = LearningSchedule(first_arrivals=(), every_arrivals=5)
    assert [arrivals for arrivals in range(12) if schedule.due(arrivals, arrivals // 5 * 5 - 5)] == [
        5,
        6,
        7,
        8,
        9,
        10,
        11,
    ]
    assert not schedule.due(4, 0)
    history = RequestHistory(schedule=schedule)
    for number in range(5):
        assert not history.learning_due
        history.add(ShapeRequest(number, 0))
    assert history.learning_due
    history.learned(5)
    assert not history.learning_due


# Requests and nodes as values


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (ShapeRequest(AMOUNT_MAX, AMOUNT_MAX), ShapeRequest(AMOUNT_MAX, AMOUNT_MAX, 0, 0, 0b111)),
        (ShapeRequest(0, 0, 0, 700, 0b001), ShapeRequest(0, 0, 0, 0, 0b111)),
        (ShapeRequest(0, 0, 72, 1000), ShapeRequest(0, 0, 72, 1000, 0b111)),
        (ShapeRequest(5, 6, 1, 1, 0b1010), ShapeRequest(5, 6, 1, 1, 0b010)),
    ],
)
def test_equal_kinds_have_one_form(request_: ShapeRequest, expected: ShapeRequest) -> None:
    assert canonical(request_, MODELS) == expected


@pytest.mark.parametrize(
    "request_", [ShapeRequest(AMOUNT_MAX + 1, 0), ShapeRequest(0, -1), ShapeRequest(0, 0, -1, 500)]
)
def test_amounts_beyond_the_limits_are_refused(request_: ShapeRequest) -> None:
    with pytest.raises(ValueError, match="must be in"):
        canonical(request_, MODELS)


@pytest.mark.parametrize(
    "shape",
    [
        NodeShape(AMOUNT_MAX + 1, 1, 1, 0),
        NodeShape(1, AMOUNT_MAX + 1, 1, 0),
        NodeShape(1, -1, 1, 0),
        NodeShape(1, 1, -1, 0),
        NodeShape(1, 1, 1, -1),
    ],
)
def test_one_node_beyond_the_limits_refuses_the_fleet(shape: NodeShape) -> None:
    with pytest.raises(ValueError, match="amounts of a node must be in"):
        empty_nodes([NodeShape(1, 1, 1, 0), shape])


def test_idle_nodes_have_all_their_devices_and_no_others() -> None:
    nodes = empty_nodes([NodeShape(AMOUNT_MAX, 0, 2, 61), NodeShape(0, AMOUNT_MAX, 0, 0), NodeShape(7, 8, 3, 1)])
    assert nodes.gpu_milli_free.tolist() == [[1000, 1000, 0], [0, 0, 0], [1000, 1000, 1000]]
    assert nodes.gpu_milli_free_sum.tolist() == [2000, 0, 3000]
    assert nodes.available.tolist() == [True] * 3
    assert (nodes.size, nodes.gpu_milli_total) == (3, 5000)
    nodes.cpu_milli_free[0] -= 1
    assert nodes.cpu_milli[0] == AMOUNT_MAX
    assert empty_nodes([NodeShape(1, 1, 0, 0)]).gpu_milli_free.shape == (1, 1)
    assert empty_nodes([NodeShape(1, 1, 72, 0)]).gpu_milli_free.shape == (1, 72)

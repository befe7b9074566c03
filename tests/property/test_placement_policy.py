"""Do the laws of placement hold for any fleet and any requests? Against a slow reference written from the design."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.placement.policy.baselines import BaselinePolicy, BaselineRule
from harch.placement.policy.engine import PlacementEngine
from harch.placement.policy.lessons import ITEM_FIELDS, SEQUENCES, Lessons
from harch.placement.policy.shapes import NodeArrays, NodeShape, ShapeRequest, canonical, copied

MODELS = 3
shapes = st.lists(
    st.builds(
        NodeShape,
        cpu_milli=st.sampled_from((16_000, 32_000, 96_000)),
        memory_mib=st.sampled_from((32_768, 131_072)),
        gpus=st.sampled_from((0, 1, 2, 4, 8)),
        model=st.integers(0, MODELS - 1),
    ),
    min_size=1,
    max_size=8,
)
requests = st.one_of(
    st.tuples(st.sampled_from((0, 2000, 9000)), st.sampled_from((0, 4096))),
    st.tuples(
        st.sampled_from((500, 2000, 9000)),
        st.sampled_from((1024, 8192)),
        st.just(1),
        st.sampled_from((110, 320, 470, 810, 1000)),
        st.sampled_from((-1, -1, 0b001, 0b110)),
    ),
    st.tuples(
        st.sampled_from((4000, 20_000)),
        st.sampled_from((8192, 30_000)),
        st.sampled_from((2, 4, 8)),
        st.sampled_from((250, 1000, 1000)),
        st.sampled_from((-1, 0b011)),
    ),
).map(lambda fields: ShapeRequest(*fields))
streams = st.lists(requests, min_size=1, max_size=40)
turnovers = st.sampled_from((0.0, 0.6, 1.0))
few = settings(max_examples=80, deadline=None)


def taught(fleet: list[NodeShape], history: list[ShapeRequest], turnover: float = 0.0) -> PlacementEngine:
    engine = PlacementEngine(fleet, models=MODELS)
    engine.history.taken, engine.history.departed = 1.0, turnover
    engine.learn_from(np.array(history, dtype=np.int64))
    return engine


def has_room(nodes: NodeArrays, node: int, request: ShapeRequest) -> bool:
    devices = nodes.gpu_milli_free[node, : nodes.gpus[node]]
    return bool(
        nodes.cpu_milli_free[node] >= request.cpu_milli
        and nodes.memory_mib_free[node] >= request.memory_mib
        and (request.gpus == 0 or (request.models >> int(nodes.model[node])) & 1)
        and (devices >= max(1, request.gpu_milli)).sum() >= request.gpus
    )


def check_balance(nodes: NodeArrays, held: list[tuple[ShapeRequest, int, tuple[int, ...]]]) -> None:
    free = nodes.gpu_milli_free
    assert nodes.cpu_milli_free.min() >= 0
    assert nodes.memory_mib_free.min() >= 0
    assert free.min() >= 0
    assert free.max(initial=0) <= 1000
    cpu, memory = nodes.cpu_milli.copy(), nodes.memory_mib.copy()
    gpu = np.where(np.arange(free.shape[1]) < nodes.gpus[:, None], 1000, 0)
    for request, node, devices in held:
        cpu[node] -= request.cpu_milli
        memory[node] -= request.memory_mib
        for device in devices:
            gpu[node, device] -= request.gpu_milli
    assert np.array_equal(cpu, nodes.cpu_milli_free)
    assert np.array_equal(memory, nodes.memory_mib_free)
    assert np.array_equal(gpu, free)
    assert np.array_equal(free.sum(axis=1), nodes.gpu_milli_free_sum)


@few
@given(shapes, streams, st.randoms(use_true_random=False))
def test_sums_balance_and_only_what_fits_nowhere_is_refused(fleet, stream, random) -> None:
    engine = taught(fleet, stream)
    held: list[tuple[ShapeRequest, int, tuple[int, ...]]] = []
    for request in stream:
        request = canonical(request, MODELS)
        allowed = np.array([random.random() < 0.8 for _ in fleet])
        room = [node for node in range(len(fleet)) if allowed[node] and has_room(engine.nodes, node, request)]
        decision = engine.place(request, allowed)
        if decision is None:
            assert room == []
        else:
            assert decision.node in room
            assert len(set(decision.devices)) == request.gpus
            held.append((request, decision.node, decision.devices))
        if held and random.random() < 0.3:
            engine.release(*held.pop(random.randrange(len(held))))
        check_balance(engine.nodes, held)


@few
@given(shapes, streams, requests)
def test_take_and_release_return_to_the_same_state_and_scores(fleet, stream, extra) -> None:
    engine = taught(fleet, stream)
    for request in stream[: len(stream) // 2]:
        engine.place(request)
    before, candidates = copied(engine.nodes), engine.top_candidates(extra, len(fleet))
    if candidates:
        engine.take(extra, candidates[0].node, candidates[0].devices)
        engine.release(extra, candidates[0].node, candidates[0].devices)
    for old, new in zip(before, engine.nodes, strict=True):
        assert np.array_equal(old, new)
    assert engine.top_candidates(extra, len(fleet)) == candidates


@few
@given(shapes, streams, turnovers)
def test_the_cached_scan_decides_like_a_scan_of_everything(fleet, stream, turnover) -> None:
    """Same decisions with every score computed anew: no cache, no bound, no memory of equal states."""
    cached, fresh = taught(fleet, stream, turnover), taught(fleet, stream, turnover)
    held: list[tuple[ShapeRequest, int, tuple[int, ...]]] = []
    for index, request in enumerate(stream + stream):
        for engine in (cached, fresh):
            engine.observe(request)
        fresh._cache.version.fill(-1)
        fresh._memo.states.fill(-1)
        everything = fresh.top_candidates(request, 1)
        decision = cached.choose(request)
        assert decision == (everything[0] if everything else None)
        if decision is None:
            continue
        cached.take(request, decision.node, decision.devices)
        fresh.take(request, decision.node, decision.devices)
        held.append((request, decision.node, decision.devices))
        if index % 3 == 2:
            leaving = held.pop(0)
            for engine in (cached, fresh):
                engine.release(*leaving)


@few
@given(shapes, streams, turnovers)
def test_placing_is_choosing_and_then_taking(fleet, stream, turnover) -> None:
    at_once, in_steps = taught(fleet, stream, turnover), taught(fleet, stream, turnover)
    for request in stream:
        in_steps.observe(request)
        decision = in_steps.choose(request)
        if decision is not None:
            in_steps.take(request, decision.node, decision.devices)
        assert at_once.place(request) == decision
        for one, other in zip(at_once.nodes, in_steps.nodes, strict=True):
            assert np.array_equal(one, other)


@few
@given(shapes, streams)
def test_the_same_input_gives_the_same_plan(fleet, stream) -> None:
    first, second = taught(fleet, stream), taught(fleet, stream)
    assert [first.place(request) for request in stream] == [second.place(request) for request in stream]


@settings(max_examples=25, deadline=None)
@given(shapes, st.lists(requests, min_size=1, max_size=12), turnovers)
def test_values_are_those_of_the_design(fleet, stream, turnover) -> None:
    engine = taught(fleet, stream, turnover)
    for request in stream:
        engine.place(request)
    for node in range(len(fleet)):
        expected = reference_value(engine.nodes, node, engine._lessons)
        assert abs(engine._values.value[node] - expected) < 1e-6


def reference_value(nodes: NodeArrays, node: int, lessons: Lessons) -> float:
    devices = [int(free) for free in nodes.gpu_milli_free[node, : nodes.gpus[node]]]
    model, cpu_milli = int(nodes.model[node]), int(nodes.cpu_milli_free[node])
    left = []
    sequences = lessons.items[model].reshape(-1, ITEM_FIELDS, SEQUENCES)
    for sequence in range(SEQUENCES):
        cpu, memory, free = cpu_milli, int(nodes.memory_mib_free[node]), list(devices)
        for item_cpu, item_memory, gpus, milli, *_ in sequences[:, :, sequence].tolist():
            fitting = sorted((amount, place) for place, amount in enumerate(free) if amount >= milli)
            if item_cpu > cpu or item_memory > memory or (gpus and len(fitting) < gpus):
                continue
            for _, place in fitting[:gpus]:
                free[place] -= milli
            cpu, memory = cpu - item_cpu, memory - item_memory
        left.append(sum(free))
    total, stuck = sum(devices), 0.0
    for (kind_cpu, gpus, milli, models), count in zip(lessons.kinds, lessons.kind_counts, strict=True):
        usable = gpus and kind_cpu <= cpu_milli and (models >> model) & 1
        enough = sum(free >= milli for free in devices) >= gpus
        stuck += count * (sum(free for free in devices if free < milli) if usable and enough else total)
    stranded = sum(free * (1000 - free) / 1000 for free in devices)
    fragment = lessons.fragment_weight * stuck / lessons.kind_counts.sum()
    return sum(left) / len(left) + fragment + lessons.turnover * stranded


@few
@given(shapes, streams, st.sampled_from(list(BaselineRule)))
def test_the_baselines_obey_the_same_laws(fleet, stream, rule) -> None:
    policy = BaselinePolicy(fleet, models=MODELS, rule=rule, history=np.array(stream, dtype=np.int64), seed=1)
    held: list[tuple[ShapeRequest, int, tuple[int, ...]]] = []
    for request in stream:
        request = canonical(request, MODELS)
        room = [node for node in range(len(fleet)) if has_room(policy.nodes, node, request)]
        placed = policy.place(request)
        assert (placed is None) == (room == [])
        if placed is not None:
            held.append((request, placed.node, placed.devices))
        check_balance(policy.nodes, held)

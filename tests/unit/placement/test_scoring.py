"""Points by hand: best fit, and what slow links, weak cooling and sick neighbours take off a score."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from harch.placement.policy.shapes import ShapeRequest as Kind
from harch.placement.room import Room, TaskSlot
from harch.placement.scoring import LAYERS_MAX, BestFit, Burden, Choice, Degradation, candidates, choose
from harch.placement.topology import TopologyGraph
from harch.workloads.spec import Resources
from unit.placement.mixed_hub import mixed_room, request_of

EVERYWHERE = np.ones(6, np.bool_)


def worn() -> tuple[Room, TopologyGraph, Degradation]:
    room = mixed_room()
    topology = TopologyGraph(room)
    return room, topology, Degradation(topology)


def score(gpu_milli_left: float, cpu_milli_left: float) -> float:
    return -(gpu_milli_left + cpu_milli_left / 1e7)


def test_best_fit_scores_what_stays_free_and_cpu_breaks_ties() -> None:
    room = mixed_room()
    room.take(Resources(gpus=2, cpus=4), TaskSlot(0, (0, 1)))
    scores = BestFit(room).node_scores(Kind(2000, 1024, 1, 500), EVERYWHERE)
    assert scores.tolist() == [
        score(5500, 58_000),
        score(7500, 62_000),
        score(3500, 14_000),
        score(3500, 62_000),
        score(1500, 62_000),
        score(7500, 62_000),
    ]
    choice = BestFit(room).choose(Kind(2000, 1024, 1, 500), EVERYWHERE)
    assert choice == Choice(4, 0, score(1500, 62_000), {"best_fit": score(1500, 62_000)})


@pytest.mark.parametrize(
    ("kind", "fits"),
    [
        (Kind(64_000, 0), [0, 1, 3, 4, 5]),
        (Kind(16_000, 65_536), [0, 1, 2, 3, 4, 5]),
        (Kind(16_001, 65_537), [0, 1, 3, 5]),
        (Kind(0, 0, 4, 1000), [0, 1, 2, 3, 5]),
        (Kind(0, 0, 8, 1000), [1, 5]),
        (Kind(0, 0, 7, 1000, 0b110), []),
        (Kind(0, 0, 1, 1000, 0b010), [4]),
        (Kind(0, 0, 8, 700), [0, 1, 5]),
        (Kind(0, 0, 8, 701), [1, 5]),
    ],
)
def test_best_fit_knows_where_there_is_room(kind: Kind, fits: list[int]) -> None:
    room = mixed_room()
    room.take(Resources(gpus=1, gpu_fraction=0.3, cpus=0.0001, memory_gb=0.0001), TaskSlot(0, (5,)))
    scores = BestFit(room).node_scores(kind, EVERYWHERE)
    assert np.flatnonzero(scores > -inf).tolist() == fits
    if not fits:
        assert BestFit(room).choose(kind, EVERYWHERE) is None
        assert BestFit(room).candidates(kind, EVERYWHERE, 9) == []
        return
    room.cordon(room.hub.nodes[fits[0]].id, True)
    assert np.flatnonzero(BestFit(room).node_scores(kind, EVERYWHERE) > -inf).tolist() == fits[1:]
    none = np.zeros(6, np.bool_)
    assert BestFit(room).choose(kind, none) is None


def test_best_fit_lists_the_fullest_first_and_shares_meet_on_the_fullest_device() -> None:
    room = mixed_room()
    room.take(Resources(gpus=1, gpu_fraction=0.3), TaskSlot(2, (1,)))
    room.take(Resources(gpus=1, gpu_fraction=0.5), TaskSlot(2, (3,)))
    fit = BestFit(room)
    assert [choice.row for choice in fit.candidates(Kind(0, 0, 2, 1000), EVERYWHERE, 3)] == [4, 2, 3]
    assert [choice.device for choice in fit.candidates(Kind(0, 0, 2, 1000), EVERYWHERE, 3)] == [None] * 3
    assert len(fit.candidates(Kind(0, 0, 2, 1000), EVERYWHERE, 9)) == 6
    only = np.arange(6) == 2
    devices = {milli: fit.choose(Kind(0, 0, 1, milli), only) for milli in (500, 501, 700, 701, 999, 1000)}
    found = {milli: None if choice is None else choice.device for milli, choice in devices.items()}
    assert found == {500: 3, 501: 1, 700: 1, 701: 0, 999: 0, 1000: None}
    several = fit.choose(Kind(0, 0, 2, 500), only)
    assert several is not None
    assert several.device is None


# What worn hardware costs


def test_whole_hardware_costs_nothing_and_neither_does_work_without_gpus() -> None:
    _, topology, degradation = worn()
    assert degradation.of(request_of(Resources(gpus=8))) is None
    topology.set_nvlink("n5", 0.5)
    assert degradation.of(request_of(Resources(gpus=8))) is None, "not before it is refreshed"
    degradation.refresh()
    assert degradation.of(request_of(Resources(gpus=8))) is not None
    assert degradation.of(request_of(Resources(gpus=1))) is None, "one GPU talks to no other"
    assert degradation.of(request_of(Resources(cpus=1)), 4) is None


def test_slow_links_cost_three_times_what_is_held_longer() -> None:
    _, topology, degradation = worn()
    topology.set_nvlink("n5", 0.25)
    topology.set_nvlink("n2", 0.5)
    degradation.refresh()
    two = degradation.of(request_of(Resources(gpus=2)))
    assert two is not None
    assert two.slowdown.tolist() == pytest.approx([1, 1, 2, 1, 1, 4])
    assert two.uplink_slowdown.tolist() == [1] * 6
    assert two.links.tolist() == pytest.approx([0, 0, 3 * 2000 * 1, 0, 0, 3 * 2000 * 3])
    assert (two.cooling.any(), two.health.any()) == (False, False)
    assert two.points.tolist() == two.links.tolist()
    assert two.is_free.tolist() == [True, True, False, True, True, False]
    assert two.crippled.tolist() == [False, False, True, False, False, True]
    eight = degradation.of(request_of(Resources(gpus=1)), 8)
    assert eight is not None
    assert eight.slowdown.tolist() == pytest.approx([1, 1, 1, 1, 1, 4]), "all four of n2 talk over PCIe anyway"
    assert eight.links.tolist() == pytest.approx([0, 0, 0, 0, 0, 3 * 1000 * 3])
    assert degradation.of(request_of(Resources(gpus=1)), 2).links[2] == pytest.approx(3000)  # type: ignore[union-attr]


def test_uplinks_cost_gangs_and_a_slowdown_has_a_limit() -> None:
    _, topology, degradation = worn()
    topology.set_uplink("r1", 0.5)
    topology.set_uplink("r2", 0.001)
    topology.set_nvlink("n5", 0.5)
    degradation.refresh()
    gang = degradation.of(request_of(Resources(gpus=2)), 2)
    assert gang is not None
    assert gang.uplink_slowdown.tolist() == [1, 1, 2, 2, 20, 20]
    assert gang.links.tolist() == pytest.approx([0, 0, 6000, 6000, 3 * 2000 * 19, 3 * 2000 * 19])
    one = degradation.of(request_of(Resources(gpus=2)))
    assert one is not None
    assert one.links.tolist() == pytest.approx([0, 0, 0, 0, 0, 6000])
    assert gang.crippled.tolist() == [False] * 5 + [True], "an uplink cripples no node"


def test_weak_cooling_and_sick_neighbours_cost_their_share() -> None:
    room, _, degradation = worn()
    room.set_cooling(1, 15.0)
    room.set_health("n0", 3, False)
    room.set_health("n0", 4, False)
    room.set_health("n4", 1, False)
    degradation.refresh()
    burden = degradation.of(request_of(Resources(gpus=1, gpu_fraction=0.4)))
    assert burden is not None
    assert burden.cooling.tolist() == pytest.approx([0, 0, 100, 100, 0, 0])
    assert burden.health.tolist() == pytest.approx([100, 0, 0, 0, 200, 0])
    assert burden.points.tolist() == pytest.approx([100, 0, 100, 100, 200, 0])
    assert burden.parts(0) == {"health": pytest.approx(-100)}
    assert burden.parts(2) == {"cooling": pytest.approx(-100)}
    assert burden.parts(1) == {}
    room.set_cooling(1, 50.0)
    for device in (3, 4):
        room.set_health("n0", device, True)
    room.set_health("n4", 1, True)
    degradation.refresh()
    assert degradation.of(request_of(Resources(gpus=8))) is None, "more than was built is not worse"


def burden_of(slowdown: list[float], uplink: list[float], health: list[float] | None = None) -> Burden:
    size = len(slowdown)
    links = np.maximum(np.array(slowdown), np.array(uplink)) - 1
    sick = np.zeros(size) if health is None else np.array(health)
    return Burden(np.array(slowdown), np.array(uplink), links, np.zeros(size), sick)


def rows_of(layers: list[np.ndarray]) -> list[list[int]]:
    return [np.flatnonzero(layer).tolist() for layer in layers]


def test_layers_are_whole_nodes_then_octaves_of_slowdown_then_everything() -> None:
    burden = burden_of([1, 1, 1.5, 2, 2.5, 1], [1, 1, 1, 1, 1, 3], [0, 7, 0, 0, 0, 0])
    assert rows_of(burden.layers()) == [
        [0],
        [0, 1],
        [0, 1, 5],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 5],
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5],
    ]
    worst = burden_of([2.0, 2.0], [1, 1])
    assert rows_of(worst.layers()) == [[0, 1], [0, 1]]


def test_there_are_never_more_layers_than_the_limit_and_the_last_is_everything() -> None:
    slowdown = [2.0**power for power in range(8)]
    layers = burden_of(slowdown, slowdown[::-1]).layers()
    assert len(layers) == LAYERS_MAX
    assert layers[-1].all()
    assert not layers[-2].all()


def test_crippled_is_half_of_the_speed_or_less() -> None:
    assert burden_of([1.999, 2.0, 2.1], [1, 1, 5]).crippled.tolist() == [False, True, True]


def test_a_worn_node_is_chosen_where_it_is_better_all_the_same() -> None:
    room, topology, degradation = worn()
    fit, kind = BestFit(room), Kind(1000, 1024, 2, 1000, 0b101)
    assert choose(fit, kind, EVERYWHERE, None) == fit.choose(kind, EVERYWHERE)
    topology.set_nvlink("n2", 0.9)
    degradation.refresh()
    light = degradation.of(request_of(Resources(gpus=2)))
    chosen = choose(fit, kind, EVERYWHERE, light)
    assert chosen is not None
    assert chosen.row == 3, "as full, and not worn"
    room.cordon("n3", True)
    chosen = choose(fit, kind, EVERYWHERE, light)
    points = 3 * 2000 * (1 / 0.9 - 1)
    before = score(2000, 15_000)
    assert chosen is not None
    assert (chosen.row, chosen.score) == (2, pytest.approx(before - points))
    assert chosen.parts == {"best_fit": before, "links": pytest.approx(-points)}
    topology.set_nvlink("n2", 0.5)
    degradation.refresh()
    heavy = degradation.of(request_of(Resources(gpus=2)))
    chosen = choose(fit, kind, EVERYWHERE, heavy)
    assert chosen is not None
    assert (chosen.row, chosen.parts) == (0, {"best_fit": score(6000, 63_000)}), "6,000 points and 2,000 left: worse"
    assert choose(fit, kind, np.arange(6) == 3, heavy) is None
    assert choose(fit, kind, np.arange(6) == 2, heavy).score == pytest.approx(before - 6000)  # type: ignore[union-attr]
    assert [choice.row for choice in candidates(fit, kind, EVERYWHERE, heavy, 9)] == [0, 1, 5, 2]
    assert [choice.row for choice in candidates(fit, kind, EVERYWHERE, heavy, 2)] == [0, 1]
    assert candidates(fit, kind, EVERYWHERE, None, 2) == fit.candidates(kind, EVERYWHERE, 2)
    worst = candidates(fit, kind, EVERYWHERE, heavy, 9)[-1]
    assert (worst.score, worst.parts["links"]) == (pytest.approx(before - 6000), pytest.approx(-6000))


def test_equal_points_leave_the_node_that_is_whole() -> None:
    room, topology, degradation = worn()
    topology.set_nvlink("n2", 0.5)
    degradation.refresh()
    burden = degradation.of(request_of(Resources(gpus=2)))
    assert burden is not None
    kind = Kind(0, 0, 2, 1000)
    fit = BestFit(room)
    equal = burden.points.copy()
    equal[2] = fit.node_scores(kind, EVERYWHERE)[2] - fit.node_scores(kind, EVERYWHERE)[3]
    same = Burden(burden.slowdown, burden.uplink_slowdown, equal, np.zeros(6), np.zeros(6))
    chosen = choose(fit, kind, (np.arange(6) == 2) | (np.arange(6) == 3), same)
    assert chosen is not None
    assert chosen.row == 3

"""Federations that gossip through loss, cuts and crashes agree soon after, suspect the dead, and nobody else.

A round is one interval of 200 ms. All of it on simulated time: a seed that fails prints its story and fails again.
"""

from __future__ import annotations

import os
import random

import pytest

from harch.federation.gossip.membership import LivenessState
from harch.federation.gossip.state import GossipSettings
from harch.testing.network import SimLink
from sim.gossip_world import INTERVAL_S, GossipWorld

ROUGH = SimLink(delay_s=0.020, jitter_s=0.015, loss=0.05, duplication=0.05, reordering=0.1)
LOSSY = SimLink(delay_s=0.020, jitter_s=0.004, loss=0.02)
STORIES = 2000 if os.environ.get("HARCH_SOAK") else 30
KILL_SEEN_INTERVALS_MAX = 12
# Small limits, so that short stories meet cut-off deltas, collected tombstones and full copies.
TIGHT = GossipSettings(delta_bytes_max=600, tombstones_max=4)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_lost_doubled_or_reordered_all_agree_within_five_rounds_of_the_last_change(seed: int) -> None:
    world = GossipWorld(20, seed, ROUGH)
    with world.network.trace_on_failure():
        for _ in range(100):
            name = world.dice.choice(world.names)
            if world.said[name] and world.dice.random() < 0.3:
                world.delete(name, world.dice.choice(list(world.said[name])))
            else:
                world.set(name, f"key{world.dice.randrange(5)}", world.dice.randbytes(20))
            world.network.run_for(0.010)
        world.check()
        assert world.rounds_until_agreed(5) <= 5
        assert world.forgeries() == []


@pytest.mark.parametrize("lost", range(6))
def test_drop_any_push_and_all_keys_arrive_within_five_rounds(lost: int) -> None:
    for target in range(1, 5):
        world = GossipWorld(5, seed=10 * lost + target, link=SimLink(delay_s=0.020))
        with world.network.trace_on_failure():
            world.network.run_for(2 * INTERVAL_S)
            for number in range(6):
                pair = (world.names[0], world.names[target])
                world.lose_pushes = {pair} if number == lost else set()
                world.set(world.names[0], f"key{number}", b"value")
                world.network.run_for(0.005)
            assert world.rounds_until_agreed(5) <= 5


def test_a_push_after_a_lost_one_brings_both_without_waiting_for_a_round() -> None:
    world = GossipWorld(2, seed=1, link=SimLink(delay_s=0.005), settings=GossipSettings(interval_s=10.0))
    world.network.run_for(30.0)
    one, two = world.names
    world.lose_pushes = {(one, two)}
    world.set(one, "first", b"1")
    world.lose_pushes = set()
    world.set(one, "second", b"2")
    world.network.run_for(0.005)
    assert world.seen(two, one) == {}, "the second alone would hide that the first is missing"
    world.network.run_for(0.010)
    assert world.seen(two, one) == {"first": b"1", "second": b"2"}


@pytest.mark.parametrize("seed", range(4))
def test_a_cut_federation_goes_on_at_both_sides_and_agrees_within_five_rounds_of_the_heal(seed: int) -> None:
    world = GossipWorld(5, seed, LOSSY)
    with world.network.trace_on_failure():
        world.network.run_for(3.0)
        left, right = world.names[:2], world.names[2:]
        world.network.partition(left, right)
        cut_at_s = world.now_s
        for name in world.names:
            world.set(name, "capacity", b"during the cut")
        world.network.run_for(4.0)
        across = {(a, b) for a in left for b in right} | {(b, a) for a in left for b in right}
        assert {(by, hub) for _, by, hub in world.suspicions()} == across, "each side suspects the other and no more"
        assert max(at for at, _, _ in world.suspicions()) - cut_at_s <= KILL_SEEN_INTERVALS_MAX * INTERVAL_S
        assert all(world.seen(a, b) == {} for a, b in across)
        assert world.seen(left[0], left[1]) == {"capacity": b"during the cut"}
        world.network.heal()
        assert world.rounds_until_agreed(5) <= 5
        world.network.run_for(1.0)
        assert {(by, hub) for _, by, hub in world.recoveries()} == across
        assert len(world.suspicions()) == len(across)


@pytest.mark.parametrize("one_way", [True, False])
def test_hubs_without_a_link_hear_of_each_other_through_others(one_way: bool) -> None:
    world = GossipWorld(5, seed=3, link=LOSSY)
    with world.network.trace_on_failure():
        world.network.run_for(2.0)
        one, two = world.names[:2]
        world.network.cut(one, two, both=not one_way)
        world.network.run_for(2.0)
        world.set(one, "capacity", b"1")
        world.set(two, "capacity", b"2")
        assert world.rounds_until_agreed(5) <= 5
        world.network.run_for(10.0)
        assert world.suspicions() == []
        view = world.machines[two].view(one, world.now_s)
        assert view.via not in ("", one)
        assert view.direct_age_s is not None
        assert view.direct_age_s > 10.0, "a hub that is only heard of through others is shown as such"


def test_news_cross_a_chain_of_hubs_that_see_only_their_neighbours() -> None:
    world = GossipWorld(8, seed=4, link=LOSSY)
    with world.network.trace_on_failure():
        for number, name in enumerate(world.names):
            for other in world.names[number + 2 :]:
                world.network.cut(name, other)
        world.network.run_for(3.0)
        for name in world.names:
            world.set(name, "capacity", name.encode())
        assert world.rounds_until_agreed(20) <= 20


def test_a_hub_that_hears_nobody_but_is_heard_suspects_all_and_is_suspected_by_none() -> None:
    world = GossipWorld(5, seed=5, link=LOSSY)
    with world.network.trace_on_failure():
        world.network.run_for(2.0)
        deaf, others = world.names[0], world.names[1:]
        for other in others:
            world.network.cut(other, deaf, both=False)
        world.set(deaf, "health", b"deaf")
        world.network.run_for(5.0)
        assert {(by, hub) for _, by, hub in world.suspicions() if by == deaf} == {(deaf, other) for other in others}
        assert all(world.seen(other, deaf) == {"health": b"deaf"} for other in others), "pushes still go out"


@pytest.mark.parametrize(("size", "seeds"), [(5, 8), (20, 2)])
def test_a_kill_is_seen_by_all_within_twelve_intervals_and_nobody_else_is_suspected(size: int, seeds: int) -> None:
    for seed in range(seeds):
        world = GossipWorld(size, seed, LOSSY)
        with world.network.trace_on_failure():
            world.network.run_for(4.0)
            dead, killed_at_s = world.names[0], world.now_s
            world.kill(dead)
            world.network.run_for(5.0)
            assert {hub for _, _, hub in world.suspicions()} == {dead}
            assert len(world.suspicions()) == size - 1
            seen_after_s = max(at for at, _, _ in world.suspicions()) - killed_at_s
            assert seen_after_s <= KILL_SEEN_INTERVALS_MAX * INTERVAL_S


@pytest.mark.parametrize("size", [5, 20])
def test_two_percent_loss_alone_makes_nobody_suspicious(size: int) -> None:
    world = GossipWorld(size, seed=size, link=LOSSY)
    with world.network.trace_on_failure():
        world.network.run_for(400 / size)
        assert world.suspicions() == []
        for machine in world.machines.values():
            assert all(view.is_alive for view in machine.views(world.now_s).values())


@pytest.mark.parametrize("size", [5, 10])
def test_loops_that_are_late_by_up_to_two_intervals_make_nobody_suspicious(size: int) -> None:
    world = GossipWorld(size, seed=size, link=LOSSY)
    with world.network.trace_on_failure():
        for name in world.names:
            world.slowness_s[name] = 2 * INTERVAL_S
        world.network.run_for(200 / size)
        assert world.suspicions() == []


def test_a_hub_that_stood_still_for_ten_seconds_suspects_nobody_when_it_wakes() -> None:
    world = GossipWorld(5, seed=6, link=LOSSY)
    with world.network.trace_on_failure():
        world.network.run_for(3.0)
        sleeper = world.names[0]
        world.freeze(sleeper, 10.0)
        world.network.run_for(15.0)
        assert [by for _, by, _ in world.suspicions() if by == sleeper] == []
        assert {hub for _, _, hub in world.suspicions()} == {sleeper}
        assert {hub for _, _, hub in world.recoveries()} == {sleeper}


@pytest.mark.parametrize("seed", range(3))
def test_a_hub_that_crashed_comes_back_under_a_new_generation_and_its_old_words_are_gone(seed: int) -> None:
    world = GossipWorld(5, seed, LOSSY)
    with world.network.trace_on_failure():
        name = world.names[0]
        world.set(name, "lease", b"held")
        world.set(name, "capacity", b"8")
        world.network.run_for(2.0)
        world.kill(name)
        world.network.run_for(world.dice.choice([0.1, 5.0]))  # before or after the others have noticed
        world.said[name] = {"capacity": b"7"}
        world.start(name)
        assert world.rounds_until_agreed(10) <= 10
        world.network.run_for(2.0)
        for other in world.names[1:]:
            view = world.machines[other].view(name, world.now_s)
            assert (view.generation, view.standing) == (2, LivenessState.ALIVE)
        assert world.forgeries() == []


def test_a_newcomer_learns_of_a_dead_hub_without_taking_it_for_alive() -> None:
    world = GossipWorld(5, seed=7, link=LOSSY)
    with world.network.trace_on_failure():
        dead, newcomer = world.names[:2]
        world.set(dead, "capacity", b"8")
        world.network.run_for(3.0)
        world.kill(dead)
        world.network.run_for(3.0)
        world.kill(newcomer)
        world.start(newcomer)
        world.network.run_for(3.0)
        view = world.machines[newcomer].view(dead, world.now_s)
        assert (view.standing, view.values) == (LivenessState.UNHEARD, {"capacity": b"8"})


@pytest.mark.parametrize("seed", range(STORIES))
def test_after_any_story_of_cuts_crashes_and_changes_all_agree(seed: int) -> None:
    dice = random.Random(seed)
    world = GossipWorld(dice.randint(2, 7), seed, ROUGH, TIGHT)
    with world.network.trace_on_failure():
        for _ in range(120):
            _random_step(world)
            world.network.run_for(dice.random() * 0.1)
            world.check()
        world.network.heal()
        for name in set(world.names) - set(world.machines):
            world.start(name)
        world.rounds_until_agreed(25)
        assert world.forgeries() == []


def _random_step(world: GossipWorld) -> None:
    """Mostly changes: everything else needs something to get wrong."""
    dice, name = world.dice, world.dice.choice(world.names)
    other = dice.choice([one for one in world.names if one != name])
    running = name in world.machines
    chance = dice.random()
    if chance < 0.45 and running:
        world.set(name, f"key{dice.randrange(8)}", dice.randbytes(dice.randrange(200)))
    elif chance < 0.75 and running and world.said[name]:
        world.delete(name, dice.choice(list(world.said[name])))
    elif chance < 0.82:
        world.network.cut(name, other, both=dice.random() < 0.5)
    elif chance < 0.86:
        world.network.partition(world.names[:1], world.names[1:])
    elif chance < 0.92:
        world.network.heal()
    elif chance < 0.96 and running and len(world.machines) > 1:
        world.kill(name)
    elif not running:
        world.start(name)

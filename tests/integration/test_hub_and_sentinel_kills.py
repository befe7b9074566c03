"""A few real kill -9 of a hub and its SENTINEL in turn, under load; `bench/faults_kills.py` does a hundred."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harch.testing.kill_rounds import HubAndSentinel, descendants_of_home, kill_in_turn
from harch.testing.samples import TINY_FLEET_TOML

KILLS = 4


@pytest.mark.timeout(900)  # kernels may have to be compiled first
def test_a_hub_and_its_sentinel_survive_each_other_and_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with HubAndSentinel(TINY_FLEET_TOML, "dakhla", tmp_path) as world:
        world.wait_for_sentinel()
        rounds = kill_in_turn(world, KILLS, random.Random(11), quiet_s=(0.2, 1.0))
    assert rounds.violations == []
    assert rounds.kills == KILLS
    assert rounds.answers == 3 * KILLS
    assert descendants_of_home(tmp_path) == []

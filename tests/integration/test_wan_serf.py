"""A program of others on the emulated WAN, and the measurement of it: serf agents find each other and see an update."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harch.testing.wan import Wan

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from federation_serf import measure_serf

pytestmark = pytest.mark.needs("wan", "serf")


def test_updates_of_serf_reach_all_hubs_but_not_faster_than_the_links() -> None:
    with Wan(["a", "b", "c"], rtt_ms={("a", "b"): 8, ("b", "c"): 20, ("a", "c"): 45}) as wan:
        readings = measure_serf(wan, "lan", updates=2, kills=0, idle_s=0.5)
    for times in (readings.tag_seen_by_all, readings.event_seen_by_all):
        assert len(times.seen_s) == 2
        assert min(times.seen_s) >= 0.010  # b, in the middle, needs that long to its farther peer
    assert readings.bytes_per_s_updating > 0
    assert readings.hub_count == 3

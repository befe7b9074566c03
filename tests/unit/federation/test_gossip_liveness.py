"""When is a hub suspected? After eight of its own intervals, later on slow links and for a hub that is slow itself."""

from __future__ import annotations

import pytest

from harch.federation.gossip.membership import Liveness, LivenessState
from harch.federation.gossip.state import GossipSettings

HUB = "dakar"
SETTINGS = GossipSettings()
INTERVAL_S = SETTINGS.interval_s


def beating(count: int = 50, interval_s: float = INTERVAL_S) -> tuple[Liveness, float]:
    """A hub that has beaten `count` times, and when it last did."""
    liveness, now_s = Liveness(SETTINGS), 0.0
    liveness.watch(HUB, now_s)
    for _ in range(count):
        now_s += interval_s
        liveness.note_heartbeat(HUB, now_s)
    return liveness, now_s


def suspected_after_s(liveness: Liveness, last_beat_s: float) -> float:
    """How long a silence it takes, in steps of 10 ms."""
    for step in range(2000):
        if liveness.newly_suspected(last_beat_s + step / 100):
            return step / 100
    raise AssertionError("never suspected")


def test_a_silence_of_eight_intervals_is_suspect_and_told_once() -> None:
    liveness, last_beat_s = beating()
    assert liveness.newly_suspected(last_beat_s + 7.9 * INTERVAL_S) == []
    assert liveness.newly_suspected(last_beat_s + 8.1 * INTERVAL_S) == [HUB]
    assert liveness.newly_suspected(last_beat_s + 9.0 * INTERVAL_S) == []
    assert liveness.standing(HUB) is LivenessState.SUSPECTED


def test_the_next_heartbeat_ends_the_suspicion() -> None:
    liveness, last_beat_s = beating()
    liveness.newly_suspected(last_beat_s + 2.0)
    assert liveness.note_heartbeat(HUB, last_beat_s + 2.5) is LivenessState.SUSPECTED
    assert liveness.standing(HUB) is LivenessState.ALIVE


def test_a_silence_across_a_suspicion_does_not_make_later_ones_longer() -> None:
    liveness, last_beat_s = beating(count=10)
    for _ in range(5):
        liveness.newly_suspected(last_beat_s + 60.0)
        last_beat_s += 60.0
        liveness.note_heartbeat(HUB, last_beat_s)
    assert suspected_after_s(liveness, last_beat_s) == pytest.approx(1.6, abs=0.02)


def test_a_hub_with_a_slower_rhythm_gets_more_time() -> None:
    liveness, last_beat_s = beating(count=200, interval_s=0.4)
    assert suspected_after_s(liveness, last_beat_s) == pytest.approx(8 * 0.4, rel=0.05)


def test_a_burst_of_late_heartbeats_does_not_shorten_patience() -> None:
    liveness, now_s = beating(count=3)
    for _ in range(200):
        now_s += 0.01
        liveness.note_heartbeat(HUB, now_s)
    assert suspected_after_s(liveness, now_s) >= 8 * INTERVAL_S


def test_one_long_interval_at_the_start_does_not_decide_alone() -> None:
    liveness, last_beat_s = beating(count=1)
    liveness.note_heartbeat(HUB, last_beat_s + 1.0)
    assert suspected_after_s(liveness, last_beat_s + 1.0) == pytest.approx(8 * (1.0 + 5 * INTERVAL_S) / 6, abs=0.02)


def test_only_the_last_two_hundred_intervals_count() -> None:
    liveness, now_s = beating(count=100, interval_s=1.0)
    for _ in range(200):
        now_s += INTERVAL_S
        liveness.note_heartbeat(HUB, now_s)
    assert suspected_after_s(liveness, now_s) == pytest.approx(8 * INTERVAL_S, abs=0.02)


def test_the_delay_of_the_link_is_not_held_against_the_hub() -> None:
    liveness, last_beat_s = beating()
    for _ in range(50):
        liveness.note_round_trip(HUB, 0.4)
    assert suspected_after_s(liveness, last_beat_s) == pytest.approx(1.6 + 0.4, abs=0.03)
    assert liveness.round_trip_s(HUB) == pytest.approx(0.4)


def test_an_unsteady_link_gets_more_time_and_no_link_more_than_a_second() -> None:
    steady, last_beat_s = beating()
    unsteady, _ = beating()
    endless, _ = beating()
    for number in range(50):
        steady.note_round_trip(HUB, 0.1)
        unsteady.note_round_trip(HUB, 0.02 if number % 2 else 0.18)
        endless.note_round_trip(HUB, 30.0)
    assert suspected_after_s(unsteady, last_beat_s) > suspected_after_s(steady, last_beat_s) + 0.05
    assert suspected_after_s(endless, last_beat_s) == pytest.approx(2.6, abs=0.02)


def test_the_time_that_this_hub_stood_still_is_not_held_against_others() -> None:
    liveness, last_beat_s = beating()
    liveness.note_own_lateness(60.0)
    assert liveness.newly_suspected(last_beat_s + 60.2) == []
    assert liveness.age_s(HUB, last_beat_s + 60.2) == pytest.approx(60.2), "what is shown is its true age"
    liveness.note_heartbeat(HUB, last_beat_s + 60.3)
    for _ in range(100):
        liveness.note_own_lateness(0.0)
    assert suspected_after_s(liveness, last_beat_s + 60.3) == pytest.approx(1.6, abs=0.05)


def test_lateness_stretches_patience_up_to_eight_times_and_punctuality_ends_that() -> None:
    liveness, _ = beating()
    liveness.note_own_lateness(0.9 * INTERVAL_S)
    assert liveness.stretch == 1.0, "that much is forgiven, and no reason to distrust oneself"
    liveness.note_own_lateness(3 * INTERVAL_S)
    assert liveness.stretch == pytest.approx(3.0)
    liveness.note_own_lateness(100.0)
    assert liveness.stretch == SETTINGS.stretch_max
    for _ in range(30):
        liveness.note_own_lateness(0.0)
    assert liveness.stretch == 1.0


def test_stretched_patience_waits_longer() -> None:
    liveness, last_beat_s = beating()
    liveness.note_own_lateness(2 * INTERVAL_S)  # stretch 2, and the lateness itself is forgiven
    assert suspected_after_s(liveness, last_beat_s) == pytest.approx(2 * 1.6 + 2 * INTERVAL_S, abs=0.02)


def test_a_loop_that_is_a_little_late_all_the_time_still_sees_a_death_in_time() -> None:
    liveness, last_beat_s = beating()
    for _ in range(8):
        liveness.note_own_lateness(0.5 * INTERVAL_S)
    assert suspected_after_s(liveness, last_beat_s) == pytest.approx(1.6 + 0.5 * INTERVAL_S, abs=0.02)


def test_a_hub_that_never_beat_is_unheard_and_not_suspected() -> None:
    liveness = Liveness(SETTINGS)
    liveness.watch(HUB, 0.0)
    liveness.seen_first(HUB, 1.0)
    assert liveness.newly_suspected(100.0) == []
    assert liveness.standing(HUB) is LivenessState.UNHEARD
    assert liveness.note_heartbeat(HUB, 101.0) is LivenessState.UNHEARD
    assert liveness.standing(HUB) is LivenessState.ALIVE

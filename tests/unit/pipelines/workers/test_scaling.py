"""How many workers a stage gets: soon more when work piles up, slowly fewer, never beyond its limits."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from harch.pipelines.workers.scaling import ScalingRules, ScalingState, StageLoad, decide_scale

_RULES = ScalingRules(workers_min=1, workers_max=8, grow_cooldown_s=10, shrink_cooldown_s=100)
_LOADS = st.builds(
    StageLoad,
    workers=st.integers(0, 20),
    busy=st.floats(0, 1),
    lag=st.floats(0, 1e6),
    rate=st.floats(0, 1e6),
    latency_p99_ms=st.floats(0, 1e4),
)
_ANY_RULES = st.builds(
    ScalingRules,
    workers_min=st.integers(1, 10),
    workers_max=st.integers(1, 10),
    busy_high=st.floats(0.1, 1),
    busy_low=st.floats(0, 0.99),
    lag_s_max=st.floats(0.1, 100),
    latency_p99_ms_max=st.none() | st.floats(1, 1000),
)


@given(rules=_ANY_RULES, load=_LOADS, quiet=st.none() | st.floats(0, 1000), now=st.floats(0, 1e5))
def test_the_limits_hold_whatever_is_measured(
    rules: ScalingRules, load: StageLoad, quiet: float | None, now: float
) -> None:
    decided = decide_scale(rules, load, ScalingState(quiet_since_s=quiet), now)
    assert min(rules.workers_min, rules.workers_max) <= decided.workers <= rules.workers_max
    assert decided.reason


@given(load=_LOADS, now=st.floats(1000, 1e5))
def test_right_after_a_change_nothing_changes_again(load: StageLoad, now: float) -> None:
    bounded = StageLoad(workers=4, busy=load.busy, lag=load.lag, rate=load.rate, latency_p99_ms=load.latency_p99_ms)
    assert decide_scale(_RULES, bounded, ScalingState(changed_s=now - 1), now).workers == 4


@given(busy=st.floats(0, 1), workers=st.integers(1, 8))
def test_a_steady_load_comes_to_rest(busy: float, workers: int) -> None:
    """The same work in total, over and over: the number of workers settles and does not swing."""
    work, state, now_s, seen = busy * workers, ScalingState(), 0.0, []
    for _ in range(400):
        load = StageLoad(workers=workers, busy=min(1.0, work / workers), rate=1000)
        decided = decide_scale(_RULES, load, state, now_s)
        workers, state, now_s = decided.workers, decided.state, now_s + 5
        seen.append(workers)
    assert len(set(seen[-100:])) == 1


def test_a_backlog_adds_workers_at_once_and_at_most_doubles_them() -> None:
    piled = StageLoad(workers=2, busy=0.9, lag=1_000_000, rate=100)
    assert decide_scale(_RULES, piled, ScalingState(), 0.0).workers == 4


def test_a_stage_that_does_not_move_at_all_counts_as_behind() -> None:
    stuck = StageLoad(workers=1, busy=0.0, lag=5, rate=0)
    assert stuck.lag_s == math.inf
    assert decide_scale(_RULES, stuck, ScalingState(), 0.0).workers == 2


def test_quiet_takes_away_one_worker_and_only_after_its_time() -> None:
    quiet, state = StageLoad(workers=4, busy=0.05), ScalingState(changed_s=0.0)
    early = decide_scale(_RULES, quiet, state, 50.0)
    assert (early.workers, early.state.quiet_since_s) == (4, 50.0)
    assert decide_scale(_RULES, quiet, early.state, 140.0).workers == 4
    late = decide_scale(_RULES, quiet, early.state, 151.0)
    assert late.workers == 3


def test_a_burst_between_starts_the_quiet_time_anew() -> None:
    quiet = decide_scale(_RULES, StageLoad(workers=2, busy=0.05), ScalingState(), 0.0)
    busy = decide_scale(_RULES, StageLoad(workers=2, busy=0.6), quiet.state, 90.0)
    assert busy.state.quiet_since_s is None


def test_latency_counts_only_where_more_workers_could_help() -> None:
    rules = ScalingRules(workers_max=4, latency_p99_ms_max=12)
    slow = StageLoad(workers=1, busy=0.5, latency_p99_ms=40)
    idle = StageLoad(workers=1, busy=0.01, latency_p99_ms=40)
    assert decide_scale(rules, slow, ScalingState(), 0.0).workers == 2
    assert decide_scale(rules, idle, ScalingState(), 0.0).workers == 1

"""Do versions go through their life as promised, and do bad ones lose their role by themselves?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.base.errors import HarchError
from harch.pipelines.think import rollout as life
from harch.pipelines.think.counters import LATENCY_BOUNDS_MS, BatchOutcome, LatencyHistogram, VersionWatch
from harch.pipelines.think.rollout import Rollout, VersionState, buckets, canary_rows
from harch.pipelines.think.settings import RollbackRules

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["load", "promote", "retire", "roll_back"]),
        st.sampled_from(["1", "2", "3", "4"]),
        st.sampled_from(list(VersionState)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(STEPS)
def test_whatever_is_asked_one_version_is_active_and_its_way_back_is_warm(
    steps: list[tuple[str, str, VersionState]],
) -> None:
    rollout, refusals = Rollout(model="m"), set()
    for what, version, to in steps:
        before = rollout
        try:
            if what == "load":
                rollout, changes = life.loaded(rollout, version)
            elif what == "promote":
                rollout, changes = life.promote(rollout, version, to)
            elif what == "retire":
                rollout, changes = life.retire(rollout, version, reason="test")
            else:
                rollout, changes = life.roll_back(rollout, version, reason="test")
        except HarchError as error:
            refusals.add((error.code, bool(error.hint)))
            continue
        states = list(rollout.states.values())
        assert states.count(VersionState.ACTIVE) <= 1
        assert states.count(VersionState.CANARY) <= 1
        assert states.count(VersionState.SHADOW) <= life.SHADOWS_MAX
        if rollout.previous is not None:
            assert rollout.states[rollout.previous] is VersionState.RETIRED
            assert rollout.previous in rollout.warm
        if before.active is not None and rollout.active is None:
            assert what in ("retire", "promote"), "only a person leaves a model without an answer"
            assert rollout.states[before.active] is VersionState.RETIRED
        # The changes tell the whole story.
        told = dict(before.states)
        for change in changes:
            assert told.get(change.version) is change.before
            told[change.version] = change.after
        assert told == rollout.states
    assert refusals <= {("E0509", True)}


def test_a_promotion_keeps_the_old_version_warm_and_a_roll_back_returns_to_it() -> None:
    rollout = Rollout(model="m", states={"1": VersionState.ACTIVE, "2": VersionState.LOADED})
    rollout, _ = life.promote(rollout, "2", VersionState.ACTIVE)
    assert (rollout.active, rollout.previous, rollout.warm) == ("2", "1", {"1", "2"})
    rollout, changes = life.roll_back(rollout, "2", reason="errors: too many")
    assert (rollout.active, rollout.previous, rollout.states["2"]) == ("1", None, VersionState.RETIRED)
    assert [change.by_itself for change in changes] == [True, True]
    assert life.roll_back(rollout, "1", reason="errors") == (rollout, []), "the last one stays"


def test_a_version_does_not_go_backwards() -> None:
    rollout = Rollout(model="m", states={"1": VersionState.ACTIVE})
    with pytest.raises(HarchError, match="cannot become canary"):
        life.promote(rollout, "1", VersionState.CANARY)


def note(watch: VersionWatch, rows: int, **fields: object) -> str:
    verdict = watch.note(BatchOutcome(rows=rows, latency_ms=fields.pop("latency_ms", 1.0), **fields))  # type: ignore[arg-type]
    return verdict.rule if verdict is not None else ""


def test_errors_are_judged_as_soon_as_no_good_row_could_mend_them() -> None:
    watch = VersionWatch(RollbackRules(rows=1000, errors_percent_max=1.0, failures_in_a_row_max=100))
    assert note(watch, 10, failed=True) == ""  # 10 of 1,000 is 1 %
    assert note(watch, 1, rows_nan=1) == "errors"


def test_old_errors_are_forgotten_with_their_window() -> None:
    watch = VersionWatch(RollbackRules(rows=100, errors_percent_max=1.0))
    for _ in range(50):
        assert note(watch, 100, rows_nan=1) == ""
    assert watch.total.rows_bad == 50


def test_a_series_of_failures_does_not_wait_for_the_window() -> None:
    watch = VersionWatch(RollbackRules(rows=1_000_000, failures_in_a_row_max=3))
    assert [note(watch, 1, failed=True) for _ in range(3)] == ["", "", "failures"]


def test_latency_and_disagreement_are_judged_over_a_full_window() -> None:
    slow = VersionWatch(RollbackRules(rows=100, latency_p99_ms_max=10.0))
    assert note(slow, 99, latency_ms=50.0) == ""
    assert note(slow, 1, latency_ms=50.0) == "latency"
    other = VersionWatch(RollbackRules(rows=100, disagreement_percent_max=5.0))
    assert note(other, 100, rows_compared=100, rows_disagreed=5) == ""
    assert note(other, 100, rows_compared=100, rows_disagreed=6) == "disagreement"


@settings(deadline=None)
@given(st.lists(st.floats(0.001, 20_000), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_is_never_better_than_what_was_measured(latencies_ms: list[float], share: float) -> None:
    histogram = LatencyHistogram()
    for latency_ms in latencies_ms:
        histogram.add(latency_ms)
    exact = float(np.quantile(latencies_ms, share, method="inverted_cdf"))
    told = histogram.quantile_ms(share)
    assert told >= exact
    lower = max((bound for bound in LATENCY_BOUNDS_MS if bound < told), default=0.0)
    assert lower <= exact, "off by more than one bucket"


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50), st.floats(0, 50), st.floats(0, 50))
def test_a_larger_share_only_adds_devices(devices: list[int], one: float, other: float) -> None:
    ids = np.array(devices, dtype=np.uint32)
    small, large = (canary_rows(ids, "m", percent) for percent in sorted((one, other)))
    assert not (small & ~large).any()
    assert (small == canary_rows(ids.astype(np.int64), "m", min(one, other))).all(), "the type of the id matters"


def test_shares_are_what_was_asked_for_and_differ_from_model_to_model() -> None:
    ids = np.arange(100_000, dtype=np.uint32)
    share = canary_rows(ids, "m", 5.0).mean()
    assert 0.045 < share < 0.055
    both = (canary_rows(ids, "m", 5.0) & canary_rows(ids, "n", 5.0)).mean()
    assert both < 0.005
    assert (
        buckets(np.array(["pump-1", "pump-2", "pump-1"]), "m")[[0, 2]].tolist()
        == [int(buckets(np.array(["pump-1"]), "m")[0])] * 2
    )


def test_buckets_are_the_same_on_every_machine() -> None:
    """Recorded: another hash would move devices between versions in the middle of a rollout."""
    assert buckets(np.array([0, 1, 2, 65_535]), "soil-water").tolist() == [3603, 5035, 5808, 40]
    assert buckets(np.array(["pump-1"]), "soil-water").tolist() == [8505]

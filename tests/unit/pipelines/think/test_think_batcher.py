"""Does the batcher lose, double, reorder or delay requests? Random traffic on a clock that the test owns."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harch.pipelines.think.batcher import Batcher
from harch.pipelines.think.settings import PRIORITIES, BatchingSettings

SETTINGS = st.builds(
    lambda preferred, extra, delay, queue, timeout: BatchingSettings(
        preferred_rows=(preferred,),
        rows_max=preferred + extra,
        delay_ms_max=float(delay),
        queue_rows_max=preferred + extra + queue,
        timeout_ms=float(delay + timeout),
    ),
    st.integers(1, 16),
    st.integers(0, 16),
    st.sampled_from([0, 0, 1, 5, 20]),
    st.integers(0, 100),
    st.integers(1, 60),
)
ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 10),  # ms after the one before
        st.integers(1, 12),  # rows
        st.integers(0, PRIORITIES - 1),
        st.none() | st.integers(1, 40),  # its own deadline, in ms from now
    ),
    max_size=40,
)


@settings(deadline=None)
@given(SETTINGS, ARRIVALS, st.sampled_from([0.0, 0.001, 0.01]), st.sampled_from([0.0, 0.003, 0.03]))
def test_each_request_leaves_once_in_order_and_never_late_in_a_batch(
    settings: BatchingSettings, arrivals: list[tuple[int, int, int, int | None]], run_s: float, busy_s: float
) -> None:
    batcher: Batcher[int] = Batcher(settings)
    batcher.run_s_expected = run_s
    now_s, taken, ran, late = 0.0, {}, [], []

    def drive_until(end_s: float) -> None:
        """As a program would: sleep until the batcher asks to be woken, and take what is due."""
        nonlocal now_s
        for _ in range(10_000):
            late.extend(batcher.take_late(now_s))
            if batch := batcher.take_batch(now_s):
                assert sum(request.rows for request in batch) <= settings.rows_max
                assert all(request.deadline_s > now_s for request in batch)
                ran.extend((now_s, request) for request in batch)
                now_s += busy_s
                continue
            wake_s = batcher.wake_s(now_s)
            if wake_s is None or wake_s > end_s:
                break
            assert wake_s > now_s, "woken without need"
            now_s = wake_s
        else:
            raise AssertionError("does not come to rest")
        now_s = max(now_s, end_s)

    for number, (gap_ms, rows, priority, deadline_ms) in enumerate(arrivals):
        drive_until(now_s + gap_ms / 1000)
        deadline_s = None if deadline_ms is None else now_s + deadline_ms / 1000
        before = batcher.rows_waiting
        refusal = batcher.offer(number, rows, now_s=now_s, priority=priority, deadline_s=deadline_s)
        if refusal is None:
            taken[number] = now_s
        else:
            assert refusal.rule in ("full", "rows")
            assert rows > settings.rows_max or before + rows > settings.queue_rows_max
            assert batcher.rows_waiting == before
    drive_until(now_s + 10)

    left = [request.payload for _, request in ran] + [request.payload for request in late]
    assert sorted(left) == sorted(taken), "lost or doubled"
    assert batcher.rows_waiting == batcher.requests_waiting == 0
    for priority in range(PRIORITIES):
        order = [request.payload for _, request in ran if request.priority == priority]
        assert order == sorted(order)
    if busy_s == 0:  # nobody waits longer than allowed, and nobody is late who was not so from the start
        assert late == []
        assert all(moment <= request.arrived_s + settings.delay_ms_max / 1000 + 1e-9 for moment, request in ran)


def test_without_delay_everything_that_has_come_runs_at_once() -> None:
    batcher: Batcher[str] = Batcher(BatchingSettings())
    for word in ("a", "b", "c"):
        assert batcher.offer(word, 10, now_s=1.0) is None
    assert [request.payload for request in batcher.take_batch(1.0)] == ["a", "b", "c"]


def test_with_delay_a_preferred_size_runs_early_and_the_rest_waits_its_time() -> None:
    batcher: Batcher[str] = Batcher(BatchingSettings(preferred_rows=(4,), rows_max=8, delay_ms_max=10))
    batcher.offer("a", 3, now_s=0.0)
    assert batcher.take_batch(0.0) == []
    assert batcher.wake_s(0.0) == 0.01
    batcher.offer("b", 1, now_s=0.001)
    batcher.offer("c", 2, now_s=0.001)
    assert [request.payload for request in batcher.take_batch(0.001)] == ["a", "b"]
    assert batcher.take_batch(0.002) == []
    assert [request.payload for request in batcher.take_batch(0.011)] == ["c"]


def test_a_deadline_is_served_before_the_delay_is_over_by_the_time_that_a_run_takes() -> None:
    batcher: Batcher[str] = Batcher(BatchingSettings(delay_ms_max=100))
    batcher.run_s_expected = 0.004
    batcher.offer("urgent", 1, now_s=0.0, deadline_s=0.010)
    assert batcher.take_batch(0.005) == []
    assert batcher.wake_s(0.005) == 0.006
    assert [request.payload for request in batcher.take_batch(0.006)] == ["urgent"]


def test_urgent_work_goes_first_and_late_work_is_given_back_instead_of_run() -> None:
    batcher: Batcher[str] = Batcher(BatchingSettings(preferred_rows=(4,), rows_max=4, queue_rows_max=8, timeout_ms=50))
    batcher.offer("slow", 4, now_s=0.0, priority=3)
    batcher.offer("fast", 4, now_s=0.001, priority=0)
    refused = batcher.offer("third", 1, now_s=0.001)
    assert refused is not None
    assert (refused.rule, refused.detail) == ("full", "8 of 8 rows wait in 2 requests")
    assert [request.payload for request in batcher.take_batch(0.001)] == ["fast"]
    assert [request.payload for request in batcher.take_late(0.05)] == ["slow"]
    assert batcher.take_batch(0.05) == []

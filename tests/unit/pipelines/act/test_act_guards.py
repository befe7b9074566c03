"""Interlocks and rates: what is refused, what waits, and what a restart remembers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from harch.base.rejection import Rejection
from harch.pipelines.act.guards import Guards, Wait, delay_ms
from harch.pipelines.act.ledger import CommandStep
from harch.pipelines.act.settings import TTL_S_MAX, ActionSettings, RetrySettings
from unit.pipelines.act.act_builders import act, command


def action(**changes: Any) -> ActionSettings:
    return act(**changes).actions[0]


def admit(guards: Guards, settings: ActionSettings, now_ms: int, **changes: Any) -> Rejection | Wait | None:
    return guards.admit(command(**changes), settings, now_ms=now_ms, stopped="")


@pytest.mark.parametrize("value", [-0.1, 100.1, float("nan"), "80"])
def test_a_value_outside_its_range_is_refused_with_both_numbers(value: float | str) -> None:
    settings = action(interlocks={"ranges": {"value": [0, 100]}})
    wrong = structs.replace(command(), steps=(CommandStep("valve", {"value": value}),))
    refusal = Guards().interlock(wrong, settings, now_ms=0, stopped="")
    assert refusal is not None
    assert refusal.rule == "range"
    assert "0 to 100" in refusal.detail


def test_a_stop_comes_before_everything_else() -> None:
    refusal = Guards().interlock(command(), action(), now_ms=0, stopped="fire drill")
    assert refusal is not None
    assert "fire drill" in refusal.detail


def test_a_device_is_left_alone_for_the_interval_but_its_own_retry_is_not_refused() -> None:
    settings, guards = action(interlocks={"min_interval_s": 10}), Guards()
    assert admit(guards, settings, 1_000) is None
    assert admit(guards, settings, 1_500) is None, "the same command again"
    refusal = admit(guards, settings, 10_999, window=2)
    assert isinstance(refusal, Rejection)
    assert refusal.rule == "interval"
    assert admit(guards, settings, 5_000, number=7) is None, "another device"
    assert admit(guards, settings, 11_500, window=2) is None


def test_the_interval_holds_over_a_restart() -> None:
    settings, guards = action(interlocks={"min_interval_s": 10}), Guards()
    guards.remember([(command(), 1_000), (command(window=0), 500)])
    assert isinstance(admit(guards, settings, 9_000, window=2), Rejection)


def test_an_older_decision_does_not_follow_a_newer_one() -> None:
    settings, guards = action(interlocks={"newest_only": True}), Guards()
    assert admit(guards, settings, 1_000, window=5) is None
    refusal = admit(guards, settings, 2_000, window=4)
    assert isinstance(refusal, Rejection)
    assert refusal.rule == "superseded"
    other_value = {"steps": (CommandStep("valve", {"value": 1.0}),), "window": 5}
    assert isinstance(admit(guards, settings, 2_000, **other_value), Rejection), "decided again, differently"
    assert admit(guards, settings, 2_000, window=6) is None


@given(
    gaps=st.lists(st.integers(0, 4000), min_size=1, max_size=80),
    per_s=st.floats(0.1, 5),
    burst=st.integers(1, 5),
)
def test_no_interval_sees_more_than_the_burst_and_the_rate(gaps: list[int], per_s: float, burst: int) -> None:
    settings, guards = action(rate={"per_s": per_s, "burst": burst}), Guards()
    now_ms, taken = 0, []
    for number, gap in enumerate(gaps):
        now_ms += gap
        answer = admit(guards, settings, now_ms, window=number)
        if answer is None:
            taken.append(now_ms)
        else:
            assert isinstance(answer, Wait)
            assert answer.until_ms > now_ms
    for first, start in enumerate(taken):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + (taken[last] - start) * per_s / 1000 + 1e-6


def test_who_waits_as_long_as_told_gets_a_token() -> None:
    settings, guards = action(rate={"per_s": 0.3, "burst": 1}), Guards()
    assert admit(guards, settings, 0) is None
    answer = admit(guards, settings, 100, window=2)
    assert isinstance(answer, Wait)
    assert isinstance(admit(guards, settings, answer.until_ms - 10, window=2), Wait)
    assert admit(guards, settings, answer.until_ms, window=2) is None


@pytest.mark.parametrize("per_s", [5e-324, 1e-310, 1e-9])
def test_a_rate_however_small_is_a_wait_and_not_a_crash(per_s: float) -> None:
    settings, guards = action(rate={"per_s": per_s, "burst": 1}), Guards()
    assert admit(guards, settings, 0) is None
    assert admit(guards, settings, 100, window=2) == Wait(101 + int(TTL_S_MAX * 1000))


@given(attempt=st.integers(1, 20), key=st.text(), seed=st.integers())
def test_waits_grow_to_their_limit_and_follow_from_the_seed(attempt: int, key: str, seed: int) -> None:
    retries = RetrySettings(base_s=0.5, factor=2, max_s=30, jitter=0.2)
    wait = delay_ms(retries, attempt=attempt, key=key, seed=seed)
    plain = min(30_000, 500 * 2 ** (attempt - 1))
    assert 0.8 * plain - 1 <= wait <= 1.2 * plain + 1
    assert wait == delay_ms(retries, attempt=attempt, key=key, seed=seed)

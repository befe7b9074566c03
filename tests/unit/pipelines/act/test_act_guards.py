"""Interlocks and rates: what is refused, what waits, and what a restart remembers."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from harch.base.rejection import Rejection
from harch.pipelines.act import guards as guarding
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


@pytest.mark.parametrize("value", [0.0, 100.0, 50])
def test_the_ends_of_a_range_belong_to_it(value: float) -> None:
    settings = action(args={"flow": 5, "value": 1}, interlocks={"ranges": {"flow": [5, 6], "value": [0, 100]}})
    right = structs.replace(command(), steps=(CommandStep("valve", {"value": value}),))
    assert Guards().interlock(right, settings, now_ms=0, stopped="") is None


def test_every_named_argument_of_every_step_is_held_to_its_range() -> None:
    settings = action(args={"flow": 5, "value": 1}, interlocks={"ranges": {"flow": [5, 6], "value": [0, 100]}})
    steps = (CommandStep("valve", {"value": 1.0}), CommandStep("valve", {"value": 101.0}))
    refusal = Guards().interlock(structs.replace(command(), steps=steps), settings, now_ms=0, stopped="")
    assert refusal is not None
    assert refusal.detail == "`value` of step 1 is 101.0, allowed: 0 to 100"
    assert refusal.nearest_fix == "correct the rule, or widen the interlock"


def test_an_interval_ends_at_its_last_millisecond() -> None:
    settings = action(interlocks={"min_interval_s": 10})
    for now_ms, refused in ((10_999, True), (11_000, False), (11_001, False)):
        guards = Guards()
        assert admit(guards, settings, 1_000, window=5) is None
        answer = admit(guards, settings, now_ms, window=4)  # older, which matters only to those who say so
        assert isinstance(answer, Rejection) is refused
        if isinstance(answer, Rejection):
            assert answer.detail == "the device was commanded 9.999 s ago, allowed once every 10 s"


def test_an_action_without_interlocks_keeps_no_memory_of_devices() -> None:
    guards = Guards()
    assert admit(guards, action(), 1_000, window=5) is None
    watched = action(interlocks={"newest_only": True, "min_interval_s": 10})
    assert admit(guards, watched, 1_001, window=4) is None


def test_of_what_the_ledger_knows_the_latest_counts_whatever_its_order() -> None:
    settings = action(interlocks={"newest_only": True})
    known = [(command(window=3), 1_000), (command(window=7), 2_000), (command(window=5), 1_500)]
    for order in (known, known[::-1]):
        guards = Guards()
        guards.remember(order)
        answer = admit(guards, settings, 3_000, window=6)
        assert isinstance(answer, Rejection)
        assert answer.detail == "window 7 was already sent, this is window 6"
        assert admit(guards, settings, 3_000, window=8) is None


def test_tokens_come_back_by_the_rate_up_to_the_burst_and_never_for_time_that_goes_back() -> None:
    settings, guards = action(rate={"per_s": 2, "burst": 3}), Guards()
    answers = [
        (0, None),  # a full bucket: three at once
        (0, None),
        (0, None),
        (0, Wait(501)),  # half a second per token, and a millisecond more than that
        (250, Wait(501)),
        (100, Wait(351)),  # the clock was set back: nothing is gained
        (250, Wait(501)),  # and nothing twice
        (499, Wait(501)),
        (500, None),
        (500, Wait(1_001)),
        (60_000, None),  # never more than the burst
        (60_000, None),
        (60_000, None),
        (60_000, Wait(60_501)),
    ]
    for number, (now_ms, expected) in enumerate(answers):
        assert admit(guards, settings, now_ms, window=number) == expected, number


def test_the_devices_that_were_used_least_recently_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "DEVICES_REMEMBERED_MAX", 2)
    settings, guards = action(interlocks={"min_interval_s": 10}), Guards()
    for number, window in ((0, 1), (1, 1)):
        assert admit(guards, settings, 1_000, number=number, window=window) is None
    assert admit(guards, settings, 1_500, number=0) is None, "the same command again"
    assert admit(guards, settings, 1_500, number=2) is None
    refused = [isinstance(admit(guards, settings, 2_000, number=number, window=2), Rejection) for number in (0, 2)]
    assert refused == [True, True]
    assert admit(guards, settings, 2_000, number=1, window=2) is None, "forgotten: two are remembered"


@pytest.mark.parametrize(
    ("attempt", "expected_ms"), [(1, 500), (2, 1_500), (3, 4_500), (4, 13_500), (5, 30_000), (6, 30_000)]
)
def test_without_jitter_waits_are_powers_of_the_factor(attempt: int, expected_ms: int) -> None:
    retries = RetrySettings(base_s=0.5, factor=3, max_s=30, jitter=0)
    assert delay_ms(retries, attempt=attempt, key="k", seed=1) == expected_ms


def test_a_wait_is_a_millisecond_at_least_and_its_exponent_has_an_end() -> None:
    assert delay_ms(RetrySettings(base_s=0.0001, jitter=0), attempt=1, key="k", seed=1) == 1
    slow = RetrySettings(base_s=1, factor=1.01, max_s=3600, jitter=0)
    assert delay_ms(slow, attempt=64, key="k", seed=1) == round(1000 * 1.01**63)
    assert delay_ms(slow, attempt=65, key="k", seed=1) == round(1000 * 1.01**64)
    assert delay_ms(slow, attempt=66, key="k", seed=1) == round(1000 * 1.01**64)


@given(attempt=st.integers(1, 4), key=st.text(max_size=5), seed=st.integers(0, 99))
def test_jitter_spreads_waits_evenly_around_the_plain_one(attempt: int, key: str, seed: int) -> None:
    retries = RetrySettings(base_s=10, factor=2, max_s=3600, jitter=0.5)
    drawn = hashlib.blake2b(f"{seed}:{key}:{attempt}".encode(), digest_size=8).digest()
    place = int.from_bytes(drawn) / 2**64  # from 0 to 1
    plain_ms = 10_000 * 2 ** (attempt - 1)
    expected_ms = 0.5 * plain_ms + place * plain_ms
    assert abs(delay_ms(retries, attempt=attempt, key=key, seed=seed) - expected_ms) <= 0.5 + 1e-6

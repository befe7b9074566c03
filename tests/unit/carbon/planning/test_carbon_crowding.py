"""Does work use less of its slack where what waits could not be done later?"""

from __future__ import annotations

import pytest
from planning_cases import job

from harch.carbon.planning.crowding import slack_shares
from harch.carbon.planning.outlook import Pool
from harch.carbon.planning.work import ClassKey, Demand, Expected

POOLS = (Pool("a", "gpu", 100, 1.0), Pool("b", "gpu", 1000, 1.0))
ONLY_A, BOTH = (frozenset("a"), "gpu"), (frozenset("ab"), "gpu")


def expected(rates: dict[str, float]) -> dict[ClassKey, Expected]:
    return {ClassKey(frozenset(hubs), "gpu", True): Expected(rate, 2.0, 24.0) for hubs, rate in rates.items()}


def test_an_idle_fleet_may_use_all_slack() -> None:
    assert slack_shares(POOLS, Demand((job("one", ["a"], wait_h_max=24),)), slack_h=24) == {ONLY_A: 1.0}


def test_a_hub_that_new_work_fills_has_no_time_to_make_up() -> None:
    shares = slack_shares(POOLS, Demand((), expected({"a": 95.0, "ab": 100.0})), slack_h=24)
    assert shares == {ONLY_A: 0.0, BOTH: 1.0}


def test_the_more_waits_the_less_may_wait() -> None:
    shares = [
        slack_shares(
            POOLS,
            Demand(tuple(job(f"job-{n}", ["a"], gpus=8, hours=10.0, wait_h_max=24) for n in range(count)), {}),
            slack_h=24,
        )[ONLY_A]
        for count in (1, 30, 40)
    ]
    assert shares == [1.0, pytest.approx(0.701, abs=1e-3), 0.0]


def test_work_with_a_choice_is_bound_by_all_its_hubs_together() -> None:
    shares = slack_shares(POOLS, Demand((), expected({"ab": 1100.0, "a": 1.0})), slack_h=24)
    assert shares == {ONLY_A: 0.0, BOTH: 0.0}

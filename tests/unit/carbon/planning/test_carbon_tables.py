"""Each rule of a carbon plan by numbers that can be checked by hand, and at the very edges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.carbon.planning import slack
from harch.carbon.planning.capacity import CapacityLedger, StartWindows
from harch.carbon.planning.decisions import CarbonDecision, DecisionKind, HubOption
from harch.carbon.planning.dispatch import (
    OPTIONS_MAX,
    RISK_G_PER_KWH_HOUR,
    WAIT_G_PER_KWH_HOUR,
    Budgets,
    MoveRules,
    decide,
    decide_move,
    dispatch,
    is_flat,
    limit_reason,
    option,
    plan_moves,
    starts_of,
    waiting_costs_g,
    why_not,
    within_limits,
)
from harch.carbon.planning.linear import SparseProgram, solve
from harch.carbon.planning.outlook import Aims, Floats, HubHours, Pool, PowerOutlook, RestsOn
from harch.carbon.planning.plan import plan_carbon
from harch.carbon.planning.program import LATE_G_PER_GPU_HOUR, ClassPlan, plan_classes, spans_of
from harch.carbon.planning.settings import BudgetsEntry, PlanSettings
from harch.carbon.planning.slack import Crowd, Holder, crowd_of, scarcity, who_yields
from harch.carbon.planning.work import (
    ClassKey,
    ExpectedWork,
    FlexibleWork,
    JobClass,
    WorkDemand,
    classes_of,
    expected_gpu_hours,
)
from unit.carbon.planning.planning_cases import HOURS, hub, job, outlook


def windows(
    cost: Sequence[Sequence[float]],
    *,
    no_room: Sequence[Sequence[float]] | None = None,
    kwh: Sequence[float] | None = None,
    swing: float = 400.0,
    step_h: float = 1.0,
) -> StartWindows:
    costs = np.array(cost, dtype=np.float64)
    return StartWindows(
        hubs=tuple("abcdefgh"[: len(cost)]),
        cost_g=costs,
        grams=costs,
        power_g=costs,
        kwh=np.array(kwh or [2.0] * len(cost)),
        no_room_g=np.zeros_like(costs) if no_room is None else np.array(no_room, dtype=np.float64),
        swing_g_per_kwh=swing,
        step_h=step_h,
    )


class Book:
    """Costs as a test wants them; what is entered is noted."""

    def __init__(self, found: StartWindows | None, *, steps: int = 8, step_h: float = 1.0) -> None:
        self.found, self.steps = found, steps
        self.outlook = outlook(hub("a", 400.0))
        object.__setattr__(self.outlook, "step_h", step_h)
        self.entered: list[tuple[str, str, int, int]] = []
        self.given: list[tuple[int, bool]] = []

    def windows(self, _work: FlexibleWork, *, starts: int, keeps: bool = True) -> StartWindows | None:
        self.given.append((starts, keeps))
        return self.found

    def enter(self, work: FlexibleWork, hub: str, start_step: int, *, sign: int = 1) -> None:
        self.entered.append((work.id, hub, start_step, sign))

    def grid_g_per_kwh(self, hub: str) -> float:
        return {"a": 100.0, "b": 200.0}[hub]


def decided(work: FlexibleWork, book: Book, budgets: Budgets | None = None) -> CarbonDecision:
    return decide(work, book, budgets or Budgets())  # type: ignore[arg-type]


class TestWaiting:
    def test_each_hour_of_a_wait_has_its_price_until_it_risks_more_than_power_changes_by(self) -> None:
        found = windows([[0.0] * 6, [0.0] * 6], kwh=[4.0, 2.0], swing=3 * RISK_G_PER_KWH_HOUR)
        hourly = 2.0 * WAIT_G_PER_KWH_HOUR
        assert waiting_costs_g(found).tolist() == [0, hourly, 2 * hourly, 3 * hourly, math.inf, math.inf]

    def test_steps_of_a_plan_are_counted_as_the_hours_that_they_last(self) -> None:
        found = windows([[0.0] * 4], kwh=[2.0], swing=RISK_G_PER_KWH_HOUR, step_h=0.5)
        assert waiting_costs_g(found).tolist() == [0, 1.5, 3.0, math.inf]

    @pytest.mark.parametrize(("swing", "flat"), [(RISK_G_PER_KWH_HOUR, False), (RISK_G_PER_KWH_HOUR - 0.1, True)])
    def test_power_that_changes_by_less_than_an_hour_risks_is_waited_for_not_at_all(
        self, swing: float, flat: bool
    ) -> None:
        found = windows([[0.0, 0.0]], swing=swing, step_h=0.01)
        assert is_flat(found) is flat
        assert math.isinf(waiting_costs_g(found)[1]) is flat
        assert waiting_costs_g(found)[0] == 0

    def test_why_work_that_could_wait_does_not(self) -> None:
        flat, lively, short = windows([[0.0, 0.0]], swing=0.0), windows([[0.0, 0.0]]), windows([[0.0]], swing=0.0)
        assert why_not(lively, room=True) == why_not(short, room=True) == ""
        assert why_not(flat, room=True).startswith("carbon intensity hardly changes")
        assert why_not(lively, room=False) == "not enough free GPUs for all of it now: the queue decides"
        assert why_not(flat, room=False).count("; ") == 1


class TestBudgets:
    WORK = job("w", "a", tenant="t")

    def test_whatever_limits_grams_binds(self) -> None:
        assert not Budgets().bind(self.WORK)
        assert not Budgets({"other": 1.0}).bind(self.WORK)
        assert Budgets({"t": 1.0}).bind(self.WORK)
        assert Budgets(all_g_left=1.0).bind(self.WORK)
        assert Budgets().bind(job("w", "a", g_max=1.0))
        assert Budgets().bind(job("w", "a", g_per_kwh_max=1.0))

    def test_the_tightest_limit_counts_less_what_was_spent(self) -> None:
        assert Budgets().left_g(self.WORK) == math.inf
        budgets = Budgets({"t": 100.0}, all_g_left=500.0)
        assert budgets.left_g(self.WORK) == 100.0
        budgets.spend(self.WORK, 30.0)
        budgets.spend(self.WORK, 10.0)
        assert budgets.left_g(self.WORK) == 60.0
        budgets.spend(job("o", "a", tenant="other"), 430.0)
        assert budgets.left_g(self.WORK) == 30.0
        assert budgets.left_g(job("o", "a", tenant="other")) == 30.0
        assert budgets.left_g(job("w", "a", tenant="t", g_max=7.0)) == 7.0

    def test_hubs_and_hours_at_the_very_limit_are_allowed(self) -> None:
        found = windows([[10.0, 20.0, 30.0], [20.0, 40.0, 60.0]], kwh=[1.0, 2.0])
        assert within_limits(self.WORK, found, Budgets({"t": 20.0})).tolist() == [
            [True, True, False],
            [True, False, False],
        ]
        ceiling = job("w", "a", g_per_kwh_max=20.0)
        assert within_limits(ceiling, found, Budgets()).tolist() == [[True, True, False], [True, True, False]]
        both = job("w", "a", g_per_kwh_max=20.0, g_max=15.0)
        assert within_limits(both, found, Budgets()).tolist() == [[True, False, False], [False, False, False]]

    def test_a_refusal_names_the_number_that_is_nearest(self) -> None:
        found = windows([[30.0, 20.0], [50.0, 40.0]], kwh=[1.0, 4.0])
        assert limit_reason(self.WORK, found, Budgets({"t": 19.0})) == (
            "needs at least 20 g, but only 19 g remain of its carbon budget"
        )
        assert limit_reason(self.WORK, found, Budgets({"t": -5.0})).startswith("needs at least 20 g, but only 0 g")
        ceiling = job("w", "a", tenant="t", g_per_kwh_max=9.0)
        assert limit_reason(ceiling, found, Budgets({"t": 20.0})) == ("at best 10 g/kWh, above its ceiling of 9 g/kWh")


class TestDecisions:
    def test_the_least_cost_is_chosen_entered_and_recorded_with_the_others(self) -> None:
        book = Book(windows([[90.0, 80.0, 70.0], [60.0, 50.0, 95.0]], kwh=[0.0, 0.0]))
        work = job("w", "ab", wait_h_max=2.0)
        made = decided(work, book)
        assert (made.verb, made.hub, made.start_step, made.starts_by_h) == (DecisionKind.WAIT, "b", 1, 2.0)
        assert made.chosen == HubOption("b", 1, 50.0, 50.0, 0.0)
        assert made.options == (HubOption("b", 1, 50.0, 50.0, 0.0), HubOption("a", 2, 70.0, 70.0, 0.0))
        assert made.at_once == HubOption("a", 0, 90.0, 90.0, 0.0)
        assert (made.room, made.queues, made.reason) == (True, False, "")
        assert book.entered == [("w", "b", 1, 1)]
        assert book.given == [(3, True)]

    def test_what_starts_now_is_spent_and_what_waits_is_not(self) -> None:
        for cost, left in (([10.0, 90.0], 90.0), ([90.0, 10.0], 100.0)):
            budgets = Budgets({"t": 100.0})
            decided(job("w", "a", tenant="t", wait_h_max=1.0), Book(windows([cost], kwh=[0.1])), budgets)
            assert budgets.left_g(job("w", "a", tenant="t")) == left

    def test_work_that_cannot_wait_may_take_what_is_kept_for_it(self) -> None:
        book = Book(windows([[10.0]]))
        assert decided(job("w", "a"), book).verb is DecisionKind.START
        assert book.given == [(1, False)]
        decided(job("w", "a", wait_h_max=0.5), book)
        assert book.given[1:] == [(1, True)]

    def test_a_charge_for_want_of_room_counts_and_is_recorded(self) -> None:
        book = Book(windows([[10.0], [50.0]], no_room=[[100.0], [0.0]]))
        made = decided(job("w", "ab"), book)
        assert (made.hub, made.room) == ("b", True)
        made = decided(job("w", "a"), Book(windows([[10.0]], no_room=[[100.0]])))
        assert (made.room, made.reason) == (False, "not enough free GPUs for all of it now: the queue decides")

    def test_work_that_waits_without_room_says_so_too(self) -> None:
        made = decided(job("w", "a", wait_h_max=1.0), Book(windows([[90.0, 1.0]], no_room=[[9.0, 9.0]], kwh=[0.1])))
        assert (made.start_step, made.room) == (1, False)
        assert "not enough free GPUs" in made.reason

    def test_where_its_home_is_not_among_the_hubs_the_chosen_one_is_compared(self) -> None:
        made = decided(job("w", "zab"), Book(windows([[90.0], [60.0]])))
        assert made.at_once == HubOption("b", 0, 60.0, 60.0, 2.0)

    def test_flat_power_leaves_it_to_the_queue(self) -> None:
        made = decided(job("w", "a", wait_h_max=1.0), Book(windows([[10.0, 1.0]], swing=0.0)))
        assert (made.verb, made.queues) == (DecisionKind.START, True)

    def test_no_hub_and_no_hour_within_the_limits_are_refused(self) -> None:
        made = decided(job("w", "a", wait_h_max=3.0), Book(None))
        assert (made.verb, made.hub, made.start_step, made.starts_by_h) == (DecisionKind.REFUSE, None, 0, 3.0)
        assert made.reason == "no allowed hub has GPUs of model gpu"
        book = Book(windows([[90.0, 80.0]]))
        made = decided(job("w", "a", wait_h_max=1.0, g_max=70.0), book)
        assert (made.verb, made.hub, made.start_step) == (DecisionKind.REFUSE, None, 0)
        assert made.reason.startswith("needs at least 80 g")
        assert book.entered == []

    def test_limits_exclude_hours_and_hubs_that_would_be_cheaper(self) -> None:
        found = windows([[50.0, 40.0], [90.0, 80.0]], kwh=[1.0, 4.0])
        made = decided(job("w", "ab", wait_h_max=1.0, g_per_kwh_max=30.0), Book(found))
        assert (made.hub, made.start_step) == ("b", 1)

    def test_what_limits_leave_is_waited_for_whether_or_not_it_is_worth_it(self) -> None:
        costs = [[90.0, 90.0, 90.0, 10.0]]
        made = decided(job("w", "a", wait_h_max=3.0, g_max=50.0), Book(windows(costs, swing=RISK_G_PER_KWH_HOUR)))
        assert (made.verb, made.start_step) == (DecisionKind.WAIT, 3)
        made = decided(job("w", "a", wait_h_max=3.0), Book(windows(costs, swing=RISK_G_PER_KWH_HOUR)))
        assert made.start_step == 0
        some = [[90.0, 40.0, 90.0, 10.0]]
        made = decided(job("w", "a", wait_h_max=3.0, g_max=50.0), Book(windows(some, swing=RISK_G_PER_KWH_HOUR)))
        assert made.start_step == 1, "one hour that is worth the wait is left"

    def test_no_more_than_the_best_hubs_are_recorded(self) -> None:
        made = decided(job("w", "abcdefg"), Book(windows([[float(cost)] for cost in (7, 1, 6, 2, 5, 3, 4)])))
        assert [one.hub for one in made.options] == ["b", "d", "f", "g", "e"]
        assert len(made.options) == OPTIONS_MAX

    @pytest.mark.parametrize(
        ("wait_h", "step_h", "starts"),
        [(0.0, 1.0, 1), (0.9, 1.0, 1), (1.0, 1.0, 2), (2.5, 1.0, 3), (7.0, 1.0, 8), (99.0, 1.0, 8), (0.3, 0.1, 4)],
    )
    def test_as_many_starts_as_full_steps_of_slack_within_the_horizon(
        self, wait_h: float, step_h: float, starts: int
    ) -> None:
        book = Book(None, step_h=step_h)
        assert starts_of(job("w", "a", wait_h_max=wait_h), book) == starts  # type: ignore[arg-type]

    def test_the_least_slack_goes_first_then_the_largest_then_by_name(self) -> None:
        several = [
            job("z", "a", gpus=4, hours=1.0),
            job("late", "a", wait_h_max=1.0, gpus=99),
            job("big", "a", gpus=2, hours=4.0),
            job("a", "a", gpus=4, hours=1.0),
        ]
        made = dispatch(several, Book(windows([[1.0, 2.0]])), Budgets())  # type: ignore[arg-type]
        assert [one.work_id for one in made] == ["big", "a", "z", "late"]

    def test_an_option_says_where_when_and_how_much(self) -> None:
        found = StartWindows(
            ("a", "b"),
            np.array([[1.0, 2.0], [3.0, 4.0]]),
            np.array([[5.0, 6.0], [7.0, 8.0]]),
            np.zeros((2, 2)),
            np.array([9.0, 10.0]),
            np.zeros((2, 2)),
            0.0,
            1.0,
        )
        assert option(found, 1, 0) == HubOption("b", 0, 3.0, 7.0, 10.0)
        assert option(found, 0, 1).g_per_kwh == 6.0 / 9.0
        assert HubOption("a", 0, 1.0, 1.0, 0.0).g_per_kwh == 0.0

    def test_savings_are_against_home_at_once_less_the_cost_of_a_move(self) -> None:
        home, there = HubOption("a", 0, 9.0, 90.0, 1.0), HubOption("b", 0, 5.0, 50.0, 1.0)
        made = CarbonDecision("w", DecisionKind.MOVE, "b", 0, 0.0, there, home, move_cost_g=15.0)
        assert made.saves_g == 25.0
        assert CarbonDecision("w", DecisionKind.START, "b", 0, 0.0, there).saves_g == 0.0
        assert CarbonDecision("w", DecisionKind.START, "b", 0, 0.0, None, home).saves_g == 0.0


class TestMoves:
    RULES = MoveRules(again_h=0.5, kwh_per_gb=0.1, gain_times_cost=2.0, gain_share=0.25, hours_left_min=1.0)

    def moved(
        self, found: StartWindows | None, rules: MoveRules = RULES, **fields: object
    ) -> tuple[CarbonDecision, Book]:
        book = Book(found)
        work = job("w", "ab", hours=5.0, running_at="a", movable=True, **fields)
        return decide_move(work, "a", book, Budgets(), rules), book  # type: ignore[arg-type]

    def test_a_move_that_pays_is_entered_there_with_what_it_costs(self) -> None:
        made, book = self.moved(windows([[1000.0, 900.0], [100.0, 110.0]]), checkpoint_gb=3.0, wait_h_max=1.0)
        cost = 0.1 * 100.0 + 3.0 * 0.1 * 200.0  # a tenth is done twice, and 3 GB go to `b`
        assert (made.verb, made.hub, made.start_step) == (DecisionKind.MOVE, "b", 0)
        assert made.move_cost_g == pytest.approx(cost)
        assert (made.chosen, made.at_once) == (
            HubOption("b", 0, 100.0, 100.0, 2.0),
            HubOption("a", 0, 1000.0, 1000.0, 2.0),
        )
        assert book.entered == [("w", "a", 0, -1), ("w", "b", 0, 1)]
        assert made.saves_g == pytest.approx(900.0 - cost)

    def test_waiting_where_it_is_costs_no_transfer(self) -> None:
        made, book = self.moved(windows([[1000.0, 100.0], [990.0, 990.0]]), checkpoint_gb=99.0, wait_h_max=1.0)
        assert (made.verb, made.hub, made.start_step) == (DecisionKind.SUSPEND, "a", 1)
        assert made.move_cost_g == pytest.approx(10.0)
        assert book.entered == [("w", "a", 0, -1), ("w", "a", 1, 1)]

    @pytest.mark.parametrize(
        ("there", "checkpoint_gb", "moves"),
        [(749.0, 0.0, True), (750.0, 0.0, False), (500.0, 9.9, True), (500.0, 10.0, False)],
    )
    def test_a_gain_must_exceed_its_share_and_its_cost_many_times(
        self, there: float, checkpoint_gb: float, moves: bool
    ) -> None:
        """At 500 g, a tenth of it twice and 20 g per GB: 10 GB cost 250 g, half of what is gained."""
        made, book = self.moved(windows([[1000.0], [there]]), checkpoint_gb=checkpoint_gb)
        assert (made.verb is DecisionKind.MOVE) is moves
        if not moves:
            stay = HubOption("a", 0, 1000.0, 1000.0, 2.0)
            assert (made.hub, made.start_step, made.chosen, made.at_once) == ("a", 0, stay, stay)
            assert book.entered == [("w", "a", 0, -1), ("w", "a", 0, 1)]

    def test_a_short_rest_is_done_twice_in_full_and_never_more(self) -> None:
        book = Book(windows([[1000.0], [100.0]]))
        work = job("w", "ab", hours=0.25, running_at="a", movable=True)
        made = decide_move(work, "a", book, Budgets(), self.RULES)  # type: ignore[arg-type]
        assert made.move_cost_g == pytest.approx(100.0)

    def test_nothing_moves_where_there_is_no_room_or_a_limit_forbids_it(self) -> None:
        made, _ = self.moved(windows([[1000.0], [100.0]], no_room=[[0.0], [1.0]]))
        assert made.verb is DecisionKind.STAY
        made, _ = self.moved(windows([[1000.0], [100.0]]), g_max=99.0)
        assert made.verb is DecisionKind.STAY
        made, _ = self.moved(windows([[1000.0], [100.0]], no_room=[[1.0], [0.0]]), g_max=100.0)
        assert made.verb is DecisionKind.MOVE, "where it runs it has its GPUs"

    def test_work_at_a_hub_that_is_no_longer_allowed_stays_for_others_to_judge(self) -> None:
        for found in (None, StartWindows(("b",), *[np.ones((1, 1))] * 3, np.ones(1), np.zeros((1, 1)), 0.0, 1.0)):
            made, book = self.moved(found)
            assert (made.verb, made.hub, made.reason) == (DecisionKind.STAY, "a", "its hub is not allowed")
            assert book.entered == [("w", "a", 0, -1), ("w", "a", 0, 1)]

    def test_the_largest_move_first_no_more_than_the_limit_and_only_what_may(self) -> None:
        def running(name: str, hours: float = 5.0, **fields: object) -> FlexibleWork:
            return job(name, "ab", hours=hours, **{"running_at": "a", "movable": True, **fields})

        several = [
            running("small", 2.0),
            running("b"),
            running("a"),
            running("short", 0.99),
            running("edge", 1.0),
            running("bound", movable=False),
            running("waits", running_at=None),
        ]

        def moves(limit: int) -> list[str]:
            rules = MoveRules(hours_left_min=1.0, moves_max=limit)
            book = Book(windows([[1000.0], [1.0]]))
            made = plan_moves(several, book, Budgets(), rules)  # type: ignore[arg-type]
            assert {one.verb for one in made} <= {DecisionKind.MOVE}
            return [one.work_id for one in made]

        assert moves(9) == ["a", "b", "small", "edge"]
        assert moves(2) == ["a", "b"]
        assert moves(0) == []

    def test_what_stays_does_not_count_towards_the_limit(self) -> None:
        several = [job(name, "ab", hours=5.0, running_at="a", movable=True) for name in "xyz"]
        book = Book(windows([[1.0], [1000.0]]))
        made = plan_moves(several, book, Budgets(), MoveRules(moves_max=1))  # type: ignore[arg-type]
        assert [one.verb for one in made] == [DecisionKind.STAY] * 3


class TestOutlook:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"onsite_kw": np.zeros(7)}, "must be finite and cover 8 steps"),
            ({"grid_g_per_kwh": np.array([1.0] * 7 + [math.nan])}, "must be finite"),
            ({"onsite_sd_kw": np.full(8, math.inf)}, "must be finite"),
            ({"price_per_mwh": np.zeros(9)}, "must be finite and cover"),
            ({"onsite_kw": np.array([0.0] * 7 + [-1.0])}, "cannot be negative"),
            ({"grid_g_per_kwh": np.array([0.0] * 7 + [-1.0])}, "cannot be negative"),
            ({"pue": 0.99}, "PUE must be at least 1"),
            ({"transmission_loss": -0.01}, "losses at least 0"),
        ],
    )
    def test_hours_that_cannot_be_are_refused(self, fields: dict[str, object], message: str) -> None:
        valid: dict[str, object] = {"hub": "a", "grid_g_per_kwh": np.zeros(8), "onsite_kw": np.zeros(8)}
        assert HubHours(**valid).steps == 8  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=message):
            HubHours(**{**valid, **fields})  # type: ignore[arg-type]

    def test_an_outlook_needs_hubs_of_the_same_length_and_pools_at_them(self) -> None:
        short = HubHours(hub="b", grid_g_per_kwh=np.zeros(3), onsite_kw=np.zeros(3))
        for hubs in ((), (hub("a", 1.0), short)):
            with pytest.raises(ValueError, match="same number of steps"):
                PowerOutlook(hubs, ())
        with pytest.raises(ValueError, match="without forecasts"):
            PowerOutlook((hub("a", 1.0),), (Pool("a", "gpu", 1, 1.0), Pool("b", "gpu", 1, 1.0)))
        for step_h in (0.0, -1.0, math.nan):
            with pytest.raises(ValueError, match="lasts some time"):
                PowerOutlook((hub("a", 1.0),), (), step_h=step_h)
        assert PowerOutlook((hub("a", 1.0), hub("b", 1.0)), ()).index() == {"a": 0, "b": 1}

    def test_money_counts_only_where_it_has_a_weight_and_a_price(self) -> None:
        plain, priced = hub("a", 100.0), hub("a", 100.0, price_per_mwh=np.full(HOURS, 50.0), transmission_loss=0.1)
        assert Aims(2.0).grid_cost(plain)[0] == 100.0
        assert Aims(0.0).grid_cost(priced)[0] == pytest.approx(110.0)
        assert Aims(2.0).grid_cost(priced)[0] == pytest.approx(110.0 + 2.0 * 0.05)
        assert Aims().onsite_cost(plain).tolist() == [20.0] * HOURS

    def test_what_values_rest_on_is_recorded_in_words(self) -> None:
        assert str(RestsOn("a grid", "measured")) == "measured, a grid, average, lifecycle, location"


class TestSettings:
    def test_budgets_are_kilograms_for_people_and_grams_for_plans(self) -> None:
        none = PlanSettings()
        assert (none.has_budgets, none.budget_of("t"), none.budget_of_all, none.limits("t")) == (
            False,
            None,
            None,
            False,
        )
        own = PlanSettings(budgets=BudgetsEntry(tenants={"t": 2.5}))
        assert (own.has_budgets, own.budget_of("t"), own.budget_of("u"), own.budget_of_all) == (
            True,
            2500.0,
            None,
            None,
        )
        assert (own.limits("t"), own.limits("u"), own.tenants()) == (True, False, {"t": 2500.0})
        shared = PlanSettings(budgets=BudgetsEntry(kg_per_month=3.0))
        assert (shared.has_budgets, shared.budget_of_all, shared.limits("u"), shared.tenants()) == (
            True,
            3000.0,
            True,
            {},
        )


class TestClasses:
    A, AB = frozenset("a"), frozenset("ab")

    def test_what_is_here_can_be_done_at_once_and_is_due_when_its_slack_ends(self) -> None:
        demand = WorkDemand(
            (
                job("one", "a", gpus=2, hours=3.0, wait_h_max=2.0),
                job("two", "a", gpus=1, hours=0.5, wait_h_max=4.5),
                job("now", "a", gpus=4, hours=1.0),
            )
        )
        found = {one.key: one for one in classes_of(demand, 6)}
        waits, urgent = found[ClassKey(self.A, "gpu", True)], found[ClassKey(self.A, "gpu", False)]
        assert waits.available.tolist() == [2.5, 4.5, 6.5, 6.5, 6.5, 6.5]
        assert waits.due.tolist() == [0.0, 0.0, 2.0, 4.0, 6.5, 6.5]
        assert (waits.jobs, waits.waiting_gpu_hours, waits.gpus_expected) == (2, 6.5, 0.0)
        assert urgent.available.tolist() == urgent.due.tolist() == [4.0] * 6
        assert (urgent.jobs, urgent.waiting_gpu_hours) == (1, 4.0)

    def test_steps_may_be_shorter_than_an_hour(self) -> None:
        (one,) = classes_of(WorkDemand((job("one", "a", gpus=2, hours=1.0, wait_h_max=0.5),)), 4, 0.5)
        assert one.available.tolist() == [1.0, 2.0, 2.0, 2.0]
        assert one.due.tolist() == [0.0, 1.0, 2.0, 2.0]

    def test_what_is_expected_comes_evenly_and_lasts_exponentially_long(self) -> None:
        expected = ExpectedWork(3.0, 2.0, 1.0)
        done = expected_gpu_hours(np.array([-1.0, 0.0, 4.0]), expected)
        assert done.tolist() == [0.0, 0.0, pytest.approx(3.0 * (4.0 - 2.0 * (1 - math.exp(-2.0))))]
        key, empty = ClassKey(self.AB, "gpu", True), ClassKey(self.A, "gpu", True)
        (one,) = classes_of(WorkDemand((), {key: expected, empty: ExpectedWork(0.0, 1.0)}), 3)
        assert one.key == key
        assert np.allclose(one.available, expected_gpu_hours(np.array([1.0, 2.0, 3.0]), expected))
        assert np.allclose(one.due, expected_gpu_hours(np.array([0.0, 1.0, 2.0]), expected))
        assert (one.jobs, one.gpus_expected) == (0, 3.0)

    def test_work_that_is_due_before_it_arrives_cannot_be(self) -> None:
        key = ClassKey(self.A, "gpu", True)
        JobClass(key, np.array([1.0]), np.array([1.0]))
        with pytest.raises(ValueError, match="a gpu deferrable is due before it arrives"):
            JobClass(key, np.array([1.0, 2.0]), np.array([1.0, 1.9]))

    def test_a_class_is_named_by_its_hubs_its_model_and_whether_it_waits(self) -> None:
        assert str(ClassKey(self.AB, "gpu", False)) == "a+b gpu urgent"
        assert job("w", "ab", wait_h_max=0.1).class_key == ClassKey(self.AB, "gpu", True)
        assert job("w", "ab").class_key == ClassKey(self.AB, "gpu", False)


class TestProgram:
    @pytest.mark.parametrize(
        ("steps", "spans"),
        [
            (3, [1, 1, 1]),
            (9, [1] * 8 + [1]),
            (13, [1] * 8 + [2, 2, 1]),
            (24, [1] * 8 + [2] * 4 + [4, 4]),
            (110, [1] * 8 + [2] * 4 + [4] * 8 + [12] * 4 + [14]),
        ],
    )
    def test_near_steps_are_planned_one_by_one_and_far_ones_together(self, steps: int, spans: list[int]) -> None:
        assert spans_of(steps).tolist() == spans

    def planned(
        self,
        hubs: Sequence[HubHours],
        classes: Sequence[JobClass],
        *,
        gpus: int = 4,
        busy_kw: float = 0.0,
        free: Mapping[str, Floats] | None = None,
    ) -> ClassPlan:
        look = outlook(*hubs, gpus=gpus)
        room = {(one.hub, "gpu"): (free or {}).get(one.hub, np.full(HOURS, float(gpus))) for one in hubs}
        return plan_classes(look, tuple(classes), busy_kw=np.full((len(hubs), HOURS), busy_kw), gpus_free=room)

    def one(self, due_h: float, gpu_hours: float, *, hubs: str = "a", available_h: float = 0.0) -> JobClass:
        """Work of `gpu_hours` that may all be done from `available_h` on and is due by `due_h`."""
        ends = np.arange(1, HOURS + 1)
        key = ClassKey(frozenset(hubs), "gpu", True)
        due, available = gpu_hours * (ends >= due_h), gpu_hours * (ends > available_h)
        return JobClass(key, due, available.astype(float), 1, gpu_hours)

    def test_work_waits_for_the_hours_with_own_power_and_the_prices_say_so(self) -> None:
        dirty = hub("a", 400.0, [0.0, 0.0, 3.0, 2.0])
        plan = self.planned([dirty], [self.one(6, 4.0)])
        (quota,) = plan.quotas.values()
        assert quota.sum() == pytest.approx(4.0)
        assert quota[2] + quota[3] == pytest.approx(4.0)
        assert plan.cost_g == pytest.approx(4 * 20.0)
        assert plan.late_gpu_hours == pytest.approx(0.0)
        assert plan.hub_g_per_kwh["a"][0] == pytest.approx(400.0)
        assert plan.hub_g_per_kwh["a"][2] == pytest.approx(20.0)
        assert not plan.failure

    def test_it_goes_to_the_cleaner_hub_and_only_where_it_may(self) -> None:
        hubs = [hub("a", 400.0), hub("b", 100.0)]
        plan = self.planned(hubs, [self.one(6, 4.0, hubs="ab")])
        key = ClassKey(frozenset("ab"), "gpu", True)
        assert plan.quotas[key, "b"].sum() == pytest.approx(4.0)
        assert plan.quotas[key, "a"].sum() == pytest.approx(0.0)
        assert plan.cost_g == pytest.approx(400.0)
        plan = self.planned(hubs, [self.one(6, 4.0, hubs="a")])
        assert set(plan.quotas) == {(ClassKey(frozenset("a"), "gpu", True), "a")}

    def test_what_runs_draws_own_power_first_and_costs_even_where_nothing_is_planned(self) -> None:
        plan = self.planned([hub("a", 400.0, [3.0] * HOURS)], [self.one(8, 8.0)], busy_kw=2.0)
        assert plan.cost_g == pytest.approx(8 * 3 * 20.0)

    def test_a_hub_draws_more_than_its_gpus_by_its_pue(self) -> None:
        plan = self.planned([hub("a", 100.0, pue=1.5)], [self.one(8, 8.0)])
        assert plan.cost_g == pytest.approx(8 * 1.5 * 100.0)

    def test_a_pool_that_is_full_has_a_price_and_one_that_is_not_has_none(self) -> None:
        dirty = hub("a", 400.0, [4.0, 0.0, 0.0])
        plan = self.planned([dirty], [self.one(8, 4.0)], gpus=2)
        assert plan.pool_g_per_gpu_hour["a", "gpu"][0] == pytest.approx(380.0)
        assert plan.pool_g_per_gpu_hour["a", "gpu"][5] == pytest.approx(0.0)
        assert plan.cost_g == pytest.approx(2 * 20.0 + 2 * 400.0)
        busy = np.full(HOURS, -1.0)
        busy[5] = 4.0
        plan = self.planned([dirty], [self.one(8, 4.0)], free={"a": busy})
        assert next(iter(plan.quotas.values()))[5] == pytest.approx(4.0), "less than nothing is nothing"

    def test_work_that_cannot_be_done_in_time_is_late_and_counted(self) -> None:
        plan = self.planned([hub("a", 100.0)], [self.one(1, 10.0)], gpus=4)
        assert plan.late_gpu_hours == pytest.approx(6.0)
        assert plan.cost_g == pytest.approx(10 * 100.0 + 6.0 * LATE_G_PER_GPU_HOUR)
        plan = self.planned([hub("a", 100.0)], [self.one(8, 40.0)], gpus=4)
        assert plan.late_gpu_hours == pytest.approx(8.0)
        assert plan.cost_g == pytest.approx(32 * 100.0 + 8.0 * LATE_G_PER_GPU_HOUR)

    def test_nothing_is_done_before_it_is_there_nor_pushed_beyond_the_horizon(self) -> None:
        early = hub("a", 400.0, [4.0, 4.0])
        plan = self.planned([early], [self.one(8, 4.0, available_h=2.0)])
        (quota,) = plan.quotas.values()
        assert quota[:2].tolist() == [pytest.approx(0.0)] * 2
        key = ClassKey(frozenset("a"), "gpu", True)
        never_due = JobClass(key, np.zeros(HOURS), np.full(HOURS, 4.0), 1, 4.0)
        assert next(iter(self.planned([early], [never_due]).quotas.values())).sum() == pytest.approx(4.0)

    def test_how_much_of_a_class_is_only_expected_is_recorded(self) -> None:
        key = ClassKey(frozenset("a"), "gpu", True)
        ends = np.arange(1.0, HOURS + 1)
        some = JobClass(key, np.zeros(HOURS), ends, 1, 2.0, gpus_expected=0.75)
        plan = self.planned([hub("a", 100.0)], [some])
        assert plan.to_come == {key: pytest.approx(0.75)}
        assert plan.gpus_expected == {key: 0.75}
        more = JobClass(key, np.zeros(HOURS), ends, 1, 80.0)
        assert self.planned([hub("a", 100.0)], [more]).to_come == {key: 0.0}

    def test_without_work_or_without_pools_for_it_there_is_no_plan(self) -> None:
        for classes in ([], [self.one(8, 4.0, hubs="z")]):
            plan = self.planned([hub("a", 100.0)], classes)
            assert (plan.quotas, plan.hub_g_per_kwh, plan.failure) == ({}, {}, "")

    def test_a_plan_over_spans_of_several_steps_counts_every_hour(self) -> None:
        steps = 20
        look = PowerOutlook(
            (HubHours(hub="a", grid_g_per_kwh=np.full(steps, 100.0), onsite_kw=np.zeros(steps)),),
            (Pool("a", "gpu", 4, 1.0),),
            step_h=0.5,
        )
        key = ClassKey(frozenset("a"), "gpu", True)
        need = np.zeros(steps)
        need[-1] = 30.0
        one = JobClass(key, need, np.full(steps, 30.0), 1, 30.0)
        plan = plan_classes(
            look, (one,), busy_kw=np.full((1, steps), 1.0), gpus_free={("a", "gpu"): np.full(steps, 4.0)}
        )
        assert plan.quotas[key, "a"].sum() * 0.5 == pytest.approx(30.0)
        assert plan.cost_g == pytest.approx((30.0 + 10.0) * 100.0)
        assert plan.quotas[key, "a"].max() <= 4.0 + 1e-9


class TestLinear:
    def test_a_small_program_is_solved_with_its_prices(self) -> None:
        """Least x + 2 y with x + y >= 4 and x <= 3."""
        program = SparseProgram()
        columns = program.add_columns(np.array([1.0, 2.0]), np.zeros(2), np.array([3.0, np.inf]))
        assert columns.tolist() == [0, 1]
        rows = program.add_rows(np.array([4.0]), np.array([np.inf]))
        program.enter(rows, columns, 1.0)
        found = solve(program)
        assert found.values.tolist() == [3.0, 1.0]
        assert found.duals.tolist() == [2.0]
        assert found.failure == ""

    def test_columns_and_rows_are_numbered_in_the_order_they_came(self) -> None:
        program = SparseProgram()
        assert program.add_columns(np.zeros((2, 2)), np.zeros(1), np.ones(1)).tolist() == [[0, 1], [2, 3]]
        assert program.add_columns(np.zeros(1), np.zeros(1), np.ones(1)).tolist() == [4]
        assert program.add_rows(np.zeros(2), np.zeros(1)).tolist() == [0, 1]
        assert program.add_rows(np.zeros((1, 2)), np.zeros(1)).tolist() == [[2, 3]]
        assert (program.columns, program.rows) == (5, 4)

    def test_a_program_without_a_solution_says_so_and_raises_nothing(self) -> None:
        program = SparseProgram()
        columns = program.add_columns(np.array([1.0]), np.zeros(1), np.ones(1))
        program.enter(program.add_rows(np.array([2.0]), np.array([2.0])), columns, 1.0)
        found = solve(program)
        assert found.failure == "HiGHS ended with `Infeasible`"
        assert len(found.values) == len(found.duals) == 0

    def test_a_program_that_is_no_program_is_rejected(self) -> None:
        program = SparseProgram()
        columns = program.add_columns(np.array([math.nan]), np.array([1.0]), np.array([0.0]))
        program.enter(program.add_rows(np.array([2.0]), np.array([2.0])), columns, math.nan)
        assert solve(program).failure.startswith("HiGHS ")


class TestCrowds:
    """A pool of 112 GPUs can do 98.4 of them: a share is lost, and a node's worth."""

    POOL = Pool("a", "gpu", 112, 1.0)
    CAN = 112 * 0.95 - 8
    KEY = (frozenset("a"), "gpu")

    def crowd(
        self,
        *waiting: FlexibleWork,
        running: Sequence[FlexibleWork] = (),
        expected: Mapping[ClassKey, ExpectedWork] = {},
    ) -> Crowd:
        return crowd_of([self.POOL, Pool("a", "other", 99, 1.0)], WorkDemand(waiting, dict(expected)), running)

    def test_what_fits_later_may_wait(self) -> None:
        assert self.crowd(job("w", "a", gpus=self.CAN * 0.4, hours=2.0, wait_h_max=2.0)) == Crowd()
        assert self.crowd() == Crowd()

    def test_so_much_starts_now_as_would_not_fit_later_least_slack_first(self) -> None:
        several = [
            job(name, "a", gpus=40, hours=1.0, wait_h_max=wait) for name, wait in (("x", 0.2), ("y", 0.1), ("z", 0.3))
        ]
        found = self.crowd(*several)
        assert found.due == frozenset()
        found = self.crowd(*several, *[job(f"m{n}", "a", gpus=20, hours=1.0, wait_h_max=0.35) for n in (1, 2)])
        assert found.due == {"y"}, "160 GPU-hours within 1.35 h are 27 too many"
        assert found.full == {self.KEY}

    def test_what_runs_and_what_comes_leave_less(self) -> None:
        waits = job("w", "a", gpus=self.CAN, hours=1.0, wait_h_max=1.0)
        assert self.crowd(waits).due == frozenset()
        runs = job("r", "a", gpus=60, hours=4.0, running_at="a")
        assert self.crowd(waits, running=[runs]).due == {"w"}
        elsewhere = job("r", "a", gpus=60, hours=4.0, running_at="b")
        other = FlexibleWork(id="r", hubs=frozenset("a"), model="other", gpus=60, hours_left=4.0, running_at="a")
        assert self.crowd(waits, running=[elsewhere, other]).due == frozenset()
        short = job("r", "a", gpus=60, hours=0.5, running_at="a")
        assert self.crowd(waits, running=[short]).due == frozenset()
        key = ClassKey(frozenset("a"), "gpu", False)
        assert self.crowd(waits, expected={key: ExpectedWork(90.0, 0.01)}).due == {"w"}
        assert self.crowd(waits, expected={key: ExpectedWork(90.0, 0.01, 9.0)}).due == frozenset()

    @pytest.mark.parametrize(("share", "tight"), [(0.96, True), (0.94, False)])
    def test_where_so_much_comes_that_hardly_anything_fits_nothing_waits(self, share: float, tight: bool) -> None:
        key = ClassKey(frozenset("a"), "gpu", True)
        found = self.crowd(expected={key: ExpectedWork(self.CAN * share, 1.0, 1.0)})
        assert (found.tight, found.full) == (({self.KEY}, {self.KEY}) if tight else (frozenset(), frozenset()))

    @pytest.mark.parametrize(("share", "full"), [(0.81, True), (0.79, False)])
    def test_where_most_of_what_can_be_done_is_requested_nothing_is_put_off(self, share: float, full: bool) -> None:
        found = self.crowd(job("w", "a", gpus=self.CAN * share, hours=2.0))
        assert (found.full == {self.KEY}) is full

    def test_a_set_of_hubs_must_do_what_can_run_nowhere_else(self) -> None:
        pools = [Pool(name, "gpu", 112, 1.0) for name in "ab"]
        narrow = job("narrow", "a", gpus=self.CAN, hours=1.0)
        wide = job("wide", "ab", gpus=self.CAN * 0.9, hours=1.0, wait_h_max=0.01)
        found = crowd_of(pools, WorkDemand((narrow, wide)), ())
        assert found.due == frozenset()
        assert found.full == {self.KEY, (frozenset("ab"), "gpu")}
        small = crowd_of(pools, WorkDemand((job("n", "a", gpus=1, hours=1.0), wide)), ())
        assert small.full == frozenset()


class TestYielding:
    def test_work_that_fits_stops_no_one(self) -> None:
        assert who_yields(2, 4, [4, 4], [Holder("h", {0: 4}, 9.0)]) == ()
        assert who_yields(2, 4, [8], []) == ()
        assert who_yields(2, 4, [4, 3], []) is None

    def test_the_smallest_that_is_enough_gives_way_and_that_with_most_slack_among_equals(self) -> None:
        holders = [Holder("big", {0: 8}, 99.0), Holder("tight", {1: 4}, 1.0), Holder("loose", {1: 4}, 5.0)]
        assert who_yields(1, 4, [0, 0], holders) == ("loose",)
        assert who_yields(1, 8, [0, 0], holders) == ("big",)

    def test_a_node_that_is_kept_for_another_is_not_to_be_had(self) -> None:
        holders = [Holder("h", {0: 4, 1: 4}, 1.0)]
        assert who_yields(1, 4, [4, 0], holders, closed=(0,)) == ("h",)
        assert who_yields(2, 4, [0, 0], holders) == ("h",)
        assert who_yields(2, 4, [0, 0], holders, closed=(0,)) is None

    @pytest.mark.parametrize(("gpus", "stops"), [(12, ("h",)), (13, None)])
    def test_stopping_more_than_three_times_what_is_needed_is_worse_than_waiting(
        self, gpus: int, stops: tuple[str, ...] | None
    ) -> None:
        assert slack.GPUS_STOPPED_PER_GPU_MAX == 3.0
        assert who_yields(1, 4, [0], [Holder("h", {0: gpus}, 1.0)]) == stops

    @settings(max_examples=80, deadline=None)
    @given(
        st.integers(1, 3),
        st.integers(1, 4),
        st.lists(st.integers(0, 4), min_size=1, max_size=3),
        st.lists(
            st.tuples(st.dictionaries(st.integers(0, 2), st.integers(1, 4), min_size=1), st.integers(0, 3)), max_size=4
        ),
    )
    def test_whoever_is_named_makes_room_and_none_is_named_in_vain(
        self, tasks: int, gpus: int, free: list[int], held: list[tuple[dict[int, int], int]]
    ) -> None:
        holders = [
            Holder(f"h{number}", {node: count for node, count in on.items() if node < len(free)}, float(wait))
            for number, (on, wait) in enumerate(held)
        ]
        named = who_yields(tasks, gpus, free, holders)

        def slots(stopped: Sequence[str]) -> int:
            left = list(free)
            for holder in holders:
                for node, count in holder.gpus_on.items() if holder.id in stopped else ():
                    left[node] += count
            return sum(one // gpus for one in left)

        if named is None:
            everybody = [holder.id for holder in holders]
            stops_much = sum(holder.gpus for holder in holders) > 3.0 * tasks * gpus
            assert slots(everybody) < tasks or stops_much
        else:
            assert slots(named) >= tasks
            assert (named == ()) == (slots(()) >= tasks)
            assert not named or slots(named[:-1]) < tasks or len(named) > 1

    @pytest.mark.parametrize(
        ("gpus", "reach", "scarce"),
        [(1, 8, 0.0), (0.5, 0, 0.0), (2, 80, 0.1), (2, 8, 1.0), (4, 16, 1.0), (9, 8, 1.0), (2, 0, 1.0), (2, 1, 1.0)],
    )
    def test_how_hard_gpus_are_to_get(self, gpus: float, reach: float, scarce: float) -> None:
        assert scarcity(gpus, reach) == pytest.approx(scarce)


class TestWholePlans:
    def test_a_plan_says_what_is_late_and_what_failed(self) -> None:
        look = outlook(hub("a", 400.0), gpus=4)
        plan = plan_carbon(look, WorkDemand((job("w", "a", gpus=8, hours=2.0),)), ())
        assert plan.notes == ("8.0 GPU-hours cannot be done in time",)
        plan = plan_carbon(look, WorkDemand((job("w", "a", gpus=4.5, hours=1.0),)), ())
        assert plan.notes == ("0.5 GPU-hours cannot be done in time",)
        plan = plan_carbon(look, WorkDemand(()), (), classes=ClassPlan(failure="no solver"))
        assert plan.notes == ("planned job by job, not by class: no solver",)
        assert plan_carbon(look, WorkDemand(()), ()).notes == ()

    def test_a_decision_is_found_by_its_work(self) -> None:
        plan = plan_carbon(outlook(hub("a", 400.0)), WorkDemand((job("v", "a"), job("w", "a"))), ())
        found = plan.of("w")
        assert found is not None
        assert found.work_id == "w"
        assert plan.of("x") is None

    def test_running_work_moves_only_where_there_are_rules_for_it(self) -> None:
        look = outlook(hub("a", 900.0), hub("b", 10.0))
        running = [job("r", "ab", hours=6.0, running_at="a", movable=True)]
        assert plan_carbon(look, WorkDemand(()), running).decisions == ()
        (made,) = plan_carbon(look, WorkDemand(()), running, moves=MoveRules()).decisions
        assert (made.verb, made.hub) == (DecisionKind.MOVE, "b")

    def test_kept_gpus_are_left_out_of_what_classes_may_use(self) -> None:
        look = outlook(hub("a", 400.0), gpus=8, kept=3)
        waits = job("w", "a", gpus=8, hours=8.0, wait_h_max=1.0)
        plan = plan_carbon(look, WorkDemand((waits,)), ())
        assert max(float(quota.max()) for quota in plan.classes.quotas.values()) == pytest.approx(5.0)

    def test_a_plan_of_classes_that_is_given_is_used_as_it_is(self) -> None:
        look = outlook(hub("a", 400.0))
        given_ = ClassPlan(hub_g_per_kwh={"a": np.zeros(HOURS)})
        plan = plan_carbon(look, WorkDemand((job("w", "a"),)), (), classes=given_)
        assert plan.classes is given_
        assert isinstance(plan.book, CapacityLedger)

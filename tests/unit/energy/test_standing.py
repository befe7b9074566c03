"""Does a period that plans were followed in emit no more than the rule's, however wrong the forecasts were?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.energy.procurement.execution import carried_out
from harch.energy.procurement.period_balance import PeriodBalance, first_step, plan_within
from harch.energy.procurement.plan import PlanFailure, PlanMethod, ProcurementPlan
from harch.energy.procurement.planner import plan_by_rule, plan_procurement
from harch.energy.procurement.problem import Battery, FlexibleLoad, ProcurementProblem
from harch.energy.procurement.safeguards import plan_with_safeguards
from unit.energy.energy_fixtures import LOSSLESS, hours, problem

LOSSY = Battery(energy_kwh=4, power_kw=2)
COUNT = 10
OPEN = 10**6  # steps left: the end of the period is far
series = st.lists(st.floats(0, 5), min_size=2 * COUNT, max_size=2 * COUNT)
intensities = st.lists(st.floats(50, 800), min_size=2 * COUNT, max_size=2 * COUNT)


def made(plan: ProcurementPlan | PlanFailure) -> ProcurementPlan:
    assert isinstance(plan, ProcurementPlan), plan
    return plan


def even(stored: float = 0.0) -> PeriodBalance:
    return PeriodBalance(stored_kwh=stored, rule_stored_kwh=stored)


def world(own: list[float], grid: list[float], prices: list[float]) -> ProcurementProblem:
    count = len(own)
    return problem(
        [1.0] * count,
        own_kwh=np.array(own),
        grid_g_per_kwh=np.array(grid),
        import_per_mwh=np.array(prices) * 100,
        battery=LOSSY,
        terminal_per_mwh=40.0,
        fade_per_h=0.02,
    )


def part(of: ProcurementProblem, first: int, count: int) -> ProcurementProblem:
    names = ("load_kwh", "own_kwh", "import_per_mwh", "grid_g_per_kwh", "sale_per_mwh")
    cut = {name: getattr(of, name)[first : first + count] for name in names}
    return replace(of, steps=hours(count, of.steps.at(first)), **cut)


@settings(max_examples=25, deadline=None)
@given(series, series, intensities, intensities, series, st.floats(0, 4))
def test_a_period_whose_end_is_in_sight_ends_even_whatever_the_forecasts_said(
    own: list[float], lie: list[float], grid: list[float], grid_lie: list[float], prices: list[float], stored: float
) -> None:
    """Only the running hour is told as it is, and no hour is dirtier than the dirtiest that was forecast."""
    true = world(own, grid, prices)
    standing = even(stored)
    for index in range(COUNT):
        truth = part(true, index, COUNT)
        later = np.arange(COUNT) > 0
        expected = replace(
            truth,
            own_kwh=np.where(later, lie[:COUNT], truth.own_kwh),
            grid_g_per_kwh=np.where(later, np.maximum(grid_lie[:COUNT], 640.0), truth.grid_g_per_kwh),
        )
        plan = made(plan_within(expected, standing, steps_left=COUNT - index))
        standing = standing.after(first_step(truth), plan)
    assert standing.saved_kg >= -1e-5


@settings(max_examples=50, deadline=None)
@given(series, intensities, st.floats(0, 4), st.floats(0, 4))
def test_the_rule_with_more_in_the_battery_never_emits_more(
    own: list[float], grid: list[float], level: float, more: float
) -> None:
    """What `worst_kg` rests on."""
    asked = world(own, grid, [1.0] * len(own))
    little = made(plan_by_rule(replace(asked, stored_kwh=min(level, 4.0))))
    much = made(plan_by_rule(replace(asked, stored_kwh=min(level + more, 4.0))))
    assert (much.import_kwh <= little.import_kwh + 1e-9).all()
    bound = (min(level + more, 4.0) - min(level, 4.0)) * LOSSY.discharge_efficiency * max(grid) / 1000
    assert little.carbon.emitted_kg - much.carbon.emitted_kg <= bound + 1e-9


def test_power_is_not_kept_for_later_if_a_little_more_sun_would_make_that_a_waste() -> None:
    """A clean hour now, a dirty one later, and between them own plants that all but fill the battery."""
    asked = problem(
        [50, 50, 100],
        own_kwh=[0, 9, 0],
        grid_g_per_kwh=[100, 100, 800],
        battery=LOSSLESS,
        stored_kwh=1.0,
        load_kwh=[1, 1, 9],
    )
    assert made(plan_with_safeguards(asked, credit_kg=0.0)).discharge_kwh[0] == 0
    followed = made(plan_within(asked, even(1.0), steps_left=OPEN))
    assert (followed.planner, followed.discharge_kwh[0]) == (PlanMethod.RULE, 1)
    assert "a quarter more" in followed.notes[0]


def test_savings_of_the_period_pay_for_a_risk() -> None:
    asked = problem(
        [50, 50, 100], own_kwh=[0, 9, 0], grid_g_per_kwh=[100, 100, 800], battery=LOSSLESS, load_kwh=[1, 1, 9]
    )
    rich = PeriodBalance(stored_kwh=1.0, rule_stored_kwh=1.0, emitted_kg=0.0, rule_emitted_kg=1.0)
    assert made(plan_within(asked, rich, steps_left=OPEN)).discharge_kwh[0] == 0


def test_nothing_is_borrowed_from_the_next_period() -> None:
    clean_then_dirty = problem([10, 100], grid_g_per_kwh=[100, 800], battery=LOSSLESS)
    assert made(plan_within(clean_then_dirty, even(), steps_left=OPEN)).charge_kwh[0] == pytest.approx(1)
    last = made(plan_within(clean_then_dirty, even(), steps_left=1))
    assert (last.charge_kwh[0], last.planner) == (0, PlanMethod.RULE)


def test_a_stated_budget_goes_before_prudence() -> None:
    """The plan that keeps it charges from the grid; the rule would break it."""
    asked = problem([10, 100], grid_g_per_kwh=[100, 800], battery=LOSSLESS, budget_kg=0.25)
    plan = made(plan_within(asked, even(), steps_left=OPEN))
    assert (plan.carbon.budget_kept, plan.carbon.emitted_kg) == (True, pytest.approx(0.2))
    hopeless = made(plan_within(replace(asked, budget_kg=0.01), even(), steps_left=OPEN))
    assert not hopeless.carbon.budget_kept
    assert hopeless.carbon.over_kg == pytest.approx(0.19)


def test_a_stated_budget_goes_before_what_more_sun_would_make_a_waste() -> None:
    """Keeping power for the dirty hour is a risk, but the rule would break the budget for sure."""
    asked = problem(
        [50, 50, 100],
        own_kwh=[0, 9, 0],
        grid_g_per_kwh=[100, 100, 800],
        battery=LOSSLESS,
        stored_kwh=1.0,
        load_kwh=[1, 1, 9],
    )
    assert made(plan_within(asked, even(1.0), steps_left=OPEN)).planner is PlanMethod.RULE
    bound = made(plan_within(replace(asked, budget_kg=0.2), even(1.0), steps_left=OPEN))
    assert (bound.planner, bound.carbon.budget_kept) == (PlanMethod.OPTIMISER, True)
    loose = made(plan_within(replace(asked, budget_kg=99.0), even(1.0), steps_left=OPEN))
    assert (loose.planner, loose.carbon.budget_kept, loose.carbon.penalty_per_t > 0) == (PlanMethod.RULE, True, True)


def test_flexible_load_runs_where_the_plan_puts_it_also_when_the_battery_follows_the_rule() -> None:
    batch = FlexibleLoad(name="batch", energy_kwh=1, power_kw=1, first=0, last=3)
    slow = replace(LOSSLESS, power_kw=1)
    asked = problem([10, 5, 100, 100], grid_g_per_kwh=[100, 100, 800, 800], battery=slow, flexible=(batch,))
    assert made(plan_within(asked, even(), steps_left=OPEN)).charge_kwh[0] == pytest.approx(1)
    plan = made(plan_within(asked, even(), steps_left=1))
    assert plan.planner is PlanMethod.RULE
    assert plan.flexible_kwh["batch"].tolist() == pytest.approx([0, 1, 0, 0])
    used = asked.load_kwh + plan.flexible_kwh["batch"] + plan.charge_kwh
    assert (plan.import_kwh + plan.own_used_kwh + plan.discharge_kwh).tolist() == pytest.approx(used.tolist())


def test_a_step_that_comes_otherwise_is_carried_out_as_far_as_it_can_be() -> None:
    asked = problem([10, 100], battery=LOSSLESS, stored_kwh=0.0, load_kwh=[1, 4])
    plan = made(plan_procurement(asked))
    assert plan.charge_kwh[0] == pytest.approx(4)
    came = replace(first_step(asked), load_kwh=np.array([2.0]), own_kwh=np.array([1.0]), stored_kwh=9.0)
    done = carried_out(came, plan)
    assert (done.charge_kwh[0], done.stored_kwh[0], done.import_kwh[0]) == (1, 10, 2)
    metered = carried_out(came, plan, stored_after_kwh=8.0)
    assert (metered.discharge_kwh[0], metered.import_kwh[0]) == (1, 0)

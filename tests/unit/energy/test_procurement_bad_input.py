"""What does the planner say to input that is none? A failure that names it; never a crash, never a plan."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from harch.energy.procurement.plan import FailureKind, PlanFailure, PlanMethod, ProcurementPlan
from harch.energy.procurement.planner import plan_by_rule, plan_or_rule, plan_procurement
from harch.energy.procurement.problem import Battery, DemandPeaks, FlexibleLoad, PpaOffer
from unit.energy.energy_fixtures import LOSSLESS, hours, problem

NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"import_per_mwh": [1, NAN]}, "import_per_mwh"),
        ({"import_per_mwh": [1, float("inf")]}, "import_per_mwh"),
        ({"load_kwh": [1, -1]}, "load_kwh"),
        ({"load_kwh": [1, 1, 1]}, "load_kwh"),
        ({"own_kwh": [NAN, NAN]}, "own_kwh"),
        ({"grid_g_per_kwh": [1, 99_999]}, "grid_g_per_kwh"),
        ({"sale_per_mwh": [1, NAN]}, "sale_per_mwh"),
        ({"import_kw_max": NAN}, "import_kw_max"),
        ({"budget_kg": NAN}, "budget_kg"),
        ({"carbon_per_t": -1.0}, "carbon_per_t"),
        ({"battery": LOSSLESS, "stored_kwh": 99.0}, "stored_kwh"),
        ({"battery": LOSSLESS, "stored_kwh": NAN}, "stored_kwh"),
        ({"battery": Battery(energy_kwh=NAN, power_kw=1)}, "battery.energy_kwh"),
        ({"battery": Battery(energy_kwh=1, power_kw=1, charge_efficiency=1.2)}, "battery.charge_efficiency"),
        ({"flexible": (FlexibleLoad(name="a", energy_kwh=1, power_kw=1, first=1, last=3),)}, "flexible.a"),
        ({"flexible": (FlexibleLoad(name="a", energy_kwh=9, power_kw=1, first=0, last=2),)}, "flexible.a"),
        ({"flexible": (FlexibleLoad(name="a", energy_kwh=1, power_kw=1, first=0, last=2),) * 2}, "flexible"),
        ({"demand": DemandPeaks(per_kw=NAN, months=("a", "a"))}, "demand.per_kw"),
        ({"demand": DemandPeaks(per_kw=1, months=("a",))}, "demand.months"),
        (
            {
                "ppas": (
                    PpaOffer(
                        name="w",
                        offered_kwh=np.array([NAN, 1]),
                        per_mwh=1,
                        must_take=False,
                        g_per_kwh=np.zeros(2),
                    ),
                )
            },
            "ppas.w.offered_kwh",
        ),
    ],
)
def test_bad_input_is_named(changes: dict[str, object], where: str) -> None:
    asked = problem([10, 20], **changes)
    for planner in (plan_procurement, plan_by_rule):
        failure = planner(asked)
        assert isinstance(failure, PlanFailure)
        assert failure.kind is FailureKind.INPUT
        assert where in [place for place, _ in failure.problems]
        assert failure.error().code == "E0242"
        assert failure.error().hint


def test_every_mistake_is_named_at_once() -> None:
    failure = plan_procurement(problem([NAN, NAN], load_kwh=[-1, 1], import_kw_max=-1.0))
    assert isinstance(failure, PlanFailure)
    assert len(failure.problems) == 3
    assert "2026-03-02T00:00Z (2 such steps)" in str(failure)


def test_load_that_nothing_can_supply_is_an_answer_with_hour_and_amount() -> None:
    failure = plan_procurement(problem([10, 10, 10], load_kwh=[1, 8, 1], import_kw_max=5.0))
    assert isinstance(failure, PlanFailure)
    assert failure.kind is FailureKind.SUPPLY
    assert "1 steps from 2026-03-02T01:00Z lack up to 3.0 kW, 3.0 kWh in total" in str(failure)
    assert failure.error().code == "E0340"


def test_a_carbon_budget_never_leaves_load_without_power() -> None:
    plan = plan_procurement(problem([10, 10], budget_kg=-50.0))
    assert isinstance(plan, ProcurementPlan)
    assert plan.carbon.over_kg == pytest.approx(51)


def test_a_meter_that_reads_a_little_beyond_the_battery_counts_as_full() -> None:
    plan = plan_procurement(problem([10], battery=LOSSLESS, stored_kwh=10.2, load_kwh=[0]))
    assert isinstance(plan, ProcurementPlan)
    assert plan.stored_kwh[0] == pytest.approx(10)


def test_without_the_solver_the_rule_plans_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    asked = problem([10, 20], own_kwh=[3, 0], battery=LOSSLESS)
    failure = plan_procurement(asked)
    assert isinstance(failure, PlanFailure)
    assert failure.error().code == "E0341"
    plan = plan_or_rule(asked)
    assert isinstance(plan, ProcurementPlan)
    assert plan.planner is PlanMethod.RULE
    assert "pip install 'harch[energy]'" in plan.notes[0]


def test_the_rule_stores_surplus_and_covers_deficits_from_it() -> None:
    plan = plan_by_rule(problem([10, 20], own_kwh=[3, 0], battery=LOSSLESS))
    assert isinstance(plan, ProcurementPlan)
    assert plan.charge_kwh.tolist() == [2, 0]
    assert plan.discharge_kwh.tolist() == [0, 1]
    assert plan.import_kwh.sum() == 0
    assert plan.energy_value_per_mwh is None


def test_the_rule_cannot_supply_more_than_the_connection_either() -> None:
    failure = plan_by_rule(problem([10], load_kwh=[9], import_kw_max=5.0))
    assert isinstance(failure, PlanFailure)
    assert failure.kind is FailureKind.SUPPLY


def test_steps_are_checked_when_they_are_made() -> None:
    from harch.base.errors import HarchError
    from harch.energy.steps import Steps

    start = hours(1).start
    for wrong in (
        (start.replace(tzinfo=None), 3600, 1),
        (start, 7, 1),
        (start, 3600, 0),
        (start.replace(minute=1), 3600, 1),
    ):
        with pytest.raises(HarchError, match="E0242"):
            Steps(*wrong)

"""A hub whose plans have finer steps decides as one that plans by the hour."""

from __future__ import annotations

from datetime import timedelta

import pytest

from harch.carbon.planning.settings import PlanningEntry, PlanSettings
from harch.hub.jobs import events as ev
from harch.workloads.spec import CarbonPreferences
from unit.hub.conftest import Bench
from unit.hub_carbon_routing.plans import plan

CLEAN_LATER = [600.0, 600.0, 600.0, 50.0]
KWH = 18.36  # eight H100 and their share of the node, 1.5 hours, with the hub's PUE
SLACK = CarbonPreferences(slack_s=8 * 3600, duration_s=5400)


def plan_by_steps(bench: Bench, step_s: float) -> None:
    bench.limits = ev.JobLimits(carbon=PlanSettings(PlanningEntry(step_s=step_s)))
    grid = [g for g in CLEAN_LATER for _ in range(round(3600 / step_s))]
    bench.handle(ev.CarbonPlanned(plan(bench.now, {"dakhla": grid}, step_s=step_s)))


@pytest.mark.parametrize("step_s", [3600.0, 900.0])
def test_work_is_held_for_the_same_hour_with_the_same_grams(bench: Bench, step_s: float) -> None:
    plan_by_steps(bench, step_s)
    choice = bench.submit(gpus=8, carbon=SLACK).carbon
    assert choice is not None
    assert choice.chosen is not None
    assert choice.at_once is not None
    assert (choice.held, choice.start_at) == (True, bench.now + timedelta(hours=3))
    assert choice.chosen.kwh == choice.at_once.kwh == pytest.approx(KWH)
    assert choice.chosen.grams == pytest.approx(50.0 * KWH)
    assert choice.at_once.grams == pytest.approx(600.0 * KWH)


@pytest.mark.parametrize("step_s", [3600.0, 900.0])
def test_work_is_not_held_for_an_hour_that_its_slack_does_not_reach(bench: Bench, step_s: float) -> None:
    plan_by_steps(bench, step_s)
    choice = bench.submit(carbon=CarbonPreferences(slack_s=2.5 * 3600, duration_s=3600)).carbon
    assert choice is not None
    assert not choice.held

"""Whatever the forecasts and the work: does a plan keep residency, promises, capacity and limits?"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harch.carbon.planning.decisions import DecisionKind
from harch.carbon.planning.dispatch import Budgets, MoveRules
from harch.carbon.planning.outlook import HubHours, Pool, PowerOutlook
from harch.carbon.planning.plan import booked, plan_carbon
from harch.carbon.planning.work import ClassKey, ExpectedWork, FlexibleWork, WorkDemand

HOURS = 12
HUBS = ("a", "b", "c")
MODELS = ("x", "y")


@st.composite
def outlooks(draw: st.DrawFn) -> PowerOutlook:
    hubs = []
    for name in HUBS:
        onsite = draw(st.lists(st.floats(0, 50), min_size=HOURS, max_size=HOURS))
        spread = draw(st.floats(0, 20))
        hubs.append(
            HubHours(
                hub=name,
                grid_g_per_kwh=np.full(HOURS, draw(st.floats(0, 900))),
                onsite_kw=np.array(onsite),
                onsite_sd_kw=np.full(HOURS, spread),
                onsite_g_per_kwh=draw(st.floats(0, 40)),
                pue=draw(st.floats(1, 2)),
            )
        )
    pools = [Pool(hub, model, draw(st.integers(1, 24)), 1.0) for hub in HUBS for model in MODELS]
    return PowerOutlook(tuple(hubs), tuple(pools))


@st.composite
def works(draw: st.DrawFn, *, running: bool) -> tuple[FlexibleWork, ...]:
    found = []
    for number in range(draw(st.integers(0, 8))):
        allowed = draw(st.frozensets(st.sampled_from(HUBS), min_size=1))
        found.append(
            FlexibleWork(
                id=f"{'running' if running else 'waiting'}-{number}",
                hubs=allowed,
                model=draw(st.sampled_from(MODELS)),
                gpus=draw(st.integers(1, 16)),
                hours_left=draw(st.floats(0.1, 15)),
                wait_h_max=draw(st.floats(0, 15)),
                tenant=draw(st.sampled_from(("one", "two"))),
                home=min(allowed),
                running_at=draw(st.sampled_from(sorted(allowed))) if running else None,
                movable=draw(st.booleans()),
                checkpoint_gb=draw(st.floats(0, 100)),
                g_per_kwh_max=draw(st.none() | st.floats(0, 900)),
            )
        )
    return tuple(found)


@settings(max_examples=60, deadline=None)
@given(outlooks(), works(running=False), works(running=True), st.floats(0, 5000))
def test_no_plan_leaves_the_allowed_hubs_or_its_promise_or_its_limits(
    outlook: PowerOutlook, waiting: tuple[FlexibleWork, ...], running: tuple[FlexibleWork, ...], budget_g: float
) -> None:
    budgets = Budgets({"one": budget_g})
    plan = plan_carbon(outlook, WorkDemand(waiting), running, budgets=budgets, moves=MoveRules(again_h=0.1))
    by_id = {work.id: work for work in (*waiting, *running)}
    spent_g = 0.0
    for decision in plan.decisions:
        work = by_id[decision.work_id]
        assert decision.hub is None or decision.hub in work.hubs
        assert decision.start_step <= work.wait_h_max
        assert decision.start_step == 0 or decision.verb in (DecisionKind.WAIT, DecisionKind.SUSPEND)
        if decision.verb is DecisionKind.START and decision.chosen is not None:
            if work.g_per_kwh_max is not None:
                assert decision.chosen.g_per_kwh <= work.g_per_kwh_max + 1e-6
            spent_g += decision.chosen.grams if work.tenant == "one" else 0.0
        if decision.verb in (DecisionKind.MOVE, DecisionKind.SUSPEND):
            assert work.movable
            assert decision.saves_g > -1e-6 or decision.chosen is not None
    assert {decision.work_id for decision in plan.decisions} >= {work.id for work in waiting}
    assert spent_g <= budget_g + 1e-6
    assert all(place in key.hubs for key, place in plan.classes.quotas)


@settings(max_examples=60, deadline=None)
@given(outlooks(), works(running=False))
def test_what_starts_with_room_fits_the_gpus_hour_by_hour(
    outlook: PowerOutlook, waiting: tuple[FlexibleWork, ...]
) -> None:
    plan = plan_carbon(outlook, WorkDemand(waiting), ())
    by_id = {work.id: work for work in waiting}
    held = {pool.key: np.zeros(HOURS) for pool in outlook.pools}
    for decision in plan.decisions:
        if decision.hub is not None and decision.room:
            work = by_id[decision.work_id]
            from_h, until_h = decision.start_step, decision.start_step + work.hours_left
            hours = np.arange(HOURS)
            held[decision.hub, work.model] += work.gpus * np.clip(until_h - hours, 0, 1) * (hours >= from_h)
    for pool in outlook.pools:
        assert (held[pool.key] <= pool.gpus + 1e-6).all()


@settings(max_examples=40, deadline=None)
@given(outlooks(), works(running=False), works(running=True), st.floats(0.1, 20))
def test_quotas_fit_what_running_work_leaves(
    outlook: PowerOutlook, waiting: tuple[FlexibleWork, ...], running: tuple[FlexibleWork, ...], rate: float
) -> None:
    expected = {ClassKey(frozenset(HUBS), "x", True): ExpectedWork(rate, 2.0, 4.0)}
    plan = plan_carbon(outlook, WorkDemand(waiting, expected), running)
    assert not plan.classes.failure
    _, free = booked(outlook, running)
    for pool in outlook.pools:
        used = sum(
            (gpus for (key, hub), gpus in plan.classes.quotas.items() if (hub, key.model) == pool.key), np.zeros(HOURS)
        )
        # Quotas hold on average over a step of the program, which may be several hours long.
        assert used.sum() <= np.maximum(free[pool.key], 0.0).sum() + 1e-4 * HOURS

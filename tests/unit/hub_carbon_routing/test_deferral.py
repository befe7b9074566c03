"""Work with slack waits for cleaner hours, and never beyond its promise, whatever happens to plans and clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.carbon.planning.decisions import CarbonDecision, DecisionKind
from harch.carbon.planning.outlook import Pool
from harch.carbon.planning.settings import AppliesTo, BudgetsEntry, PlanningEntry, PlanSettings
from harch.hub.jobs import events as ev
from harch.hub.jobs.carbon_plan import HubPlan
from harch.hub.jobs.carbon_routing.candidates import CPU, size_of
from harch.hub.jobs.carbon_routing.choices import preview
from harch.hub.jobs.events import EventContext
from harch.hub.jobs.machine import JobMachine
from harch.testing.samples import tiny_fleet
from harch.workloads.lifecycle import ExitReason, State, Workload
from harch.workloads.spec import CarbonPreferences, SchedulingClass
from unit.hub.conftest import Bench
from unit.hub_carbon_routing import plans
from unit.hub_carbon_routing.plans import plan

HOUR = timedelta(hours=1)
CLEAN_LATER = [600.0, 600.0, 600.0, 50.0]
SLACK = CarbonPreferences(slack_s=8 * 3600, duration_s=3600)


def planned(bench: Bench, home: list[float] | float, **fields: object) -> None:
    bench.handle(ev.CarbonPlanned(plan(bench.now, {"dakhla": home}, **fields)))  # type: ignore[arg-type]


def kinds(bench: Bench, workload: Workload) -> list[str]:
    return [record.kind for record in bench.records if record.subject == workload.id]


def test_work_with_slack_waits_for_the_clean_hour_and_starts_in_it(bench: Bench) -> None:
    planned(bench, CLEAN_LATER)
    job = bench.submit(carbon=SLACK)
    choice = job.carbon
    assert choice is not None
    assert choice.held
    assert (choice.start_at, choice.start_by) == (bench.now + 3 * HOUR, bench.now + 8 * HOUR)
    assert choice.saves_g > 0
    assert bench.place() == []
    bench.later(hours=2, minutes=59)
    assert not bench.machine.is_carbon_due(bench.now, 0.0)
    bench.later(minutes=1)
    assert bench.machine.is_carbon_due(bench.now, 0.0)
    bench.handle(ev.CarbonDue())
    assert [start.task.key.workload_id for start in bench.place()] == [job.id]
    assert kinds(bench, job)[:3] == ["workload.submitted", "workload.deferred", "workload.released"]


@pytest.mark.parametrize("turn_class", [SchedulingClass.INFERENCE, SchedulingClass.INTERACTIVE])
def test_urgent_work_is_never_put_off_nor_may_it_ask_for_it(bench: Bench, turn_class: SchedulingClass) -> None:
    bench.plan_by(PlanSettings(PlanningEntry(applies_to=AppliesTo.ALL)))
    planned(bench, CLEAN_LATER)
    with pytest.raises(ValueError, match="never waits for power"):
        bench.submit(carbon=SLACK, scheduling_class=turn_class)
    job = bench.submit(scheduling_class=turn_class, carbon=CarbonPreferences(aware=True))
    assert job.carbon is None
    assert bench.place()


def test_work_without_slack_and_work_that_opts_out_start_at_once(bench: Bench) -> None:
    bench.plan_by(PlanSettings(PlanningEntry(applies_to=AppliesTo.ALL)))
    planned(bench, CLEAN_LATER)
    silent, out = bench.submit(), bench.submit(carbon=CarbonPreferences(aware=False))
    assert silent.carbon is not None
    assert (silent.carbon.action, silent.carbon.held, out.carbon) == ("start", False, None)
    assert len(bench.place()) == 2


def test_a_gain_below_the_error_of_forecasts_is_not_waited_for(bench: Bench) -> None:
    planned(bench, [600.0, 580.0])
    job = bench.submit(carbon=SLACK)
    assert job.carbon is not None
    assert not job.carbon.held
    assert "the forecast error" in job.carbon.reason


def test_without_any_plan_work_waits_a_minute_for_the_first_and_then_starts(bench: Bench) -> None:
    job = bench.submit(carbon=SLACK)
    assert job.carbon is not None
    assert job.carbon.held
    bench.later(seconds=61)
    bench.handle(ev.CarbonDue())
    assert bench.place()
    assert job.state is State.SCHEDULED


def test_an_old_plan_is_no_plan(bench: Bench) -> None:
    planned(bench, CLEAN_LATER)
    bench.later(minutes=31)
    job = bench.submit(carbon=SLACK)
    assert job.carbon is not None
    assert not job.carbon.held
    assert "no plan" in job.carbon.reason


def test_the_promise_is_kept_when_no_plan_comes_any_more(bench: Bench) -> None:
    """The planner died right after it had put the work off to the end of its slack."""
    planned(bench, [600.0] * 20 + [10.0])
    job = bench.submit(carbon=CarbonPreferences(slack_s=30 * 3600, duration_s=3600))
    assert job.carbon is not None
    assert job.carbon.release_at is not None
    assert job.carbon.start_by == job.created_at + 30 * HOUR
    bench.now = job.carbon.start_at or bench.now
    bench.handle(ev.CarbonDue())
    assert bench.place()
    assert bench.now <= job.carbon.start_by


def test_the_promise_survives_a_restart_of_the_hub(bench: Bench) -> None:
    planned(bench, CLEAN_LATER)
    job = bench.submit(carbon=SLACK)
    kept = msgspec.json.decode(msgspec.json.encode(job), type=Workload)
    again = JobMachine(tiny_fleet(), bench.hub)
    bench.later(hours=1)
    again.restore([kept], [], context=EventContext(now=bench.now))
    assert kept.id not in again.state.scheduler.queue
    assert not again.is_carbon_due(bench.now, 0.0)
    bench.later(hours=2)
    assert again.is_carbon_due(bench.now, 0.0)
    again.apply(ev.CarbonDue(), EventContext(now=bench.now))
    assert kept.id in again.state.scheduler.queue


def test_a_clock_that_is_set_back_does_not_make_a_promise_late(bench: Bench) -> None:
    planned(bench, CLEAN_LATER)
    job = bench.submit(carbon=SLACK)
    bench.later(days=-2)
    assert not bench.machine.is_carbon_due(bench.now, 3 * 3600 - 1)
    assert bench.machine.is_carbon_due(bench.now, 3 * 3600)
    bench.machine.apply(ev.CarbonDue(), EventContext(now=bench.now, boot_s=3 * 3600))
    assert job.id in bench.machine.state.scheduler.queue


def test_after_a_restart_with_the_clock_set_back_nobody_waits_longer_than_ever_planned(bench: Bench) -> None:
    planned(bench, CLEAN_LATER)
    job = bench.submit(carbon=SLACK)
    again = JobMachine(tiny_fleet(), bench.hub)
    again.restore([job], [], context=EventContext(now=bench.now - timedelta(days=30), boot_s=1000.0))
    assert again.is_carbon_due(bench.now - timedelta(days=30), 1000.0 + 3 * 3600)


def test_a_clock_that_jumps_ahead_releases_what_is_due(bench: Bench) -> None:
    planned(bench, CLEAN_LATER)
    job = bench.submit(carbon=SLACK)
    bench.later(days=400)
    bench.handle(ev.CarbonDue())
    assert job.id in bench.machine.state.scheduler.queue


def test_a_new_plan_may_start_held_work_earlier_or_later(bench: Bench) -> None:
    planned(bench, CLEAN_LATER)
    first, second = bench.submit(carbon=SLACK), bench.submit(carbon=SLACK)
    bench.later(minutes=5)
    planned(bench, [600.0, 600.0, 600.0, 600.0, 600.0, 10.0])
    for job in (first, second):
        assert job.carbon is not None
        assert (job.carbon.held, job.carbon.start_at) == (True, bench.now + 5 * HOUR)
        assert "workload.replanned" in kinds(bench, job)
    planned(bench, 20.0)
    assert {start.task.key.workload_id for start in bench.place()} == {first.id, second.id}


def test_held_work_can_be_stopped_paused_resumed_and_replaced(bench: Bench) -> None:
    planned(bench, CLEAN_LATER)
    job = bench.submit(carbon=SLACK)
    bench.handle(ev.PauseRequested(job.id))
    bench.later(hours=9)
    bench.handle(ev.CarbonDue())
    assert bench.place() == []
    bench.handle(ev.ResumeRequested(job.id))
    bench.handle(ev.CarbonDue())
    assert [start.task.key.workload_id for start in bench.place()] == [job.id]
    planned(bench, CLEAN_LATER)
    other = bench.submit(carbon=SLACK)
    bench.handle(ev.SpecReplaced(other.id, msgspec.structs.replace(other.spec, carbon=CarbonPreferences()), {}))
    assert [start.task.key.workload_id for start in bench.place()] == [other.id]
    third = bench.submit(carbon=SLACK)
    bench.handle(ev.StopRequested(third.id, "no longer wanted"))
    assert third.state is State.CANCELLED
    bench.later(days=1)
    assert not bench.machine.state.carbon.held


def test_a_deadline_counts_back_from_its_end(bench: Bench) -> None:
    planned(bench, CLEAN_LATER)
    by = bench.now.astimezone(UTC) + 6 * HOUR
    job = bench.submit(carbon=CarbonPreferences(finish_by=by, duration_s=2 * 3600))
    assert job.carbon is not None
    assert job.carbon.start_by == by - 2 * HOUR
    late = bench.submit(carbon=CarbonPreferences(finish_by=bench.now - HOUR, duration_s=60))
    assert late.carbon is not None
    assert not late.carbon.held


def test_a_plan_that_breaks_starts_work(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise FloatingPointError

    planned(bench, CLEAN_LATER)
    monkeypatch.setattr("harch.hub.jobs.carbon_routing.choices.decide", broken)
    job = bench.submit(carbon=SLACK)
    assert job.carbon is not None
    assert not job.carbon.held
    assert bench.place()


# Limits


def test_a_ceiling_that_no_hour_keeps_is_refused_and_one_that_an_hour_keeps_is_waited_for(bench: Bench) -> None:
    planned(bench, [600.0, 600.0, 200.0, 600.0])
    with pytest.raises(HarchError, match="ceiling") as raised:
        bench.submit(carbon=CarbonPreferences(slack_s=4 * 3600, duration_s=3600, g_per_kwh_max=100))
    assert raised.value.code == "E0402"
    assert raised.value.hint
    job = bench.submit(carbon=CarbonPreferences(slack_s=8 * 3600, duration_s=3600, g_per_kwh_max=300))
    assert job.carbon is not None
    assert job.carbon.start_at == bench.now + 2 * HOUR
    assert bench.machine.state.registry.workloads.keys() == {job.id}


def test_grams_of_a_job_are_a_hard_limit(bench: Bench) -> None:
    planned(bench, 600.0)
    with pytest.raises(HarchError, match="carbon budget") as raised:
        bench.submit(carbon=CarbonPreferences(g_max=10, duration_s=3600))
    assert raised.value.code == "E0402"
    assert bench.submit(carbon=CarbonPreferences(g_max=100_000, duration_s=3600)).carbon is not None


def test_a_tenant_s_budget_binds_all_its_work_and_no_gram_is_given_twice(bench: Bench) -> None:
    bench.plan_by(PlanSettings(budgets=BudgetsEntry(tenants={"t": 1.5})))
    planned(bench, 600.0, tenant_g_left={"t": 1500.0})
    first = bench.submit(max_duration_s=3600)
    assert first.carbon is not None
    assert 750 < first.carbon.reserved_g <= 1500
    with pytest.raises(HarchError, match="remain of its carbon budget") as raised:
        bench.submit(max_duration_s=3600)
    assert raised.value.code == "E0402"
    assert "carbon report --tenant t" in raised.value.hint


def test_a_limit_that_can_no_longer_be_kept_ends_the_work_at_its_promise_and_says_why(bench: Bench) -> None:
    planned(bench, [600.0, 600.0, 200.0, 600.0])
    job = bench.submit(carbon=CarbonPreferences(slack_s=4 * 3600, duration_s=3600, g_per_kwh_max=300))
    bench.later(minutes=5)
    planned(bench, 600.0)
    assert job.carbon is not None
    assert job.carbon.refused
    bench.now = job.carbon.release_at or bench.now
    planned(bench, 600.0)
    bench.handle(ev.CarbonDue())
    assert (job.state, job.error_message[:5]) == (State.FAILED, "E0402")


def test_ends_of_work_leave_no_timer_behind(bench: Bench) -> None:
    planned(bench, CLEAN_LATER)
    job = bench.submit(carbon=SLACK)
    planned(bench, 20.0)
    bench.run(job)
    bench.end(job, reason=ExitReason.EXITED)
    assert job.state is State.COMPLETED
    bench.later(days=9)
    assert not bench.machine.state.carbon.take_due(bench.now.timestamp(), 1e9)
    assert bench.now > datetime(2026, 1, 1, tzinfo=UTC)


# Wishes that change


def test_waiting_work_is_weighed_again_when_its_wishes_change_and_running_work_is_left_alone(bench: Bench) -> None:
    planned(bench, CLEAN_LATER)
    job = bench.submit(carbon=CarbonPreferences(aware=True))
    bench.handle(ev.CarbonPreferencesChanged(job.id, SLACK, {"a": "b"}))
    assert job.carbon is not None
    assert (job.carbon.held, job.annotations, bench.place()) == (True, {"a": "b"}, [])
    bench.handle(ev.CarbonPreferencesChanged(job.id, CarbonPreferences()))
    assert job.carbon is None
    bench.run(job)
    bench.handle(ev.CarbonPreferencesChanged(job.id, SLACK))
    assert (job.state, job.carbon, job.spec.carbon) == (State.RUNNING, None, SLACK)


def test_wishes_that_cannot_be_are_refused_and_change_nothing(bench: Bench) -> None:
    planned(bench, CLEAN_LATER)
    urgent = bench.submit(scheduling_class=SchedulingClass.INFERENCE)
    with pytest.raises(HarchError, match="never waits") as raised:
        bench.handle(ev.CarbonPreferencesChanged(urgent.id, SLACK))
    assert (raised.value.code, urgent.spec.carbon) == ("E0201", CarbonPreferences())
    job = bench.submit(carbon=CarbonPreferences(aware=True, duration_s=3600))
    with pytest.raises(HarchError, match="ceiling") as raised:
        bench.handle(ev.CarbonPreferencesChanged(job.id, CarbonPreferences(g_per_kwh_max=1, duration_s=3600)))
    assert (raised.value.code, job.spec.carbon.g_per_kwh_max) == ("E0402", None)
    assert job.id in bench.machine.state.scheduler.queue


def test_a_promise_that_full_hardware_breaks_is_told(bench: Bench) -> None:
    everything = [bench.submit(gpus=8) for _ in range(4)]
    bench.place()
    planned(bench, CLEAN_LATER)
    job = bench.submit(gpus=8, carbon=SLACK)
    assert job.carbon is not None
    bench.now = job.carbon.release_at or bench.now
    bench.handle(ev.CarbonDue())
    assert bench.place() == []
    bench.now = job.carbon.start_by or bench.now
    bench.handle(ev.CarbonDue())
    assert kinds(bench, job)[-1] == "workload.promise_missed"
    bench.end(everything[0])
    assert bench.place()
    assert not bench.machine.state.carbon.watched


def test_a_dry_run_tells_what_would_be_decided_and_changes_nothing(bench: Bench) -> None:
    planned(bench, CLEAN_LATER)
    state = bench.machine.state
    before = state.carbon.plan
    assert before is not None
    load = before.book._load_kw.copy()
    spec = bench.submit(carbon=SLACK).spec
    after_one = before.book._load_kw.copy()
    choice = preview(state, bench.context, replace(spec, name="other"), tenant="t", data_ids=())
    assert choice is not None
    assert choice.held
    assert before.book._load_kw == pytest.approx(after_one)
    assert after_one.sum() > load.sum()
    assert "other" not in state.carbon.held
    with pytest.raises(HarchError, match="ceiling"):
        preview(state, bench.context, replace(spec, carbon=CarbonPreferences(g_per_kwh_max=1)), tenant="t", data_ids=())


@pytest.mark.parametrize("in_plan", [True, False])
def test_a_plan_that_lost_sight_of_its_hub_neither_holds_nor_refuses_work(bench: Bench, in_plan: bool) -> None:
    """No figure of the home hub could be believed: then the promise, and its limit, are not for this plan to judge."""
    planned(bench, CLEAN_LATER)
    job = bench.submit(carbon=replace(SLACK, g_per_kwh_max=300))
    blind = plan(bench.now, {"dakar": 20.0})
    lost = CarbonDecision(
        job.id, DecisionKind.REFUSE, None, 0, 5.0, reason="no allowed hub has GPUs of model h100-80gb"
    )
    decisions = {job.id: lost} if in_plan else {}
    bench.handle(ev.CarbonPlanned(HubPlan(at=blind.at, book=blind.book, decisions=decisions, basis=blind.basis)))
    assert [start.task.key.workload_id for start in bench.place()] == [job.id]


def test_work_for_any_model_is_weighed_as_one_that_most_hubs_have(bench: Bench) -> None:
    pools = {pool.key: pool for pool in plans.pools()}
    at_home = {model: pool.gpus for (hub, model), pool in pools.items() if hub == "dakhla" and model != CPU}
    commonest = max(at_home, key=lambda model: at_home[model])
    shared = min(at_home, key=lambda model: at_home[model])
    only_shared = {key: pool for key, pool in pools.items() if key[0] == "dakhla" or key[1] == shared}
    only_shared["elsewhere", shared] = Pool("elsewhere", shared, 8, 0.5)
    spec = bench.submit(carbon=SLACK).spec
    assert size_of(bench.machine.state, spec, only_shared)[0] == shared != commonest

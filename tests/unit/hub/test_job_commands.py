"""What people request of a hub, effect by effect: what is written, told and sent, and what a refusal leaves behind."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harch.base.errors import HarchError, InvariantBroken
from harch.execution.protocol import PauseTask, ResumeTask, StopTask, TaskEnded, TaskKey
from harch.federation.offers import OrderKind, OwnerOrder, Reports, WorkLease, WorkReport
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.machine import ROUND_HOLDS_S, JobMachine
from harch.hub.jobs.registry import request_digest
from harch.hub.jobs.state import may_leave
from harch.hub.jobs.transaction import Transaction
from harch.hub.store.records import IdempotencyEntry
from harch.sovereignty.audit import chain as audit
from harch.testing.clock import START
from harch.testing.samples import tiny_fleet
from harch.workloads.lifecycle import ExitReason, State, Workload
from harch.workloads.spec import Gang, Resources, WorkloadSpec
from unit.hub.conftest import Bench
from unit.hub.lending_world import MOROCCO, SENEGAL, LendingHub

SPEC = WorkloadSpec(name="job", command=("true",), resources=Resources(gpus=1))


def kinds(effects: list[fx.Effect]) -> list[str]:
    """Each effect in a word: the name of its type, or the kind of a record, draft or message."""
    words = []
    for effect in effects:
        match effect:
            case fx.Record(kind):
                words.append(kind)
            case fx.Audit(draft):
                words.append(f"audit {draft.kind}")
            case fx.Send(_, message) | fx.SendPeer(_, message):
                words.append(type(message).__name__)
            case _:
                words.append(type(effect).__name__)
    return words


def drafts(effects: list[fx.Effect]) -> list[audit.Draft]:
    return [effect.draft for effect in effects if isinstance(effect, fx.Audit)]


def saved(effects: list[fx.Effect]) -> list[Workload]:
    return [effect.workload for effect in effects if isinstance(effect, fx.Save)]


class TestSubmission:
    def test_a_submission_is_saved_recorded_and_audited_once(self, bench: Bench) -> None:
        bench.policy_version = "policy-7"
        effects = bench.handle(ev.Submitted("wl_a", "t", SPEC, {"a": "b"}, actor="ada", trace="00-1"))
        assert kinds(effects) == ["Save", "workload.submitted", f"audit {audit.ADMITTED}"]
        (workload,) = saved(effects)
        assert workload == Workload(
            id="wl_a",
            tenant="t",
            owner_hub=bench.hub.id,
            spec=SPEC,
            created_at=bench.now,
            updated_at=bench.now,
            annotations={"a": "b"},
            trace="00-1",
        )
        assert bench.machine.state.registry.workloads["wl_a"] is workload
        (record,) = [effect for effect in effects if isinstance(effect, fx.Record)]
        assert (record.subject, record.tenant) == ("wl_a", "t")
        assert record.data == {"name": "job", "state": State.PENDING, "attempt": 0}
        (draft,) = drafts(effects)
        assert (draft.subject, draft.actor, draft.policy_version) == ("wl_a", "ada", "policy-7")
        assert draft.countries == (bench.hub.country,)

    def test_labels_and_the_key_are_written_where_there_are_any(self, bench: Bench) -> None:
        spec = replace(SPEC, labels={"team": "a"})
        effects = bench.handle(ev.Submitted("wl_a", "t", spec, {}, "key"))
        assert kinds(effects)[3:] == ["SaveLabels", "SaveIdempotencyKey"]
        assert effects[4] == fx.SaveIdempotencyKey(
            IdempotencyEntry(
                tenant="t", key="key", workload_id="wl_a", digest=request_digest(spec, {}), created_at=bench.now
            )
        )
        assert bench.handle(ev.Submitted("wl_b", "t", spec, {}, "key")) == [], "the same again has no effects"

    def test_no_more_than_the_limit_of_a_hub_may_be_pending(self, bench: Bench) -> None:
        bench.limits = ev.JobLimits(pending_max=2)
        bench.submit()
        bench.submit()
        with pytest.raises(HarchError) as refused:
            bench.submit()
        assert (refused.value.code, refused.value.retry_after_s) == ("E0401", 10)
        assert refused.value.message == "2 workloads are already pending"
        assert len(bench.machine.state.registry.workloads) == 2

    def test_a_submission_drops_what_ended_long_ago(self, bench: Bench) -> None:
        old = bench.submit()
        bench.run(old)
        bench.end(old)
        bench.later(minutes=10)
        bench.submit()
        assert old.id not in bench.machine.state.registry.workloads

    def test_work_that_only_another_hub_can_run_is_taken_where_hubs_lend_and_refused_where_it_must_stay(self) -> None:
        hub = LendingHub(MOROCCO)
        cards = Resources(gpus=1, gpu_model="inference-card")
        hub.handle(ev.Submitted("wl_c", "t", replace(SPEC, name="c", resources=cards)))
        work = hub.work("wl_c")
        assert work is not None
        assert not work.home_fits
        assert "wl_c" not in hub.state.scheduler.queue
        for stays in ({"stay_home": True}, {"secrets": ("TOKEN",)}):
            with pytest.raises(HarchError) as refused:
                hub.handle(ev.Submitted("wl_d", "t", replace(SPEC, name="d", resources=cards, **stays)))
            assert refused.value.code == "E0303"
            assert "Dakar" in refused.value.hint

    def test_secrets_and_stay_home_each_keep_work_at_home(self) -> None:
        assert may_leave(SPEC)
        assert not may_leave(replace(SPEC, stay_home=True))
        assert not may_leave(replace(SPEC, secrets=("TOKEN",)))


class TestAnotherSpecification:
    def test_it_is_queued_anew_saved_recorded_and_audited(self, bench: Bench) -> None:
        workload = bench.submit()
        after = replace(SPEC, name="after", resources=Resources(gpus=2), labels={"team": "a"})
        effects = bench.handle(ev.SpecReplaced(workload.id, after, {"a": "b"}, actor="ada"))
        assert kinds(effects) == ["Save", "workload.changed", f"audit {audit.ADMITTED}", "SaveName", "SaveLabels"]
        assert (workload.spec, workload.annotations, workload.state) == (after, {"a": "b"}, State.PENDING)
        assert drafts(effects)[0].actor == "ada"
        assert [start.task.name for start in bench.place()] == ["after"]
        assert len(workload.placement[0].gpu_ids) == 2

    def test_the_old_name_is_free_at_once_and_the_new_one_taken(self, bench: Bench) -> None:
        workload = bench.submit(name="before")
        bench.handle(ev.SpecReplaced(workload.id, replace(SPEC, name="after"), {}))
        assert bench.submit(name="before", gpus=2).id != workload.id
        with pytest.raises(HarchError) as refused:
            bench.submit(name="after", gpus=2)
        assert refused.value.code == "E0302"

    def test_a_name_that_is_taken_is_refused_and_the_old_specification_stays(self, bench: Bench) -> None:
        bench.submit(name="taken")
        workload = bench.submit(name="own")
        before = workload.spec
        with pytest.raises(HarchError) as refused:
            bench.handle(ev.SpecReplaced(workload.id, replace(before, name="taken", resources=Resources(gpus=2)), {}))
        assert refused.value.code == "E0302"
        assert workload.spec == before
        assert not bench.machine.is_changed
        assert {start.task.key.workload_id for start in bench.place()} >= {workload.id}

    def test_its_own_name_and_that_of_ended_work_are_free(self, bench: Bench) -> None:
        ended = bench.submit(name="ended")
        bench.run(ended)
        bench.end(ended)
        workload = bench.submit(name="own")
        bench.handle(ev.SpecReplaced(workload.id, replace(workload.spec, resources=Resources(gpus=3)), {}))
        bench.handle(ev.SpecReplaced(workload.id, replace(workload.spec, name="ended"), {}))
        assert workload.spec.name == "ended"

    def test_paused_work_stays_out_of_the_queue(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.handle(ev.PauseRequested(workload.id))
        bench.handle(ev.SpecReplaced(workload.id, replace(SPEC, name="after"), {}))
        assert bench.place() == []
        bench.handle(ev.ResumeRequested(workload.id))
        assert [start.task.name for start in bench.place()] == ["after"]

    def test_work_that_runs_here_elsewhere_or_for_another_hub_keeps_its_specification(self, bench: Bench) -> None:
        placed = bench.submit()
        bench.place()
        lender = LendingHub(SENEGAL)
        lent = lender.lend()
        runner = LendingHub(MOROCCO)
        assert runner.take(runner.grant(SPEC)) == ""
        for handle, workload_id in (
            (bench.handle, placed.id),
            (lender.handle, lent.id),
            (runner.handle, "wl_theirs"),
        ):
            with pytest.raises(HarchError, match="only while it is pending at its own hub") as refused:
                handle(ev.SpecReplaced(workload_id, replace(SPEC, name="after"), {}))
            assert refused.value.code == "E0304"
            assert refused.value.hint == f"`harch why {workload_id}` shows more"

    def test_new_labels_are_recorded_and_written_even_of_work_that_runs(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.run(workload)
        effects = bench.handle(ev.Relabelled(workload.id, {"team": "b"}))
        assert kinds(effects) == ["Save", "workload.changed", "SaveLabels"]
        assert workload.spec.labels == {"team": "b"}

    def test_unknown_work_is_refused_as_ended_long_ago(self, bench: Bench) -> None:
        for event in (ev.Relabelled("wl_x", {}), ev.StopRequested("wl_x", ""), ev.PauseRequested("wl_x")):
            with pytest.raises(HarchError, match="workload wl_x ended long ago") as refused:
                bench.handle(event)
            assert refused.value.code == "E0304"

    def test_ended_work_is_refused_with_its_state(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.run(workload)
        bench.end(workload)
        for event in (
            ev.PauseRequested(workload.id),
            ev.ResumeRequested(workload.id),
            ev.SpecReplaced(workload.id, SPEC, {}),
        ):
            with pytest.raises(HarchError, match=f"workload {workload.id} is completed: it has already ended"):
                bench.handle(event)


class TestStopping:
    def test_pending_work_ends_at_once_and_leaves_the_queue(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.later(seconds=5)
        effects = bench.handle(ev.StopRequested(workload.id, "enough"))
        assert kinds(effects) == ["Save", "workload.cancelled", f"audit {audit.ENDED}"]
        assert (workload.state, workload.completed_at, workload.hidden) == (State.CANCELLED, bench.now, False)
        assert (workload.stop_reason, workload.stop_as) == ("enough", State.CANCELLED)
        assert workload.id not in bench.machine.state.scheduler.queue
        assert bench.handle(ev.StopRequested(workload.id, "again")) == [], "cancelled work may be cancelled again"

    def test_running_work_is_ordered_to_stop_with_its_grace_and_only_once(self, bench: Bench) -> None:
        workload = bench.submit(stop_grace_s=7.0)
        bench.run(workload)
        effects = bench.handle(ev.StopRequested(workload.id, "enough"))
        assert kinds(effects) == ["Save", "workload.stopping", "StopTask"]
        assert bench.sent == [StopTask(TaskKey(workload.id, 1, 0), 7.0)]
        assert bench.handle(ev.StopRequested(workload.id, "again")) == []
        assert workload.stop_reason == "enough"

    def test_deleted_work_is_hidden_and_ended(self, bench: Bench) -> None:
        workload = bench.submit()
        effects = bench.handle(ev.StopRequested(workload.id, "gone", hide=True))
        assert kinds(effects) == ["Save", "workload.deleted", "workload.cancelled", f"audit {audit.ENDED}"]
        assert (workload.hidden, workload.state) == (True, State.CANCELLED)
        assert bench.handle(ev.StopRequested(workload.id, "gone", hide=True)) == []

    def test_completed_work_can_be_deleted_and_stays_completed(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.run(workload)
        bench.end(workload)
        effects = bench.handle(ev.StopRequested(workload.id, "tidy", hide=True))
        assert kinds(effects) == ["Save", "workload.deleted"]
        assert (workload.hidden, workload.state, workload.stop_reason) == (True, State.COMPLETED, "")

    def test_work_that_stops_for_others_is_cancelled_instead_and_ordered_nothing_twice(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.run(workload)
        bench.handle(ev.NodeDrained(workload.placement[0].node_id))
        assert workload.stop_as is State.PENDING
        effects = bench.handle(ev.StopRequested(workload.id, "enough"))
        assert kinds(effects) == ["Save", "workload.stopping"]
        assert (workload.stop_reason, workload.stop_as) == ("enough", State.CANCELLED)
        bench.end(workload, reason=ExitReason.STOPPED, code=None)
        assert workload.state is State.CANCELLED

    def test_the_hub_that_runs_it_is_ordered_to_stop_it(self) -> None:
        hub = LendingHub(SENEGAL)
        workload = hub.lend()
        hub.handle(ev.StopRequested(workload.id, "enough"))
        assert hub.sent(OwnerOrder) == [
            OwnerOrder(lease=WorkLease(workload.id, 1), kind=OrderKind.STOP, reason="enough")
        ]
        assert kinds(hub.effects) == ["Save", "workload.stopping", "OwnerOrder"]
        assert (workload.state, workload.leased) == (State.SCHEDULED, True)


class TestRestarting:
    def test_running_work_is_stopped_with_its_grace_and_starts_again_under_its_id(self, bench: Bench) -> None:
        workload = bench.submit(stop_grace_s=7.0)
        bench.run(workload)
        effects = bench.handle(ev.RestartRequested(workload.id, "somebody wants it"))
        assert kinds(effects) == ["Save", "workload.restarting", "StopTask"]
        assert bench.sent == [StopTask(TaskKey(workload.id, 1, 0), 7.0)]
        assert bench.handle(ev.RestartRequested(workload.id, "again")) == [], "it does so already"
        bench.end(workload, reason=ExitReason.STOPPED, code=None)
        assert (workload.state, workload.error_message) == (State.PENDING, "somebody wants it")
        assert [start.task.key for start in bench.place()] == [TaskKey(workload.id, 2, 0)]
        assert workload.restarts == 0, "its restart policy has no say in it"

    def test_work_that_waits_is_paused_or_ends_is_refused(self, bench: Bench) -> None:
        workload = bench.submit()

        def refused(why: str) -> None:
            with pytest.raises(HarchError, match=why) as error:
                bench.handle(ev.RestartRequested(workload.id, "again"))
            assert error.value.code == "E0304"

        refused("it has not started yet")
        bench.run(workload)
        bench.handle(ev.PauseRequested(workload.id))
        refused("only running work can be restarted; resume it first")
        bench.handle(ev.ResumeRequested(workload.id))
        bench.handle(ev.StopRequested(workload.id, "enough"))
        refused("it is being stopped")
        bench.end(workload, reason=ExitReason.STOPPED, code=None)
        refused("it has already ended")

    def test_who_wants_it_stopped_after_all_stops_it(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.run(workload)
        bench.handle(ev.RestartRequested(workload.id, "again"))
        bench.handle(ev.StopRequested(workload.id, "enough"))
        bench.end(workload, reason=ExitReason.STOPPED, code=None)
        assert (workload.state, workload.error_message) == (State.CANCELLED, "enough")

    def test_the_hub_that_runs_it_is_ordered_to_return_it_until_it_does(self) -> None:
        hub = LendingHub(SENEGAL)
        workload = hub.lend()
        lease = WorkLease(workload.id, 1)
        order = OwnerOrder(lease=lease, kind=OrderKind.RETURN, reason="again")
        hub.handle(ev.RestartRequested(workload.id, "again"))
        assert hub.sent(OwnerOrder) == [order]
        hub.receive(Reports((WorkReport(lease=lease, state=State.RUNNING, started_at=START),)))
        assert hub.sent(OwnerOrder) == [order], "the first may be lost"
        hub.receive(Reports((WorkReport(lease=lease, state=State.CANCELLED, handed_back=True, message="again"),)))
        assert workload.state is State.PENDING
        assert workload.stop_as is None
        assert workload.id in hub.state.scheduler.queue

    def test_the_hub_that_was_to_return_it_is_ordered_to_stop_it(self) -> None:
        hub = LendingHub(SENEGAL)
        workload = hub.lend()
        hub.handle(ev.RestartRequested(workload.id, "again"))
        hub.handle(ev.StopRequested(workload.id, "enough"))
        lease = WorkLease(workload.id, 1)
        assert hub.sent(OwnerOrder) == [OwnerOrder(lease=lease, kind=OrderKind.STOP, reason="enough")]


class TestPausing:
    def test_a_gang_is_paused_by_the_ranks_that_run_and_resumed_by_all(self, bench: Bench) -> None:
        workload = bench.submit(gpus=8, tasks=2)
        bench.place()
        bench.handle(ev.TaskStartSeen(TaskKey(workload.id, 1, 1)))
        assert kinds(bench.handle(ev.PauseRequested(workload.id))) == ["Save", "workload.paused", "PauseTask"]
        assert bench.sent == [PauseTask(TaskKey(workload.id, 1, 1))]
        assert bench.records[-1].message == "paused; it keeps its GPUs"
        assert bench.handle(ev.PauseRequested(workload.id)) == []
        bench.handle(ev.ResumeRequested(workload.id))
        assert bench.sent == [ResumeTask(TaskKey(workload.id, 1, 0)), ResumeTask(TaskKey(workload.id, 1, 1))]
        assert workload.state is State.SCHEDULED, "one rank has not started yet"
        assert bench.records[-1].message == "resumed"

    def test_pending_work_is_held_back_and_queued_again(self, bench: Bench) -> None:
        workload = bench.submit()
        assert kinds(bench.handle(ev.PauseRequested(workload.id))) == ["Save", "workload.paused"]
        assert bench.records[-1].message == "held back"
        assert workload.id not in bench.machine.state.scheduler.queue
        assert kinds(bench.handle(ev.ResumeRequested(workload.id))) == ["Save", "workload.pending"]
        assert bench.records[-1].message == "pending again"
        assert workload.id in bench.machine.state.scheduler.queue

    def test_running_work_that_is_resumed_is_left_alone_and_other_work_refused(self, bench: Bench) -> None:
        workload = bench.submit()
        with pytest.raises(HarchError, match="only paused work can be resumed"):
            bench.handle(ev.ResumeRequested(workload.id))
        bench.run(workload)
        assert bench.handle(ev.ResumeRequested(workload.id)) == []

    def test_work_that_is_being_stopped_is_not_paused(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.run(workload)
        bench.handle(ev.StopRequested(workload.id, "enough"))
        with pytest.raises(HarchError, match="it is being stopped"):
            bench.handle(ev.PauseRequested(workload.id))

    def test_work_that_broke_the_rules_of_its_data_is_not_resumed(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.handle(ev.PauseRequested(workload.id))
        workload.scrub = True
        with pytest.raises(HarchError, match="the tags of its data no longer permit it here"):
            bench.handle(ev.ResumeRequested(workload.id))

    @pytest.mark.parametrize("started", [False, True])
    def test_the_hub_that_runs_it_is_ordered_to_pause_and_to_resume_it(self, started: bool) -> None:
        hub = LendingHub(SENEGAL)
        workload = hub.lend()
        if started:
            report = WorkReport(lease=WorkLease(workload.id, 1), state=State.RUNNING, started_at=START)
            hub.receive(Reports((report,)))
        hub.handle(ev.PauseRequested(workload.id))
        assert hub.sent(OwnerOrder) == [OwnerOrder(lease=WorkLease(workload.id, 1), kind=OrderKind.PAUSE)]
        assert workload.state is State.PAUSED
        hub.handle(ev.ResumeRequested(workload.id))
        assert hub.sent(OwnerOrder) == [OwnerOrder(lease=WorkLease(workload.id, 1), kind=OrderKind.RESUME)]
        assert workload.state is (State.RUNNING if started else State.SCHEDULED)
        assert workload.id not in hub.state.scheduler.queue


class TestWaiting:
    def test_work_that_was_to_start_by_now_fails_at_that_very_moment(self, bench: Bench) -> None:
        bench.run(bench.submit(gpus=8, tasks=4))
        late = bench.submit(gpus=8, gang=Gang(start_within_s=60))
        bench.later(seconds=59.9)
        bench.place()
        assert late.state is State.PENDING
        bench.later(seconds=0.1)
        effects = bench.handle(ev.PlacementDue())
        assert kinds(effects) == ["Save", "workload.failed", f"audit {audit.ENDED}"]
        assert late.error_message == "did not start within 60 s"
        assert late.id not in bench.machine.state.scheduler.queue

    def test_work_that_started_in_time_is_not_late_when_it_waits_again(self, bench: Bench) -> None:
        workload = bench.submit(gpus=8, gang=Gang(start_within_s=60))
        bench.run(workload)
        bench.handle(ev.NodeDrained(workload.placement[0].node_id))
        bench.end(workload, reason=ExitReason.STOPPED, code=None)
        for node in bench.hub.nodes:
            bench.handle(ev.HardwareChanged("cordoned", node.id, 1))
        bench.later(seconds=120)
        bench.place()
        assert workload.state is State.PENDING

    def test_work_that_was_stopped_while_it_waited_is_not_late_as_well(self, bench: Bench) -> None:
        bench.run(bench.submit(gpus=8, tasks=4))
        workload = bench.submit(gpus=8, gang=Gang(start_within_s=60))
        bench.handle(ev.StopRequested(workload.id, "enough"))
        bench.later(seconds=61)
        assert kinds(bench.handle(ev.PlacementDue())) == []
        assert workload.state is State.CANCELLED

    def test_a_round_that_reaches_its_limit_says_that_more_is_to_come(self, bench: Bench) -> None:
        bench.limits = ev.JobLimits(placed_per_round_max=2)
        for _ in range(3):
            bench.submit()
        assert len(bench.place()) == 2
        assert bench.machine.state.more_to_place
        assert len(bench.place()) == 1
        assert not bench.machine.state.more_to_place

    def test_a_closed_hub_places_nothing_and_wants_no_further_round(self, bench: Bench) -> None:
        bench.limits = ev.JobLimits(placed_per_round_max=1)
        bench.submit()
        bench.submit()
        bench.place()
        bench.handle(ev.HubClosed(1))
        assert bench.place() == []
        assert not bench.machine.state.more_to_place
        bench.handle(ev.HubClosed(0))
        assert len(bench.place()) == 1


class TestFaultsInRounds:
    """Work that made a round fail waits aside, and comes back when its time is over."""

    def held(self, bench: Bench) -> Workload:
        workload = bench.submit()
        bench.machine.state.faults.hold(workload.id, ValueError(), 0.0)
        fresh = JobMachine(tiny_fleet(), bench.hub, faults=bench.machine.state.faults)
        fresh.restore([workload], (), context=bench.context)
        bench.machine = fresh
        bench.join()
        return workload

    def place_at(self, bench: Bench, boot_s: float) -> list[fx.Effect]:
        return bench.machine.apply(ev.PlacementDue(), ev.EventContext(now=bench.now, boot_s=boot_s))

    def test_it_is_left_out_until_its_time_is_over(self, bench: Bench) -> None:
        workload = self.held(bench)
        assert bench.machine.state.set_aside == {workload.id}
        assert "StartTask" not in kinds(self.place_at(bench, 29.9))
        assert "StartTask" in kinds(self.place_at(bench, 30.0))
        assert bench.machine.state.set_aside == set()
        assert workload.state is State.SCHEDULED

    def test_it_does_not_come_back_if_it_was_paused_or_stopped_meanwhile(self, bench: Bench) -> None:
        workload = self.held(bench)
        bench.handle(ev.PauseRequested(workload.id))
        assert kinds(self.place_at(bench, 0.0)) == []
        assert bench.machine.state.set_aside == set()
        assert kinds(self.place_at(bench, 60.0)) == []

    def test_another_specification_has_not_failed_yet(self, bench: Bench) -> None:
        workload = self.held(bench)
        bench.handle(ev.SpecReplaced(workload.id, replace(workload.spec, resources=Resources(gpus=2)), {}))
        assert bench.machine.state.set_aside == set()
        assert len(bench.place()) == 1

    def test_a_fault_is_recorded_with_how_long_the_work_waits(self, bench: Bench) -> None:
        workload = self.held(bench)
        effects = bench.machine.apply(
            ev.FaultSeen("placement due", "ValueError", workload.id), ev.EventContext(now=bench.now, boot_s=10.0)
        )
        assert kinds(effects) == ["Save", "hub.fault", "workload.held_back"]
        records = [effect for effect in effects if isinstance(effect, fx.Record)]
        assert records[0].subject == bench.hub.id
        assert records[0].message == "failed at `placement due` (ValueError): undone, and restored from disk"
        assert records[1].message == ("`placement due` failed on it (ValueError): it is set aside, and retried in 20 s")

    def test_a_fault_of_work_that_is_not_held_is_recorded_of_the_hub_alone(self, bench: Bench) -> None:
        workload = self.held(bench)
        for event, boot_s in (
            (ev.FaultSeen("placement due", "ValueError", workload.id), 30.0),
            (ev.FaultSeen("placement due", "ValueError", "wl_unknown"), 0.0),
            (ev.FaultSeen("placement due", "ValueError", ""), 0.0),
        ):
            assert kinds(bench.machine.apply(event, ev.EventContext(now=bench.now, boot_s=boot_s))) == ["hub.fault"]
        bench.handle(ev.StopRequested(workload.id, "enough"))
        bench.machine.state.faults.hold(workload.id, ValueError(), 0.0)
        assert kinds(bench.handle(ev.FaultSeen("x", "ValueError", workload.id))) == ["hub.fault"]


class TestTheTransaction:
    def test_a_move_that_no_state_allows_breaks_an_invariant(self, bench: Bench) -> None:
        workload = bench.submit()
        tx = Transaction(bench.machine.state, bench.context)
        with pytest.raises(InvariantBroken, match="no move from pending to running"):
            tx.move(workload, State.RUNNING, "")
        assert workload.state is State.PENDING
        assert not tx.is_changed

    def test_an_effect_a_change_or_a_booking_each_count_as_changed(self, bench: Bench) -> None:
        workload = bench.submit()
        assert bench.machine.is_changed
        bench.machine.apply(ev.PeersSeen(()), bench.context)
        assert not bench.machine.is_changed
        for change in (
            lambda tx: tx.note("kind", "subject", "message"),
            lambda tx: tx.changed(workload),
            lambda tx: tx.state.scheduler.withdraw(workload.id),
        ):
            tx = Transaction(bench.machine.state, bench.context)
            assert not tx.is_changed
            change(tx)
            assert tx.is_changed

    def test_a_fresh_machine_is_unchanged_and_suspects_nothing(self, bench: Bench) -> None:
        machine = JobMachine(tiny_fleet(), bench.hub)
        assert not machine.is_changed
        assert machine.suspect == ""

    def test_work_that_a_round_was_at_is_suspect_as_long_as_it_is_known(self, bench: Bench) -> None:
        workload = bench.submit()
        tx = Transaction(bench.machine.state, bench.context)
        assert tx.suspect == ""
        tx.subject = workload.id
        assert tx.suspect == workload.id
        tx.subject = ""
        bench.machine.state.scheduler.subject = workload.id
        assert tx.suspect == workload.id
        tx.subject = "bid_1"
        assert tx.suspect == ""

    def test_the_next_round_is_looked_ahead_once_per_event_and_second(self, bench: Bench) -> None:
        bench.submit()
        now_s = bench.context.now_s
        first = bench.machine.next_round(now_s)
        assert bench.machine.next_round(now_s + ROUND_HOLDS_S - 0.01) is first
        assert bench.machine.next_round(now_s - ROUND_HOLDS_S + 0.01) is first
        later = bench.machine.next_round(now_s + ROUND_HOLDS_S)
        assert later is not first
        bench.submit()
        assert bench.machine.next_round(now_s + ROUND_HOLDS_S) is not later

    def test_a_note_is_a_line_of_the_history_and_changes_no_work(self, bench: Bench) -> None:
        assert bench.handle(ev.Noted("kind", "subject", "message")) == [fx.Record("kind", "subject", "", "message")]

    def test_an_order_to_start_says_all_that_an_agent_needs(self, bench: Bench) -> None:
        spec = WorkloadSpec(
            name="full",
            command=("run", "it"),
            resources=Resources(gpus=2, cpus=3, memory_gb=5),
            env={"LEVEL": "1"},
            secrets=("TOKEN",),
            working_dir="shared",
            max_duration_s=60.0,
            stop_grace_s=7.0,
            countries_allowed=("MA",),
        )
        bench.handle(ev.Submitted("wl_full", "t", spec, trace="00-1"))
        (start,) = bench.place()
        task, workload = start.task, bench.machine.state.registry.workloads["wl_full"]
        assert task.key == TaskKey("wl_full", 1, 0)
        assert (task.name, task.tenant, task.command, task.env) == ("full", "t", ("run", "it"), {"LEVEL": "1"})
        assert task.secrets == {"TOKEN": ""}, "its value is filled in when it is sent"
        assert (task.gpu_ids, task.node_id) == (workload.placement[0].gpu_ids, workload.placement[0].node_id)
        indexes = {gpu.id: gpu.index for node in bench.hub.nodes for gpu in node.gpus}
        assert task.gpu_indexes == tuple(indexes[gpu_id] for gpu_id in task.gpu_ids)
        assert (task.cpus, task.memory_gb, task.max_duration_s, task.stop_grace_s) == (3, 5, 60.0, 7.0)
        assert (task.working_dir, task.world_size, task.type, task.trace) == ("shared", 1, "batch", "00-1")
        assert (task.master_addr, task.master_port) == ("127.0.0.1", None)
        assert (task.country, task.countries_allowed) == ("MA", ("MA",))
        assert (task.data, task.scrub_after, task.lease_until_s) == ((), False, None)


class TestRestoring:
    def restored(self, bench: Bench, *workloads: Workload) -> tuple[JobMachine, list[fx.Effect]]:
        machine = JobMachine(tiny_fleet(), bench.hub)
        return machine, machine.restore(workloads, (), context=bench.context)

    def test_what_is_pending_waits_in_the_order_it_came(self, bench: Bench) -> None:
        first = bench.submit(gpus=8, tasks=4)
        bench.later(seconds=1)
        second = bench.submit(gpus=8, tasks=4)
        machine, effects = self.restored(bench, second, first)
        assert effects == []
        assert list(machine.state.registry.workloads) == [first.id, second.id]
        assert first.id in machine.state.scheduler.queue
        assert second.id in machine.state.scheduler.queue

    def test_what_runs_keeps_its_gpus_and_its_port(self, bench: Bench) -> None:
        workload = bench.submit(gpus=8, tasks=2)
        bench.run(workload)
        machine, effects = self.restored(bench, workload)
        assert effects == []
        held = machine.state.scheduler.running[workload.id]
        assert sum(len(slot.devices) for slot in held.slots) == 16
        assert machine.state.agents.gang_ports_used == {("127.0.0.1", workload.master_port)}

    def test_work_without_its_nodes_is_queued_again(self, bench: Bench) -> None:
        for lost in ("node", "gpu"):
            workload = bench.submit()
            bench.run(workload)
            (task,) = workload.placement
            gone = {"node_id": "sold"} if lost == "node" else {"gpu_ids": ("sold",)}
            workload.placement = (replace(task, **gone),)
            machine, effects = self.restored(bench, workload)
            assert kinds(effects) == ["Save", f"audit {audit.REQUEUED}", "workload.requeued"]
            assert (workload.state, workload.placement) == (State.PENDING, ())
            assert workload.error_message == "the fleet file no longer has its nodes"
            assert workload.id in machine.state.scheduler.queue

    def test_a_gang_that_lost_one_of_its_nodes_is_queued_again(self, bench: Bench) -> None:
        workload = bench.submit(gpus=8, tasks=2)
        bench.run(workload)
        first, second = workload.placement
        workload.placement = (first, replace(second, node_id="sold"))
        self.restored(bench, workload)
        assert (workload.state, workload.placement) == (State.PENDING, ())

    def test_paused_work_keeps_waiting_to_be_resumed(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.handle(ev.PauseRequested(workload.id))
        machine, effects = self.restored(bench, workload)
        assert effects == []
        assert workload.id not in machine.state.scheduler.queue

    def test_ended_work_is_known_and_neither_queued_nor_watched(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.run(workload)
        bench.end(workload)
        machine, effects = self.restored(bench, workload)
        assert effects == []
        assert machine.state.registry.workloads == {workload.id: workload}
        assert not machine.state.scheduler.queue
        assert not machine.state.scheduler.running

    def test_keys_and_the_name_of_this_run_are_remembered(self, bench: Bench) -> None:
        entry = IdempotencyEntry(
            tenant="t", key="k", workload_id="wl_old", digest=request_digest(SPEC, {}), created_at=bench.now
        )
        machine = JobMachine(tiny_fleet(), bench.hub)
        machine.restore((), [entry], context=bench.context, lifetime="second")
        assert machine.state.lending.lifetime == "second"
        bench.machine = machine
        assert bench.handle(ev.Submitted("wl_new", "t", SPEC, {}, "k")) == []

    def test_the_clock_of_an_agent_is_kept_and_that_of_an_unknown_one_dropped(self, bench: Bench) -> None:
        bench.machine.note_agent_clock("agent", 5.0, boot_s=7.0)
        bench.machine.note_agent_clock("nobody", 5.0, boot_s=7.0)
        assert bench.machine.state.agents.agents["agent"].clock == (5.0, 7.0)


def test_work_that_is_queued_again_forgets_how_it_ran(bench: Bench) -> None:
    workload = bench.submit(gpus=8, tasks=2)
    bench.run(workload)
    port = workload.master_port
    assert port is not None
    bench.handle(ev.NodeDrained(workload.placement[0].node_id, "new disks"))
    assert bench.records[-1].kind == "workload.drained"
    assert workload.stop_as is State.PENDING
    for rank in (0, 1):
        bench.end(workload, rank=rank, reason=ExitReason.STOPPED, code=None)
    assert (workload.state, workload.placement, workload.stop_as, workload.stop_reason) == (State.PENDING, (), None, "")
    assert (workload.started_at, workload.master_port) == (None, None)
    assert bench.machine.state.agents.gang_ports_used == set()
    assert workload.id in bench.machine.state.scheduler.queue
    assert bench.gpus_held == 0


def test_work_that_was_paused_when_its_node_was_drained_waits_to_be_resumed(bench: Bench) -> None:
    workload = bench.submit()
    bench.run(workload)
    bench.handle(ev.PauseRequested(workload.id))
    bench.handle(ev.NodeDrained(workload.placement[0].node_id))
    effects = bench.handle(ended_stopped(bench, workload))
    assert kinds(effects)[0] == "Save"
    assert "workload.requeued" in kinds(effects)
    assert (workload.state, workload.placement) == (State.PAUSED, ())
    assert workload.id not in bench.machine.state.scheduler.queue
    assert bench.gpus_held == 0


def ended_stopped(bench: Bench, workload: Workload) -> ev.TaskEndSeen:
    return ev.TaskEndSeen("agent", TaskEnded(key=TaskKey(workload.id, 1, 0), reason=ExitReason.STOPPED, at=bench.now))


def test_the_history_of_a_workload_names_its_state_and_attempt(bench: Bench) -> None:
    workload = bench.submit()
    bench.place()
    record = bench.records[-1]
    assert record.kind == "workload.scheduled"
    assert record.data == {"name": workload.spec.name, "state": State.SCHEDULED, "attempt": 1}
    bench.later(seconds=3)
    bench.handle(ev.TaskStartSeen(TaskKey(workload.id, 1, 0)))
    assert (workload.started_at, workload.updated_at) == (bench.now, bench.now)
    assert bench.records[-1].message == "runs on 1 node"


def test_a_submission_that_comes_back_within_its_window_is_the_same_and_later_another(bench: Bench) -> None:
    first = bench.submit(name="once", key="k")
    bench.run(first)
    bench.end(first)
    bench.later(hours=24, seconds=-1)
    assert bench.handle(ev.Submitted("wl_again", "t", first.spec, {}, "k")) == []
    bench.later(seconds=1)
    assert kinds(bench.handle(ev.Submitted("wl_again", "t", first.spec, {}, "k")))[0] == "Save"


def test_ten_minutes_are_the_window_of_a_submission_without_a_key(bench: Bench) -> None:
    first = bench.submit(name="once")
    bench.later(minutes=10, seconds=-1)
    assert bench.handle(ev.Submitted("wl_again", "t", first.spec)) == []
    bench.later(seconds=1)
    with pytest.raises(HarchError) as refused:
        bench.handle(ev.Submitted("wl_again", "t", first.spec))
    assert refused.value.code == "E0302"
    assert refused.value.meta == {"workload_id": first.id}

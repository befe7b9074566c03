"""The job machine: what happens to work, from submission to its end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.execution.protocol import Forget, KnownTask, PauseTask, ResumeTask, StartTask, StopTask, TaskKey
from harch.hub.jobs import events as ev
from harch.workloads.lifecycle import ExitReason, State
from harch.workloads.spec import Gang, Priority, Resources, RestartPolicy, WorkloadSpec
from unit.hub.conftest import Bench


def test_a_workload_is_submitted_placed_started_and_completed(bench: Bench) -> None:
    workload = bench.submit(gpus=4)
    assert workload.state is State.PENDING
    (start,) = bench.place()
    assert len(start.task.gpu_ids) == 4
    assert start.task.gpus_modelled
    assert bench.gpus_held == 4
    bench.handle(ev.TaskStartSeen(start.task.key))
    assert workload.state is State.RUNNING
    bench.end(workload)
    assert workload.state is State.COMPLETED
    assert bench.gpus_held == 0
    assert isinstance(bench.sent[0], Forget)


def test_an_end_that_is_reported_twice_counts_once_and_is_confirmed_twice(bench: Bench) -> None:
    workload = bench.submit()
    bench.run(workload)
    bench.end(workload)
    bench.end(workload)
    assert bench.sent == [Forget(TaskKey(workload.id, 1, 0))]
    assert len(workload.task_ends) == 1


def test_a_gang_is_stopped_whole_when_one_rank_fails(bench: Bench) -> None:
    workload = bench.submit(gpus=8, tasks=3)
    starts = bench.place()
    assert [start.task.key.rank for start in starts] == [0, 1, 2]
    assert {start.task.world_size for start in starts} == {3}
    assert len({(start.task.master_addr, start.task.master_port) for start in starts}) == 1
    bench.end(workload, rank=1, code=3)
    assert bench.stops_sent() == {0, 2}
    bench.end(workload, rank=0, reason=ExitReason.STOPPED)
    bench.end(workload, rank=2, reason=ExitReason.STOPPED)
    assert workload.state is State.FAILED
    assert "rank 1 exited with code 3" in workload.error_message
    assert bench.gpus_held == 0


def test_a_gang_that_does_not_fit_whole_takes_nothing(bench: Bench) -> None:
    filler = bench.submit(gpus=8)
    bench.run(filler)
    waiting = bench.submit(gpus=8, tasks=4)
    assert bench.place() == []
    assert waiting.state is State.PENDING
    assert bench.gpus_held == 8


def test_two_gangs_meet_on_different_ports(bench: Bench) -> None:
    bench.submit(gpus=1, tasks=2)
    bench.submit(gpus=1, tasks=2)
    ports = {start.task.master_port for start in bench.place()}
    assert len(ports) == 2


def test_work_that_residency_forbids_here_is_refused_and_the_right_hub_named(bench: Bench) -> None:
    with pytest.raises(HarchError) as refused:
        bench.submit(countries_allowed=("SN",))
    assert refused.value.code == "E0902"
    assert "Dakar" in refused.value.hint


def test_an_unknown_gpu_model_is_named_with_those_that_exist(bench: Bench) -> None:
    with pytest.raises(HarchError) as refused:
        bench.submit_spec(WorkloadSpec(name="x", resources=Resources(gpus=1, gpu_model="b200")))
    assert refused.value.code == "E0203"
    assert "h100-80gb" in refused.value.hint


@pytest.mark.parametrize(("gpus", "tasks"), [(9, 1), (8, 1000)])
def test_more_gpus_than_exist_are_refused_at_once(bench: Bench, gpus: int, tasks: int) -> None:
    with pytest.raises(HarchError) as refused:
        bench.submit(gpus=gpus, tasks=tasks)
    assert refused.value.code == "E0303"
    assert not bench.machine.state.registry.workloads


def test_the_more_urgent_goes_first_and_the_older_among_equals(bench: Bench) -> None:
    names = [
        bench.submit(gpus=8, tasks=4, name="low", priority=Priority.LOW),
        bench.submit(gpus=8, tasks=4, name="first"),
        bench.submit(gpus=8, tasks=4, name="second"),
        bench.submit(gpus=8, tasks=4, name="critical", priority=Priority.CRITICAL),
    ]
    served = []
    for _ in names:
        served.append(bench.place()[0].task.name)
        running = next(w for w in names if w.spec.name == served[-1])
        for rank in range(4):
            bench.end(running, rank=rank)
    assert served == ["critical", "first", "second", "low"]


def test_a_small_job_runs_while_a_large_one_waits(bench: Bench) -> None:
    bench.run(bench.submit(gpus=8))
    large = bench.submit(gpus=8, tasks=4)
    small = bench.submit(gpus=1)
    assert [start.task.key.workload_id for start in bench.place()] == [small.id]
    assert large.state is State.PENDING


class TestRestarts:
    def test_lost_work_is_queued_again_and_counts_as_a_restart(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.run(workload)
        bench.end(workload, reason=ExitReason.LOST, code=None)
        assert workload.state is State.PENDING
        assert workload.restarts == 1
        bench.run(workload)
        assert workload.attempt == 2

    def test_failed_work_stays_failed_unless_it_asks_for_restarts(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.run(workload)
        bench.end(workload, code=1)
        assert workload.state is State.FAILED

    def test_restarts_have_a_limit(self, bench: Bench) -> None:
        workload = bench.submit(restart=RestartPolicy.ON_FAILURE, restarts_max=2)
        for _ in range(3):
            bench.run(workload)
            bench.end(workload, code=1)
        assert workload.state is State.FAILED
        assert "already restarted 2 times" in workload.error_message

    def test_an_orderly_shutdown_of_the_node_costs_no_restart(self, bench: Bench) -> None:
        workload = bench.submit(restarts_max=0)
        bench.run(workload)
        bench.end(workload, reason=ExitReason.AGENT_SHUTDOWN, code=None)
        assert workload.state is State.PENDING
        assert workload.restarts == 0

    def test_work_that_must_not_restart_fails_when_it_is_lost(self, bench: Bench) -> None:
        workload = bench.submit(restart=RestartPolicy.NEVER)
        bench.run(workload)
        bench.end(workload, reason=ExitReason.LOST, code=None)
        assert workload.state is State.FAILED


class TestAsking:
    def test_waiting_work_is_cancelled_at_once(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.handle(ev.StopRequested(workload.id, "no longer needed"))
        assert workload.state is State.CANCELLED
        assert bench.place() == []

    def test_running_work_keeps_its_gpus_until_it_has_ended(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.run(workload)
        bench.handle(ev.StopRequested(workload.id, "asked"))
        assert workload.state is State.RUNNING
        assert bench.gpus_held == 1
        bench.end(workload, reason=ExitReason.STOPPED, code=None)
        assert workload.state is State.CANCELLED
        assert bench.gpus_held == 0

    def test_finished_work_cannot_be_stopped(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.run(workload)
        bench.end(workload)
        with pytest.raises(HarchError) as refused:
            bench.handle(ev.StopRequested(workload.id, "too late"))
        assert refused.value.code == "E0304"

    def test_pausing_keeps_the_gpus_and_resuming_goes_on(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.run(workload)
        bench.handle(ev.PauseRequested(workload.id))
        assert isinstance(bench.sent[0], PauseTask)
        assert workload.state is State.PAUSED
        assert bench.gpus_held == 1
        bench.handle(ev.ResumeRequested(workload.id))
        assert isinstance(bench.sent[0], ResumeTask)
        assert workload.state is State.RUNNING

    def test_work_that_is_paused_while_it_starts_is_paused_once_it_runs(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.place()
        bench.handle(ev.PauseRequested(workload.id))
        assert bench.sent == []
        bench.handle(ev.TaskStartSeen(TaskKey(workload.id, 1, 0)))
        assert bench.sent == [PauseTask(TaskKey(workload.id, 1, 0))]
        assert workload.state is State.PAUSED
        bench.handle(ev.ResumeRequested(workload.id))
        assert workload.state is State.RUNNING

    def test_held_back_work_is_not_placed_until_it_is_resumed(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.handle(ev.PauseRequested(workload.id))
        assert bench.place() == []
        bench.handle(ev.ResumeRequested(workload.id))
        assert len(bench.place()) == 1

    def test_the_specification_changes_only_while_it_waits(self, bench: Bench) -> None:
        workload = bench.submit(gpus=1)
        spec = WorkloadSpec(name="renamed", command=("true",), resources=Resources(gpus=2))
        bench.handle(ev.SpecReplaced(workload.id, spec, {}))
        (start,) = bench.place()
        assert len(start.task.gpu_ids) == 2
        with pytest.raises(HarchError) as refused:
            bench.handle(ev.SpecReplaced(workload.id, spec, {}))
        assert refused.value.code == "E0304"


class TestSubmittingTwice:
    def test_the_same_again_within_ten_minutes_is_the_same_workload(self, bench: Bench) -> None:
        first = bench.submit(name="once")
        again = bench.submit_spec(first.spec)
        assert again.id == first.id
        bench.later(minutes=9)
        bench.run(first)
        bench.end(first)
        assert bench.submit_spec(first.spec).id == first.id

    def test_after_ten_minutes_a_finished_name_is_free_again(self, bench: Bench) -> None:
        first = bench.submit(name="once")
        bench.run(first)
        bench.end(first)
        bench.later(minutes=11)
        assert bench.submit_spec(first.spec).id != first.id

    def test_the_same_name_with_another_specification_is_a_conflict(self, bench: Bench) -> None:
        bench.submit(name="taken")
        with pytest.raises(HarchError) as refused:
            bench.submit(name="taken", gpus=2)
        assert refused.value.code == "E0302"

    def test_an_idempotency_key_names_one_request(self, bench: Bench) -> None:
        first = bench.submit(name="a", key="k1")
        assert bench.submit_spec(first.spec, key="k1").id == first.id
        with pytest.raises(HarchError) as refused:
            bench.submit(name="b", key="k1")
        assert refused.value.code == "E0206"


class TestAgents:
    def test_nothing_is_placed_without_an_agent(self) -> None:
        bench = Bench()
        bench.submit()
        assert bench.place() == []
        bench.join()
        assert len(bench.place()) == 1

    def test_a_returning_agent_is_told_what_it_missed(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.place()
        bench.handle(ev.AgentLeft("agent", 1, "cut"))
        assert workload.state is State.SCHEDULED  # suspicion evicts nothing
        bench.handle(ev.AgentJoined(bench.agent.hello(), 2))
        assert [m.task.key for m in bench.sent if isinstance(m, StartTask)] == [TaskKey(workload.id, 1, 0)]

    def test_a_returning_agent_goes_on_with_what_it_runs(self, bench: Bench) -> None:
        workload = bench.submit()
        for start in bench.place():
            bench.agent.receive(start, now=bench.now)
        bench.handle(ev.AgentLeft("agent", 1, "cut"))
        bench.handle(ev.AgentJoined(bench.agent.hello(), 2))
        assert workload.state is State.RUNNING
        assert not [m for m in bench.sent if isinstance(m, StartTask)]

    def test_a_stop_that_was_asked_while_the_agent_was_away_is_carried_out_when_it_returns(self, bench: Bench) -> None:
        ran, never = bench.submit(), bench.submit()
        starts = bench.place()
        bench.agent.receive(starts[0], now=bench.now)
        bench.handle(ev.AgentLeft("agent", 1, "cut"))
        for workload in (ran, never):
            bench.handle(ev.StopRequested(workload.id, "asked"))
        bench.handle(ev.AgentJoined(bench.agent.hello(), 2))
        assert [m.key.workload_id for m in bench.sent if isinstance(m, StopTask)] == [ran.id]
        assert never.state is State.CANCELLED

    def test_tasks_that_the_hub_does_not_know_are_stopped(self, bench: Bench) -> None:
        bench.handle(ev.AgentLeft("agent", 1, "cut"))
        hello = bench.agent.hello()
        stray = TaskKey("wl_gone", 1, 0)
        bench.handle(
            ev.AgentJoined(
                type(hello)(
                    **{f: getattr(hello, f) for f in hello.__struct_fields__}
                    | {"tasks": (KnownTask(key=stray, running=True),)}
                ),
                2,
            )
        )
        assert [m.key for m in bench.sent if isinstance(m, StopTask)] == [stray]

    def test_an_agent_from_another_country_is_refused(self) -> None:
        bench = Bench()
        bench.agent.country = "SN"
        bench.join()
        assert not bench.machine.state.agents.agents
        assert bench.records[-1].kind == "agent.refused"

    def test_an_old_connection_that_ends_late_does_not_throw_out_the_new_one(self, bench: Bench) -> None:
        bench.handle(ev.AgentJoined(bench.agent.hello(), 2))
        bench.handle(ev.AgentLeft("agent", 1, "noticed late"))
        assert "agent" in bench.machine.state.agents.agents

    def test_processes_beyond_the_limit_wait_with_that_reason(self) -> None:
        bench = Bench()
        bench.agent.process_slots = 2
        bench.join()
        for _ in range(3):
            bench.submit(gpus=0)
        assert len(bench.place()) == 2
        assert len(bench.machine.state.scheduler.queue) == 1


def test_work_that_began_to_wait_twice_and_does_not_start_in_time_fails_once(bench: Bench) -> None:
    bench.run(bench.submit(gpus=8, tasks=4))
    late = bench.submit(gpus=8, gang=Gang(start_within_s=60))
    bench.handle(ev.PauseRequested(late.id))
    bench.handle(ev.ResumeRequested(late.id))
    bench.later(seconds=61)
    bench.place()
    assert late.state is State.FAILED
    assert late.error_message == "did not start within 60 s"


def test_work_that_may_start_later_than_it_first_said_is_given_that_time(bench: Bench) -> None:
    bench.run(bench.submit(gpus=8, tasks=4))
    late = bench.submit(gpus=8, gang=Gang(start_within_s=60))
    patient = replace(late.spec, gang=Gang(start_within_s=600))
    bench.handle(ev.SpecReplaced(late.id, patient, {}))
    bench.later(seconds=61)
    bench.place()
    assert late.state is State.PENDING
    bench.later(seconds=600)
    bench.place()
    assert late.state is State.FAILED

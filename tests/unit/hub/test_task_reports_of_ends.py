"""Reports of agents, one by one: tasks that started and ended, agents that came, went and came back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harch.base.errors import HarchError
from harch.execution.protocol import (
    PROTOCOL_VERSION,
    AgentRefused,
    ExtendLease,
    Forget,
    KnownTask,
    PauseTask,
    StartTask,
    StopTask,
    TaskEnded,
    TaskKey,
)
from harch.hub.jobs import effects as fx
from harch.hub.jobs import events as ev
from harch.hub.jobs.agents import AgentBook, AgentKeys
from harch.hub.jobs.task_reports import STRAY_GRACE_S, Ending, decide_ending, is_clean
from harch.hub.store.records import AgentKey
from harch.sovereignty.audit import chain as audit
from harch.sovereignty.audit.chain import Draft
from harch.testing.agents import SimAgent
from harch.testing.clock import START
from harch.testing.samples import tiny_fleet
from harch.workloads.lifecycle import ExitReason, State, TaskEnd, Workload
from harch.workloads.spec import Resources, RestartPolicy, WorkloadSpec
from unit.hub.conftest import Bench
from unit.hub.lending_world import MOROCCO, LendingHub, data_object, tag_for
from unit.hub.test_job_commands import drafts, kinds

NODES = ("dakhla-r01-n01", "dakhla-r01-n02")


def end_of(rank: int, reason: ExitReason = ExitReason.EXITED, code: int | None = 0) -> TaskEnd:
    return TaskEnd(rank=rank, reason=reason, exit_code=code)


def ended(*ends: TaskEnd, stop_as: State | None = None, restarts: int = 0, **spec: object) -> Workload:
    made = WorkloadSpec(name="n", **{"command": ("true",), "tasks": 2, **spec})  # type: ignore[arg-type]
    return Workload(
        id="wl_1",
        tenant="t",
        owner_hub="h",
        spec=made,
        created_at=START,
        updated_at=START,
        task_ends=ends,
        stop_as=stop_as,
        stop_reason="enough" if stop_as else "",
        restarts=restarts,
    )


CLEAN = end_of(0)
FAILED = end_of(1, code=1)
STOPPED = end_of(0, ExitReason.STOPPED, None)
LOST = end_of(1, ExitReason.LOST, None)
SHUT = end_of(1, ExitReason.AGENT_SHUTDOWN, None)
LATE = end_of(1, ExitReason.TIMEOUT, None)
NEVER, ON_LOSS, ON_FAILURE = RestartPolicy.NEVER, RestartPolicy.ON_LOSS, RestartPolicy.ON_FAILURE


@pytest.mark.parametrize(
    ("workload", "ending"),
    [
        (ended(CLEAN, end_of(1)), Ending(State.COMPLETED)),
        (ended(CLEAN, STOPPED), Ending(State.COMPLETED)),
        (ended(CLEAN, end_of(1), stop_as=State.PENDING), Ending(State.COMPLETED)),
        (ended(CLEAN, end_of(1), stop_as=State.CANCELLED), Ending(State.CANCELLED, "enough")),
        (ended(CLEAN, STOPPED, stop_as=State.PENDING), Ending(State.PENDING, "enough")),
        (ended(CLEAN, FAILED, stop_as=State.PENDING), Ending(State.PENDING, "enough")),
        (ended(STOPPED, FAILED), Ending(State.FAILED, "rank 1 exited with code 1")),
        (ended(FAILED, tasks=1), Ending(State.FAILED, "the task exited with code 1")),
        (ended(FAILED, restart=ON_LOSS), Ending(State.FAILED, "rank 1 exited with code 1")),
        (
            ended(FAILED, restart=ON_FAILURE),
            Ending(State.PENDING, "rank 1 exited with code 1", counts_as_restart=True),
        ),
        (
            ended(FAILED, restart=ON_FAILURE, restarts_max=2, restarts=1),
            Ending(State.PENDING, "rank 1 exited with code 1", counts_as_restart=True),
        ),
        (
            ended(FAILED, restart=ON_FAILURE, restarts_max=2, restarts=2),
            Ending(State.FAILED, "rank 1 exited with code 1; already restarted 2 times"),
        ),
        (ended(LOST, restart=NEVER), Ending(State.FAILED, "rank 1 was lost with its node or supervisor")),
        (
            ended(LOST, restart=ON_LOSS),
            Ending(State.PENDING, "rank 1 was lost with its node or supervisor", counts_as_restart=True),
        ),
        (
            ended(LOST, restart=ON_FAILURE),
            Ending(State.PENDING, "rank 1 was lost with its node or supervisor", counts_as_restart=True),
        ),
        (
            ended(SHUT, restart=NEVER),
            Ending(State.FAILED, "rank 1 was stopped because its node was shut down"),
        ),
        (
            ended(SHUT, restart=ON_LOSS, restarts_max=0),
            Ending(State.PENDING, "rank 1 was stopped because its node was shut down"),
        ),
        (
            ended(end_of(0, ExitReason.LEASE_ENDED, None), tasks=1),
            Ending(State.PENDING, "the task was stopped because its lease was not renewed"),
        ),
        (ended(LATE, restart=ON_FAILURE), Ending(State.FAILED, "rank 1 ran longer than max_duration_s")),
        (ended(LATE, command=()), Ending(State.COMPLETED, "rank 1 ran longer than max_duration_s")),
        (
            ended(LATE, command=(), modelled_duration_s=60.0),
            Ending(State.FAILED, "rank 1 ran longer than max_duration_s"),
        ),
    ],
)
def test_how_the_tasks_ended_decides_what_the_work_is_now(workload: Workload, ending: Ending) -> None:
    assert decide_ending(workload) == ending


def test_only_an_exit_with_code_zero_is_clean() -> None:
    assert is_clean(CLEAN)
    assert not is_clean(FAILED)
    assert not is_clean(end_of(0, code=None))
    assert not is_clean(end_of(0, ExitReason.STOPPED, 0))


def seen(workload: Workload, rank: int = 0, *, agent: str = "agent", attempt: int = 1, **fields: object) -> ev.Event:
    facts: dict[str, object] = {"reason": ExitReason.EXITED, "exit_code": 0, "at": START, **fields}
    return ev.TaskEndSeen(agent, TaskEnded(key=TaskKey(workload.id, attempt, rank), **facts))  # type: ignore[arg-type]


class TestEnds:
    def test_an_end_is_booked_with_all_that_the_agent_stated(self, bench: Bench) -> None:
        workload = bench.submit(gpus=8, tasks=2)
        bench.run(workload)
        effects = bench.handle(
            seen(workload, 1, reason=ExitReason.SIGNALLED, exit_code=None, signal=9, detail="x" * 3000)
        )
        assert workload.task_ends == (
            TaskEnd(rank=1, reason=ExitReason.SIGNALLED, signal=9, detail="x" * 2000, ended_at=START),
        )
        assert kinds(effects) == ["Save", "StopTask", "Forget"]
        assert bench.stops_sent() == {0}
        assert workload.stop_reason.startswith("rank 1 was ended by signal 9: xxx")
        assert workload.stop_as is None
        assert workload.state is State.RUNNING

    def test_a_rank_that_ends_well_stops_no_other(self, bench: Bench) -> None:
        workload = bench.submit(gpus=8, tasks=2)
        bench.run(workload)
        assert kinds(bench.handle(seen(workload, 1))) == ["Save", "Forget"]
        assert (workload.stop_reason, workload.state) == ("", State.RUNNING)
        effects = bench.handle(seen(workload, 0))
        assert kinds(effects) == ["Save", "workload.completed", f"audit {audit.ENDED}", "Forget"]
        assert (workload.error_message, workload.completed_at) == ("", bench.now)

    def test_others_are_ordered_to_stop_once_however_many_fail(self, bench: Bench) -> None:
        workload = bench.submit(gpus=8, tasks=3)
        bench.run(workload)
        bench.handle(seen(workload, 0, exit_code=1))
        assert bench.stops_sent() == {1, 2}
        bench.handle(seen(workload, 1, exit_code=2))
        assert bench.stops_sent() == set()
        assert workload.stop_reason == "rank 0 exited with code 1"

    def test_the_end_of_an_earlier_attempt_is_forgotten_and_changes_nothing(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.run(workload)
        bench.handle(seen(workload, reason=ExitReason.LOST, exit_code=None))
        bench.run(workload)
        assert workload.attempt == 2
        assert bench.handle(seen(workload, attempt=1)) == [fx.Send("agent", Forget(TaskKey(workload.id, 1, 0)))]
        assert workload.state is State.RUNNING
        assert workload.task_ends == ()

    def test_restarts_are_counted_only_where_the_work_caused_them(self, bench: Bench) -> None:
        workload = bench.submit()
        for reason, restarts in ((ExitReason.LOST, 1), (ExitReason.AGENT_SHUTDOWN, 1), (ExitReason.LOST, 2)):
            bench.run(workload)
            bench.handle(seen(workload, attempt=workload.attempt, reason=reason, exit_code=None))
            assert (workload.state, workload.restarts) == (State.PENDING, restarts)
            assert workload.error_message.startswith("the task was")
        bench.place()
        assert workload.error_message == "", "it starts with a clean slate"

    def test_work_that_failed_says_why_and_frees_its_gpus(self, bench: Bench) -> None:
        workload = bench.submit(gpus=4)
        bench.run(workload)
        effects = bench.handle(seen(workload, exit_code=3))
        assert kinds(effects) == ["Save", "workload.failed", f"audit {audit.ENDED}", "Forget"]
        assert workload.error_message == "the task exited with code 3"
        assert bench.gpus_held == 0

    def test_what_an_agent_did_about_data_is_audited(self) -> None:
        hub = LendingHub(MOROCCO)
        workload = hub.submit_on(data_object("one", tag_for("MA")))
        hub.place()
        hub.handle(seen(workload, scrubbed=True, reason=ExitReason.NOT_STARTED, exit_code=None, detail="E0907 no"))
        assert [draft.kind for draft in drafts(hub.effects)] == [
            audit.SCRUBBED,
            audit.LOAD_REFUSED,
            audit.ENDED,
        ]

    @pytest.mark.parametrize(
        "fields",
        [
            {"reason": ExitReason.NOT_STARTED, "exit_code": None, "detail": "no such program"},
            {"reason": ExitReason.EXITED, "exit_code": 1, "detail": "E0907 printed by the program"},
        ],
    )
    def test_other_ends_are_no_refusals_of_data(self, fields: dict[str, object]) -> None:
        hub = LendingHub(MOROCCO)
        workload = hub.submit_on(data_object("one", tag_for("MA")))
        hub.place()
        hub.handle(seen(workload, **fields))
        assert [draft.kind for draft in drafts(hub.effects)] == [audit.ENDED]


class TestStarts:
    def test_a_gang_runs_once_every_rank_does(self, bench: Bench) -> None:
        workload = bench.submit(gpus=8, tasks=2)
        bench.place()
        bench.later(seconds=1)
        assert kinds(bench.handle(ev.TaskStartSeen(TaskKey(workload.id, 1, 1)))) == ["Save"]
        assert (workload.state, workload.started_at) == (State.SCHEDULED, None)
        assert bench.handle(ev.TaskStartSeen(TaskKey(workload.id, 1, 1))) == [], "told twice"
        bench.later(seconds=1)
        effects = bench.handle(ev.TaskStartSeen(TaskKey(workload.id, 1, 0)))
        assert kinds(effects) == ["Save", "workload.running"]
        assert bench.records[-1].message == "runs on 2 nodes"
        assert (workload.state, workload.started_at) == (State.RUNNING, bench.now)

    def test_a_start_of_unknown_or_earlier_work_changes_nothing(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.place()
        assert bench.handle(ev.TaskStartSeen(TaskKey("wl_x", 1, 0))) == []
        assert bench.handle(ev.TaskStartSeen(TaskKey(workload.id, 2, 0))) == []
        assert workload.state is State.SCHEDULED

    def test_a_paused_rank_that_starts_again_is_paused_each_time(self, bench: Bench) -> None:
        workload = bench.submit(gpus=8, tasks=2)
        bench.place()
        bench.handle(ev.PauseRequested(workload.id))
        for _ in range(2):
            bench.handle(ev.TaskStartSeen(TaskKey(workload.id, 1, 1)))
            assert bench.sent == [PauseTask(TaskKey(workload.id, 1, 1))]
        bench.handle(ev.TaskStartSeen(TaskKey(workload.id, 1, 0)))
        assert (workload.state, workload.started_at) == (State.PAUSED, bench.now)


class TestTwoAgents:
    """Each tells of the tasks on its own nodes."""

    def two(self) -> tuple[Bench, Workload, str, str]:
        bench = Bench()
        for agent_id, nodes in (("one", NODES[:1]), ("other", NODES[1:])):
            hello = SimAgent(agent_id, bench.hub.country, nodes).hello()
            bench.handle(ev.AgentJoined(hello, 1))
        workload = bench.submit(gpus=8)
        bench.place()
        own = bench.machine.state.agents.agent_of_node[workload.placement[0].node_id]
        return bench, workload, own, "other" if own == "one" else "one"

    def test_what_the_agent_of_another_node_says_of_a_task_is_void(self) -> None:
        bench, workload, own, other = self.two()
        key = TaskKey(workload.id, 1, 0)
        assert bench.handle(ev.TaskStartSeen(key, other)) == []
        assert bench.handle(seen(workload, agent=other)) == []
        assert bench.handle(ev.TaskStartSeen(key, own)) != []
        assert workload.state is State.RUNNING
        bench.handle(seen(workload, agent=own))
        assert workload.state is State.COMPLETED

    def test_an_agent_that_is_back_under_another_name_may_report_of_it(self) -> None:
        bench, workload, own, other = self.two()
        bench.handle(ev.AgentLeft(own, 1, "cut"))
        bench.handle(ev.TaskStartSeen(TaskKey(workload.id, 1, 0), other))
        assert workload.state is State.RUNNING

    def test_orders_go_to_the_agent_of_the_node_and_to_no_one_while_it_is_away(self) -> None:
        bench, workload, own, _ = self.two()
        bench.handle(ev.TaskStartSeen(TaskKey(workload.id, 1, 0), own))
        effects = bench.handle(ev.PauseRequested(workload.id))
        assert [effect.agent_id for effect in effects if isinstance(effect, fx.Send)] == [own]
        bench.handle(ev.AgentLeft(own, 1, "cut"))
        bench.handle(ev.ResumeRequested(workload.id))
        assert bench.sent == []

    def test_slots_and_nodes_of_both_count_and_those_of_one_that_left_do_not(self) -> None:
        bench, _, own, _ = self.two()
        state = bench.machine.state
        assert state.agents.process_slots == 128
        free = int(state.scheduler.room.process_slots_free)
        effects = bench.handle(ev.AgentLeft(own, 1, "cut"))
        assert kinds(effects) == ["agent.left"]
        assert bench.records[-1].message == "cut; its tasks keep running, no new ones are sent"
        assert state.agents.process_slots == 64
        assert int(state.scheduler.room.process_slots_free) == free - 64
        bench.submit(gpus=8)
        assert [start.task.node_id for start in bench.place()] in ([], [next(iter(state.agents.agent_of_node))])

    def test_an_agent_that_joins_again_counts_once(self) -> None:
        bench, _, own, _ = self.two()
        free = int(bench.machine.state.scheduler.room.process_slots_free)
        nodes = NODES[:1] if own == "one" else NODES[1:]
        bench.handle(ev.AgentJoined(SimAgent(own, bench.hub.country, nodes, 32).hello(), 2))
        assert bench.machine.state.agents.process_slots == 96
        assert int(bench.machine.state.scheduler.room.process_slots_free) == free - 32


class TestJoining:
    def test_an_agent_that_joins_is_recorded_of_and_audited(self) -> None:
        bench = Bench()
        effects = bench.handle(ev.AgentJoined(bench.agent.hello(), 1))
        assert kinds(effects) == ["agent.joined", f"audit {audit.AGENT_JOINED}"]
        nodes = len(bench.hub.nodes)
        assert bench.records[-1].message == f"serves {nodes} nodes, 64 processes"
        assert drafts(effects)[0].details == {"nodes": nodes}
        assert bench.machine.state.agents.agents["agent"].clock == (bench.agent.boot_s(), 0.0)

    @pytest.mark.parametrize(
        ("fields", "code", "message"),
        [
            ({"version": PROTOCOL_VERSION - 1}, "E0201", f"speaks protocol {PROTOCOL_VERSION - 1}, this hub"),
            ({"version": PROTOCOL_VERSION + 1}, "E0201", f"speaks protocol {PROTOCOL_VERSION + 1}, this hub"),
            ({"country": "SN"}, "E0902", "is in SN, hub Dakhla in MA"),
            ({"node_ids": (NODES[0], "sold")}, "E0201", "serves node `sold`, which hub Dakhla does not have"),
        ],
    )
    def test_an_agent_that_does_not_belong_here_is_refused(
        self, fields: dict[str, object], code: str, message: str
    ) -> None:
        bench = Bench()
        hello = replace(bench.agent.hello(), **fields)
        effects = bench.handle(ev.AgentJoined(hello, 1))
        assert kinds(effects) == ["AgentRefused", "agent.refused", f"audit {audit.AGENT_REFUSED}"]
        (refused,) = bench.sent
        assert isinstance(refused, AgentRefused)
        assert (refused.code, message in refused.message) == (code, True)
        assert not bench.machine.state.agents.agents
        assert bench.machine.state.agents.agent_of_node == {}

    def test_a_node_has_one_agent(self, bench: Bench) -> None:
        bench.handle(ev.AgentJoined(SimAgent("other", bench.hub.country, NODES[:1]).hello(), 1))
        (refused,) = bench.sent
        assert isinstance(refused, AgentRefused)
        assert refused.message.startswith(f"node `{NODES[0]}` is already served by agent `agent`; give each agent")
        assert set(bench.machine.state.agents.agents) == {"agent"}

    def test_a_key_that_is_not_its_own_is_recorded_and_audited(self, bench: Bench) -> None:
        draft = Draft(audit.AGENT_REFUSED, "agent", "refused")
        effects = bench.handle(ev.AgentBarred("agent", draft))
        assert kinds(effects) == ["agent.refused", f"audit {audit.AGENT_REFUSED}"]
        assert bench.records[-1].message == "presented a key that is not its own"

    def test_what_an_agent_can_do_changes_what_is_accepted(self) -> None:
        bench = Bench()
        bench.agent.process_slots = 1
        bench.join()
        with pytest.raises(HarchError):
            bench.submit(gpus=0, tasks=2)
        bench.agent.process_slots = 2
        bench.handle(ev.AgentJoined(bench.agent.hello(), 2))
        bench.submit(gpus=0, tasks=2)
        bench.handle(ev.AgentLeft("agent", 2, "cut"))
        bench.agent.process_slots = 1
        bench.handle(ev.AgentJoined(bench.agent.hello(), 3))
        with pytest.raises(HarchError):
            bench.submit(gpus=0, tasks=2)


class TestReconciliation:
    def back(self, bench: Bench, *tasks: KnownTask, session: int = 2) -> list[fx.Effect]:
        return bench.handle(ev.AgentJoined(replace(bench.agent.hello(), tasks=tasks), session))

    def test_of_a_gang_the_missing_start_the_known_go_on_and_the_ended_rest(self, bench: Bench) -> None:
        workload = bench.submit(gpus=8, tasks=3)
        bench.place()
        bench.handle(seen(workload, 2))
        self.back(bench, KnownTask(key=TaskKey(workload.id, 1, 0), running=True))
        starts = [message.task.key.rank for message in bench.sent if isinstance(message, StartTask)]
        assert starts == [1]
        assert workload.ranks_running == {0}

    def test_a_task_that_is_known_and_does_not_run_yet_is_left_alone(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.place()
        self.back(bench, KnownTask(key=TaskKey(workload.id, 1, 0), running=False))
        assert bench.sent == []
        assert (workload.state, workload.ranks_running) == (State.SCHEDULED, frozenset())

    def test_a_task_that_ended_and_is_not_wanted_is_no_stray(self, bench: Bench) -> None:
        self.back(bench, KnownTask(key=TaskKey("wl_x", 1, 0), running=False))
        assert bench.sent == []

    def test_a_stray_is_stopped_with_little_grace_and_recorded_of(self, bench: Bench) -> None:
        stray = TaskKey("wl_x", 7, 0)
        effects = self.back(bench, KnownTask(key=stray, running=True))
        assert bench.sent == [StopTask(stray, STRAY_GRACE_S)]
        assert kinds(effects)[-1] == "agent.stray_task"
        assert bench.records[-1].subject == "wl_x"
        assert bench.records[-1].message == "agent runs attempt 7: stopping it"

    def test_an_earlier_attempt_is_a_stray_beside_the_present_one(self, bench: Bench) -> None:
        workload = bench.submit()
        bench.run(workload)
        bench.handle(seen(workload, reason=ExitReason.LOST, exit_code=None))
        bench.place()
        self.back(bench, KnownTask(key=TaskKey(workload.id, 1, 0), running=True))
        assert [type(message) for message in bench.sent] == [StartTask, StopTask]
        assert bench.sent[1].key == TaskKey(workload.id, 1, 0)  # type: ignore[union-attr]

    def test_a_gang_that_is_being_stopped_ends_with_the_ranks_that_never_started(self, bench: Bench) -> None:
        workload = bench.submit(gpus=8, tasks=2)
        bench.place()
        bench.handle(ev.StopRequested(workload.id, "enough"))
        self.back(bench, KnownTask(key=TaskKey(workload.id, 1, 0), running=True))
        assert bench.stops_sent() == {0}
        assert workload.task_ends == (TaskEnd(rank=1, reason=ExitReason.STOPPED, ended_at=bench.now),)
        assert workload.state is State.SCHEDULED
        bench.handle(seen(workload, 0, reason=ExitReason.STOPPED, exit_code=None))
        assert workload.state is State.CANCELLED

    def test_nodes_of_other_agents_are_not_looked_at(self) -> None:
        bench = Bench()
        agents = [SimAgent(name, bench.hub.country, (node,)) for name, node in zip(("a", "b"), NODES, strict=True)]
        for agent in agents:
            bench.handle(ev.AgentJoined(agent.hello(), 1))
        workload = bench.submit(gpus=8)
        bench.place()
        own = bench.machine.state.agents.agent_of_node[workload.placement[0].node_id]
        other = next(agent for agent in agents if agent.agent_id != own)
        bench.handle(ev.AgentJoined(other.hello(), 2))
        assert bench.sent == []

    def test_borrowed_work_that_still_runs_is_sent_how_long_it_may(self) -> None:
        hub = LendingHub(MOROCCO)
        spec = WorkloadSpec(name="theirs", command=("true",), resources=Resources(gpus=1), stop_grace_s=0.0)
        assert hub.take(hub.grant(spec)) == ""
        key = TaskKey("wl_theirs", 1, 0)
        for running, sent in ((True, 1), (False, 0)):
            hello = replace(hub.agent.hello(), tasks=(KnownTask(key=key, running=running),))
            hub.handle(ev.AgentJoined(hello, 5))
            assert len(hub.sent_to_agent(ExtendLease)) == sent


class TestGangPorts:
    def book(self, *ports: int) -> AgentBook:
        hub = tiny_fleet().hubs[0]
        book = AgentBook(hub)
        hello = replace(SimAgent("agent", hub.country).hello(), gang_ports=ports, address="10.0.0.1")
        book.join(hello, 1, book.vet(hello), 7.0)
        return book

    def test_each_port_of_the_range_is_given_once_in_order_and_then_none(self) -> None:
        book = self.book(20000, 20002)
        taken = [book.take_gang_port(NODES[0]) for _ in range(4)]
        assert taken == [("10.0.0.1", 20000), ("10.0.0.1", 20001), ("10.0.0.1", 20002), None]

    def test_a_port_that_came_free_is_given_again_after_the_others(self) -> None:
        book = self.book(20000, 20002)
        first = book.take_gang_port(NODES[0])
        assert first is not None
        book.take_gang_port(NODES[0])
        book.gang_ports_used.discard(first)
        assert book.take_gang_port(NODES[0]) == ("10.0.0.1", 20002)
        assert book.take_gang_port(NODES[0]) == first

    def test_a_range_of_one_port_is_enough(self) -> None:
        book = self.book(20000, 20000)
        assert book.take_gang_port(NODES[0]) == ("10.0.0.1", 20000)
        assert book.take_gang_port(NODES[0]) is None

    def test_a_gang_waits_while_every_port_is_in_use_and_starts_when_one_is_free(self) -> None:
        bench = Bench()
        hello = replace(bench.agent.hello(), gang_ports=(20000, 20000))
        bench.handle(ev.AgentJoined(hello, 1))
        first = bench.submit(gpus=1, tasks=2)
        second = bench.submit(gpus=1, tasks=2)
        starts = bench.place()
        assert [start.task.key.workload_id for start in starts] == [first.id] * 2
        assert (first.master_addr, first.master_port) == ("127.0.0.1", 20000)
        assert second.state is State.PENDING
        assert second.error_message.startswith("every rendezvous port is in use")
        assert bench.gpus_held == 2
        for rank in (0, 1):
            bench.end(first, rank=rank)
        assert len(bench.place()) == 2
        assert second.master_port == 20000

    def test_an_agent_serves_the_nodes_that_it_names_and_leaves_them(self) -> None:
        hub = tiny_fleet().hubs[0]
        book = AgentBook(hub)
        hello = SimAgent("agent", hub.country, NODES[:1]).hello()
        assert book.vet(hello) == NODES[:1]
        agent = book.join(hello, 3, NODES[:1], 7.0)
        assert (agent.session, agent.clock, book.agent_of_node) == (3, (hello.boot_s, 7.0), {NODES[0]: "agent"})
        assert book.vet(hello) == NODES[:1], "it may come back to its own"
        assert book.leave("agent") is agent
        assert (book.agents, book.agent_of_node) == ({}, {})


class TestKeys:
    """A key belongs to the agent that used it first, and an agent to its key."""

    def keys(self, *stored: AgentKey, revoked: str = "") -> AgentKeys:
        return AgentKeys(stored, lambda key_id: key_id != revoked)

    def bound(self, key_id: str, agent_id: str, *nodes: str) -> AgentKey:
        return AgentKey(key_id=key_id, agent_id=agent_id, node_ids=nodes)

    def message(self, keys: AgentKeys, key_id: str, agent_id: str, *nodes: str) -> str:
        refused = keys.refusal(key_id, agent_id, nodes)
        assert refused is None or refused.code == "E0115"
        return "" if refused is None else refused.message

    def test_whoever_is_new_may_come_with_a_new_key(self) -> None:
        assert self.message(self.keys(self.bound("k1", "a")), "k2", "b") == ""

    def test_a_key_is_not_for_two_agents_nor_an_agent_for_two_keys(self) -> None:
        keys = self.keys(self.bound("k1", "a"), self.bound("k1", "b"))
        assert self.message(keys, "k1", "a") == self.message(keys, "k1", "b") == ""
        assert self.message(keys, "k1", "c") == "the key of agent `c` belongs to `a`, `b`"
        assert self.message(keys, "k2", "a") == "agent `a` belongs to another key"

    def test_what_a_revoked_key_held_is_free(self) -> None:
        assert self.message(self.keys(self.bound("k1", "a"), revoked="k1"), "k2", "a") == ""

    def test_a_key_that_was_released_is_as_new(self) -> None:
        keys = self.keys(self.bound("k1", "a"))
        keys.release("k1")
        keys.release("k1")
        assert keys.of("k1") == ()
        assert self.message(keys, "k1", "b") == ""

    def test_a_key_for_some_nodes_is_for_no_others(self) -> None:
        keys = self.keys(self.bound("k1", "a", "n1", "n2"))
        assert self.message(keys, "k1", "a", "n2") == ""
        assert self.message(keys, "k1", "a", "n3", "n1") == "agent `a` requests node `n3`, but its key is for n1, n2"
        assert self.message(keys, "k1", "a") == "agent `a` requests all nodes, but its key is for n1, n2"
        assert self.message(self.keys(self.bound("k1", "a")), "k1", "a", "n3") == ""
        assert keys.of("k1") == (self.bound("k1", "a", "n1", "n2"),)

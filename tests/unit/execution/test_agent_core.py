"""The agent's core, with engines that only take notes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from harch.base.errors import HarchError
from harch.execution.admission import Premises, refusal
from harch.execution.agent import Agent
from harch.execution.agent_process import backoff_s, connect_url, split
from harch.execution.protocol import (
    AgentHeartbeat,
    AgentRefused,
    ContentUse,
    ExtendLease,
    FilesAnswer,
    Forget,
    KnownTask,
    PlaceFiles,
    ReadTaskLog,
    SnapshotFiles,
    StartTask,
    StopTask,
    TaskContent,
    TaskEnded,
    TaskKey,
    TaskLogChunk,
    TaskPreparing,
    TaskSpec,
    TaskStarted,
)
from harch.sovereignty.jurisdiction_file import shipped_jurisdictions
from harch.sovereignty.tags import DataKind, DataObject, parse_tag
from harch.workloads.lifecycle import ExitReason
from harch.workloads.spec import Environment

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = TaskKey("wl_1", 1, 0)


class StillClock:
    def now(self):
        return NOW

    def monotonic_s(self):
        return 0.0

    def boot_s(self):
        return 7.0

    async def sleep(self, delay_s):
        raise AssertionError("the core never sleeps")


class NotingEngine:
    def __init__(self):
        self.live: dict[TaskKey, TaskSpec] = {}
        self.starts, self.stops, self.forgotten, self.extended, self.files = [], [], [], [], []

    def start(self, task):
        self.starts.append(task.key)
        self.live[task.key] = task

    def stop(self, key, *, grace_s, reason, scrub=False):
        self.stops.append((key, grace_s, reason))

    def pause(self, key): ...

    def resume(self, key): ...

    def extend_lease(self, key, until_s):
        self.extended.append((key, until_s))

    def forget(self, key):
        self.forgotten.append(key)

    def running(self):
        return [KnownTask(key=key, running=True, started_at=NOW) for key in self.live]

    def is_running(self, key):
        return key in self.live

    def read_log(self, request):
        return TaskLogChunk(request_id=request.request_id, offset=0, data=b"", eof=True)

    def snapshot_files(self, request, answer):
        self.files.append((request, answer))

    place_files = snapshot_files


def spec(**changes) -> TaskSpec:
    fields = {"key": KEY, "name": "n", "tenant": "t", "node_id": "n1", "gpu_ids": (), "gpu_indexes": ()}
    return TaskSpec(**{**fields, "gpus_modelled": True, "command": ("true",), "country": "MA", **changes})


@pytest.fixture
def engines():
    return NotingEngine(), NotingEngine()


@pytest.fixture
def agent(engines):
    agent = Agent(Premises("MA", frozenset(), (), ()), StillClock())
    agent.use(*engines)
    return agent


def hello(agent):
    return agent.hello(agent_id="a", process_slots=1, address="x", gang_ports=(1, 2), features={})


def end(reason=ExitReason.EXITED) -> TaskEnded:
    return TaskEnded(key=KEY, reason=reason, at=NOW, exit_code=0)


def test_a_repeated_start_reaches_the_engine_once(agent, engines):
    for _ in range(3):
        agent.handle(StartTask(spec()))
    assert engines[0].starts == [KEY]


def test_work_without_a_command_goes_to_the_modelled_engine(agent, engines):
    agent.handle(StartTask(spec(command=())))
    assert (engines[0].starts, engines[1].starts) == ([], [KEY])


def test_an_end_is_told_with_each_connection_until_forgotten(agent, engines):
    agent.task_started(KEY, NOW)
    agent.task_ended(end())
    assert agent.take_outbox(10) == [TaskStarted(key=KEY, at=NOW), end()]
    for _ in range(2):
        assert hello(agent).tasks == (KnownTask(key=KEY, running=False),)
        agent.connected()
        assert agent.take_outbox(10) == [end()]
    agent.handle(StartTask(spec()))
    assert (agent.take_outbox(10), engines[0].starts) == ([end()], [])
    agent.handle(Forget(KEY))
    agent.connected()
    assert (agent.take_outbox(10), engines[0].forgotten, agent.is_idle) == ([], [KEY], True)


def test_forget_for_what_still_runs_is_ignored(agent, engines):
    agent.handle(StartTask(spec()))
    agent.handle(Forget(KEY))
    assert engines[0].forgotten == []


def test_what_must_not_run_here_never_reaches_an_engine(agent, engines):
    for changes in ({"country": "SN"}, {"country": ""}, {"countries_allowed": ("SN",)}, {"working_dir": "/etc"}):
        key = TaskKey("wl_x", len(agent.take_outbox(0)) + hash(str(changes)) % 1000, 0)
        agent.handle(StartTask(spec(key=key, **changes)))
        (told,) = agent.take_outbox(10)
        assert (told.key, told.reason) == (key, ExitReason.NOT_STARTED)
        assert told.detail.startswith(("E0902", "E0309"))
    assert engines[0].starts == engines[1].starts == []


def test_while_stopping_no_new_work_is_taken(agent, engines):
    agent.handle(StartTask(spec()))
    agent.stop_everything(grace_s=2.0)
    agent.handle(StartTask(spec(key=TaskKey("wl_2", 1, 0))))
    assert engines[0].stops == [(KEY, 2.0, ExitReason.AGENT_SHUTDOWN)]
    assert engines[0].starts == [KEY]


def test_stop_goes_to_the_owner_and_is_answered_for_the_unknown(agent, engines):
    agent.handle(StartTask(spec(command=())))
    agent.handle(StopTask(KEY, 3.0))
    assert engines[1].stops == [(KEY, 3.0, ExitReason.STOPPED)]
    agent.handle(StopTask(TaskKey("wl_9", 1, 0), 3.0))
    (told,) = agent.take_outbox(10)
    assert told.reason is ExitReason.LOST


def test_hello_and_heartbeat_carry_the_boot_clock(agent):
    assert (hello(agent).boot_s, agent.heartbeat()) == (7.0, AgentHeartbeat(7.0))


@pytest.mark.parametrize("command", [("true",), ()])
def test_a_lease_that_is_over_starts_nothing_and_is_told_as_that(agent, engines, command):
    for number, until_s in enumerate((6.0, 7.0, 16.9)):  # the last leaves less than the grace of 10 s
        key = TaskKey("wl_over", number, 0)
        agent.handle(StartTask(spec(key=key, command=command, lease_until_s=until_s)))
        (told,) = agent.take_outbox(10)
        assert (told.key, told.reason, told.detail) == (
            key,
            ExitReason.LEASE_ENDED,
            "its lease ended before it started",
        )
    assert engines[0].starts == engines[1].starts == []
    agent.handle(StartTask(spec(command=command, lease_until_s=17.1)))
    assert [*engines[0].starts, *engines[1].starts] == [KEY]


def test_what_must_not_run_here_is_refused_for_that_even_if_its_lease_is_over(agent):
    agent.handle(StartTask(spec(country="SN", lease_until_s=1.0)))
    assert agent.take_outbox(10)[0].reason is ExitReason.NOT_STARTED


@pytest.mark.parametrize("until_s", [float("inf"), float("nan")])
def test_a_lease_without_an_end_is_refused(agent, engines, until_s):
    agent.handle(StartTask(spec(lease_until_s=until_s)))
    assert agent.take_outbox(10)[0].reason is ExitReason.NOT_STARTED
    assert engines[0].starts == []


def test_extensions_reach_the_engine_that_runs_the_task_and_no_other(agent, engines):
    other = TaskKey("wl_2", 1, 0)
    agent.handle(StartTask(spec(lease_until_s=100.0)))
    agent.handle(StartTask(spec(key=other, command=(), lease_until_s=100.0)))
    agent.handle(ExtendLease(((KEY, 200.0), (other, 300.0), (TaskKey("wl_9", 1, 0), 400.0))))
    assert (engines[0].extended, engines[1].extended) == ([(KEY, 200.0)], [(other, 300.0)])
    assert agent.take_outbox(10) == []


def test_a_refusal_by_the_hub_is_an_error_with_its_code(agent):
    with pytest.raises(HarchError) as caught:
        agent.handle(AgentRefused("E0103", "no"))
    assert caught.value.code == "E0103"
    with pytest.raises(HarchError):
        agent.handle(AgentRefused("X", "no"))


def test_a_log_request_is_answered(agent):
    agent.handle(ReadTaskLog(7, KEY, 0, 10))
    assert agent.take_outbox(10)[0].request_id == 7


def test_addresses_of_hubs_become_doors():
    assert connect_url("http://h:1") == "ws://h:1/v1/agents/connect"
    assert connect_url("wss://h/base/") == "wss://h/base/v1/agents/connect"
    assert connect_url("ws://h:1/v1/agents/connect") == "ws://h:1/v1/agents/connect"
    with pytest.raises(HarchError):
        connect_url("h:1")


def test_backoff_never_exceeds_a_second():
    assert all(0.02 < backoff_s(failures, jitter) <= 1 for failures in range(1, 40) for jitter in (0, 0.5, 1))


def test_frames_hold_a_limited_amount_of_log():
    chunk = TaskLogChunk(request_id=1, offset=0, data=bytes(1024 * 1024), eof=False)
    assert [len(batch) for batch in split([chunk] * 5)] == [2, 2, 1]


# What is being prepared, and files


def preparing(step: str, key: TaskKey = KEY) -> TaskPreparing:
    return TaskPreparing(key=key, step=step)


def test_of_progress_only_the_latest_is_told_and_none_after_the_start(agent):
    other = TaskKey("wl_2", 1, 0)
    for step in ("code", "environment"):
        agent.task_preparing(preparing(step))
    agent.task_preparing(preparing("image", other))
    assert agent.take_outbox(10) == [preparing("environment"), preparing("image", other)]
    assert agent.take_outbox(10) == []
    agent.task_preparing(preparing("data"))
    agent.task_preparing(preparing("data", other))
    agent.task_started(KEY, NOW)
    agent.task_ended(end())
    agent.task_ended(TaskEnded(key=other, reason=ExitReason.STOPPED, at=NOW))
    assert not [one for one in agent.take_outbox(10) if isinstance(one, TaskPreparing)]


def test_files_are_asked_of_the_engine_with_processes_and_answered_on_the_same_connection(agent, engines):
    requests = [SnapshotFiles(1, KEY, "out"), PlaceFiles(2, KEY, "in", "ref", "0" * 64)]
    for request in requests:
        agent.handle(request)
    assert [request for request, _ in engines[0].files] == requests
    engines[0].files[0][1](FilesAnswer(request_id=1))
    assert agent.take_outbox(10) == [FilesAnswer(request_id=1)]
    agent.connected()
    engines[0].files[1][1](FilesAnswer(request_id=2))
    assert agent.take_outbox(10) == []


def test_the_stricter_of_hub_and_agent_says_what_has_to_go(agent, engines):
    tag = parse_tag(
        {"process_in": ["MA"], "rest_in": ["SN"], "may_cross_borders": True, "encrypt_at_rest": False},
        shipped_jurisdictions(),
    )
    data = DataObject(id="data_1", kind=DataKind.DATASET, name="census", tenant="t", tag=tag)
    agent.handle(StartTask(spec(data=(data,))))
    assert engines[0].live[KEY].scrub_after
    agent.handle(StartTask(spec(key=TaskKey("wl_2", 1, 0))))
    assert not engines[0].live[TaskKey("wl_2", 1, 0)].scrub_after


def content(**changes) -> TaskContent:
    return TaskContent(**{"data_id": "data_1", "name": "corpus", "digest": "0" * 64, "use": ContentUse.DATA, **changes})


CODE, IMAGE = content(use=ContentUse.CODE), content(use=ContentUse.IMAGE)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"contents": (content(data_id="data_2"),)}, "E0907 corpus: nobody has said what its tag permits"),
        ({"contents": (content(digest="../../etc"),)}, "E0201 corpus: `../../etc` is not a digest"),
        ({"contents": (content(name="../x"),)}, "E0201 the names of its data"),
        ({"contents": (content(name=".."),)}, "E0201 the names of its data"),
        ({"contents": (content(), content())}, "E0201 the names of its data"),
        ({"contents": (CODE, CODE)}, "E0201 it has more than one code"),
        ({"contents": (IMAGE, IMAGE)}, "E0201 it has more than one image"),
        ({"contents": (IMAGE,), "environment": Environment()}, "E0201 an image brings its own packages"),
        ({"image": "r/n:t", "environment": Environment()}, "E0201 an image brings its own packages"),
    ],
)
def test_content_that_cannot_be_given_is_refused_with_its_reason(changes, why):
    assert refusal(spec(data=(OPEN,), **changes), PREMISES).startswith(why)


def test_code_and_a_shared_working_folder_exclude_each_other(tmp_path):
    premises = replace(PREMISES, shared=(str(tmp_path),))
    assert refusal(spec(data=(OPEN,), contents=(content(),), working_dir=str(tmp_path)), premises) == ""
    told = refusal(spec(data=(OPEN,), contents=(CODE,), working_dir=str(tmp_path)), premises)
    assert told.startswith("E0201 it works in a shared folder")


def test_content_with_a_tag_that_allows_it_is_taken():
    contents = (CODE, IMAGE, content(), content(name="corpus v2.1"))
    assert refusal(spec(data=(OPEN,), contents=contents), PREMISES) == ""


PREMISES = Premises("MA", frozenset(), (), ())
OPEN = DataObject(
    id="data_1",
    kind=DataKind.DATASET,
    name="corpus",
    tenant="t",
    tag=parse_tag({"process_in": ["MA"], "rest_in": ["MA"], "encrypt_at_rest": False}, shipped_jurisdictions()),
)

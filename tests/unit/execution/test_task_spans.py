"""Spans of tasks: where they hang, what they carry, and how user code joins them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from harch.base.tracing.spans import FinishedSpan, TraceContext, read_header, run_id, start_id, task_id
from harch.base.tracing.tracer import Tracing
from harch.execution.preparation import Folders, task_environment
from harch.execution.protocol import KnownTask, TaskEnded, TaskKey, TaskSpec, TaskStarted
from harch.execution.task_spans import TaskSpans
from harch.testing.clock import START, SimClock
from harch.workloads.lifecycle import ExitReason

ROOT = TraceContext(bytes(range(1, 17)), bytes(range(1, 9)))
KEY = TaskKey("wl_1", 2, 0)


def order(**fields: object) -> TaskSpec:
    given: dict[str, object] = {
        "key": KEY,
        "name": "job",
        "tenant": "t",
        "node_id": "n1",
        "gpu_ids": ("g0", "g1"),
        "gpu_indexes": (0, 1),
        "gpus_modelled": True,
        "command": ("train", "--password=hunter2"),
        "trace": ROOT.header,
        **fields,
    }
    return TaskSpec(**given)  # type: ignore[arg-type]


def ended(reason: ExitReason = ExitReason.EXITED, code: int | None = 0) -> TaskEnded:
    return TaskEnded(key=KEY, reason=reason, at=START + timedelta(seconds=9), exit_code=code, detail="/secret/path")


def told(*messages: object, task: TaskSpec | None = None) -> list[FinishedSpan]:
    spans: list[FinishedSpan] = []
    following = TaskSpans(Tracing(spans.append, SimClock()))
    following.ordered(task or order())
    for message in messages:
        following.record(message)
    return spans


def test_a_task_leaves_its_start_and_its_run_under_the_spans_of_its_hub() -> None:
    started = TaskStarted(key=KEY, at=START + timedelta(seconds=1))
    start, run = told(started, started, ended(), ended())
    assert (start.name, start.parent_id) == ("task.start", start_id(ROOT.trace_id, "wl_1", 2))
    assert (run.name, run.parent_id) == ("task.run", run_id(ROOT.trace_id, "wl_1", 2))
    assert run.span_id == task_id(ROOT.trace_id, "wl_1", 2, 0)
    assert (start.end_ns - start.start_ns, run.end_ns - run.start_ns) == (10**9, 8 * 10**9)
    assert run.attributes["task.exit_code"] == 0
    assert run.attributes["task.gpus"] == 2
    assert run.error == ""


def test_a_task_that_never_started_says_why_by_a_word_only() -> None:
    (start,) = told(ended(ExitReason.NOT_STARTED, None))
    assert (start.name, start.error) == ("task.start", "not_started")
    assert "secret" not in str(start)
    assert "hunter2" not in str(start)


def test_a_task_that_was_stopped_is_no_error() -> None:
    (start,) = told(ended(ExitReason.STOPPED, None))
    assert start.error is None


def test_tasks_without_a_trace_leave_nothing() -> None:
    assert told(ended(), task=order(trace="")) == []
    assert told(ended(), task=order(trace="rubbish")) == []


def test_user_code_finds_the_span_of_its_task_and_may_choose_another() -> None:
    folders = Folders("/w", "/c", "")
    env = task_environment(order(), folders, python_bin="/bin")
    joined = read_header(env["TRACEPARENT"])
    assert joined == TraceContext(ROOT.trace_id, task_id(ROOT.trace_id, "wl_1", 2, 0))
    own = task_environment(order(env={"TRACEPARENT": "mine"}), folders, python_bin="/bin")
    assert own["TRACEPARENT"] == "mine"
    assert own["HARCH_TRACEPARENT"] == env["TRACEPARENT"]
    assert "TRACEPARENT" not in task_environment(order(trace=""), folders, python_bin="/bin")


def test_an_agent_that_adopts_a_task_goes_on_in_its_trace() -> None:
    env = task_environment(order(), Folders("/w", "/c", ""), python_bin="/bin")
    spans: list[FinishedSpan] = []
    following = TaskSpans(Tracing(spans.append, SimClock()))
    following.adopted(KnownTask(key=KEY, running=True, started_at=datetime(2026, 1, 1, tzinfo=UTC)), env)
    following.record(ended(code=1))
    (run,) = spans
    assert (run.trace_id, run.span_id) == (ROOT.trace_id, task_id(ROOT.trace_id, "wl_1", 2, 0))
    assert (run.error, run.attributes["task.adopted"]) == ("exited", True)

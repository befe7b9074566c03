"""What tasks print is found while they run, when they have ended, and when the agent has forgotten all else of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harch.cli.agent_logs import ShipperMetrics, TaskOutputs, ship_agent_logs
from harch.execution.admission import AgentConfig
from harch.execution.spool import TaskLogSpool
from harch.execution.taskdir import OutputRecord
from harch.sentinel.log_shipper.tail import NewLines, OutputTail

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Task:
    """The folder of one task, as the agent and its supervisor write it."""

    def __init__(self, state: Path, workload: str, *, tenant: str = "acme") -> None:
        self.state, self.name = state, f"{workload}.1.0"
        self.folder = state / "tasks" / self.name
        (self.folder / "log").mkdir(parents=True)
        (state / "logs").mkdir(exist_ok=True)
        about = OutputRecord(
            workload=workload, name="train", tenant=tenant, node="n1", trace=f"00-{TRACE}-{'b' * 16}-01"
        )
        (self.folder / "log" / "about.json").write_bytes(msgspec.json.encode(about))
        self.spool = TaskLogSpool(str(self.folder / "log"), segment_bytes=16, segments_max=2)

    def end(self) -> None:
        (self.folder / "ended.json").write_text("{}")

    def forget(self) -> None:
        (self.folder / "log").rename(self.state / "logs" / self.name)


def told(following: OutputTail) -> list[NewLines]:
    found = list(following.look())
    for one in found:
        following.done(one)
    return [one for one in found if one.lines]


def texts(following: OutputTail) -> list[str]:
    return [line.text for one in told(following) for line in one.lines]


@pytest.fixture
def following(tmp_path: Path) -> OutputTail:
    return OutputTail(tmp_path / "told.json", TaskOutputs(tmp_path, "a1").sources)


def test_output_names_its_workload_node_and_trace_and_goes_to_its_tenant(tmp_path: Path, following: OutputTail) -> None:
    Task(tmp_path, "wl_1").spool.write(b"hello\n")
    ((one),) = told(following)
    assert one.source.tenant == "acme"
    assert dict(one.source.stream) == {"job": "harchos-task", "agent": "a1", "node": "n1", "workload": "train"}
    assert dict(one.lines[0].metadata) == {"workload_id": "wl_1", "attempt": "1", "rank": "0", "trace_id": TRACE}


def test_output_is_followed_from_the_start_to_what_is_kept_of_a_forgotten_task(
    tmp_path: Path, following: OutputTail
) -> None:
    task = Task(tmp_path, "wl_1")
    assert texts(following) == []
    task.spool.write(b"one\ntw")
    assert texts(following) == ["one"]
    assert texts(following) == []
    task.spool.write(b"o\n")
    assert texts(following) == ["two"]
    task.spool.write(b"three\nno end")
    task.end()
    task.forget()
    assert texts(following) == ["three", "no end"]
    assert texts(following) == []
    assert following.is_finished(task.name)


def test_a_task_that_came_and_went_between_two_looks_is_told_whole(tmp_path: Path, following: OutputTail) -> None:
    task = Task(tmp_path, "wl_1")
    task.spool.write(b"short life\n")
    task.end()
    task.forget()
    assert texts(following) == ["short life"]


def test_what_was_rotated_away_is_counted(tmp_path: Path, following: OutputTail) -> None:
    task = Task(tmp_path, "wl_1")
    task.spool.write(b"".join(b"line %d\n" % number for number in range(10)))
    found = texts(following)
    assert found[0].startswith("(")
    assert found[-1] == "line 9"
    assert following.lost_bytes > 0


def test_output_that_may_not_rest_here_and_folders_of_others_are_not_told(
    tmp_path: Path, following: OutputTail
) -> None:
    task = Task(tmp_path, "wl_1")
    (task.folder / "log" / "about.json").unlink()
    task.spool.write(b"secret\n")
    (tmp_path / "logs" / "wl_0.1.0").mkdir()
    assert texts(following) == []


def test_nothing_ships_where_telemetry_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = AgentConfig(hub_url="", api_key="", agent_id="a1", state_dir=tmp_path, country="MA")
    monkeypatch.setenv("HARCH_SENTINEL", "off")
    assert ship_agent_logs(config, "http://127.0.0.1:1/api/v1/write") is None
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("HARCH_SENTINEL", "on")
    shipper = ship_agent_logs(config, "http://127.0.0.1:1/api/v1/write")
    assert shipper is not None
    shipper.close()
    names = {dict(reading.labels)["__name__"] for reading in ShipperMetrics(shipper).read()}
    assert "harchos_agent_log_lines_dropped_total" in names

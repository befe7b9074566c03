"""What do agents keep? Records of tasks with their output, telemetry that waits, and how far output was told."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from harch.execution.protocol import TaskEnded, TaskKey
from harch.execution.spool import Spool as OutputSpool
from harch.execution.spool import read_spool
from harch.execution.taskdir import LaunchSpec, OutputRecord, TaskDir, read_output_record
from harch.sentinel.model.labels import labels
from harch.sentinel.node.spool import Spool as TelemetrySpool
from harch.sentinel.own_logs.following import Following, file_source
from harch.testing.store_faults.faults import Store
from harch.workloads.lifecycle import ExitReason

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = TaskKey("wl_1", 1, 0)
SPEC = LaunchSpec(
    argv=("python", "train.py"),
    env={"SEED": "42"},
    cwd="/work",
    sandbox="",
    sandbox_args=[],
    cgroups=[],
    max_duration_s=None,
    stop_grace_s=5.0,
    secrets_dir="",
    log_segment_bytes=2_000,
    log_segments_max=8,
)


def make_task(folder: Path) -> None:
    task = TaskDir(folder)
    task.write_launch_spec(SPEC)
    task.write_output_record(OutputRecord(workload="wl_1", name="train", tenant="t", node="n1"))
    (folder / "started").write_bytes(b"")
    spool = OutputSpool(str(folder / "log"), 2_000, 8)
    for number in range(200):
        spool.write(b"step %d: loss %.4f\n" % (number, 1 / (number + 1)))
    task.write_end(TaskEnded(key=KEY, reason=ExitReason.EXITED, at=NOW, exit_code=3, detail="of its own"))


def read_task(folder: Path) -> object:
    task = TaskDir(folder)
    output, position = b"", 0
    while True:
        begin, data, end = read_spool(str(folder / "log"), position, 700)
        output += b"(gap)" * (begin > position) + data
        position = begin + len(data)
        if position >= end:
            return task.facts(), task.launch_spec(), read_output_record(folder / "log"), output


def make_telemetry(folder: Path) -> None:
    spool = TelemetrySpool(folder / "waiting")
    for number in range(12):
        spool.add(b"body %d " % number * 50)
    (folder.parent / "task.log").write_bytes(b"".join(b"line %d\n" % number for number in range(200)))
    following = _following(folder)
    for told in following.look():
        following.done(told)
    following.save()


def _following(folder: Path) -> Following:
    source = file_source(folder.parent / "task.log", "t", labels({"job": "x"}))  # beside: it is not ours to damage
    return Following(folder / "positions.json", lambda: [source])


def read_telemetry(folder: Path) -> object:
    return list(_waiting(folder)), [told.position for told in _following(folder).look()]


def _waiting(folder: Path) -> Iterator[bytes]:
    spool = TelemetrySpool(folder / "waiting")
    while (body := spool.oldest()) is not None:
        yield body
        spool.take()


AGENT_STORES = (
    Store("task of an agent", make_task, read_task),
    Store("telemetry of an agent", make_telemetry, read_telemetry),
)

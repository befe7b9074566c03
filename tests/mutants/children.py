"""How does work run apart from this process, several pieces at a time? In forks that have all modules loaded already.

A child that computes for longer than it may, or that has stopped computing at all, is ended with all that it started.
Its own time counts, not the clock's: other work on the machine ends nobody.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IDLE_S_MAX = 20.0  # tests do not sleep: who waits that long without computing waits forever
_POLL_S = 0.01
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    work: Callable[[Path], Any]  # in the child, with a folder of its own; what it returns goes back as JSON
    cpu_s_max: float


@dataclass(frozen=True, slots=True)
class Ended:
    """`result` is None if the child was ended (`timed_out`) or broke, with what it wrote as `error`."""

    job: Job
    result: Any
    timed_out: bool
    error: str


@dataclass(slots=True)
class _Child:
    job: Job
    pid: int
    folder: Path
    ticks: int = -1
    moved_at: float = 0.0


def run_all(jobs: Sequence[Job], *, at_once: int) -> Iterator[Ended]:
    """As they end."""
    waiting = list(reversed(jobs))
    running: list[_Child] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_start(waiting.pop()))
            time.sleep(_POLL_S)
            for child in list(running):
                has_ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
                if has_ended or _is_stuck(child):
                    running.remove(child)
                    yield _end(child)
    finally:
        for child in running:
            _end(child)


def _start(job: Job) -> _Child:
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return _Child(job, pid, folder, moved_at=time.monotonic())
    status = 1
    try:
        os.setsid()
        quiet = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        limit_s = int(job.cpu_s_max) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
        (folder / "result").write_text(json.dumps(job.work(folder)), "utf-8")
        status = 0
    except BaseException:  # noqa: BLE001 - the edge of a process: the parent reads it from the output
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _is_stuck(child: _Child) -> bool:
    fields = Path(f"/proc/{child.pid}/stat").read_text("ascii").rpartition(")")[2].split()
    ticks = sum(int(value) for value in fields[11:15])  # its own time and that of its children, user and system
    if ticks != child.ticks:
        child.ticks, child.moved_at = ticks, time.monotonic()
    return time.monotonic() - child.moved_at > IDLE_S_MAX


def _end(child: _Child) -> Ended:
    """Whatever it started goes with it, before its number can be another's."""
    os.killpg(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    result, error = None, ""
    if status == 0:
        result = json.loads((child.folder / "result").read_text("utf-8"))
    elif (child.folder / "output").exists():
        error = (child.folder / "output").read_text("utf-8", "replace")[-2000:]
    shutil.rmtree(child.folder, ignore_errors=True)
    timed_out = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
    return Ended(child.job, result, timed_out, error)

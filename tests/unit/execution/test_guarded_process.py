"""A program that an agent runs ends with it, whatever it has started, and tells what it said last."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harch.execution.content.cancellation import Cancellation
from harch.execution.guarded_process import GUARD, GuardedCommand, run_guarded

ENV = {"PATH": "/usr/bin:/bin"}


def run(*argv: str, cancellation: Cancellation | None = None, timeout_s: float = 30.0, folder: Path = Path("/")):
    said: list[bytes] = []
    command = GuardedCommand(argv, ENV, str(folder))
    calling_off = (cancellation or Cancellation()).calling
    result = run_guarded(command, write=said.append, calling_off=calling_off, timeout_s=timeout_s)
    return result, b"".join(said)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_its_status_and_its_last_lines_are_told(tmp_path):
    result, said = run("sh", "-c", "for i in 1 2 3 4 5 6 7; do echo line $i; done; echo >&2; echo error >&2; exit 3")
    assert (result.exit_code, result.timed_out) == (3, False)
    assert result.tail == ("line 4", "line 5", "line 6", "line 7", "error")
    assert said.startswith(b"line 1\nline 2\n")
    assert run("pwd", folder=tmp_path)[1].decode().strip() == str(tmp_path)


@pytest.mark.parametrize(("argv", "code"), [(("no-such-program",), 127), (("/etc/passwd",), 126)])
def test_what_cannot_be_run_says_so_as_in_a_shell(argv, code):
    result, said = run(*argv)
    assert result.exit_code == code
    assert argv[0].encode() in said


def test_a_signal_that_ended_it_is_told_as_in_a_shell():
    assert run("sh", "-c", "kill -9 $$")[0].exit_code == 137


def test_after_its_time_all_of_it_is_killed():
    result, said = run("sh", "-c", "sleep 60 & echo $!; wait", timeout_s=0.5)
    assert result.timed_out
    _gone(int(said))


def test_being_called_off_ends_it_without_waiting_for_what_has_left_its_group(tmp_path):
    cancellation, said = Cancellation(), []

    def write(data: bytes) -> None:
        said.append(int(data))
        cancellation.cancel()

    script = "setsid sh -c 'echo $$; exec sleep 60' & wait"
    command = GuardedCommand(("sh", "-c", script), ENV, str(tmp_path))
    result = run_guarded(command, write=write, calling_off=cancellation.calling, timeout_s=30)
    assert result.exit_code == -signal.SIGKILL
    with contextlib.suppress(ProcessLookupError):
        os.kill(said[0], signal.SIGKILL)


def test_what_it_leaves_in_the_background_does_not_outlive_it():
    result, said = run("sh", "-c", "(setsid sleep 60 >/dev/null 2>&1 & echo $!); exit 0")
    assert result.exit_code == 0
    _gone(int(said))


def test_it_dies_with_the_agent():
    """The agent is killed; nothing that it could still do is needed."""
    script = f"""
import sys
from harch.execution.guarded_process import GuardedCommand, run_guarded
from harch.execution.content.cancellation import Cancellation
write = lambda data: (sys.stdout.write(data.decode()), sys.stdout.flush())
command = GuardedCommand(("sh", "-c", "sleep 60 & echo $$ $!; wait"), {ENV!r}, "/")
run_guarded(command, write=write, calling_off=Cancellation().calling, timeout_s=60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as agent:
        pids = [int(pid) for pid in agent.stdout.readline().split()]
        agent.kill()
        for pid in pids:
            _gone(pid)


def test_the_guard_imports_nothing_but_the_standard_library_and_the_kernel():
    command = [sys.executable, "-I", "-S", "-X", "importtime", str(GUARD), "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={})
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line}
    ours = {name for name in modules if name.split(".")[0] == "harch"}
    assert ours == {"harch", "harch.execution", "harch.execution.kernel"}


def _gone(pid: int) -> None:
    pause = threading.Event()
    for _ in range(1000):
        if not alive(pid):
            return
        pause.wait(0.01)
    raise AssertionError(f"process {pid} goes on")

"""The supervisor in a process of its own, on a machine that seems to sleep, or whose disk does not answer."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_supervisor_start import SPEC

from harch.execution.local_engine import SUPERVISOR

# A sleep of the machine is a jump of the boot clock that no timer has counted; the file says how long it was.
_SUPERVISOR_ON_A_MACHINE_THAT_SLEEPS = """
import sys, time
real = time.clock_gettime
def clock_gettime(clock):
    try:
        with open("slept_s") as file:
            return real(clock) + float(file.read() or 0)
    except OSError:
        return real(clock)
time.clock_gettime = clock_gettime
from harch.execution import supervisor
supervisor.main(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("program", "slept_s", "signum"),
    [
        ("echo up > up; exec sleep 60", 570, 15),  # into the grace: there is time to be polite
        ("trap '' TERM; echo up > up; sleep 60", 1000, 9),  # past the deadline: there is none
    ],
)
def test_a_task_whose_machine_slept_through_its_lease_goes_on_no_longer(tmp_path, program, slept_s, signum):
    lease = {"lease_until_s": time.clock_gettime(time.CLOCK_BOOTTIME) + 600, "stop_grace_s": 60}
    (tmp_path / "spec.json").write_text(
        json.dumps({**SPEC, "argv": ["sh", "-c", program], "cwd": str(tmp_path), **lease})
    )
    script = [sys.executable, "-c", _SUPERVISOR_ON_A_MACHINE_THAT_SLEEPS, str(tmp_path)]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as supervisor:
        assert json.loads(supervisor.stdout.readline())["state"] == "running"
        while not (tmp_path / "up").exists():
            time.sleep(0.01)
        (tmp_path / "slept_s").write_text(str(slept_s))
        end = json.loads(supervisor.stdout.readline())
        assert supervisor.wait(timeout=10) == 0
    assert (end["reason"], end["signal"]) == ("lease_ended", signum)


def test_a_disk_that_does_not_answer_is_no_way_around_the_deadline(tmp_path):
    lease = {"lease_until_s": time.clock_gettime(time.CLOCK_BOOTTIME) + 2.0, "stop_grace_s": 0.1}
    spec = {**SPEC, "argv": ["sleep", "60"], "cwd": str(tmp_path), **lease}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    script = [sys.executable, "-I", "-S", str(SUPERVISOR), str(tmp_path)]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as supervisor, contextlib.ExitStack() as rescue:
        rescue.callback(supervisor.kill)
        pid = json.loads(supervisor.stdout.readline())["pid"]
        os.mkfifo(tmp_path / "lease")  # who opens it to read hangs until somebody writes
        give_up_at = time.monotonic() + 10
        while ") Z" not in Path(f"/proc/{pid}/stat").read_text():
            assert time.monotonic() < give_up_at, "it outlived its lease"
            time.sleep(0.01)
        # Opens only if somebody waits on the other side, which proves that the supervisor hangs.
        os.close(os.open(tmp_path / "lease", os.O_WRONLY | os.O_NONBLOCK))
        end = json.loads(supervisor.stdout.readline())
        assert supervisor.wait(timeout=10) == 0
    assert (end["reason"], end["signal"]) == ("lease_ended", 9)

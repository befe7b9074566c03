"""The supervisor in a process of its own, on a machine that seems to sleep."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from test_supervisor_start import SPEC

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

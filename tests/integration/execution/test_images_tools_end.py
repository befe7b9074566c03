"""Does a program that reads a foreign image end with the agent, however that ends?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from execution_fakes import alive, wait_until

from harch.execution.images.tools import Hooks, ToolRunner, ToolView
from harch.execution.isolation.sandbox import choose

pytestmark = pytest.mark.needs("bubblewrap")

_AGENT = """
import sys, threading
from pathlib import Path
from harch.execution.images.tools import Hooks, ToolRunner, ToolView
from harch.execution.isolation.sandbox import choose

box = choose("auto", Path(sys.argv[1]))
runner = ToolRunner(box.program, box.host)
hooks = Hooks(print, print, lambda: None)
command = ["sh", "-c", "sleep 1000 & echo started > /scratch/started; wait"]
work = lambda: runner.run(command, ToolView((("/scratch", sys.argv[1]),)), hooks, timeout_s=1000)
threading.Thread(target=work).start()
"""


def processes_below(pid: int) -> list[int]:
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        children = Path(f"/proc/{one}/task").glob("*/children")
        waiting += [int(child) for path in children for child in path.read_text().split()]
        found.append(one)
    return found


def test_nothing_of_a_tool_outlives_an_agent_that_is_killed(tmp_path: Path) -> None:
    agent = subprocess.Popen([sys.executable, "-c", _AGENT, str(tmp_path)])
    wait_until(lambda: (tmp_path / "started").exists(), timeout_s=60)
    all_of_it = processes_below(agent.pid)
    assert len(all_of_it) >= 4, "agent, sandbox, its first process, shell, sleep"
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    wait_until(lambda: not any(alive(pid) for pid in all_of_it[1:]), timeout_s=60)


def test_a_tool_writes_its_scratch_folder_and_nothing_else_and_has_no_network(tmp_path: Path) -> None:
    box = choose("auto", tmp_path)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "private").write_text("private")
    script = (
        "touch /scratch/ok; for path in /x /etc/x /usr/x; do touch $path 2>/dev/null && echo wrote; done;"
        f"cat {tmp_path}/private /etc/shadow 2>/dev/null; tail -n +3 /proc/net/dev | grep -vc lo:;"
        "env | cut -d= -f1"
    )
    lines: list[str] = []
    done = ToolRunner(box.program, box.host, {"SECRET": "x", "HTTPS_PROXY": "y"}).run(
        ["sh", "-c", script],
        ToolView((("/scratch", str(tmp_path / "scratch")),)),
        Hooks(lines.append, lambda detail: None, lambda: None),
        timeout_s=60,
    )
    assert (tmp_path / "scratch" / "ok").exists()
    said = done.output.decode().split()
    assert not {"wrote", "private"} & set(said)
    assert said[0] == "0", "no interface but the loopback"
    assert {"HOME", "LANG", "PATH"} <= set(said[1:]) <= {"HOME", "LANG", "PATH", "PWD", "_", "SHLVL", "OLDPWD"}

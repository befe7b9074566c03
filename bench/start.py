"""How soon is HarchOS there? CPU time of `harch --help`, and `make up`, once installed, until five hubs are ready."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harch.testing.ports import free_port_base
from verdict import Verdict, conditions

ROUNDS = 15


def main() -> None:
    verdict = Verdict("start")
    print(f"conditions: {conditions()}")
    cpu_ms = help_cpu_ms()
    print(f"`harch --help`: median {cpu_ms:.0f} ms of CPU over {ROUNDS} runs")
    ready_s = sorted(up_s() for _ in range(3))
    print(f"`make up` until five hubs are ready: {', '.join(f'{s:.1f}' for s in ready_s)} s (three cold starts)")
    verdict.goal("harch --help CPU", "< 150", cpu_ms, "ms")
    verdict.goal("make up to five hubs ready after install", "< 30", ready_s[1], "s")
    verdict.print()


def help_cpu_ms() -> float:
    """User and system time, so that a busy machine does not count."""
    harch = Path(sys.executable).with_name("harch")
    times = []
    for _ in range(ROUNDS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([harch, "--help"], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000)
    return sorted(times)[ROUNDS // 2]


def up_s() -> float:
    """From the command until it says that everything is ready."""
    with tempfile.TemporaryDirectory() as home:
        own = {"HARCH_HOME": home, "XDG_CONFIG_HOME": home, "HARCH_PORT_BASE": str(free_port_base())}
        environment = {**os.environ, **own}
        start = time.perf_counter()
        process = subprocess.Popen(
            ["make", "--no-print-directory", "up"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            if "Ctrl-C" in line:
                break
        elapsed_s = time.perf_counter() - start
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
    return elapsed_s


if __name__ == "__main__":
    main()

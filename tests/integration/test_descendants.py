"""Does anything that we have started get away? Real processes that try: daemons, orphans, deaf ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harch.cli.process_tree import cpu_s, descendants_of, recorded
from harch.execution.kernel import start_ticks

# In a process of its own: it becomes the parent of orphans, and ends all its children.
STORY = """
import asyncio, os, subprocess, sys
from harch.base.clock import SystemClock
from harch.cli.process_tree import Descendants, descendants_of

DAEMON = '''
import os, signal, sys, time
if os.fork(): os._exit(0)
os.setsid()
starter = os.getpid()
if os.fork(): os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while os.getppid() == starter: time.sleep(0.01)  # an orphan speaks
print(os.getpid(), flush=True)
time.sleep(1000)
'''

async def main():
    ours = Descendants()
    child = subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, text=True)
    pid = int(child.stdout.readline())
    child.wait()
    assert descendants_of(os.getpid()) == [pid], "an orphan is our child now"
    assert await ours.end([], SystemClock(), grace_s=0.1) == []
    assert descendants_of(os.getpid()) == []
    print(pid)

asyncio.run(main())
"""


def test_a_deaf_daemon_does_not_outlive_us() -> None:
    done = subprocess.run([sys.executable, "-c", STORY], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not Path(f"/proc/{int(done.stdout)}").exists()


@pytest.fixture
def sleeper() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    yield process
    process.kill()
    process.wait()


def test_only_what_a_record_names_by_pid_and_start_is_ours(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    record = tmp_path / "sentinel" / "process.json"
    record.parent.mkdir()
    started = start_ticks(sleeper.pid)
    for pid, ticks, found in (
        (sleeper.pid, started, [sleeper.pid]),
        (sleeper.pid, started + 1, []),
        (sleeper.pid, 0, []),
        (2**22 + 1, started, []),
    ):
        record.write_text(json.dumps({"pid": pid, "start_ticks": ticks, "config_sha256": "x"}))
        assert list(recorded(tmp_path)) == found
    record.write_text("{")
    assert list(recorded(tmp_path)) == []


RECORDED_STORY = """
import asyncio, sys
from pathlib import Path
from harch.base.clock import SystemClock
from harch.cli.process_tree import Descendants

async def main():
    assert await Descendants().end([Path(sys.argv[1])], SystemClock(), grace_s=5.0) == []

asyncio.run(main())
"""


def test_what_an_earlier_run_has_left_is_ended(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (tmp_path / "keeper.pid").write_text(json.dumps({"pid": sleeper.pid, "start_ticks": start_ticks(sleeper.pid)}))
    subprocess.run([sys.executable, "-c", RECORDED_STORY, str(tmp_path)], check=True, timeout=60)
    assert sleeper.wait(10) == -signal.SIGTERM


def test_processor_time_is_that_of_the_process(sleeper: subprocess.Popen[bytes]) -> None:
    assert cpu_s(os.getpid()) > 0
    sleeper.kill()
    sleeper.wait()
    assert cpu_s(sleeper.pid) == 0
    assert sleeper.pid not in descendants_of(os.getpid())


ADOPTING = """
import asyncio, os, subprocess, sys
from harch.cli.process_tree import UNKNOWN_CODE, AdoptedProcess, Descendants

ORPHAN = '''
import os, sys, time
starter = os.getpid()
if os.fork(): os._exit(0)
while os.getppid() == starter: time.sleep(0.01)
'''

async def adopted(life):
    spoken = ORPHAN + life
    child = subprocess.Popen([sys.executable, "-c", spoken], stdout=subprocess.PIPE, text=True)
    pid = int(child.stdout.readline())
    child.wait()
    return AdoptedProcess(pid)

async def main():
    Descendants()
    failing = await adopted("print(os.getpid(), flush=True); sys.exit(7)")
    assert await asyncio.gather(failing.wait(), failing.wait()) == [7, 7] and failing.returncode == 7
    deaf = await adopted("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
                         "print(os.getpid(), flush=True); time.sleep(1000)")
    waiting = asyncio.ensure_future(deaf.wait())
    deaf.terminate()
    deaf.kill()
    assert await waiting == -9
    deaf.kill()  # its number may be somebody else's by now
    assert await AdoptedProcess(failing.pid).wait() == UNKNOWN_CODE

asyncio.run(main())
"""


def test_an_adopted_process_is_waited_for_like_one_of_our_own() -> None:
    done = subprocess.run([sys.executable, "-c", ADOPTING], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

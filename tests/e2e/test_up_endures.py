"""Does `harch up` go on when a hub of it cannot, and is nothing left when it ends, however it ends?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harch.cli.process_tree import descendants_of
from harch.testing.hub_process import free_port_base
from harch.testing.samples import TINY_FLEET_TOML

pytestmark = pytest.mark.timeout(300)  # kernels may have to be compiled first
PATIENCE_S = 120.0


class Up:
    """`harch up` of two small hubs; what it says is read as it comes."""

    def __init__(self, home: Path, *, sentinel: str = "off") -> None:
        self.home, self.base = home, free_port_base()
        fleet = home / "fleet.toml"
        fleet.write_text(TINY_FLEET_TOML)
        environment = {
            **os.environ,
            "HARCH_HOME": str(home),
            "HARCH_PORT_BASE": str(self.base),
            "HARCH_SENTINEL": sentinel,
            "PYTHONUNBUFFERED": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harch", "up", "--fleet", str(fleet)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())

    def heard(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in list(self.said))

    def until_heard(self, *words: str) -> None:
        until(lambda: self.heard(*words), lambda: f"{words} not in {self.said}")

    def api(self, index: int) -> httpx.Client:
        key = (self.home / "admin.key").read_text().strip()
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.base + 1 + index}",
            headers={"X-API-Key": key},
            timeout=30,
            trust_env=False,
        )

    def run_job(self, index: int) -> None:
        body = {"name": "sleeper", "command": ["sleep", "1000"], "stay_home": True}
        with self.api(index) as client:
            job = client.post("/v1/workloads", json=body).raise_for_status().json()["id"]
            until(lambda: client.get(f"/v1/workloads/{job}").json()["status"] == "running")


def until(holds: Callable[[], Any], why: Callable[[], str] = lambda: "") -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, why()
        time.sleep(0.1)


def is_there(pid: int, started: str) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[19] == started and fields[0] not in "ZX"


def snapshot(pid: int) -> dict[int, str]:
    """All processes below this one, each with its start, which makes a pid unmistakable."""
    found = {}
    for one in descendants_of(pid):
        try:
            found[one] = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[19]
        except OSError:
            continue
    return found


@pytest.fixture
def make_up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    made: list[Up] = []

    def make(**options: Any) -> Up:
        made.append(Up(tmp_path, **options))
        return made[-1]

    yield make
    for up in made:
        if up.process.poll() is None:
            up.process.send_signal(signal.SIGINT)
            try:
                up.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                up.process.kill()


def test_a_hub_that_cannot_start_is_told_the_others_work_and_it_may_come_back(
    make_up: Callable[..., Up], tmp_path: Path
) -> None:
    (tmp_path / "dakhla").mkdir()
    broken = tmp_path / "dakhla" / "scheduling.toml"
    broken.write_text("this is no TOML")
    up = make_up()
    up.until_heard("hub Dakhla has ended 3 times")
    assert up.heard("scheduling.toml")
    up.until_heard("1 of 2 hubs are ready; not ready: Dakhla")
    up.run_job(1)
    broken.unlink()
    up.until_heard("Dakhla", "2 of 2")
    assert up.process.poll() is None


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_ends_nothing_is_left(make_up: Callable[..., Up], how: signal.Signals) -> None:
    up = make_up(sentinel="")
    up.until_heard("Ctrl-C stops everything")
    up.run_job(0)
    up.run_job(1)
    with httpx.Client(timeout=5, trust_env=False) as client:
        until(lambda: _answers(client, f"http://127.0.0.1:{up.base + 11}/-/healthy"))
    before = snapshot(up.process.pid)
    assert len(before) >= 8, "two hubs, SENTINELs, agents and jobs"
    up.process.send_signal(how)
    up.process.wait(PATIENCE_S)
    if how is signal.SIGKILL:  # each of its children stops by itself
        until(lambda: not any(is_there(pid, started) for pid, started in before.items()), lambda: str(before))
    else:
        assert up.process.returncode == 0
        assert [pid for pid, started in before.items() if is_there(pid, started)] == []


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).status_code == 200
    except httpx.HTTPError:
        return False

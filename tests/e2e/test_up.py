"""A newcomer's journey: start the federation, run work, ask why, kill a hub, stop, and find everything again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harch.testing.hub_process import free_port_base

HARCH = [sys.executable, "-m", "harch"]


class Federation:
    """`harch up` in a folder of its own."""

    def __init__(self, home: Path) -> None:
        self.environment = {**os.environ, "HARCH_HOME": str(home), "HARCH_PORT_BASE": str(free_port_base())}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([*HARCH, "up"], env=self.environment, stdout=subprocess.PIPE, text=True)
        self.said: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if "Ctrl-C" in line:
                return
        raise AssertionError(f"`harch up` ended: {self.said}")

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

    def harch(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*HARCH, *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)

    def json(self, *words: str) -> Any:
        done = self.harch(words[0], "--json", *words[1:])
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def processes(self) -> list[int]:
        """Everything on this machine that was started with our state folder."""
        mark = f"HARCH_HOME={self.environment['HARCH_HOME']}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("up") / "state")
    yield made
    if made.process.poll() is None:
        made.interrupt()


def test_it_says_one_line_per_hub_the_address_the_key_file_and_three_things_to_try(federation: Federation) -> None:
    text = "\n".join(federation.said)
    for name, gpus in {"Dakhla": 640, "Tangier": 320, "Casablanca": 464, "Dakar": 214, "Abidjan": 160}.items():
        (line,) = [line for line in federation.said if line.startswith(name)]
        assert str(gpus) in line
        assert "modelled" in line
    key_file = Path(federation.environment["HARCH_HOME"]) / "admin.key"
    assert str(key_file) in text
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert key_file.read_text().strip() not in text
    assert len([line for line in federation.said if line.startswith("  ") and "harch" in line]) == 3


def test_any_hub_shows_all_five_with_the_age_of_what_it_knows(federation: Federation) -> None:
    _until(lambda: all(hub["reachable"] for hub in federation.json("hubs")["items"]))
    hubs = federation.json("hubs")
    assert sum(hub["capacity"]["total_gpus"] for hub in hubs["items"]) == 1798


def test_work_runs_its_output_is_shown_and_its_exit_code_is_ours(federation: Federation) -> None:
    done = federation.harch("run", "--gpus", "2", "--", "/bin/sh", "-c", "echo on $HARCH_GPUS; exit 3")
    assert done.returncode == 3, done.stderr
    assert "on dakhla-" in done.stdout


def test_work_for_senegal_is_refused_in_morocco_and_runs_in_dakar(federation: Federation) -> None:
    refused = federation.harch("run", "--country", "SN", "--", "true")
    assert refused.returncode == 4
    assert "E0902" in refused.stderr
    assert "dakar" in refused.stderr.lower()
    done = federation.harch("run", "--country", "SN", "--hub", "dakar", "--", "true")
    assert done.returncode == 0, done.stderr


def test_why_shows_every_hub_and_every_rule(federation: Federation) -> None:
    job = federation.json("run", "-d", "--gpus", "8", "--name", "asked", "--", "sleep", "60")
    why = federation.harch("why", "asked")
    for word in ("Dakhla", "Tangier", "Casablanca", "Dakar", "Abidjan", "residency", "capacity"):
        assert word.lower() in why.stdout.lower(), why.stdout
    assert federation.harch("stop", job["id"]).returncode == 0


def test_a_killed_hub_comes_back_and_nothing_is_lost(federation: Federation) -> None:
    job = federation.json("run", "-d", "--name", "survivor", "--", "sleep", "300")
    _until(lambda: federation.json("ps")["items"][0]["status"] == "running")
    hub = _pid_of(federation, b"dakhla", b"serve")
    os.kill(hub, signal.SIGKILL)
    _until(lambda: federation.harch("ps", "--json").returncode == 0 and _pid_of(federation, b"dakhla", b"serve") != hub)
    (found,) = federation.json("ps")["items"]
    assert (found["id"], found["status"], found["attempt"]) == (job["id"], "running", 1)


def test_ctrl_c_stops_every_process_and_a_second_start_resumes(federation: Federation) -> None:
    assert federation.interrupt() == 0
    assert federation.processes() == []
    federation.start()
    _until(lambda: [w["status"] for w in federation.json("ps")["items"] if w["name"] == "survivor"] == ["running"])
    assert federation.harch("stop", "survivor").returncode == 0


def test_the_docs_page_of_the_api_names_no_outside_host(federation: Federation) -> None:
    base = f"http://127.0.0.1:{int(federation.environment['HARCH_PORT_BASE']) + 1}"
    page = httpx.get(f"{base}/docs").text
    assert "http://" not in page.replace(base, "")
    assert "https://" not in page


def test_a_second_federation_on_the_same_ports_is_told_which_port_is_taken(
    federation: Federation, tmp_path: Path
) -> None:
    environment = {**federation.environment, "HARCH_HOME": str(tmp_path / "other")}
    tried = subprocess.run([*HARCH, "up"], env=environment, capture_output=True, text=True, timeout=60)
    assert tried.returncode == 1
    assert "E1004" in tried.stderr


def _until(look: Any, within_s: float = 30) -> None:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if look():
            return
        time.sleep(0.1)
    raise AssertionError(f"waited {within_s:g} s")


def _pid_of(federation: Federation, *words: bytes) -> int:
    for pid in federation.processes():
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"hub" in arguments and all(word in arguments for word in words):
            return pid
    return 0

"""A hub with SENTINEL, an agent and a job, under the usual mask of a shell: nobody else can read what they write."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML

pytestmark = pytest.mark.timeout(240)  # kernels may have to be compiled first
PATIENCE_S = 120.0


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubProcess]:
    before = os.umask(0o022)
    monkeypatch.setenv("HARCH_SENTINEL", "")
    home = tmp_path / "home"
    # What an earlier version, or an editor, has left open.
    (home / "dakar" / "sentinel").mkdir(parents=True)
    (home / "dakar" / "scheduling.toml").write_text("")
    for path in (home, home / "dakar", home / "dakar/sentinel"):
        path.chmod(0o755)
    try:
        with HubProcess(TINY_FLEET_TOML, "dakar", home) as running:
            yield running
    finally:
        os.umask(before)


def test_folders_are_0700_and_files_0600(hub: HubProcess) -> None:
    with hub.client() as client:
        job = client.post("/v1/workloads", json={"name": "j", "command": ["sleep", "600"]}).raise_for_status().json()
        until(lambda: client.get(f"/v1/workloads/{job['id']}").json()["status"] == "running")
    until(lambda: answers(f"http://127.0.0.1:{hub.port_base + 12}/-/ready"))
    written = [path for path in hub.home.rglob("*") if path not in (hub.fleet, hub.home / "processes.log")]
    names = {path.name for path in written}
    assert {"hub.db", "sentinel.log", "agent.key", "sentinel.lock", "spec.json"} <= names
    assert wrong([hub.home, *written]) == []


def wrong(paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        try:
            mode = path.stat(follow_symlinks=False).st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISLNK(mode) and stat.S_IMODE(mode) & 0o077:
            found.append(f"{stat.filemode(mode)} {path}")
    return found


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def until(holds: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.1)

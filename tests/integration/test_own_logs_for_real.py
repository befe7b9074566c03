"""A hub, an agent and SENTINEL as processes: what they and a task say is found there, each for its own tenant."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harch.testing.ports import free_port_base

pytestmark = [pytest.mark.uses("bubblewrap"), pytest.mark.timeout(240)]  # kernels may have to be compiled first

PATIENCE_S = 120.0
KEY = "hsk_5ecre7000111222333"


class Site:
    """One hub of the shipped fleet, with an agent, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.base = folder, free_port_base()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ, "HARCH_HOME": str(folder / "home"), "HARCH_PORT_BASE": str(self.base), "HARCH_SENTINEL": "on",
        }  # fmt: skip
        self.state = folder / "home" / "dakhla"

    def start(self) -> None:
        self._run("hub", "serve", "dakhla")
        until(lambda: (self.state / "agent.key").exists() and self._answers(f"{self.hub}/v1/summary"), "the hub")
        agent = ("--key-file", str(self.state / "agent.key"), "--state-dir", str(self.state / "agent"), "--id", "a1")
        url = f"{self.sentinel}/api/v1/write"
        self._run("agent", "serve", "--hub-url", self.hub, "--country", "MA", *agent, "--telemetry-url", url)
        until(lambda: self._answers(f"{self.sentinel}/-/ready"), "SENTINEL")

    @property
    def hub(self) -> str:
        return f"http://127.0.0.1:{self.base + 1}"

    @property
    def sentinel(self) -> str:
        return f"http://127.0.0.1:{self.base + 11}"

    @property
    def admin(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {(self.folder / 'home' / 'admin.key').read_text().strip()}"}

    def lines(self, query: str, headers: dict[str, str]) -> list[tuple[dict[str, str], str]]:
        answer = httpx.get(f"{self.sentinel}/loki/api/v1/query_range", params={"query": query}, headers=headers)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return [(one["stream"], value[1]) for one in found for value in one["values"]]

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(60)

    def _run(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "harch", *arguments]
        with (self.folder / f"{arguments[0]}.log").open("wb") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.environment))

    @staticmethod
    def _answers(url: str) -> bool:
        try:
            return httpx.get(url).status_code == 200
        except httpx.HTTPError:
            return False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_lines_of_daemons_and_tasks_are_found_by_who_may_see_them(site: Site) -> None:
    made = httpx.post(
        f"{site.hub}/v1/auth/api-keys", headers=site.admin, json={"name": "u", "tenant": "acme", "role": "user"}
    )
    assert made.status_code in {200, 201}, made.text
    acme = {"Authorization": f"Bearer {made.json()['key']}"}
    script = f"echo first; echo the key is {KEY}; echo to stderr >&2; printf last"
    task = {"name": "talker", "resources": {"gpus": 1}, "command": ["sh", "-c", script]}
    sent = httpx.post(f"{site.hub}/v1/workloads", headers=acme, json=task)
    assert sent.status_code in {200, 201, 202}, sent.text
    until(lambda: len(site.lines('{job="harchos-task"}', acme)) == 4, "the task's output")
    found = site.lines('{job="harchos-task", workload="talker", hub="dakhla"}', acme)
    assert {text for _, text in found} == {"first", "the key is hsk_[redacted]", "to stderr", "last"}
    assert found[0][0]["rank"] == "0"
    assert site.lines('{job="harchos-task"}', site.admin) == []  # `default` is the operator's own
    assert len(site.lines('{job="harchos-task"}', {**site.admin, "X-Scope-OrgID": "acme"})) == 4
    for job in ("harchos-hub", "harchos-agent", "harchos-sentinel"):
        until(lambda job=job: site.lines(f'{{job="{job}", hub="dakhla"}}', site.admin), job)
    traced = '{job="harchos-hub"} |= "submitted" | trace_id != ""'
    until(lambda: site.lines(traced, site.admin), "the hub's line about the submission, with its trace")
    data = site.state / "sentinel" / "data"
    assert [path for path in data.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []


def test_an_agents_key_sends_about_its_agent_and_reads_nothing(site: Site) -> None:
    key = {"Authorization": f"Bearer {(site.state / 'agent.key').read_text().strip()}"}
    query = {"query": 'node_load1{job="harchos-node",instance="a1"}'}
    asked = f"{site.sentinel}/api/v1/query"
    until(lambda: httpx.get(asked, params=query, headers=site.admin).json()["data"]["result"], "figures of the node")
    for path in ("/api/v1/query", "/loki/api/v1/query_range", "/api/v1/rules", "/api/v2/alerts", "/api/v2/silences"):
        assert httpx.get(f"{site.sentinel}{path}", params=query, headers=key).status_code == 403, path
    forged = [{"labels": {"alertname": "HubDown"}}]
    assert httpx.post(f"{site.sentinel}/api/v2/alerts", json=forged, headers=key).status_code == 403
    lines = {"streams": [{"stream": {"job": "harchos-task", "agent": "a2"}, "values": [[str(time.time_ns()), "x"]]}]}
    assert httpx.post(f"{site.sentinel}/loki/api/v1/push", json=lines, headers=key).status_code == 403


def until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (got := condition()):
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.2)
    return got

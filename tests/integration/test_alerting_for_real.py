"""From a rule to a person, with real processes: a rule fires, a webhook hears it, kill -9 loses and repeats nothing.

The requests are those of amtool, recorded; where amtool is installed, it is used as it is, too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

PATIENCE_S = 240.0  # a first start compiles kernels, and other work may have the cores

pytestmark = pytest.mark.timeout(900)

RULES = """
groups:
- name: test
  interval: 1s
  rules:
  - record: test:one
    expr: vector(1)
  - alert: Down
    expr: test:one == 1
    for: 1s
    labels: {severity: page}
    annotations: {summary: 'value {{ $value }} at {{ $externalLabels.hub }}'}
"""
ALERTS = """
route:
  receiver: nobody
  routes:
  - {receiver: team, matchers: [alertname=~"Down|Posted"], group_by: [alertname],
     group_wait: 0s, group_interval: 1s, repeat_interval: 12h}
receivers:
- name: nobody
- name: team
  webhook_configs: [{url: 'http://127.0.0.1:%d/'}]
"""


class Webhook(ThreadingHTTPServer):
    """Remembers what it heard: name of the alert and status."""

    daemon_threads = True

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.heard.append((body["groupLabels"]["alertname"], body["status"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.05)


class SentinelProcess:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        arguments = ["sentinel", "serve", "--data", str(self.folder / "data"), "--listen", "127.0.0.1:0"]
        arguments += ["--config", str(self.folder / "prometheus.yml"), "--alerts", str(self.folder / "alerts.yml")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "harch", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "HARCH_HOME": str(self.folder)},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http://" in line, (line, (self.folder / "log").read_text())
        self.url = line.split()[-1]
        until(lambda: self._answers(), "SENTINEL is ready")

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=PATIENCE_S).status_code == 200
        except httpx.HTTPError:
            return False

    def end(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None

    def evaluated(self) -> bool:
        """Whether the rule was evaluated since the start."""
        groups = httpx.get(f"{self.url}/api/v1/rules", params={"rule_group[]": "test"}, timeout=PATIENCE_S).json()[
            "data"
        ]["groups"]
        return groups[0]["rules"][1]["health"] == "ok"

    def get(self, path: str, **query: str) -> list[dict]:
        answer = httpx.get(f"{self.url}/api/v2/{path}", params=query, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def webhook() -> Iterator[Webhook]:
    server = Webhook()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def sentinel(tmp_path_factory: pytest.TempPathFactory, webhook: Webhook) -> Iterator[SentinelProcess]:
    tmp_path = tmp_path_factory.mktemp("sentinel")
    (tmp_path / "rules.yml").write_text(RULES)
    (tmp_path / "prometheus.yml").write_text("global: {external_labels: {hub: dakhla}}\nrule_files: [rules.yml]\n")
    (tmp_path / "alerts.yml").write_text(ALERTS % webhook.server_port)
    made = SentinelProcess(tmp_path)
    made.start()
    yield made
    if made.process is not None:
        made.end(signal.SIGKILL)


def test_a_rule_reaches_a_webhook_and_kill_9_loses_and_repeats_nothing(sentinel: SentinelProcess, webhook: Webhook):
    until(lambda: webhook.heard, "the first notification")
    assert webhook.heard == [("Down", "firing")]
    query = {"active": "true", "inhibited": "false", "silenced": "false", "unprocessed": "false"}
    (down,) = sentinel.get("alerts", filter='alertname="Down"', **query)
    assert down["labels"] == {"alertname": "Down", "hub": "dakhla", "severity": "page"}
    assert down["annotations"] == {"summary": "value 1 at dakhla"}
    # The requests that amtool sends for `alert add` and `silence add`.
    zero = "0001-01-01T00:00:00.000Z"
    posted = [{"annotations": {}, "startsAt": zero, "endsAt": zero, "labels": {"alertname": "Posted", "node": "n"}}]
    assert httpx.post(f"{sentinel.url}/api/v2/alerts", json=posted, timeout=PATIENCE_S).status_code == 200
    silence = {
        "comment": "test",
        "createdBy": "amina",
        "startsAt": "2020-01-01T00:00:00.000Z",
        "endsAt": "2120-01-01T00:00:00.000Z",
        "matchers": [{"isEqual": True, "isRegex": True, "name": "instance", "value": "a.+"}],
    }
    made = httpx.post(f"{sentinel.url}/api/v2/silences", json=silence, timeout=PATIENCE_S).json()["silenceID"]
    until(lambda: ("Posted", "firing") in webhook.heard, "the posted alert")
    ack = httpx.post(
        f"{sentinel.url}/api/v2/alert/{down['fingerprint']}/ack",
        json={"by": "amina", "comment": "mine"},
        timeout=PATIENCE_S,
    )
    assert ack.status_code == 200

    sentinel.end(signal.SIGKILL)
    sentinel.start()

    assert [one["id"] for one in sentinel.get("silences")] == [made]
    (again,) = sentinel.get("alerts", filter="alertname=Down")
    assert again["startsAt"] == down["startsAt"]
    assert again["acknowledgedBy"]["by"] == "amina"
    until(lambda: sentinel.evaluated(), "another evaluation")
    assert sorted(webhook.heard) == [("Down", "firing"), ("Posted", "firing")]
    ended = [{"labels": posted[0]["labels"], "endsAt": again["updatedAt"]}]
    assert httpx.post(f"{sentinel.url}/api/v2/alerts", json=ended, timeout=PATIENCE_S).status_code == 200
    until(lambda: ("Posted", "resolved") in webhook.heard, "the end of the posted alert")
    assert httpx.delete(f"{sentinel.url}/api/v2/silence/{made}", timeout=PATIENCE_S).status_code == 200
    assert sentinel.get("silences")[0]["status"]["state"] == "expired"


@pytest.mark.needs("amtool")
def test_amtool_works_unchanged(sentinel: SentinelProcess, webhook: Webhook):
    def amtool(*arguments: str) -> str:
        command = ["amtool", f"--alertmanager.url={sentinel.url}", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout

    until(lambda: "Down" in amtool("alert", "query"), "the alert in amtool's list")
    made = amtool("silence", "add", "alertname=Down", "--comment=test", "--author=amina", "--duration=1h").strip()
    assert made in amtool("silence", "query")
    assert "suppressed" in amtool("alert", "query", "--silenced")
    amtool("silence", "expire", made)
    assert made not in amtool("silence", "query")
    amtool("alert", "add", "Posted", "node=n")
    assert "Posted" in amtool("alert", "query", "alertname=Posted")
    assert "receiver: team" in amtool("config", "show")

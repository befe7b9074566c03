"""A `prometheus.yml` as Prometheus ships it: scraped pages say what they mean, alerts reach an Alertmanager.

The Alertmanager is SENTINEL's own, which speaks the same API, and the real one where it is installed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

PATIENCE_S = 60.0
GREETING = "SENTINEL listens on "

# Keys with nothing behind them are part of the file that Prometheus ships.
STOCK = """\
global:
  scrape_interval: 500ms
  evaluation_interval: 500ms

alerting:
  alertmanagers:
    - static_configs:
        - targets:
          # - alertmanager:9093

rule_files:
  # - "first_rules.yml"

scrape_configs:
  - job_name: "prometheus"
    static_configs:
      - targets: {targets}
        labels:
          app: "prometheus"
"""

ALERTING = """\
global: {evaluation_interval: 500ms, external_labels: {site: dakhla}}
alerting:
  alert_relabel_configs: [{regex: internal, action: labeldrop}]
  alertmanagers:
    - path_prefix: PREFIX
      static_configs: [{targets: ['ADDRESS']}]
rule_files: [rules.yml]
"""
RULES = """\
groups:
  - name: always
    interval: 500ms
    rules:
      - alert: Always
        expr: vector(1)
        labels: {severity: page, internal: x}
        annotations: {summary: It is always so.}
"""


@contextmanager
def running(folder: Path, config: str = "") -> Iterator[httpx.Client]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "harch", "sentinel", "serve", "--data", str(folder / "data")]
    command += ["--listen", "127.0.0.1:0"]
    if config:
        (folder / "prometheus.yml").write_text(config)
        command += ["--config", str(folder / "prometheus.yml")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        greeting = process.stdout.readline()
        assert greeting.startswith(GREETING), (folder / "log").read_text()
        with httpx.Client(base_url=greeting.removeprefix(GREETING).strip(), timeout=30) as client:
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (got := condition()):
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.05)
    return got


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A SENTINEL that scrapes another one by Prometheus' own file."""
    folder = tmp_path_factory.mktemp("stock")
    with running(folder / "target") as target:
        address = target.base_url.netloc.decode()
        with running(folder / "scraper", STOCK.replace("{targets}", f"['{address}']")) as client:
            yield client


def test_help_and_type_of_scraped_metrics_are_kept(scraped: httpx.Client) -> None:
    def known() -> Any:
        return scraped.get("/api/v1/metadata", params={"metric": "prometheus_tsdb_head_series"}).json()["data"]

    told = until(known, "metadata of the first page")
    assert told["prometheus_tsdb_head_series"] == [
        {"type": "gauge", "help": "Series with samples in memory.", "unit": ""}
    ]
    (of_target,) = scraped.get(
        "/api/v1/targets/metadata",
        params={"metric": "prometheus_tsdb_head_series", "match_target": '{app="prometheus"}'},
    ).json()["data"]
    assert of_target["target"]["job"] == "prometheus"
    assert (of_target["type"], of_target["help"]) == ("gauge", "Series with samples in memory.")
    assert not scraped.get("/api/v1/targets/metadata", params={"match_target": '{app="other"}'}).json()["data"]


def test_sentinel_shows_its_own_figures_and_version_where_prometheus_does(scraped: httpx.Client) -> None:
    def requests() -> Any:
        answer = scraped.get("/api/v1/query", params={"query": 'prometheus_http_requests_total{handler="/metrics"}'})
        return answer.json()["data"]["result"]

    (served,) = until(requests, "the scraped SENTINEL counts its scrapes")
    assert served["metric"]["code"] == "200"
    page = scraped.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    assert "process_resident_memory_bytes" in page.text
    assert 'prometheus_rule_group_rules{rule_group="' in page.text
    appended = next(line for line in page.text.splitlines() if line.startswith("prometheus_tsdb_head_samples_appended"))
    assert float(appended.split()[1]) > 0
    version = scraped.get("/version").json()
    assert version == scraped.get("/api/v1/status/buildinfo").json()["data"]
    replay = scraped.get("/api/v1/status/walreplay").json()["data"]
    assert replay == {"min": 0, "max": 0, "current": 0, "state": "done"}


def fired(alertmanager: httpx.Client) -> Any:
    listed = alertmanager.get("api/v2/alerts", params={"filter": 'alertname="Always"'}).json()
    return [one for one in listed if one["labels"].get("site") == "dakhla"]


def alerting_config(address: str, prefix: str = "/") -> str:
    return ALERTING.replace("ADDRESS", address).replace("PREFIX", prefix)


def test_alerts_reach_the_alertmanager_that_the_file_names(tmp_path: Path) -> None:
    (tmp_path / "sender").mkdir()
    (tmp_path / "sender" / "rules.yml").write_text(RULES)
    with running(tmp_path / "receiver") as receiver:
        config = alerting_config(receiver.base_url.netloc.decode())
        with running(tmp_path / "sender", config) as sender:
            (alert,) = until(lambda: fired(receiver), "the alert at the other Alertmanager")
            until(lambda: "prometheus_notifications_sent_total{" in sender.get("/metrics").text, "the count")
    assert alert["labels"] == {"alertname": "Always", "severity": "page", "site": "dakhla"}  # `internal` was dropped
    assert alert["annotations"] == {"summary": "It is always so."}
    assert alert["generatorURL"].startswith("/graph?")


@pytest.mark.needs("alertmanager")
def test_alerts_reach_the_real_alertmanager(tmp_path: Path) -> None:
    (tmp_path / "alertmanager.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    (tmp_path / "sender").mkdir()
    (tmp_path / "sender" / "rules.yml").write_text(RULES)
    command = ["prometheus-alertmanager", f"--config.file={tmp_path}/alertmanager.yml", f"--storage.path={tmp_path}/am"]
    command += ["--cluster.listen-address=", "--web.listen-address=127.0.0.1:0", "--web.route-prefix=/am"]
    with (tmp_path / "am.log").open("w") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        address = until(lambda: _listening_at(tmp_path / "am.log"), "Alertmanager's address in its log")
        with (
            running(tmp_path / "sender", alerting_config(address, "/am")),
            httpx.Client(base_url=f"http://{address}/am/", timeout=30) as alertmanager,
        ):
            (alert,) = until(lambda: fired(alertmanager), "the alert at Alertmanager")
        assert alert["status"]["state"] == "active"
        assert alert["labels"]["severity"] == "page"
    finally:
        process.terminate()
        process.wait(30)


def _listening_at(log: Path) -> str:
    """Alertmanager says in its log which port it got."""
    for line in log.read_text().splitlines():
        if "Listening on" in line and "address=127.0.0.1:" in line:
            return line.partition("address=")[2].split()[0]
    return ""

"""SENTINEL as a process: scraped, written to by an OpenTelemetry SDK and by remote-write, asked, and erased from."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cramjam
import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from harch.sdk.sentinel import SentinelClient
from harch.sentinel.node.sender import Frame
from harch.sentinel.node.sensors import SensorReading, series

PATIENCE_S = 60.0
GREETING = "SENTINEL listens on "
PAGE = b'# TYPE page_hits counter\npage_hits_total{path="/a"} 42\n# HELP page_size Bytes.\npage_size 1e3\n'


class _Target(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.send_header("content-length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sentinel")


@pytest.fixture(scope="module")
def sentinel(folder: Path) -> Iterator[httpx.Client]:
    target = ThreadingHTTPServer(("127.0.0.1", 0), _Target)
    threading.Thread(target=target.serve_forever, daemon=True).start()
    (folder / "targets.yaml").write_text(f"- targets: ['127.0.0.1:{target.server_port}']\n  labels: {{site: dakhla}}\n")
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 500ms}\n"
        "scrape_configs:\n- job_name: pages\n  file_sd_configs: [{files: ['targets.yaml']}]\n"
    )
    command = [sys.executable, "-m", "harch", "sentinel", "serve", "--data", str(folder / "data")]
    command += ["--listen", "127.0.0.1:0", "--config", str(folder / "prometheus.yml")]
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
        target.shutdown()


def found(client: httpx.Client, query: str, **headers: str) -> list[dict[str, Any]]:
    answer = client.get("/api/v1/query", params={"query": query}, headers=headers)
    assert answer.status_code == 200, answer.text
    result: list[dict[str, Any]] = answer.json()["data"]["result"]
    return result


def until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (got := condition()):
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.05)
    return got


def write(client: httpx.Client, readings: list[SensorReading], at_ms: int, **headers: str) -> httpx.Response:
    body = bytes(cramjam.snappy.compress_raw(bytes(Frame([]).filled(readings, at_ms))))
    kinds = {"content-type": "application/x-protobuf", "content-encoding": "snappy"}
    return client.post("/api/v1/write", content=body, headers={**kinds, **headers})


def test_discovered_targets_are_scraped(sentinel: httpx.Client) -> None:
    (hits,) = until(lambda: found(sentinel, "page_hits_total"), "the first scrape")
    assert hits["metric"]["site"] == "dakhla"
    assert hits["metric"]["path"] == "/a"
    assert hits["value"][1] == "42"
    assert found(sentinel, "up")[0]["value"][1] == "1"
    (told,) = until(lambda: sentinel.get("/api/v1/targets").json()["data"]["activeTargets"], "a target")
    assert told["health"] == "up"


def test_an_opentelemetry_sdk_sends_its_metrics_unchanged(sentinel: httpx.Client) -> None:
    exporter = OTLPMetricExporter(endpoint=f"{sentinel.base_url}/v1/metrics")
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    provider = MeterProvider([reader], resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    meter = provider.get_meter("test")
    meter.create_counter("orders.placed").add(3, {"kind": "book"})
    meter.create_histogram("order.size", unit="By").record(700)
    provider.force_flush()
    provider.shutdown()
    (orders,) = found(sentinel, "orders_placed_total")
    assert (orders["metric"]["kind"], orders["metric"]["job"], orders["value"][1]) == ("book", "shop", "3")
    assert found(sentinel, "order_size_bytes_sum")[0]["value"][1] == "700"
    assert found(sentinel, "sum(order_size_bytes_bucket{le='1000.0'} or order_size_bytes_bucket{le='1000'})")


def test_tenants_do_not_see_each_other(sentinel: httpx.Client) -> None:
    now = int(time.time() * 1000)
    mine = {"X-Scope-OrgID": "mine"}
    assert write(sentinel, [SensorReading(series("secret"), 1.0)], now, **mine).status_code == 204
    assert found(sentinel, "secret", **mine)
    assert not found(sentinel, "secret")
    assert sentinel.get("/api/v1/labels", headers={"X-Scope-OrgID": "../x"}).status_code == 400


def test_what_there_is_can_be_listed_by_get_and_post(sentinel: httpx.Client) -> None:
    until(lambda: found(sentinel, "page_size"), "the first scrape")
    assert "site" in sentinel.get("/api/v1/labels").json()["data"]
    assert sentinel.get("/api/v1/label/site/values").json()["data"] == ["dakhla"]
    listed = sentinel.post("/api/v1/series", data={"match[]": "page_size"}).json()["data"]
    assert [one["__name__"] for one in listed] == ["page_size"]
    posted = sentinel.post("/api/v1/query", data={"query": "page_size"}).json()["data"]["result"]
    assert posted[0]["value"][1] == "1000"
    page = sentinel.get("/federate", params={"match[]": "page_size"}).text
    assert page.startswith('page_size{instance="127.0.0.1:')
    assert sentinel.get("/api/v1/status/buildinfo").json()["data"]["application"] == "HarchOS SENTINEL"


def test_samples_of_1970_are_as_good_as_any(sentinel: httpx.Client) -> None:
    old = {"X-Scope-OrgID": "old"}
    assert write(sentinel, [SensorReading(series("age"), 7.0)], 1 << 36, **old).status_code == 204
    answer = sentinel.get("/api/v1/query", params={"query": "age", "time": str((1 << 36) / 1000)}, headers=old)
    assert answer.json()["data"]["result"][0]["value"] == [(1 << 36) / 1000, "7"]


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/api/v1/write", b"no snappy", {}, 400),
        ("/api/v1/write", b"", {"content-encoding": "zstd"}, 415),
        ("/v1/metrics", b"\xff\xff", {"content-type": "application/x-protobuf"}, 400),
        ("/v1/metrics", b"{}", {"content-type": "text/html"}, 415),
        ("/api/v1/query", b"query=sum(", {"content-type": "application/x-www-form-urlencoded"}, 400),
        ("/api/v1/query", b"", {}, 400),
        ("/api/v1/no-such-thing", b"", {}, 404),
        ("/-/ready", b"", {}, 405),
    ],
)
def test_bad_requests_are_refused_with_code_and_hint(
    sentinel: httpx.Client, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    answer = sentinel.post(path, content=body, headers=headers)
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert (told["status"], told["code"][0], bool(told["error"]), bool(told["hint"])) == ("error", "E", True, True)


def test_a_long_range_gets_a_wider_step(sentinel: httpx.Client) -> None:
    end = time.time()
    asked = {"query": "vector(1)", "start": str(end - 200 * 3600), "end": str(end), "step": "15"}
    told = sentinel.get("/api/v1/query_range", params=asked).json()
    assert len(told["data"]["result"][0]["values"]) <= 11_000
    assert "widened" in told["warnings"][0]


def test_erased_series_are_gone(sentinel: httpx.Client) -> None:
    mine = {"X-Scope-OrgID": "erasing"}
    now = int(time.time() * 1000)
    readings = [SensorReading(series("kept"), 1.0), SensorReading(series("person", {"name": "x"}), 1.0)]
    assert write(sentinel, readings, now, **mine).status_code == 204
    for path, match in (("delete_series", 'person{name="x"}'), ("clean_tombstones", "")):
        answer = sentinel.post(f"/api/v1/admin/tsdb/{path}", params={"match[]": match}, headers=mine)
        assert answer.status_code == 204, answer.text
    assert found(sentinel, "kept", **mine)
    assert not found(sentinel, "person", **mine)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["query", "page_size"], 'site="dakhla"'),
        (["query", "page_size", "--plot", "--range", "5m"], "●"),
        (["query", "sum(page_size)", "--json"], '"kind":"vector"'),
        (["logs", '{job="nobody"}', "--json"], '"lines":[]'),
        (["dash", "hubs"], "Hubs ready"),
        (["alerts", "ls"], "Watchdog"),
    ],
)
def test_people_ask_from_the_terminal(sentinel: httpx.Client, arguments: list[str], shown: str) -> None:
    until(lambda: found(sentinel, "page_size"), "the first scrape")
    until(lambda: found(sentinel, 'ALERTS{alertname="Watchdog"}'), "the first turn of the shipped rules")
    command = [sys.executable, "-m", "harch", "sentinel", *arguments]
    if "--url" not in arguments:
        command += ["--url", str(sentinel.base_url)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stderr
    assert shown in told.stdout


def test_a_silence_is_made_and_ended_from_the_terminal(sentinel: httpx.Client) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "harch", "sentinel", "alerts", *arguments, "--url", str(sentinel.base_url)]
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert told.returncode == 0, told.stderr
        return told.stdout

    until(lambda: "Watchdog" in run("ls"), "the alert that always fires")
    made = run("silence", "alertname=Watchdog", "--reason", "a test", "--for", "1h").split()
    assert "Watchdog" not in run("ls")
    assert "silenced" in run("ls", "--all")
    run("unsilence", made[3])
    assert "Watchdog" in run("ls")
    fingerprint = next(line.split()[0] for line in run("ls").splitlines() if "Watchdog" in line)
    run("ack", fingerprint, "--reason", "seen")
    assert "acknowledged" in run("ls")


def test_the_public_plugins_energy_and_sovereignty_queries(sentinel: httpx.Client) -> None:
    mine = {"X-Scope-OrgID": "plugin"}
    now = time.time()
    readings = [
        SensorReading(series("energy_consumption_watts", {"hub": "dakhla"}), 240_000.0),
        SensorReading(series("carbon_emissions_grams", {"hub": "dakhla"}), 900.0),
        SensorReading(series("sovereignty_compliance", {"hub": "dakhla", "type": "ma-law-09-08"}), 1.0),
        SensorReading(series("sovereignty_compliance", {"hub": "dakar", "type": "sn-law-2008-12"}), 0.0),
    ]
    assert write(sentinel, readings, int(now * 1000), **mine).status_code == 204
    # As the plugin asks: no `time`, seconds as text, always a step.
    asked = {"query": "energy_consumption_watts", "start": str(now - 60), "end": str(now + 1), "step": "15"}
    told = sentinel.get("/harchos/api/v1/energy/query", params=asked, headers=mine).json()
    assert told["data"]["result"][0]["value"][1] == "240000"
    assert (told["data"]["carbonGrams"], told["data"]["energyUnit"]) == ({"dakhla": 900.0}, "W")
    ranged = sentinel.get("/harchos/api/v1/energy/query_range", params=asked, headers=mine).json()
    assert ranged["data"]["resultType"] == "matrix"
    told = sentinel.get(
        "/harchos/api/v1/sovereignty/query", params={"query": "sovereignty_compliance"}, headers=mine
    ).json()
    assert told["data"]["compliance"] == {"sovereignty_compliance": "partial"}
    assert told["data"]["framework"] == "ma-law-09-08,sn-law-2008-12"


def test_files_are_read_again_and_a_mistake_changes_nothing(sentinel: httpx.Client, folder: Path) -> None:
    def jobs() -> list[str]:
        told: list[str] = sentinel.get("/api/v1/scrape_pools").json()["data"]["scrapePools"]
        return told

    until(lambda: jobs() == ["pages"], "the first job")
    config = folder / "prometheus.yml"
    before = config.read_text()
    port = (folder / "targets.yaml").read_text().partition("127.0.0.1:")[2].partition("'")[0]
    more = f"- job_name: more\n  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n"
    config.write_text(f"{before}{more}rule_files: [rules.yaml]\n")
    (folder / "rules.yaml").write_text("groups: [{name: a, rules: [{record: 'a:b', expr: 'sum('}]}]")
    refused = sentinel.post("/-/reload")
    assert (refused.status_code, jobs()) == (400, ["pages"])
    (folder / "rules.yaml").write_text("groups: [{name: mine, rules: [{record: 'a:b', expr: 'vector(1)'}]}]")
    assert sentinel.post("/-/reload").status_code == 204
    until(lambda: jobs() == ["more", "pages"], "the second job")
    names = [group["name"] for group in sentinel.get("/api/v1/rules").json()["data"]["groups"]]
    assert "mine" in names
    config.write_text(before)
    assert sentinel.post("/-/reload").status_code == 204
    until(lambda: jobs() == ["pages"], "the end of the second job")


def test_pushed_lines_are_asked_for_in_logql_and_followed(sentinel: httpx.Client) -> None:
    def push(*lines: str) -> None:
        values = [[str(time.time_ns()), line] for line in lines]
        told = sentinel.post("/loki/api/v1/push", json={"streams": [{"stream": {"job": "asked"}, "values": values}]})
        assert told.status_code == 204, told.text

    push("level=info n=1", "level=error n=2")
    query = {"query": 'sum by (level) (sum_over_time({job="asked"} | logfmt | unwrap n [5m]))'}
    result = sentinel.get("/loki/api/v1/query", params=query).json()["data"]["result"]
    assert {one["metric"]["level"]: one["value"][1] for one in result} == {"info": "1", "error": "2"}
    with SentinelClient(str(sentinel.base_url), "none") as client:
        following = client.follow_logs('{job="asked"} |= "error"', time.time_ns() - 10**11)
        assert [line.line for line in next(following).lines] == ["level=error n=2"]
        push("level=info n=3", "level=error n=4")
        assert [line.line for line in next(following).lines] == ["level=error n=4"]

"""A real hub's chain after real work: whole, provable from outside, and no change to its database stays hidden."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harch.sovereignty.audit.chain import split_lines
from harch.sovereignty.audit.checkpoints import SignedCheckpoint, read_checkpoints
from harch.sovereignty.audit.verification import VerificationOutcome, verify
from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML

pytestmark = pytest.mark.uses("bubblewrap")

WITHIN_S = 30


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with HubProcess(TINY_FLEET_TOML, "dakhla", tmp_path_factory.mktemp("hub")) as running:
        work(running)
        yield running


def work(hub: HubProcess) -> None:
    with hub.client() as client:
        for number in range(3):
            body = {"name": f"job-{number}", "command": ["true"]}
            assert client.post("/v1/workloads", json=body).status_code == 201
        refused = client.post("/v1/workloads", json={"name": "no", "command": ["true"], "countries_allowed": ["SN"]})
        assert refused.status_code == 403
        client.put("/v1/secrets/TOKEN", json={"value": "s3cr3t-value"})
        until = time.monotonic() + WITHIN_S
        while client.get("/v1/workloads", params={"active": "true"}).json()["total"]:
            assert time.monotonic() < until, "the work does not end"
            time.sleep(0.05)


def harch(hub: HubProcess, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harch", "audit", *words]
    return subprocess.run(command, env=hub.environment, capture_output=True, text=True, timeout=60)


def this_month() -> str:
    return f"{datetime.now(UTC):%Y-%m}"


def verdict(hub: HubProcess, *words: str) -> dict[str, Any]:
    done = harch(hub, "verify", "--json", *words)
    told = dict(json.loads(done.stdout))
    assert done.returncode == (0 if told["sound"] else 1), done.stderr
    return told


def outcome_of(hub: HubProcess, kept: list[SignedCheckpoint]) -> VerificationOutcome:
    with hub.client() as client:
        return verify(split_lines([client.get("/v1/audit/export").content]), kept)


def database(hub: HubProcess) -> sqlite3.Connection:
    return sqlite3.connect(hub.home / "dakhla" / "hub.db", timeout=10, isolation_level=None)


def kinds(hub: HubProcess) -> list[str]:
    with hub.client() as client:
        items = client.get("/v1/audit", params={"after": 0, "limit": 1000}).json()["items"]
    return [item["entry"]["kind"] for item in items]


def test_the_chain_tells_the_whole_story_and_verifies(hub: HubProcess) -> None:
    told = kinds(hub)
    assert told[0] == "audit.key"
    for kind in ("workload.admitted", "workload.placed", "workload.ended"):
        assert told.count(kind) == 3
    assert {"key.created", "agent.joined", "workload.refused", "secret.stored"} <= set(told)
    assert verdict(hub)["entries"] == len(told)


def test_an_export_is_verified_without_the_hub_and_any_changed_byte_is_found(hub: HubProcess, tmp_path: Path) -> None:
    export = tmp_path / "chain.ndjson"
    assert harch(hub, "export", "-o", str(export)).returncode == 0
    away = {**hub.environment, "HARCH_URL": "http://127.0.0.1:1", "HARCH_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "harch", "audit", "verify", "--file", str(export)]
    assert subprocess.run(command, env=away, capture_output=True, timeout=60).returncode == 0
    text = bytearray(export.read_bytes())
    assert b"s3cr3t-value" not in text
    text[len(text) // 2] ^= 1
    export.write_bytes(text)
    done = subprocess.run(command, env=away, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "TAMPERED: entry" in done.stdout


def test_the_report_tells_where_a_workload_ran(hub: HubProcess, tmp_path: Path) -> None:
    with hub.client() as client:
        job = client.get("/v1/workloads/job-1").json()["id"]
    page, month = tmp_path / "report.html", this_month()
    done = harch(hub, "report", "--data", job, "--month", month, "--hub", "dakhla", "--html", str(page), "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert told["complete"]
    assert told["countries"] == {"MA": 1}
    (ran,) = told["processed"]
    assert (ran["hub"], ran["authority"], bool(ran["until"]), bool(ran["policy_version"])) == (
        "dakhla",
        "tenant:default",
        True,
        True,
    )
    assert "Morocco" in page.read_text()


def test_a_hub_that_cannot_be_asked_makes_the_report_incomplete(hub: HubProcess) -> None:
    done = harch(hub, "report", "--data", "job-1", "--month", this_month(), "--json")  # dakar does not run here
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert not told["complete"]
    assert {chain["hub"]: bool(chain["problem"]) for chain in told["chains"]} == {"dakhla": False, "dakar": True}
    shown = harch(hub, "report", "--data", "job-1", "--month", this_month())
    assert shown.stdout.startswith("INCOMPLETE, so no proof: dakar: not read")


def test_a_report_finds_names_and_says_what_they_stand_for(hub: HubProcess) -> None:
    with hub.client() as client:
        job = client.get("/v1/workloads/job-1").json()["id"]
    done = harch(hub, "report", "--data", "job-1", "--month", this_month(), "--hub", "dakhla", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["ref"], told["name"], told["countries"]) == (0, job, "job-1", {"MA": 1})


@pytest.mark.parametrize(
    ("ref", "month", "code"),
    [
        ("jobb-1", "", "E0351"),
        ("wl_00000000000000000000000000", "", "E0351"),
        ("job-1", "2199-01", "E0201"),
    ],
)
def test_a_report_on_what_cannot_be_is_an_error_and_no_all_clear(
    hub: HubProcess, ref: str, month: str, code: str
) -> None:
    for where in (("--hub", "dakhla"), ()):
        done = harch(hub, "report", "--data", ref, "--month", month or this_month(), "--json", *where)
        assert done.returncode != 0
        assert json.loads(done.stdout)["error"]["code"] == code
        assert json.loads(done.stdout)["error"]["hint"]


def test_a_month_before_the_hub_existed_is_not_complete(hub: HubProcess) -> None:
    done = harch(hub, "report", "--data", "job-1", "--month", "2001-01", "--hub", "dakhla", "--json")
    assert (done.returncode, json.loads(done.stdout)["complete"]) == (1, False)


def test_a_name_of_several_things_is_not_guessed(hub: HubProcess) -> None:
    with hub.client() as client:
        data = client.post("/v1/data", json={"name": "job-2"}).json()["id"]
    done = harch(hub, "report", "--data", "job-2", "--month", this_month(), "--hub", "dakhla", "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode != 0, error["code"], data in error["hint"]) == (True, "E0201", True)


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("UPDATE audit SET entry = CAST(replace(entry, '\"MA\"', '\"SN\"') AS BLOB) WHERE seq = 5", "edited"),
        ("UPDATE audit SET hash = lower(hex(randomblob(32))) WHERE seq = 5", "edited"),
        ("DELETE FROM audit WHERE seq = 5", "removed"),
        ("UPDATE audit SET seq = CASE seq WHEN 5 THEN -6 ELSE -5 END WHERE seq IN (5, 6)", "reordered"),
        ("INSERT INTO audit SELECT 1000000, kind, subject, hash, entry FROM audit WHERE seq = 5", "inserted"),
        ("DELETE FROM audit WHERE seq > 5", "truncated"),
    ],
)
def test_a_changed_database_is_found_and_the_change_told(hub: HubProcess, statement: str, kind: str) -> None:
    with hub.client() as client:
        kept = read_checkpoints(client.get("/v1/audit/head").content)
    rows = database(hub)
    rows.execute("CREATE TABLE saved AS SELECT * FROM audit")
    try:
        rows.execute(statement)
        rows.execute("UPDATE audit SET seq = -seq WHERE seq < 0")  # two steps, because no two rows may share a number
        finding = outcome_of(hub, kept).finding
    finally:
        rows.execute("DELETE FROM audit")
        rows.execute("INSERT INTO audit SELECT * FROM saved")
        rows.execute("DROP TABLE saved")
        rows.close()
    assert finding is not None
    assert finding.kind == kind
    assert finding.seq in (5, 6)
    assert outcome_of(hub, kept).is_sound


def test_the_chain_goes_on_after_a_kill(hub: HubProcess, tmp_path: Path) -> None:
    kept = tmp_path / "kept.ndjson"
    kept.write_text(harch(hub, "head", "--json").stdout)
    before = len(kinds(hub))
    hub.kill_hub()
    hub.start_hub()
    hub.wait_for_agents()
    told = verdict(hub, "--checkpoints", str(kept))
    assert told["checkpoints"] == 1
    assert told["entries"] > before
    assert harch(hub, "rotate-key").returncode == 0
    assert verdict(hub, "--checkpoints", str(kept))["sound"]

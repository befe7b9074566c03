"""A real hub books what its work used; the ledger is proved from outside, and a changed row is found."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML

pytestmark = pytest.mark.uses("bubblewrap")

WITHIN_S = 60


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """One whose ledger has rows: an open interval is booked when the hub stops."""
    with HubProcess(TINY_FLEET_TOML, "dakhla", tmp_path_factory.mktemp("hub")) as running:
        with running.client() as client:
            assert client.post("/v1/workloads", json={"name": "job", "command": ["sleep", "600"]}).status_code == 201
            until = time.monotonic() + WITHIN_S
            while not client.get("/v1/carbon/why/job").json().get("pieces"):
                assert time.monotonic() < until, "nothing is metered"
                time.sleep(0.1)
        running.terminate_hub()
        running.start_hub()
        yield running


def harch(hub: HubProcess, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harch", "carbon", *words]
    return subprocess.run(command, env=hub.environment, capture_output=True, text=True, timeout=60)


def verdict(hub: HubProcess, *words: str) -> dict[str, Any]:
    done = harch(hub, "verify", "--json", *words)
    report = dict(json.loads(done.stdout))
    assert done.returncode == (0 if report["sound"] else 1), done.stderr
    return report


def test_the_ledger_of_a_running_hub_is_verified_with_its_audit_chain(hub: HubProcess) -> None:
    report = verdict(hub)
    assert (report["sound"], report["hub"], report["finding"]) == (True, "dakhla", None)
    assert report["rows"] >= 2
    assert report["audit"]["sound"]
    assert harch(hub, "verify").stdout.startswith(f"ok: {report['rows']} rows of hub dakhla, ")


def test_an_export_is_verified_without_the_hub_and_a_changed_row_is_named(hub: HubProcess, tmp_path: Path) -> None:
    file = tmp_path / "ledger.ndjson"
    assert harch(hub, "export", "-o", str(file)).returncode == 0
    assert verdict(hub, "--file", str(file))["audit"] is None
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], lines[1].replace(b"dakhla", b"dakhlb"), *lines[2:]]))
    done = harch(hub, "verify", "--file", str(file))
    assert done.returncode == 1
    assert done.stdout.startswith("TAMPERED: ledger: row 2: edited: ")


def test_a_row_that_was_changed_in_the_database_is_found(hub: HubProcess) -> None:
    place = hub.home / "dakhla" / "hub.db"
    with sqlite3.connect(place, timeout=10, isolation_level=None) as database:
        database.execute("UPDATE carbon_ledger SET entry = replace(entry, 'dakhla', 'dakhlb') WHERE seq = 1")
    report = verdict(hub)
    assert (report["finding"]["seq"], report["finding"]["kind"]) == (1, "edited")

"""A real hub with real processes: work waits for own power, survives a kill of the hub, and starts by its promise."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from harch.base.clock import SystemClock
from harch.testing.hub_process import HubProcess
from harch.testing.samples import TINY_FLEET_TOML

pytestmark = pytest.mark.uses("bubblewrap")

# Time is cut finely: what takes hours elsewhere takes seconds here. The table is the operator's meter and forecast.
CARBON = """
[sources.panels]
type = "csv"
path = "panels.csv"
time = "utc"
forecast = true
every_s = 1
[sources.panels.values]
pv-power = { column = "kw", unit = "kW" }
[hubs.dakhla.onsite]
pv_kw_peak = 1000
[planning]
every_s = 1
step_s = 1
[budgets.tenants]
default = 1000000
"""
DARK_S, SLACK_S = 14.0, 60.0


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    (tmp_path / "dakhla").mkdir()
    (tmp_path / "dakhla" / "carbon.toml").write_text(CARBON)
    write_panels(tmp_path, SystemClock().now() + timedelta(days=1))
    with HubProcess(TINY_FLEET_TOML, "dakhla", tmp_path) as running:
        yield running


def write_panels(folder: Path, sunrise: datetime) -> None:
    rows = [(sunrise - timedelta(days=2), 0), (sunrise, 900), (sunrise + timedelta(minutes=30), 900)]
    # A row that is never about to be too old: a meter's word holds for five minutes.
    rows += [(SystemClock().now() - timedelta(seconds=1), 0)]
    text = "".join(f"{at.isoformat()},{kw}\n" for at, kw in sorted(rows))
    (folder / "dakhla" / "panels.csv").write_text(f"utc,kw\n{text}")


def until(look: Callable[[], Any], what: str, within_s: float = 90) -> Any:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited {within_s:g} s for {what}")


def read(hub: HubProcess, path: str) -> dict[str, Any]:
    with hub.client() as client:
        answer = client.get(f"/v1{path}", headers={"Accept": "application/json"})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def test_work_waits_for_the_sun_over_a_kill_of_the_hub_and_starts_by_its_promise(hub: HubProcess) -> None:
    write_panels(hub.home, SystemClock().now() + timedelta(seconds=DARK_S))
    until(lambda: any(kw > 0 for one in read(hub, "/carbon/plan")["hubs"] for kw in one["spare_kw"]), "the sunrise")
    body = {
        "name": "train",
        "command": ["true"],
        "resources": {"gpus": 1, "gpu_model": "h100-80gb"},
        "carbon": {"slack_s": SLACK_S, "duration_s": 5},
    }
    with hub.client() as client:
        urgent = client.post("/v1/workloads", json={"name": "serve", "type": "inference", "command": ["sleep", "1"]})
        answer = client.post("/v1/workloads", json=body)
    assert (urgent.status_code, answer.status_code) == (201, 201), answer.text
    job = answer.json()
    assert job["carbon"]["held"], job["carbon"]
    promise = moment(job["carbon"]["start_by"])
    assert promise - moment(job["created_at"]) == timedelta(seconds=SLACK_S)
    assert "held back for cleaner power" in read(hub, f"/workloads/{job['id']}/why")["sentence"]
    shown = subprocess.run(
        [sys.executable, "-m", "harch", "carbon", "why", "train"],
        env=hub.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert "at the latest" in shown
    assert "at home at once" in shown

    hub.kill_hub()
    hub.start_hub()
    kept = read(hub, f"/workloads/{job['id']}")
    assert moment(kept["carbon"]["start_by"]) == promise
    ended = until(lambda: (w := read(hub, f"/workloads/{job['id']}"))["status"] == "completed" and w, "its end")
    assert moment(ended["started_at"]) <= promise
    events = read(hub, f"/events?subject={job['id']}&after=0")["items"]
    kinds = [event["kind"] for event in events]
    assert kinds.index("workload.deferred") < kinds.index("workload.running")


def test_a_budget_refuses_what_it_cannot_pay(hub: HubProcess) -> None:
    until(lambda: read(hub, "/carbon/plan")["tenant_g_left"], "a plan")
    with hub.client() as client:
        body = {"name": "big", "command": ["true"], "carbon_budget_grams": 1, "max_duration_s": 36000, "gpu_count": 8}
        answer = client.post("/v1/workloads", json=body)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "E0402"

"""`harch energy` against a hub that really runs, is killed, and starts again; and the public client's questions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import pytest
from harchos import HarchOSClient

from harch.base.clock import SystemClock
from harch.testing.hub_process import HubProcess

# The market stands where it is about nine in the morning: bids are sent up to 13:00, whenever this test runs.
ENERGY = """
[hubs.dakhla]
carbon_per_t = 75
budget_kg_per_month = 500000
[hubs.dakhla.tariff]
name = "day-ahead, made up"
currency = "EUR"
[hubs.dakhla.tariff.energy]
kind = "spot"
zone = "XX"
time_zone = "{zone}"
published_at = "13:00"
[hubs.dakhla.battery]
energy_kwh = 2000
power_kw = 500
[hubs.dakhla.market]
prices = "modelled"
send_before_min = 720
kwh_per_day_max = 1000000
amount_per_day_max = 1000000
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    folder = tmp_path_factory.mktemp("hub")
    state = folder / "dakhla"
    state.mkdir()
    (state / "energy.toml").write_text(ENERGY.format(zone=zone_in_the_morning()))
    toml = resources.files("harch.fleet").joinpath("shipped/five-hubs.toml").read_text()
    with HubProcess(toml, "dakhla", folder, agents={}) as running:
        yield running


def zone_in_the_morning() -> str:
    """These names count the other way round: `Etc/GMT-5` is five hours ahead of UTC."""
    ahead = 9 - SystemClock().now().hour
    return f"Etc/GMT{-(ahead if ahead >= -12 else ahead + 24):+d}"


def energy(hub: HubProcess, *words: str) -> Any:
    command = [sys.executable, "-m", "harch", "energy", *words, "--json"]
    done = subprocess.run(command, env=hub.environment, capture_output=True, text=True, timeout=60, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stdout + done.stderr}


def eventually(ask: Callable[[], Any], done: Callable[[Any], bool], within_s: float = 90) -> Any:
    clock = SystemClock()
    until_s = clock.monotonic_s() + within_s
    while not done(found := ask()):
        assert clock.monotonic_s() < until_s, found
        time.sleep(0.2)
    return found


def test_plan_prices_bids_and_book_over_a_kill(hub: HubProcess) -> None:
    plan = eventually(lambda: energy(hub, "plan"), lambda found: "steps" in found)
    assert (plan["contract"], plan["modelled"], plan["planner"]) == ("day-ahead, made up", False, "optimiser")
    assert plan["carbon"]["budget_kept"]
    assert energy(hub, "prices")["carbon_per_t"] >= 75
    sent = eventually(lambda: energy(hub, "book"), lambda found: found.get("total", 0) >= 24)
    ids = [row["bid_id"] for row in sent["rows"] if row["event"] == "submitted"]
    assert len(ids) == len(set(ids)) >= 24
    assert sent["paper"]

    hub.kill_hub()
    hub.start_hub()
    eventually(lambda: energy(hub, "plan"), lambda found: "steps" in found)
    bids = eventually(lambda: energy(hub, "bids"), lambda found: len(found.get("items", ())) >= len(ids))
    again = [row["bid_id"] for row in energy(hub, "book")["rows"] if row["event"] == "submitted"]
    assert sorted(again) == sorted(ids)
    assert {bid["market"] for bid in bids["items"]} == {"paper"}
    shown = subprocess.run(
        [sys.executable, "-m", "harch", "energy", "plan", "--plot"],
        env=hub.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "# grid   = agreements" in shown.stdout


def test_the_published_client_reads_all_its_energy_routes(hub: HubProcess) -> None:
    with HarchOSClient(api_key=hub.key, base_url=f"{hub.url}/v1", max_retries=0) as client:
        summary = eventually(lambda: client.energy.get_summary(), lambda found: found.total_kwh >= 0)
        assert summary.average_pue >= 1
        use = client.energy.get_consumption("dakhla")
        assert use.period_start < use.period_end
        report = client.energy.get_report("dakhla", resource_type="hub")
        assert (report.resource_id, report.region) == ("dakhla", "morocco")
        assert isinstance(client.energy.get_green_windows(region="morocco"), list)
    settings = {"HARCHOS_API_KEY": hub.key, "HARCHOS_BASE_URL": f"{hub.url}/v1", "HARCHOS_MAX_RETRIES": "0"}
    command = [sys.executable, "-m", "harchos.cli", "green-windows", "-r", "morocco"]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""Five hubs as real processes behind an emulated WAN: work spills over, and survives kills, cuts and heals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harch.fleet.file import parse_fleet
from harch.testing.wan import Wan
from harch.testing.wan_federation import WanFederation

pytestmark = [pytest.mark.needs("wan"), pytest.mark.uses("bubblewrap")]

_numbers = itertools.count()  # a name that was used a moment ago means the same work
LEASE_S = 20.0  # longer than a hub needs to start on a busy machine
HUBS = {"Dakhla": "MA", "Tangier": "MA", "Casablanca": "MA", "Dakar": "SN", "Abidjan": "CI"}
FLEET = """\
name = "small-five"

[gpu_models.h100-80gb]
memory_gb = 80
power_w = 700
nvlink_gb_per_s = 900
pcie_gb_per_s = 128

[node_kinds.h100-4]
gpu_model = "h100-80gb"
gpus = 4
nvlink_island_size = 4
pcie_switch_size = 2
numa_nodes = 2
cpus = 64
memory_gb = 512
storage_gb = 8000
host_power_w = 1200
"""
for _name, _country in HUBS.items():
    FLEET += f"""
[[hubs]]
name = "{_name}"
country = "{_country}"
grid_zone = "{_country}"
latitude = 20.0
longitude = -10.0
pue = 1.2

[[hubs.cooling_zones]]
name = "hall-1"
heat_kw_max = 60

[[hubs.racks]]
row = "A"
cooling_zone = "hall-1"
power_kw_max = 24
nodes = [{{ kind = "h100-4", count = 2 }}]
"""
_NAMES = list(HUBS)
for _number, _one in enumerate(_NAMES):
    for _two in _NAMES[_number + 1 :]:
        _crossed = list(dict.fromkeys((HUBS[_one], HUBS[_two])))
        FLEET += f"""
[[links]]
between = ["{_one}", "{_two}"]
rtt_ms = {8 + 37 * _number // 4}
bandwidth_gbps = 100
countries_crossed = {str(_crossed).replace("'", '"')}
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WanFederation]:
    folder = tmp_path_factory.mktemp("wan")
    file = folder / "fleet.toml"
    file.write_text(FLEET)
    leases = ("--lease-batch", str(LEASE_S), "--lease-service", str(LEASE_S))
    with (
        Wan.of_fleet(parse_fleet(FLEET), jitter_ms=1.0, loss=0.01) as wan,
        WanFederation(wan, str(file), folder, hub_options=leases) as made,
    ):
        yield made


@pytest.fixture(autouse=True)
def tidy(federation: WanFederation) -> Iterator[None]:
    yield
    federation.wan.heal_all()
    for name in federation.wan.names:
        with federation.client(name) as client:
            for work in client.get("/v1/workloads", params={"active": "true", "per_page": 100}).json()["items"]:
                client.patch(f"/v1/workloads/{work['id']}", json={"status": "cancelled"})
    for name in federation.wan.names:
        federation.wait(lambda name=name: federation.summary(name)["gpus_free"] == 8)  # type: ignore[misc]
        federation.wait(lambda name=name: federation.sees_all(name))  # type: ignore[misc]


def submit(federation: WanFederation, hub: str, name: str, **spec: Any) -> dict[str, Any]:
    body = {"name": name, "command": ["sleep", "600"], "resources": {"gpus": 4}, "stop_grace_s": 1, **spec}
    with federation.client(hub) as client:
        answer = client.post("/v1/workloads", json=body)
        assert answer.status_code in (200, 201), answer.text
        return dict(answer.json())


def look(federation: WanFederation, hub: str, workload_id: str) -> dict[str, Any]:
    with federation.client(hub) as client:
        return dict(client.get(f"/v1/workloads/{workload_id}").json())


def fill(federation: WanFederation, hub: str) -> None:
    blockers = [submit(federation, hub, f"fill-{next(_numbers)}", stay_home=True)["id"] for _ in range(2)]
    federation.wait(lambda: all(look(federation, hub, one)["status"] == "running" for one in blockers))


def lent(federation: WanFederation, owner: str, name: str, **spec: Any) -> tuple[str, str]:
    """The id of work of a full hub that runs elsewhere, and where."""
    fill(federation, owner)
    workload_id = submit(federation, owner, name, **spec)["id"]
    federation.wait(lambda: look(federation, owner, workload_id)["status"] == "running")
    return workload_id, look(federation, owner, workload_id)["runner_hub"]


def places(federation: WanFederation, workload_id: str) -> list[str]:
    """Where GPUs are held for it, asked of every hub by itself."""
    found = []
    for name in federation.wan.names:
        with federation.client(name) as client:
            if any(gpu["workload_id"] == workload_id for gpu in client.get("/v1/gpus").json()["items"]):
                found.append(name)
    return found


def test_work_of_a_full_hub_runs_at_another_and_its_owner_shows_its_output(federation: WanFederation) -> None:
    workload_id, runner = lent(federation, "tangier", "spilled", command=["sh", "-c", "echo on $HARCH_GPUS; sleep 600"])
    assert runner != "tangier"
    assert places(federation, workload_id) == [runner]
    federation.wait(lambda: f"on {runner}-" in federation.harch("tangier", "logs", workload_id).stdout)
    assert federation.harch("tangier", "stop", workload_id).returncode == 0
    federation.wait(lambda: look(federation, "tangier", workload_id)["status"] == "cancelled")
    federation.wait(lambda: places(federation, workload_id) == [])


def test_a_runner_that_is_killed_comes_back_and_its_guest_never_stopped(federation: WanFederation) -> None:
    workload_id, runner = lent(federation, "tangier", "steady")
    federation.kill_hub(runner)
    federation.start_hub(runner)
    federation.wait(lambda: federation.sees_all(runner))
    federation.wait(lambda: places(federation, workload_id) == [runner])
    found = look(federation, "tangier", workload_id)
    assert (found["status"], found["attempt"], found["epoch"]) == ("running", 1, 1)


def test_an_owner_that_is_killed_during_a_hand_over_comes_back_and_nothing_is_lost_or_doubled(
    federation: WanFederation,
) -> None:
    fill(federation, "dakar")
    workload_id = submit(federation, "dakar", "orphan", countries_allowed=["SN", "CI"])["id"]
    federation.kill_hub("dakar")
    federation.start_hub("dakar")
    federation.wait(lambda: look(federation, "dakar", workload_id)["status"] == "running")
    assert places(federation, workload_id) == ["abidjan"]


def test_a_cut_during_a_hand_over_ends_with_the_work_running_once(federation: WanFederation) -> None:
    fill(federation, "tangier")
    others = [name for name in federation.wan.names if name != "tangier"]
    workload_id = submit(federation, "tangier", "torn")["id"]
    federation.wan.partition(["tangier"], others)
    federation.wait(lambda: not federation.sees_all("tangier"))
    federation.wan.heal_all()
    federation.wait(lambda: look(federation, "tangier", workload_id)["status"] == "running")
    federation.wait(lambda: len(places(federation, workload_id)) == 1)


def test_after_a_cut_longer_than_the_lease_it_runs_elsewhere_and_the_heal_is_told(federation: WanFederation) -> None:
    workload_id, runner = lent(federation, "tangier", "moved")
    others = [name for name in federation.wan.names if name != runner]
    federation.wan.partition([runner], others)
    federation.wait(lambda: runner not in places(federation, workload_id), within_s=3 * LEASE_S)  # it stopped itself
    federation.wait(lambda: look(federation, "tangier", workload_id)["epoch"] > 1)
    federation.wait(lambda: look(federation, "tangier", workload_id)["status"] == "running")
    (place,) = places(federation, workload_id)
    assert place != runner
    hubs = federation.harch("tangier", "hubs").stdout
    assert "suspected" in hubs
    federation.wan.heal_all()
    federation.wait(lambda: federation.sees_all("tangier"))
    assert places(federation, workload_id) == [place]
    told = federation.harch("tangier", "events", "--limit", "1000").stdout
    assert "lease_ended" in told


def test_work_for_one_country_is_asked_for_at_any_hub(federation: WanFederation) -> None:
    done = federation.harch("dakhla", "run", "--country", "SN", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7, done.stderr


def test_any_hub_shows_all_work_and_says_whom_it_could_not_ask(federation: WanFederation, tmp_path: Path) -> None:
    workload_id, runner = lent(federation, "tangier", "seen")
    shown = federation.harch("abidjan", "ps", "--all")
    assert workload_id in shown.stdout
    assert runner in shown.stdout
    federation.wan.partition(["tangier"], [name for name in federation.wan.names if name != "tangier"])
    federation.wait(lambda: not federation.sees_all("abidjan"))
    shown = federation.harch("abidjan", "ps", "--all")
    assert "tangier" in shown.stderr.lower()

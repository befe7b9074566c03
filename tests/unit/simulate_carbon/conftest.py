"""Two hubs in two countries and a scenario that take a moment to replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from harch.fleet.file import parse_fleet
from harch.fleet.model import Fleet
from harch.simulate.carbon_scenario import Scenario, load_scenario

FLEET = """
name = "two-hubs"
[gpu_models.big]
memory_gb = 80
power_w = 400
nvlink_gb_per_s = 600
pcie_gb_per_s = 64
[node_kinds.big-4]
gpu_model = "big"
gpus = 4
nvlink_island_size = 4
pcie_switch_size = 2
numa_nodes = 2
cpus = 64
memory_gb = 512
storage_gb = 1000
host_power_w = 500
[[hubs]]
name = "North"
country = "MA"
grid_zone = "MA"
latitude = 33.0
longitude = -7.0
pue = 1.2
[[hubs.cooling_zones]]
name = "hall"
heat_kw_max = 100
[[hubs.racks]]
count = 2
row = "A"
cooling_zone = "hall"
power_kw_max = 20
nodes = [{ kind = "big-4", count = 2 }]
[[hubs]]
name = "South"
country = "CI"
grid_zone = "CI"
latitude = 5.0
longitude = -4.0
pue = 1.4
[[hubs.cooling_zones]]
name = "hall"
heat_kw_max = 100
[[hubs.racks]]
count = 2
row = "A"
cooling_zone = "hall"
power_kw_max = 20
nodes = [{ kind = "big-4", count = 2 }]
[[links]]
between = ["North", "South"]
rtt_ms = 30
bandwidth_gbps = 100
countries_crossed = ["MA", "CI"]
"""

SCENARIO = """
extends = "onsite-124"
name = "small"
about = "two hubs, one day"
days = 1
weeks = ["2024-06-03"]
seed = 3

[pinned]
MA = 0.3
CI = 0.3

[[cases]]
utilisation = 0.5
pv_times = 3.0
wind_times = 2.0

[[work]]
name = "inference"
share = 0.5
turn_class = "inference"
gpus_per_task = 1
hours_median = 1.0
hours_sigma = 0.5
hours_max = 4.0

[[work]]
name = "training"
share = 0.5
turn_class = "training"
tasks = 2
gpus_per_task = 2
hours_median = 1.0
hours_sigma = 0.5
hours_max = 4.0
movable = true
slack_h = 12.0
"""


@pytest.fixture
def fleet() -> Fleet:
    return parse_fleet(FLEET)


@pytest.fixture
def fleet_text() -> str:
    return FLEET


@pytest.fixture
def scenario_path(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def scenario(scenario_path: Path) -> Scenario:
    return load_scenario(str(scenario_path))

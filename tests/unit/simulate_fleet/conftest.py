"""A fleet of two countries and a mix that take a moment to replay."""

from __future__ import annotations

import pytest

from harch.fleet.file import parse_fleet
from harch.fleet.model import Fleet
from harch.simulate.workload_mix import WorkloadMix, parse_mix

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
cpus = 32
memory_gb = 256
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
country = "SN"
grid_zone = "SN"
latitude = 14.0
longitude = -17.0
pue = 1.3
[[hubs.cooling_zones]]
name = "hall"
heat_kw_max = 100
[[hubs.racks]]
count = 1
row = "A"
cooling_zone = "hall"
power_kw_max = 20
nodes = [{ kind = "big-4", count = 2 }]
[[links]]
between = ["North", "South"]
rtt_ms = 40
bandwidth_gbps = 10
countries_crossed = ["MA", "SN"]
"""

MIX = """
name = "small"
load = 1.3
days = 1.0
day_swing = 0.3
peak_hour_utc = 12.0
[pinned]
MA = 0.4
SN = 0.2
[tenants]
one = 0.6
two = 0.4
[classes.inference]
hours_median = 0.5
hours_sigma = 0.5
hours_max = 2.0
busy_share = 0.5
preemptible = false
[classes.training]
hours_median = 1.0
hours_sigma = 1.0
hours_max = 6.0
busy_share = 0.9
preemptible = true
[running]
promised_share = 0.8
promise_factor_max = 1.5
checkpoint_every_s = 600.0
restart_s = 30.0
stop_s = 10.0
[[kinds]]
name = "one"
job_share = 0.6
gpus_per_task = 1
cpus = [[2.0, 1.0], [6.0, 1.0]]
memory_gb = [[16.0, 1.0]]
classes = { inference = 0.4, training = 0.6 }
[[kinds]]
name = "share"
job_share = 0.4
gpus_per_task = 1
gpu_fraction = [[0.5, 1.0], [0.3, 1.0]]
cpus = [[2.0, 1.0]]
memory_gb = [[8.0, 1.0]]
classes = { inference = 0.5, training = 0.5 }
[[kinds]]
name = "gang"
gpu_time_share = 0.3
tasks = 4
tasks_min = 2
degradable_share = 0.5
degrade_after_s = 600.0
gpus_per_task = 1
cpus = [[4.0, 1.0]]
memory_gb = [[16.0, 1.0]]
classes = { training = 1.0 }
"""


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    return parse_fleet(FLEET)


@pytest.fixture(scope="session")
def mix() -> WorkloadMix:
    return parse_mix(MIX.encode())

"""Which fleet shall a test use? One that fits on a screen, yet has two countries, three GPU models and an odd node."""

from __future__ import annotations

from harch.fleet.file import parse_fleet
from harch.fleet.model import Fleet

TINY_FLEET_TOML = """\
name = "tiny"

[gpu_models.h100-80gb]
memory_gb = 80
power_w = 700
nvlink_gb_per_s = 900
pcie_gb_per_s = 128

[gpu_models.a100-80gb]
memory_gb = 80
power_w = 400
nvlink_gb_per_s = 600
pcie_gb_per_s = 64

[gpu_models.inference-card]
memory_gb = 48
power_w = 300
nvlink_gb_per_s = 0
pcie_gb_per_s = 64

[node_kinds.h100-8]
gpu_model = "h100-80gb"
gpus = 8
nvlink_island_size = 8
pcie_switch_size = 2
numa_nodes = 2
cpus = 112
memory_gb = 2048
storage_gb = 30000
host_power_w = 4600

[node_kinds.a100-4]
gpu_model = "a100-80gb"
gpus = 4
nvlink_island_size = 2
pcie_switch_size = 2
numa_nodes = 2
cpus = 64
memory_gb = 512
storage_gb = 8000
host_power_w = 1200

[node_kinds.inference-6]
gpu_model = "inference-card"
gpus = 6
nvlink_island_size = 1
pcie_switch_size = 3
numa_nodes = 2
cpus = 72
memory_gb = 576
storage_gb = 15000
host_power_w = 1000

[[hubs]]
name = "Dakhla"
country = "MA"
grid_zone = "MA"
latitude = 23.7158
longitude = -15.9369
pue = 1.2

[[hubs.cooling_zones]]
name = "hall-1"
heat_kw_max = 60

[[hubs.racks]]
count = 2
row = "A"
cooling_zone = "hall-1"
power_kw_max = 24
nodes = [{ kind = "h100-8", count = 2 }]

[[hubs.racks]]
row = "B"
cooling_zone = "hall-1"
power_kw_max = 12
nodes = [{ kind = "a100-4", count = 2 }]

[[hubs]]
name = "Dakar"
country = "SN"
grid_zone = "SN"
latitude = 14.7167
longitude = -17.4677
pue = 1.4

[[hubs.cooling_zones]]
name = "hall-1"
heat_kw_max = 30

[[hubs.racks]]
row = "A"
cooling_zone = "hall-1"
power_kw_max = 24
nodes = [{ kind = "h100-8" }, { kind = "inference-6" }]

[[links]]
between = ["Dakhla", "Dakar"]
rtt_ms = 14
bandwidth_gbps = 200
countries_crossed = ["MA", "MR", "SN"]
"""


def tiny_fleet() -> Fleet:
    """Dakhla (MA): 4 nodes of 8 H100 in two racks, 2 of 4 A100 in pairs. Dakar (SN): 8 H100 and 6 cards. 54 GPUs."""
    return parse_fleet(TINY_FLEET_TOML, "tiny.toml")

"""How fast do two GPUs talk? A table of modelled figures, by the smallest neighbourhood that they share.

Figures are what a large all-reduce reaches per GPU (bus bandwidth), not what a link is sold as. Fleet files give the
sold figures of a GPU, both directions added; the shares below turn them into reached ones. Everything here is modelled:
say so wherever it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum


class Tier(IntEnum):
    """The smallest neighbourhood that two GPUs share, closest first."""

    DEVICE = 0  # two shares of one GPU
    ISLAND = 1
    PCIE_SWITCH = 2
    NUMA = 3
    NODE = 4
    RACK = 5
    ROW = 6
    HUB = 7


@dataclass(frozen=True, slots=True)
class BandwidthTable:
    """Replace what your site has measured."""

    # Reported by users: 8 x A100 NVSwitch 232 of 600 GB/s, 8 x H100 ring 370 of 900, A100 bridge pair 208 of 600.
    nvlink_share: float = 0.40
    # No report of its own: 80 % of one direction.
    pcie_switch_share: float = 0.40
    # Reported: three A100 across PCIe host bridges 20 of 64 GB/s.
    numa_share: float = 0.31
    # No report: below the former, because the link between the sockets is crossed as well.
    node_share: float = 0.25
    # A node's network cards together. Reported: 2 x 8 A100 over 4 x 200 Gb/s InfiniBand 86 GB/s, 2.7 times below 232.
    rack_gb_per_s: float = 86.0
    # No measurement found. Published claim: eight GPUs over two racks cost 4 to 6 times; this is 5 times below 232.
    row_gb_per_s: float = 46.0
    # No measurement: rows are modelled as sharing the spine 2 : 1.
    hub_gb_per_s: float = 23.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"`{field.name}` must be above 0")

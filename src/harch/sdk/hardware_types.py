"""What does a hub answer about its hardware? The values that `client.nodes` returns; see `types` on versions."""

from __future__ import annotations

from harch.wire.hardware import ConditionView as Condition
from harch.wire.hardware import Defragmentation
from harch.wire.hardware import IslandView as Island
from harch.wire.hardware import MoveView as Move
from harch.wire.hardware import NodeState as Node
from harch.wire.hardware import NodeView as TopologyNode
from harch.wire.hardware import RackState as Rack
from harch.wire.hardware import RackView as TopologyRack
from harch.wire.hardware import TopologyView as Topology
from harch.wire.hardware import ZoneState as CoolingZone

__all__ = [
    "Condition",
    "CoolingZone",
    "Defragmentation",
    "Island",
    "Move",
    "Node",
    "Rack",
    "Topology",
    "TopologyNode",
    "TopologyRack",
]

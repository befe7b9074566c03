"""How does a program see and change the hardware of a hub? Operations, and both namespaces of `client.nodes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

import msgspec

from harch.sdk.data import AsyncRun, Run
from harch.sdk.exchange import ApiRequest, Operation, RetryPolicy, decoded, exchange
from harch.sdk.hardware_types import CoolingZone, Defragmentation, Node, Rack, Topology
from harch.sdk.types import Gpu, Page

PER_PAGE_MAX = 100

T = TypeVar("T")


NodeList = list[Node]
ZoneList = list[CoolingZone]
RackList = list[Rack]


@dataclass(frozen=True, slots=True)
class NodeOperations:
    """One operation per question; see `exchange` for how they are driven."""

    retry: RetryPolicy

    def all(self, filters: Mapping[str, object]) -> Operation[NodeList]:
        params = {name: _word(value) for name, value in filters.items() if value is not None}
        return self._all("/nodes", Page[Node], params)

    def zones(self) -> Operation[ZoneList]:
        return self._all("/cooling-zones", Page[CoolingZone], {})

    def racks(self) -> Operation[RackList]:
        return self._all("/racks", Page[Rack], {})

    def get(self, node_id: str) -> Operation[Node]:
        return decoded((yield from exchange(ApiRequest("GET", _path("nodes", node_id)), self.retry)), Node)

    def topology(self) -> Operation[Topology]:
        return decoded((yield from exchange(ApiRequest("GET", "/topology"), self.retry)), Topology)

    def change(self, node_id: str, change: Mapping[str, object]) -> Operation[Node]:
        return self._send("PATCH", _path("nodes", node_id), change, Node)

    def drain(self, node_id: str, why: str) -> Operation[Node]:
        return self._send("POST", f"{_path('nodes', node_id)}/drain", {"why": why}, Node)

    def mark(self, gpu_id: str, healthy: bool, why: str) -> Operation[Gpu]:
        return self._send("PATCH", _path("gpus", gpu_id), {"healthy": healthy, "why": why}, Gpu)

    def cool(self, zone_id: str, heat_kw_max: float | None, why: str) -> Operation[CoolingZone]:
        body = {"heat_kw_max": heat_kw_max, "why": why}
        return self._send("PATCH", _path("cooling-zones", zone_id), body, CoolingZone)

    def uplink(self, rack_id: str, factor: float | None, why: str) -> Operation[Rack]:
        return self._send("PATCH", _path("racks", rack_id), {"uplink_factor": factor, "why": why}, Rack)

    def defragment(self, ref: str, apply: bool) -> Operation[Defragmentation]:
        return self._send("POST", f"{_path('workloads', ref)}/defragment", {"apply": apply}, Defragmentation)

    def _all(self, path: str, page_of: type[Page[T]], params: Mapping[str, str]) -> Operation[list[T]]:
        found: list[T] = []
        number = 0
        while True:
            number += 1
            query = {**params, "page": str(number), "per_page": str(PER_PAGE_MAX)}
            page = decoded((yield from exchange(ApiRequest("GET", path, query), self.retry)), page_of)
            found += page.items
            if not page.items or len(found) >= page.total:
                return found

    def _send(self, method: str, path: str, body: Mapping[str, object], type_: type[T]) -> Operation[T]:
        request = ApiRequest(method, path, headers={"content-type": "application/json"}, body=msgspec.json.encode(body))
        return decoded((yield from exchange(request, self.retry)), type_)


class Nodes:
    """`client.nodes`. Changes need the role `operator`; each is seen by the next decision and survives restarts."""

    def __init__(self, run: Run, ops: NodeOperations) -> None:
        self._run, self._ops = run, ops

    def list(
        self,
        *,
        rack: str | None = None,
        row: str | None = None,
        model: str | None = None,
        cordoned: bool | None = None,
        served: bool | None = None,
    ) -> NodeList:
        filters = {"rack": rack, "row": row, "model": model, "cordoned": cordoned, "served": served}
        return self._run(self._ops.all(filters))

    def get(self, node_id: str) -> Node:
        return self._run(self._ops.get(node_id))

    def cordon(self, node_id: str, *, why: str = "") -> Node:
        """It keeps its work and gets no more."""
        return self._run(self._ops.change(node_id, {"cordoned": True, "why": why}))

    def uncordon(self, node_id: str) -> Node:
        return self._run(self._ops.change(node_id, {"cordoned": False}))

    def drain(self, node_id: str, *, why: str = "") -> Node:
        """Cordons it and has its work move away."""
        return self._run(self._ops.drain(node_id, why))

    def mark(self, gpu_id: str, *, healthy: bool, why: str = "") -> Gpu:
        return self._run(self._ops.mark(gpu_id, healthy, why))

    def set_nvlink(self, node_id: str, factor: float | None, *, why: str = "") -> Node:
        """`factor` of its bandwidth, 0 to 1; None: whole again."""
        return self._run(self._ops.change(node_id, {"nvlink_factor": factor, "why": why}))

    def set_uplink(self, rack_id: str, factor: float | None, *, why: str = "") -> Rack:
        return self._run(self._ops.uplink(rack_id, factor, why))

    def set_cooling(self, zone_id: str, heat_kw_max: float | None, *, why: str = "") -> CoolingZone:
        return self._run(self._ops.cool(zone_id, heat_kw_max, why))

    def cooling_zones(self) -> ZoneList:
        return self._run(self._ops.zones())

    def racks(self) -> RackList:
        return self._run(self._ops.racks())

    def topology(self) -> Topology:
        return self._run(self._ops.topology())

    def defragment(self, ref: str, *, apply: bool = False) -> Defragmentation:
        """Plans moves that make room for a waiting workload; `apply` makes them."""
        return self._run(self._ops.defragment(ref, apply))


class AsyncNodes:
    """`client.nodes` of the asynchronous client. The methods are those of `Nodes`."""

    def __init__(self, run: AsyncRun, ops: NodeOperations) -> None:
        self._run, self._ops = run, ops

    async def list(
        self,
        *,
        rack: str | None = None,
        row: str | None = None,
        model: str | None = None,
        cordoned: bool | None = None,
        served: bool | None = None,
    ) -> NodeList:
        filters = {"rack": rack, "row": row, "model": model, "cordoned": cordoned, "served": served}
        return await self._run(self._ops.all(filters))

    async def get(self, node_id: str) -> Node:
        return await self._run(self._ops.get(node_id))

    async def cordon(self, node_id: str, *, why: str = "") -> Node:
        return await self._run(self._ops.change(node_id, {"cordoned": True, "why": why}))

    async def uncordon(self, node_id: str) -> Node:
        return await self._run(self._ops.change(node_id, {"cordoned": False}))

    async def drain(self, node_id: str, *, why: str = "") -> Node:
        return await self._run(self._ops.drain(node_id, why))

    async def mark(self, gpu_id: str, *, healthy: bool, why: str = "") -> Gpu:
        return await self._run(self._ops.mark(gpu_id, healthy, why))

    async def set_nvlink(self, node_id: str, factor: float | None, *, why: str = "") -> Node:
        return await self._run(self._ops.change(node_id, {"nvlink_factor": factor, "why": why}))

    async def set_uplink(self, rack_id: str, factor: float | None, *, why: str = "") -> Rack:
        return await self._run(self._ops.uplink(rack_id, factor, why))

    async def set_cooling(self, zone_id: str, heat_kw_max: float | None, *, why: str = "") -> CoolingZone:
        return await self._run(self._ops.cool(zone_id, heat_kw_max, why))

    async def cooling_zones(self) -> ZoneList:
        return await self._run(self._ops.zones())

    async def racks(self) -> RackList:
        return await self._run(self._ops.racks())

    async def topology(self) -> Topology:
        return await self._run(self._ops.topology())

    async def defragment(self, ref: str, *, apply: bool = False) -> Defragmentation:
        return await self._run(self._ops.defragment(ref, apply))


def _path(noun: str, ref: str) -> str:
    return f"/{noun}/{quote(ref, safe='')}"


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

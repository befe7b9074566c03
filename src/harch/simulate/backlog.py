"""Who waits, and who of them could fit now? The queue behind the plain schedulers that pass others over.

A shape that did not fit cannot fit before something is given back on a node that takes a task of it. So what is blocked
is set aside, and each event looks at few of the thousands that may wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from harch.placement.policy.shapes import Request as Kind
from harch.placement.request import Request
from harch.placement.room import Room

_Queue = OrderedDict[str, tuple[int, Request]]


@dataclass
class Backlog:
    """Waiting requests by tenant and shape, in order of arrival."""

    room: Room
    _arrivals: int = 0
    _open: dict[str, dict[int, _Queue]] = field(default_factory=dict)
    _blocked: dict[int, dict[str, _Queue]] = field(default_factory=dict)
    _kinds: dict[int, Kind] = field(default_factory=dict)  # of a task of that shape
    _numbers: dict[Hashable, int] = field(default_factory=dict)  # hashing a shape is slow, a number is not
    _found: dict[str, tuple[str, int]] = field(default_factory=dict)

    def add(self, tenant: str, request: Request) -> None:
        self._arrivals += 1
        shape = self._numbers.setdefault(request.shape, len(self._numbers))
        self._kinds.setdefault(shape, self.room.kind(request.needs))
        if shape in self._blocked:
            queue = self._blocked[shape].setdefault(tenant, OrderedDict())
        else:
            queue = self._open.setdefault(tenant, {}).setdefault(shape, OrderedDict())
        queue[request.id] = (self._arrivals, request)
        self._found[request.id] = (tenant, shape)

    def remove(self, request_id: str) -> None:
        found = self._found.pop(request_id, None)
        if found is None:
            return
        tenant, shape = found
        if shape in self._blocked:
            queue = self._blocked[shape][tenant]
            del queue[request_id]
            if not queue:
                del self._blocked[shape][tenant]
            if not self._blocked[shape]:
                del self._blocked[shape]
            return
        shapes = self._open[tenant]
        del shapes[shape][request_id]
        if not shapes[shape]:
            del shapes[shape]
        if not shapes:
            del self._open[tenant]

    def tenants(self) -> Iterable[str]:
        """Those of whom something could fit."""
        return self._open

    def oldest(self, tenant: str) -> Request:
        """The tenant's oldest request that could fit."""
        heads = (next(iter(queue.values())) for queue in self._open[tenant].values())
        return min(heads, key=lambda head: head[0])[1]

    def block(self, request: Request) -> None:
        """It did not fit: nothing of its shape does."""
        shape = self._found[request.id][1]
        aside = self._blocked.setdefault(shape, {})
        for tenant in list(self._open):
            queue = self._open[tenant].pop(shape, None)
            if queue is not None:
                aside[tenant] = queue
            if not self._open[tenant]:
                del self._open[tenant]

    def unblock(self, rows: Iterable[int]) -> None:
        """Something was given back there: what a task of could fit is looked at again."""
        for row in rows:
            now = _NodeNow(self.room, row)
            for shape in [shape for shape in self._blocked if now.takes(self._kinds[shape])]:
                for tenant, queue in self._blocked.pop(shape).items():
                    self._open.setdefault(tenant, {})[shape] = queue


class _NodeNow:
    """What is free on one node, as plain numbers: it is compared with hundreds of shapes."""

    def __init__(self, room: Room, row: int) -> None:
        arrays = room.arrays
        self._cpu_milli = int(arrays.cpu_milli_free[row])
        self._memory_mib = int(arrays.memory_mib_free[row])
        self._model_bit = 1 << int(arrays.model[row])
        self._gpu_milli = sorted(arrays.gpu_milli_free[row].tolist(), reverse=True)

    def takes(self, kind: Kind) -> bool:
        if kind.cpu_milli > self._cpu_milli or kind.memory_mib > self._memory_mib:
            return False
        if not kind.gpus:
            return True
        enough = len(self._gpu_milli) >= kind.gpus and self._gpu_milli[kind.gpus - 1] >= kind.gpu_milli
        return enough and bool(kind.models & self._model_bit)

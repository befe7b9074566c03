"""Who waits, and in which order are they served? By priority, then by arrival."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from harch.placement.request import Request
from harch.workloads.lifecycle import Workload

_Rank = tuple[int, int]  # (lower is more urgent, arrival number)


class PendingQueue:
    """Waiting workloads, grouped by priority and shape, each group in order of arrival.

    Once one of a group does not fit, the rest of it cannot either. So a round costs what it places plus one try per
    group, however long the queue is.
    """

    def __init__(self) -> None:
        self._groups: dict[object, dict[str, tuple[_Rank, Request]]] = {}
        self._group_of: dict[str, object] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, workload_id: str) -> bool:
        return workload_id in self._group_of

    def add(self, workload: Workload) -> None:
        if workload.id in self._group_of:
            return
        self._arrivals += 1
        request = Request.of(workload.id, workload.spec)
        urgency = -workload.spec.priority.rank
        group = (urgency, request.shape)
        self._groups.setdefault(group, {})[workload.id] = ((urgency, self._arrivals), request)
        self._group_of[workload.id] = group

    def remove(self, workload_id: str) -> None:
        group = self._group_of.pop(workload_id, None)
        if group is not None:
            del self._groups[group][workload_id]
            if not self._groups[group]:
                del self._groups[group]

    def in_order(self) -> Round:
        """One pass over everybody who waits. The queue must not change while the pass lasts."""
        return Round([iter(group.values()) for group in self._groups.values()])


class Round:
    """Yields requests in serving order. `skip_group` drops what waits behind the one that was last yielded."""

    def __init__(self, groups: list[Iterator[tuple[_Rank, Request]]]) -> None:
        self._heads: list[tuple[_Rank, Request, Iterator[tuple[_Rank, Request]]]] = []
        for group in groups:
            self._push(group)
        self._last: Iterator[tuple[_Rank, Request]] | None = None

    def skip_group(self) -> None:
        self._last = None

    def __iter__(self) -> Round:
        return self

    def __next__(self) -> Request:
        if self._last is not None:
            self._push(self._last)
        if not self._heads:
            raise StopIteration
        _, request, self._last = heapq.heappop(self._heads)
        return request

    def _push(self, group: Iterator[tuple[_Rank, Request]]) -> None:
        head = next(group, None)
        if head is not None:  # ranks are unique, so the heap never compares requests
            heapq.heappush(self._heads, (head[0], head[1], group))

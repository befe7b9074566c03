"""In which order are they served now? One pass over the queue that counts what it has already given."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from harch.placement.request import Request
from harch.placement.turns.flows import Group, Rank, Waiting
from harch.placement.turns.meter import Capacity


class Cursor:
    """Where the pass stands in one group. `head` is None when the group is used up or given up."""

    __slots__ = ("_entries", "flow", "group", "head", "lane")

    def __init__(self, lane: LaneTurn, flow: FlowTurn, group: Group) -> None:
        self.lane = lane
        self.flow = flow
        self.group = group
        self._entries: Iterator[Waiting] = iter(group)
        self.head: Waiting | None = next(self._entries, None)

    def advance(self) -> None:
        self.head = next(self._entries, None)


# The heaps below are corrected lazily: ranks and keys only grow during a pass, so an outdated entry is found at the
# top, compared with the present value and pushed down. Ranks are unique, so nothing behind them is ever compared.


@dataclass(slots=True)
class FlowTurn:
    """One tenant in this pass. `key` is its virtual time ahead, with what the pass has given it."""

    key: float
    weight: float
    groups: list[tuple[Rank, Cursor]] = field(default_factory=list)

    def head(self) -> Cursor | None:
        while self.groups:
            rank, cursor = self.groups[0]
            if cursor.head is None:
                heapq.heappop(self.groups)
            elif cursor.head.rank != rank:
                heapq.heapreplace(self.groups, (cursor.head.rank, cursor))
            else:
                return cursor
        return None


@dataclass(slots=True)
class LaneTurn:
    """One class in this pass."""

    key: float
    weight: float
    flows: list[tuple[float, Rank, FlowTurn]] = field(default_factory=list)

    def head(self) -> Cursor | None:
        while self.flows:
            key, rank, flow = self.flows[0]
            cursor = flow.head()
            if cursor is None or cursor.head is None:
                heapq.heappop(self.flows)
            elif key != flow.key or rank != cursor.head.rank:
                heapq.heapreplace(self.flows, (flow.key, cursor.head.rank, flow))
            else:
                return cursor
        return None


@dataclass(slots=True)
class AgedTurn:
    """Those who have waited too long, the oldest first, whoever they are."""

    key: float
    weight: float
    since_s_max: float  # who has waited since then or longer is aged
    groups: list[tuple[float, int, Cursor]] = field(default_factory=list)

    def offer(self, cursor: Cursor) -> None:
        if cursor.head is not None and cursor.head.rank.since_s <= self.since_s_max:
            rank = cursor.head.rank
            heapq.heappush(self.groups, (rank.since_s, rank.arrival, cursor))

    def head(self) -> Cursor | None:
        while self.groups:
            _, arrival, cursor = self.groups[0]
            if cursor.head is not None and cursor.head.rank.arrival == arrival:
                return cursor
            heapq.heappop(self.groups)
            self.offer(cursor)
        return None


class Round:
    """Yields requests in serving order. What is yielded counts as given, unless `skip_group` follows.

    `skip_group` drops what waits behind the last one in its flow with the same shape. A pass costs what it places plus
    one try per group. What was yielded may be removed from the queue at once; nothing may be added during a pass.
    """

    def __init__(
        self, lanes: list[LaneTurn], aged: AgedTurn, capacity: Capacity, lookahead_s: float, served_as_aged: set[str]
    ) -> None:
        self._lanes = lanes
        self._aged = aged
        self._capacity = capacity
        self._lookahead_s = lookahead_s
        self._served_as_aged = served_as_aged
        self._last: Cursor | None = None
        self._last_aged = False

    @property
    def is_blocked(self) -> bool:
        """True if the last one did not fit in an earlier pass and nothing that it could use has come free since."""
        return self._last is not None and self._last.group.blocked

    @property
    def is_again(self) -> bool:
        """True if the last one did not fit in an earlier pass, but could use something that has come free since."""
        return self._last is not None and self._last.group.again

    def skip_group(self, *, blocked: bool = False) -> None:
        """`blocked`: later passes need not try it before something that it could use has come free."""
        if self._last is not None:
            self._last.group.blocked = blocked
            self._last.head = None
            self._last = None

    def __iter__(self) -> Round:
        return self

    def __next__(self) -> Request:
        self._count_last()
        best: tuple[float, Rank] | None = None
        lanes: tuple[LaneTurn | AgedTurn, ...] = (*self._lanes, self._aged)
        for lane in lanes:
            cursor = lane.head()
            if cursor is not None and cursor.head is not None:
                key = (lane.key, cursor.head.rank)
                if best is None or key < best:
                    best, self._last, self._last_aged = key, cursor, lane is self._aged
        if self._last is None or self._last.head is None:
            raise StopIteration
        request = self._last.head.request
        if self._last_aged:
            self._served_as_aged.add(request.id)
        return request

    def _count_last(self) -> None:
        """The one yielded before was not skipped, so it was given its GPUs."""
        cursor, self._last = self._last, None
        if cursor is None or cursor.head is None:
            return
        request = cursor.head.request
        ahead = self._capacity.share(request, request.tasks) * self._lookahead_s
        cursor.lane.key += ahead / cursor.lane.weight
        cursor.flow.key += ahead / cursor.flow.weight
        if self._last_aged:
            self._aged.key += ahead / self._aged.weight
        cursor.advance()

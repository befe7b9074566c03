"""In which order are they served now? One pass over the queue that counts what it has already given."""

# harch: pure

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from harch.placement.policy.shapes import Bools
from harch.placement.queueing.blocked import Blocked
from harch.placement.queueing.flows import Capacity, Rank, RequestGroup, TenantFlow, WaitingRequest
from harch.placement.queueing.settings import CLASS_ORDER
from harch.placement.request import PlacementRequest
from harch.workloads.spec import SchedulingClass


class RoundCursor:
    """Where the pass stands in one group. `head` is None when the group is used up or given up."""

    __slots__ = ("_entries", "flow", "group", "head", "is_retry")

    def __init__(self, flow: FlowTurn, group: RequestGroup, *, is_retry: bool) -> None:
        self.flow = flow
        self.group = group
        self.is_retry = (
            is_retry  # its head did not fit in an earlier pass, but could use something that came free since
        )
        self._entries: Iterator[WaitingRequest] = iter(group)
        self.head: WaitingRequest | None = next(self._entries, None)

    def advance(self) -> None:
        self.head = next(self._entries, None)


class RoundRetries:
    """Blocked groups that are worth another try, because they could use what came free; by index.

    Most retries become futile when the first one takes it. What is left to do for such a group is to keep nodes for it,
    or to ask others to leave. While neither can be had for its class (`idle_classes`), it is left out of the pass.
    """

    def __init__(
        self,
        blocked: Blocked,
        may_fit: Callable[[Blocked], Bools] | None,
        idle_classes: Callable[[], Collection[SchedulingClass]],
    ) -> None:
        self._blocked = blocked
        self._may_fit = may_fit
        self._idle_classes = idle_classes
        self.at_first: Bools = may_fit(blocked) if may_fit and len(blocked) else np.zeros_like(blocked.everybody)
        self._now: Bools | None = self.at_first  # None: something was taken since
        self._cursors: dict[RequestGroup, RoundCursor] = {}

    def deal_out(self, turns: Mapping[int, FlowTurn], aged: AgedTurn) -> None:
        """Shows each flow its own, and the lane of the aged those that belong there."""
        if not len(self._blocked) or not self.at_first.any():
            return
        for number, indices in self._blocked.by_flow(self.at_first).items():
            turns[number].waiting_retries = indices[::-1]
        aged.waiting_retries = self._blocked.by_age(self.at_first & (self._blocked.since_s <= aged.since_s_max))[::-1]
        aged.flows = turns

    def rank(self, index: int) -> Rank | None:
        """Where it stands among those that are not in the pass yet; None if it is in it or gone.

        Once a group is in the pass, its head changes, and so does its place among the others.
        """
        group = self._blocked.group_at(index)
        return None if group is None or group in self._cursors else group.head.rank

    def cursor(self, turns: Mapping[int, FlowTurn], index: int) -> RoundCursor | None:
        """The same for its flow and for the aged."""
        group = self._blocked.group_at(index)
        if group is None:
            return None
        cursor = self._cursors.get(group)
        if cursor is None:
            turn = turns[self._blocked.flow_at(index).number]
            cursor = self._cursors[group] = RoundCursor(turn, group, is_retry=True)
        return cursor

    def was_taken(self) -> None:
        self._now = None

    def is_futile(self, cursor: RoundCursor) -> bool:
        """Others took what it could have used, and there is nothing else to be done for it now."""
        return not self._still()[cursor.group.index] and cursor.flow.flow.turn_class in self._idle_classes()

    def without_futile(self, indices: list[int]) -> list[int]:
        """Those of them that could still fit, or for which something else can be done."""
        idle = np.zeros(len(CLASS_ORDER), np.bool_)
        idle[[CLASS_ORDER.index(turn_class) for turn_class in self._idle_classes()]] = True
        numbers = np.array(indices, np.int64)
        left: list[int] = numbers[self._still()[numbers] | ~idle[self._blocked.class_place[numbers]]].tolist()
        return left

    def _still(self) -> Bools:
        if self._now is None:
            self._now = self.at_first if self._may_fit is None else self._may_fit(self._blocked)
        return self._now


# The heaps below are corrected lazily: ranks and keys only grow during a pass, so an outdated entry is found at the
# top, compared with the present value and pushed down. Ranks are unique, so nothing behind them is ever compared.


@dataclass(slots=True)
class FlowTurn:
    """One tenant in this pass. `key` is its virtual time ahead, with what the pass has given it."""

    key: float
    flow: TenantFlow
    lane: LaneTurn
    retries: RoundRetries
    groups: list[tuple[Rank, RoundCursor]] = field(default_factory=list)
    waiting_retries: list[int] = field(default_factory=list)  # indices that are not in `groups` yet, the first last

    def add(self, group: RequestGroup) -> RoundCursor:
        cursor = RoundCursor(self, group, is_retry=False)
        self.groups.append((group.head.rank, cursor))
        return cursor

    def begin(self) -> None:
        """All of its groups are known."""
        heapq.heapify(self.groups)
        cursor = self.head()
        if cursor is not None and cursor.head is not None:
            self.lane.flows.append((self.key, cursor.head.rank, self))

    def head(self) -> RoundCursor | None:
        while True:
            self._admit_next()
            if not self.groups:
                return None
            rank, cursor = self.groups[0]
            if cursor.head is None:
                heapq.heappop(self.groups)
            elif cursor.head.rank != rank:
                heapq.heapreplace(self.groups, (cursor.head.rank, cursor))
            else:
                return cursor

    def _admit_next(self) -> None:
        """Retries that come before everybody else in the flow."""
        while self.waiting_retries:
            rank = self.retries.rank(self.waiting_retries[-1])
            if rank is not None and self.groups and self.groups[0][0] < rank:
                return
            cursor = self.retries.cursor({self.flow.number: self}, self.waiting_retries.pop())
            if cursor is not None and cursor.head is not None:
                heapq.heappush(self.groups, (cursor.head.rank, cursor))

    def drop_futile(self) -> None:
        self.waiting_retries = self.retries.without_futile(self.waiting_retries)


@dataclass(slots=True)
class LaneTurn:
    """One class in this pass."""

    key: float
    weight: float
    flows: list[tuple[float, Rank, FlowTurn]] = field(default_factory=list)

    @property
    def has_any(self) -> bool:
        return bool(self.flows)

    def head(self) -> RoundCursor | None:
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
    retries: RoundRetries
    groups: list[tuple[float, int, RoundCursor]] = field(default_factory=list)
    waiting_retries: list[int] = field(default_factory=list)  # indices that are not in `groups` yet, the oldest last
    flows: Mapping[int, FlowTurn] = field(default_factory=dict)  # by number: whose indices those are

    @property
    def has_any(self) -> bool:
        return bool(self.groups or self.waiting_retries)

    def offer(self, cursor: RoundCursor) -> None:
        if cursor.head is not None and cursor.head.rank.since_s <= self.since_s_max:
            rank = cursor.head.rank
            heapq.heappush(self.groups, (rank.since_s, rank.arrival, cursor))

    def head(self) -> RoundCursor | None:
        while True:
            self._admit_next()
            if not self.groups:
                return None
            _, arrival, cursor = self.groups[0]
            if cursor.head is not None and cursor.head.rank.arrival == arrival:
                return cursor
            heapq.heappop(self.groups)
            self.offer(cursor)

    def _admit_next(self) -> None:
        while self.waiting_retries:
            rank = self.retries.rank(self.waiting_retries[-1])
            if rank is not None and self.groups and self.groups[0][:2] < rank[1:]:
                return
            cursor = self.retries.cursor(self.flows, self.waiting_retries.pop())
            if cursor is not None:
                self.offer(cursor)

    def drop_futile(self) -> None:
        self.waiting_retries = self.retries.without_futile(self.waiting_retries)


class Round:
    """Yields requests in serving order. What is yielded counts as given, unless `skip_group` follows.

    `skip_group` drops what waits behind the last one in its flow with the same shape. A pass costs what it places plus
    one try per group. What was yielded may be removed from the queue at once; nothing may be added during a pass.
    """

    def __init__(
        self,
        lanes: list[LaneTurn],
        aged: AgedTurn,
        capacity: Capacity,
        lookahead_s: float,
        served_as_aged: set[str],
        retries: RoundRetries,
        set_blocked: Callable[[TenantFlow, RequestGroup, bool], None],
    ) -> None:
        self._aged = aged
        turns: tuple[LaneTurn | AgedTurn, ...] = (*lanes, aged)
        self._lanes = [lane for lane in turns if lane.has_any]  # what is empty now stays so: a pass adds nobody
        self._capacity = capacity
        self._lookahead_s = lookahead_s
        self._served_as_aged = served_as_aged
        self._retries = retries
        self._set_blocked = set_blocked
        self._last: RoundCursor | None = None
        self._last_aged = False

    @property
    def is_blocked(self) -> bool:
        """True if the last one did not fit in an earlier pass and nothing that it could use has come free since."""
        return self._last is not None and self._last.group.index >= 0 and not self._last.is_retry

    @property
    def is_retry(self) -> bool:
        """True if the last one did not fit in an earlier pass, but could use something that has come free since."""
        return self._last is not None and self._last.is_retry

    def skip_group(self, *, blocked: bool = False) -> None:
        """`blocked`: later passes need not try it before something that it could use has come free."""
        if self._last is not None:
            self._set_blocked(self._last.flow.flow, self._last.group, blocked)
            self._last.head = None
            self._last = None

    def __iter__(self) -> Round:
        return self

    def __next__(self) -> PlacementRequest:
        self._count_last()
        while True:
            cursor = self._first()
            if cursor is None or cursor.head is None:
                raise StopIteration
            if not (cursor.is_retry and self._retries.is_futile(cursor)):
                break
            cursor.head = None
            (self._aged if self._last_aged else cursor.flow).drop_futile()
        self._last = cursor
        request = cursor.head.request
        if self._last_aged:
            self._served_as_aged.add(request.id)
        return request

    def _first(self) -> RoundCursor | None:
        """Whose turn it is."""
        best: tuple[float, Rank] | None = None
        first = None
        for lane in self._lanes:
            cursor = lane.head()
            if cursor is not None and cursor.head is not None:
                key = (lane.key, cursor.head.rank)
                if best is None or key < best:
                    best, first, self._last_aged = key, cursor, lane is self._aged
        return first

    def _count_last(self) -> None:
        """The one yielded before was not skipped, so it was given its GPUs."""
        cursor, self._last = self._last, None
        if cursor is None or cursor.head is None:
            return
        request = cursor.head.request
        ahead = self._capacity.share(request, request.tasks) * self._lookahead_s
        cursor.flow.lane.key += ahead / cursor.flow.lane.weight
        cursor.flow.key += ahead / cursor.flow.flow.weight
        if self._last_aged:
            self._aged.key += ahead / self._aged.weight
        self._retries.was_taken()
        cursor.advance()

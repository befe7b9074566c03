"""Who did not fit, and which of them could use what came free? In columns, so that a look at thousands costs little.

A hub that is offered twice what it can do has as many blocked groups as there are kinds of work, and every end of a
job asks this: one by one they would cost more than all decisions together.
"""

# harch: pure

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from harch.base.errors import InvariantBroken
from harch.placement.policy.shapes import Bools, Floats, Ints
from harch.placement.queueing.flows import RequestGroup, TenantFlow
from harch.placement.queueing.settings import CLASS_ORDER
from harch.placement.room import Room

_FIRST_SIZE = 64


class Blocked:
    """The groups whose heads did not fit. While a group is in here, it has an index: the same in every column."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._entries: list[tuple[TenantFlow, RequestGroup] | None] = []
        self._heads: list[str] = []  # ids
        self._index_of: dict[str, int] = {}  # by the id of the head
        self._unused: list[int] = []
        self._left: list[int] = []  # since the pass began: nobody else has those indices before the next
        # cpu_milli, memory_mib, gpus, gpu_milli and models of one task; place of the class in the order, gpu_milli of
        # all tasks, 1 if preemptible; number of the flow, urgency, arrival; processes, and the fewest that will do
        self._counts: npt.NDArray[np.int64] = np.zeros((13, _FIRST_SIZE), np.int64)
        self._times_s: Floats = np.zeros((3, _FIRST_SIZE))  # grace; promised duration (infinite: none); since
        self._in_use: Bools = np.zeros(_FIRST_SIZE, np.bool_)

    def __len__(self) -> int:
        return len(self._index_of)

    def add(self, flow: TenantFlow, group: RequestGroup) -> None:
        index = self._unused.pop() if self._unused else len(self._entries)
        if index == len(self._entries):
            self._entries.append(None)
            self._heads.append("")
            if index == self._in_use.size:
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)], axis=1)
                self._times_s = np.concatenate([self._times_s, np.zeros_like(self._times_s)], axis=1)
                self._in_use = np.concatenate([self._in_use, np.zeros_like(self._in_use)])
        self._entries[index] = (flow, group)
        self._in_use[index] = True
        group.index = index
        self._show_head(flow, group)

    def remove(self, group: RequestGroup) -> None:
        index, group.index = group.index, -1
        self._entries[index] = None
        self._in_use[index] = False
        del self._index_of[self._heads[index]]
        self._left.append(index)

    def begin_pass(self) -> None:
        """During a pass, an index means one group."""
        self._unused += self._left
        self._left.clear()

    def follow_head(self, flow: TenantFlow, group: RequestGroup) -> None:
        """Somebody came to a group that is in here, or left it."""
        if not group:
            self.remove(group)
        elif self._heads[group.index] != group.head.request.id:
            del self._index_of[self._heads[group.index]]
            self._show_head(flow, group)

    def _show_head(self, flow: TenantFlow, group: RequestGroup) -> None:
        index, (rank, request) = group.index, group.head
        self._heads[index] = request.id
        self._index_of[request.id] = index
        self._counts[:, index] = (
            *self._room.kind(request.needs),
            CLASS_ORDER.index(request.turn_class),
            request.gpu_milli_total,
            request.preemptible,
            flow.number,
            rank.urgency,
            rank.arrival,
            request.tasks if request.runs_process else 0,
            request.tasks_min if request.runs_process else 0,
        )
        bound_s = request.duration_s_max
        self._times_s[:, index] = request.stop_grace_s, math.inf if bound_s is None else bound_s, rank.since_s

    # Asking

    def index_of(self, request_id: str) -> int | None:
        """Where the group stands whose head this is."""
        return self._index_of.get(request_id)

    def has_since(self, since_s: float) -> bool:
        """Has anybody waited since then or longer?"""
        return bool(self) and bool((self.since_s[self.everybody] <= since_s).any())

    def group_at(self, index: int) -> RequestGroup | None:
        """None if it has left, with nobody waiting in it or to be tried."""
        entry = self._entries[index]
        return None if entry is None else entry[1]

    def flow_at(self, index: int) -> TenantFlow:
        """Of an index that somebody has."""
        entry = self._entries[index]
        if entry is None:
            raise InvariantBroken("only blocked requests are queried", index)
        return entry[0]

    def by_flow(self, indices: Bools) -> dict[int, list[int]]:
        """By the number of the flow: those of its indices, in the order of their ranks."""
        found = np.flatnonzero(indices)
        if not found.size:
            return {}
        flow, urgency, arrival = self._counts[8:11, found]
        found = found[np.lexsort((arrival, self._times_s[2, found], urgency, flow))]
        flows, firsts = np.unique(self._counts[8, found], return_index=True)
        ends = [*firsts.tolist(), len(found)][1:]
        return {
            number: found[first:end].tolist()
            for number, first, end in zip(flows.tolist(), firsts.tolist(), ends, strict=True)
        }

    def by_age(self, indices: Bools) -> list[int]:
        """Those indices, who has waited longest first."""
        found = np.flatnonzero(indices)
        ordered: list[int] = found[np.lexsort((self._counts[10, found], self._times_s[2, found]))].tolist()
        return ordered

    # Columns

    @property
    def everybody(self) -> Bools:
        """The indices that somebody has."""
        return self._in_use[: len(self._entries)]

    @property
    def task(self) -> Ints:
        """cpu_milli, memory_mib, gpus, gpu_milli and models of one task of each head."""
        return self._counts[:5, : len(self._entries)]

    @property
    def class_place(self) -> Ints:
        return self._counts[5, : len(self._entries)]

    @property
    def gpu_milli_total(self) -> Ints:
        return self._counts[6, : len(self._entries)]

    @property
    def preemptible(self) -> Bools:
        found: Bools = self._counts[7, : len(self._entries)] > 0
        return found

    @property
    def processes(self) -> Ints:
        """How many processes each head starts, and the fewest that will do."""
        return self._counts[11:, : len(self._entries)]

    @property
    def stop_grace_s(self) -> Floats:
        return self._times_s[0, : len(self._entries)]

    @property
    def duration_s_max(self) -> Floats:
        return self._times_s[1, : len(self._entries)]

    @property
    def since_s(self) -> Floats:
        return self._times_s[2, : len(self._entries)]

"""The real scheduler at a simulated hub; and the same one made blind to the topology, to show what seeing is worth."""

from __future__ import annotations

from collections.abc import Mapping

from harch.fleet.model import Hub
from harch.placement.gang_layout import RankNodes
from harch.placement.learned import LearnedPolicy
from harch.placement.placing import LayOutGang, by_topology
from harch.placement.policy.shapes import Bools
from harch.placement.request import Request
from harch.placement.room import Room, TaskSlot
from harch.placement.scheduler import Scheduler
from harch.simulate.fitting import fit
from harch.simulate.policies import Decisions, Start


class HarchPolicy:
    """`placement.scheduler.Scheduler` with the learned policy, as a hub runs it: it learns online, from nothing."""

    _lay_out: LayOutGang = staticmethod(by_topology)

    def __init__(self, hub: Hub) -> None:
        self._scheduler = Scheduler(hub, lay_out=self._lay_out)
        self.room: Room = self._scheduler.room
        self._learned = LearnedPolicy(self.room)
        self._scheduler.use(self._learned)
        self._scheduler.serve(tuple(node.id for node in hub.nodes), True)

    @property
    def kept(self) -> Mapping[int, str]:
        return {row: kept.request.id for kept in self._scheduler.reservations for row in kept.rows}

    def submit(self, request: Request, *, now_s: float) -> None:
        self._scheduler.submit(request, now_s=now_s)
        if self._learned.learning_due:
            self._learned.learn()

    def withdraw(self, request_id: str) -> None:
        self._scheduler.withdraw(request_id)

    def ended(self, request_id: str, *, now_s: float) -> None:
        self._scheduler.ended(request_id, now_s=now_s)

    def decide(self, *, now_s: float, starts_max: int) -> Decisions:
        plan = self._scheduler.plan(now_s=now_s, placed_max=starts_max)
        starts = tuple(Start(assignment.request, assignment.slots) for assignment in plan.assignments)
        stops = tuple(victim.request.id for preemption in plan.preemptions for victim in preemption.victims)
        return Decisions(starts, stops, plan.complete)


def _by_best_fit(
    room: Room, request: Request, tasks: int, rank_nodes: RankNodes, allowed: Bools
) -> tuple[TaskSlot, ...] | None:
    return fit(room, request, best=True, tasks=tasks, allowed=allowed)


class BlindPolicy(HarchPolicy):
    """The same queue, reservations, scores and limits; only gangs are laid out by best fit, whatever the links."""

    _lay_out: LayOutGang = staticmethod(_by_best_fit)

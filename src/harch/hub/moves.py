"""Who moves so that waiting work can start? Plans when asked, carries out one at a time, by itself only if told to.

A move is a stop with grace: the workload waits again, starts elsewhere and goes on from its own checkpoint folder.
What it leaves is kept for the one that waits. A restart of the hub forgets that; its usual reservation remains.
"""

from __future__ import annotations

import math

from harch.base.errors import HarchError
from harch.hub.desk import Desk, wrong_state
from harch.placement.defragmentation import DefragmentationPlan
from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.turns.reservations import Reservation
from harch.workloads.lifecycle import State

LOOK_EVERY_S = 30.0  # a plan costs milliseconds, and mostly nothing has changed since the last one


class Moves:
    """Belongs to one job machine."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._next_look_s = -math.inf

    def plan(self, workload_id: str) -> DefragmentationPlan | None:
        """For a waiting workload; None if it fits already, or if no moves within the limit would help."""
        desk = self._desk
        workload = desk.unfinished(workload_id)
        if workload.state is not State.PENDING:
            raise wrong_state(workload, "only what waits can have others moved")
        return desk.scheduler.plan_defragmentation(desk.request(workload), now_s=desk.now_s)

    def carry_out(self, workload_id: str) -> None:
        """Plans and applies. Raises if there is nothing to do, or if another plan is being carried out."""
        clearing = self._desk.scheduler.clearing
        if clearing is not None:
            raise HarchError(
                "E0304",
                f"work is already moving to make room for {clearing.plan.request.id}",
                hint="try again when it has started",
                retry_after_s=5,
            )
        plan = self.plan(workload_id)
        if plan is None:
            raise HarchError(
                "E0304",
                f"no moves would make room for {workload_id}",
                hint=f"`harch why {workload_id}` tells what it waits for",
            )
        self._apply(plan)

    def carry_out_if_due(self, reservations: tuple[Reservation, ...]) -> None:
        """The first of those whose turn it is, who needs several GPUs, has waited long enough and would gain."""
        desk = self._desk
        after_s = desk.scheduler.settings.defragment_after_s
        if after_s is None or desk.scheduler.clearing is not None or desk.now_s < self._next_look_s:
            return
        for kept in reservations:
            request = kept.request
            waits = request.id in desk.scheduler.queue
            takes_milli = request.tasks * desk.scheduler.room.kind(request.needs).gpu_milli_total
            if waits and takes_milli > GPU_MILLI and desk.now_s - request.submitted_s >= after_s:
                self._next_look_s = desk.now_s + LOOK_EVERY_S
                plan = desk.scheduler.plan_defragmentation(request, now_s=desk.now_s)
                if plan is not None and plan.pays:
                    self._apply(plan)
                    self._next_look_s = desk.now_s + after_s  # whoever moved just now is left alone for a while
                return

    def _apply(self, plan: DefragmentationPlan) -> None:
        desk = self._desk
        for move in plan.moves:
            workload = desk.registry.workloads[move.running.request.id]
            if workload.stop_reason:  # somebody stopped it already: its place comes free all the same
                desk.scheduler.stops(workload.id, now_s=desk.now_s)
                continue
            desk.stop_for_others(workload, f"moves to make room for {plan.request.id}", kind="workload.moving")
        desk.scheduler.clear(plan, now_s=desk.now_s)
        waiting = desk.registry.workloads[plan.request.id]
        desk.changed(waiting, "workload.room_made", plan.describe())

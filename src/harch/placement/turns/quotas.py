"""Has a tenant enough already? Limits on what it holds and on what it keeps waiting; each "no" with its nearest fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harch.base.rejection import Rejection
from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.request import Request
from harch.placement.room import Room
from harch.placement.turns.settings import Quota, TurnSettings
from harch.workloads.spec import SchedulingClass

RULE = "quota"
_Holder = tuple[str, SchedulingClass | None]  # a tenant, as a whole or in one class


@dataclass(slots=True)
class _Usage:
    gpu_milli: int = 0
    tasks: int = 0
    waiting: int = 0


class QuotaBook:
    """Counts per tenant, and per tenant and class. Follows what it is told; judging changes nothing."""

    def __init__(self, settings: TurnSettings, room: Room) -> None:
        """`room` knows what shares with memory take."""
        self._settings = settings
        self._room = room
        self._usage: dict[_Holder, _Usage] = {}

    def waits(self, request: Request, change: int) -> None:
        """`change` is 1 when it begins to wait, -1 when it no longer does."""
        self._count(request, 0, change)

    def holds(self, request: Request, tasks: int) -> None:
        """`tasks` below 0: they were given back."""
        self._count(request, tasks, 0)

    def rejection_to_run(self, request: Request, tasks: int) -> Rejection | None:
        """May it hold so many tasks more now? A "no" passes over this request, never over those of other tenants."""
        if self._settings.has_no_quotas:
            return None
        gpu_milli = tasks * self._gpu_milli(request)
        for holder, quota in self._quotas(request):
            usage = self._usage.get(holder, _Usage())
            whose = _name(holder)
            if quota.gpus_held_max is not None and gpu_milli:
                over = usage.gpu_milli + gpu_milli - round(quota.gpus_held_max * GPU_MILLI)
                if over > 0:
                    return Rejection(
                        request.id,
                        RULE,
                        f"{whose} holds {usage.gpu_milli / GPU_MILLI:g} of at most {quota.gpus_held_max:g} GPUs; "
                        f"this asks for {gpu_milli / GPU_MILLI:g} more",
                        _fix(usage.gpu_milli >= over, f"{over / GPU_MILLI:g} of its GPUs are given back"),
                    )
            if quota.tasks_held_max is not None and usage.tasks + tasks > quota.tasks_held_max:
                over = usage.tasks + tasks - quota.tasks_held_max
                return Rejection(
                    request.id,
                    RULE,
                    f"{whose} runs {usage.tasks} of at most {quota.tasks_held_max} tasks; this asks for {tasks} more",
                    _fix(usage.tasks >= over, f"{over} of its running tasks have ended"),
                )
        return None

    def rejection_to_wait(self, request: Request) -> Rejection | None:
        """May it join the queue? Also "no" if it would wait in vain: it is larger than the whole quota."""
        if self._settings.has_no_quotas:
            return None
        for holder, quota in self._quotas(request):
            usage = self._usage.get(holder, _Usage())
            if quota.workloads_waiting_max is not None and usage.waiting >= quota.workloads_waiting_max:
                return Rejection(
                    request.id,
                    RULE,
                    f"{_name(holder)} has {usage.waiting} of at most {quota.workloads_waiting_max} workloads waiting",
                    "submit it again when one of them has started, or have the quota raised",
                )
        return self.rejection_for_ever(request)

    def rejection_for_ever(self, request: Request) -> Rejection | None:
        """Is it larger than the whole quota? The fewest tasks that it would start with count."""
        if self._settings.has_no_quotas:
            return None
        for holder, quota in self._quotas(request):
            gpus = request.tasks_min * self._gpu_milli(request) / GPU_MILLI
            for asked, most, what in (
                (gpus, quota.gpus_held_max, "GPUs"),
                (request.tasks_min, quota.tasks_held_max, "tasks"),
            ):
                if most is not None and asked > most:
                    detail = f"{_name(holder)} may hold at most {most:g} {what}; this alone asks for {asked:g}"
                    return Rejection(request.id, RULE, detail, f"ask for at most {most:g}, or have the quota raised")
        return None

    def _gpu_milli(self, request: Request) -> int:
        """What one task takes."""
        return self._room.kind(request.needs).gpu_milli_total

    def _quotas(self, request: Request) -> Iterator[tuple[_Holder, Quota]]:
        settings, tenant, turn_class = self._settings, request.tenant, request.turn_class
        yield (tenant, None), settings.tenant_quotas.get(tenant, settings.quota_default)
        of_class = settings.class_quotas.get((tenant, turn_class))
        if of_class is not None:
            yield (tenant, turn_class), of_class

    def _count(self, request: Request, tasks: int, waiting: int) -> None:
        gpu_milli = tasks * self._gpu_milli(request) if tasks else 0
        tenant = request.tenant
        for holder in ((tenant, None), (tenant, request.turn_class)):
            usage = self._usage.get(holder)
            if usage is None:
                usage = self._usage[holder] = _Usage()
            usage.gpu_milli += gpu_milli
            usage.tasks += tasks
            usage.waiting += waiting
            if not usage.tasks and not usage.waiting:
                del self._usage[holder]


def _name(holder: _Holder) -> str:
    tenant, turn_class = holder
    name = f"tenant {tenant}" if tenant else "this tenant"
    return f"{name} in class {turn_class}" if turn_class else name


def _fix(waiting_helps: bool, event: str) -> str:
    return (
        f"starts when {event}, or have the quota raised" if waiting_helps else "ask for less, or have the quota raised"
    )

"""Has a tenant enough already? Limits on what it holds and on what it keeps waiting; each "no" with its nearest fix."""

# harch: pure

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from msgspec import Struct

from harch.base.rejection import Rejection
from harch.placement.policy.shapes import GPU_MILLI
from harch.placement.queueing.settings import NO_QUOTA, QueueSettings, Quota
from harch.placement.request import PlacementRequest
from harch.placement.room import Room
from harch.workloads.spec import SchedulingClass

RULE = "quota"
_Holder = tuple[str, SchedulingClass | None]  # a tenant, as a whole or in one class


@dataclass(slots=True)
class _Usage:
    gpu_milli: int = 0
    tasks: int = 0
    waiting: int = 0


class QuotaUse(Struct, frozen=True, kw_only=True):
    """What one tenant may hold and have pending, and what it does. `turn_class` None: in all classes together."""

    tenant: str
    turn_class: SchedulingClass | None
    quota: Quota
    weight: float
    gpus_held: float
    tasks_held: int
    pending: int


class QuotaBook:
    """Counts per tenant, and per tenant and class. Follows what it is given; judging changes nothing."""

    def __init__(self, settings: QueueSettings, room: Room) -> None:
        """`room` knows what shares with memory take."""
        self._settings = settings
        self._has_no_quotas = settings.has_no_quotas  # then nothing is counted, as nothing is judged
        self._room = room
        self._usage: dict[_Holder, _Usage] = {}

    def waits(self, request: PlacementRequest, change: int) -> None:
        """`change` is 1 when it begins to wait, -1 when it no longer does."""
        self._count(request, 0, change)

    def holds(self, request: PlacementRequest, tasks: int) -> None:
        """`tasks` below 0: they were given back."""
        self._count(request, tasks, 0)

    def rejection_to_run(self, request: PlacementRequest, tasks: int) -> Rejection | None:
        """May it hold so many tasks more now? A "no" passes over this request, never over those of other tenants."""
        if self._has_no_quotas:
            return None
        gpu_milli = tasks * self._gpu_milli(request)
        for holder, quota in self._quotas(request):
            usage = self._usage.get(holder, _Usage())
            owner = _name(holder)
            if quota.gpus_held_max is not None and gpu_milli:
                over = usage.gpu_milli + gpu_milli - round(quota.gpus_held_max * GPU_MILLI)
                if over > 0:
                    return Rejection(
                        request.id,
                        RULE,
                        f"{owner} holds {usage.gpu_milli / GPU_MILLI:g} of at most {quota.gpus_held_max:g} GPUs; "
                        f"this requests {gpu_milli / GPU_MILLI:g} more",
                        _fix(usage.gpu_milli >= over, f"{over / GPU_MILLI:g} of its GPUs are released"),
                    )
            if quota.tasks_held_max is not None and usage.tasks + tasks > quota.tasks_held_max:
                over = usage.tasks + tasks - quota.tasks_held_max
                return Rejection(
                    request.id,
                    RULE,
                    f"{owner} runs {usage.tasks} of at most {quota.tasks_held_max} tasks; this requests {tasks} more",
                    _fix(usage.tasks >= over, f"{over} of its running tasks end"),
                )
        return None

    def rejection_to_wait(
        self, request: PlacementRequest, replaces: PlacementRequest | None = None
    ) -> Rejection | None:
        """May it join the queue? Also "no" if it would wait in vain: it is larger than the whole quota.

        It takes the place of what it `replaces`: only in another class is that one more that waits.
        """
        if self._has_no_quotas:
            return None
        for holder, quota in self._quotas(request):
            if replaces is not None and holder[1] in (None, replaces.turn_class):
                continue
            usage = self._usage.get(holder, _Usage())
            if quota.workloads_waiting_max is not None and usage.waiting >= quota.workloads_waiting_max:
                return Rejection(
                    request.id,
                    RULE,
                    f"{_name(holder)} has {usage.waiting} of at most {quota.workloads_waiting_max} workloads waiting",
                    "submit it again once one of them starts, or have the quota raised",
                )
        return self.rejection_for_ever(request)

    def rejection_for_ever(self, request: PlacementRequest) -> Rejection | None:
        """Is it larger than the whole quota? The fewest tasks that it would start with count."""
        if self._has_no_quotas:
            return None
        for holder, quota in self._quotas(request):
            gpus = request.tasks_min * self._gpu_milli(request) / GPU_MILLI
            for requested, most, what in (
                (gpus, quota.gpus_held_max, "GPUs"),
                (request.tasks_min, quota.tasks_held_max, "tasks"),
            ):
                if most is not None and requested > most:
                    detail = f"{_name(holder)} may hold at most {most:g} {what}; this alone requests {requested:g}"
                    return Rejection(request.id, RULE, detail, f"request at most {most:g}, or have the quota raised")
        return None

    def uses(
        self, held: Iterable[tuple[PlacementRequest, int]], pending: Mapping[tuple[str, SchedulingClass], int]
    ) -> list[QuotaUse]:
        """Of every tenant that holds something, has something pending, or has a quota of its own; in each class, too.

        `held`: requests with their tasks. Counted anew, for without quotas nothing has been: for people who ask.
        """
        counts: dict[_Holder, _Usage] = {}
        for request, tasks in held:
            gpu_milli = tasks * self._gpu_milli(request)
            for holder in ((request.tenant, None), (request.tenant, request.turn_class)):
                usage = counts.setdefault(holder, _Usage())
                usage.gpu_milli += gpu_milli
                usage.tasks += tasks
        for (tenant, turn_class), count in pending.items():
            for holder in ((tenant, None), (tenant, turn_class)):
                counts.setdefault(holder, _Usage()).waiting += count
        settings = self._settings
        for tenant in settings.tenant_quotas:
            counts.setdefault((tenant, None), _Usage())
        for tenant, turn_class in settings.class_quotas:
            counts.setdefault((tenant, None), _Usage())
            counts.setdefault((tenant, turn_class), _Usage())
        return [
            QuotaUse(
                tenant=tenant,
                turn_class=turn_class,
                quota=settings.class_quotas.get((tenant, turn_class), NO_QUOTA)
                if turn_class is not None
                else settings.tenant_quotas.get(tenant, settings.quota_default),
                weight=settings.tenant_weight(tenant),
                gpus_held=usage.gpu_milli / GPU_MILLI,
                tasks_held=usage.tasks,
                pending=usage.waiting,
            )
            for (tenant, turn_class), usage in sorted(counts.items(), key=lambda one: (one[0][0], one[0][1] or ""))
        ]

    def _gpu_milli(self, request: PlacementRequest) -> int:
        """What one task takes."""
        return self._room.kind(request.needs).gpu_milli_total

    def _quotas(self, request: PlacementRequest) -> Iterator[tuple[_Holder, Quota]]:
        settings, tenant, turn_class = self._settings, request.tenant, request.turn_class
        yield (tenant, None), settings.tenant_quotas.get(tenant, settings.quota_default)
        of_class = settings.class_quotas.get((tenant, turn_class))
        if of_class is not None:
            yield (tenant, turn_class), of_class

    def _count(self, request: PlacementRequest, tasks: int, waiting: int) -> None:
        if self._has_no_quotas:
            return
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
        f"starts when {event}, or have the quota raised" if waiting_helps else "request less, or have the quota raised"
    )

"""What did the running work draw, and when? Looks in, intervals out, each ready to be charged. Pure.

The hub looks every half minute. Work is taken to have done since the last look what it does at this one; work that
began and ended between two looks is charged by its own times. Nothing here is measured: the plates of what a job holds,
times time, so every figure is `estimated` until a meter says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from harch.carbon.ledger.accounting import Allocation
from harch.carbon.ledger.charge import Interval, intervals
from harch.carbon.ledger.meter import METHOD, HeldDevices
from harch.carbon.signals.choice import HubSignals
from harch.carbon.values import Evidence
from harch.fleet.model import Hub, Node
from harch.wire.workloads import TaskPlacement
from harch.workloads.lifecycle import State, Workload

SOON = timedelta(minutes=5)  # a hub with little work books so often, so that its people see what they used
JOBS_FEW = 50  # beyond, only whole hours: each job has a row of two kilobytes in every interval
JOBS_MAX = 1000  # rows of one interval, which take the event loop 20 ms; the smallest beyond share rows


class Work(Struct, frozen=True, kw_only=True):
    """A job that holds power at this hub."""

    job: str
    tenant: str
    home: str
    submitted_at: datetime
    started_at: datetime
    scheduling_class: str
    data_ids: tuple[str, ...]
    held: HeldDevices


class Run(Struct, frozen=True):
    """Work that began and ended since the last look."""

    work: Work
    start: datetime
    end: datetime


class ClosedInterval(Struct, frozen=True, kw_only=True):
    """What an interval's charges are made from."""

    interval: Interval
    allocations: tuple[Allocation, ...]
    modelled_it_kw: float  # of the whole hub, what nobody held included
    samples: tuple[HubSignals, ...]


@dataclass(slots=True)
class _Drawn:
    work: Work
    running_kwh: float = 0.0
    holding_kwh: float = 0.0


@dataclass(slots=True)
class WorkMeter:
    """One hub's intervals, from `start` on. `whole` is everything that stands there."""

    start: datetime
    whole: HeldDevices
    last: datetime = field(init=False)
    _drawn: dict[str, _Drawn] = field(default_factory=dict)
    _idle_kwh: float = 0.0
    _samples: list[HubSignals] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last = self.start

    def look(
        self, now: datetime, present: Mapping[str, tuple[Work, State]], ended: Iterable[Run], sample: HubSignals
    ) -> list[ClosedInterval]:
        """Goes on to `now` (a whole second). Answers the intervals that are over, oldest first."""
        ended = list(ended)
        self._samples.append(sample)
        closed: list[ClosedInterval] = []
        for piece in intervals(self.last, now):
            self._accrue(piece, present, ended)
            self.last = piece.end
            if self._is_over():
                closed.append(self.close())
        return closed

    def open_interval(self) -> ClosedInterval | None:
        """The interval up to the last look, as if it ended there."""
        if self.last <= self.start or not self._samples:
            return None
        interval = Interval(self.start, self.last)
        hours = interval.duration / timedelta(hours=1)
        drawn_kwh = sum(one.running_kwh + one.holding_kwh for one in self._drawn.values())
        return ClosedInterval(
            interval=interval,
            allocations=merged([_allocation(one, interval) for one in self._drawn.values()], interval),
            modelled_it_kw=(drawn_kwh + self._idle_kwh) / hours,
            samples=tuple(self._samples),
        )

    def close(self) -> ClosedInterval:
        """Ends the interval at the last look and begins the next."""
        closed = self.open_interval()
        if closed is None:
            raise ValueError("an interval without time cannot be closed")
        self.start, self._drawn, self._idle_kwh = self.last, {}, 0.0
        self._samples = self._samples[-1:]  # it holds until the next one
        return closed

    def _is_over(self) -> bool:
        hour_ends = self.last == self.last.replace(minute=0, second=0, microsecond=0)
        return hour_ends or (0 < len(self._drawn) <= JOBS_FEW and self.last - self.start >= SOON)

    def _accrue(self, piece: Interval, present: Mapping[str, tuple[Work, State]], ended: Sequence[Run]) -> None:
        busy: list[HeldDevices] = []
        for work, state in present.values():
            duration = piece.end - max(piece.start, work.started_at)
            if duration <= timedelta(0) or state not in (State.RUNNING, State.PAUSED):
                continue
            busy.append(work.held)
            drawn = self._drawn.setdefault(work.job, _Drawn(work))
            if state is State.RUNNING:
                drawn.running_kwh += work.held.running_it_kwh(duration)
            else:
                drawn.holding_kwh += work.held.idle_it_kwh(duration)
        for run in ended:
            duration = min(run.end, piece.end) - max(run.start, piece.start)
            if duration > timedelta(0):
                drawn = self._drawn.setdefault(run.work.job, _Drawn(run.work))
                drawn.running_kwh += run.work.held.running_it_kwh(duration)
        self._idle_kwh += _less(self.whole, busy).idle_it_kwh(piece.duration)


def merged(allocations: Sequence[Allocation], interval: Interval) -> tuple[Allocation, ...]:
    """At most `JOBS_MAX` rows and a few: the largest as they are, the rest in one per tenant and home."""
    ranked = sorted(allocations, key=lambda one: (-one.it_kwh, one.job))
    small: dict[tuple[str, str], Allocation] = {}
    counts: dict[tuple[str, str], int] = {}
    for one in ranked[JOBS_MAX:]:
        key = (one.tenant, one.home)
        known = small.get(key)
        counts[key] = counts.get(key, 0) + 1
        small[key] = replace(
            one,
            job=f"small jobs of {one.tenant} from {one.home}",
            submitted_at=interval.start,
            ran_s_before=0.0,
            scheduling_class="",
            data_ids=(),
            it_kwh=one.it_kwh + (known.it_kwh if known else 0.0),
            holding_it_kwh=one.holding_it_kwh + (known.holding_it_kwh if known else 0.0),
        )
    together = [replace(one, method=f"{one.method}; {counts[key]} jobs together") for key, one in small.items()]
    return (*ranked[:JOBS_MAX], *together)


def work_of(workload: Workload, nodes: Mapping[str, Node]) -> Work | None:
    """What a workload holds here; None before it has started, and where it stands on no node of this hub."""
    tasks = [task for task in workload.placement if task.node_id in nodes]
    if workload.started_at is None or not tasks:
        return None
    return Work(
        job=workload.id,
        tenant=workload.tenant,
        home=workload.owner_hub,
        submitted_at=workload.created_at,
        started_at=workload.started_at,
        scheduling_class=str(workload.spec.turn_class),
        data_ids=workload.data_ids,
        held=_held(workload, tasks, nodes),
    )


def load_kw(present: Mapping[str, tuple[Work, State]], whole: HeldDevices) -> float:
    """What the hub draws, without cooling: running work at its plates, everything else idle."""
    hour = timedelta(hours=1)
    running = [work.held for work, state in present.values() if state is State.RUNNING]
    return sum(held.running_it_kwh(hour) for held in running) + _less(whole, running).idle_it_kwh(hour)


def whole_of(hub: Hub) -> HeldDevices:
    return HeldDevices(
        gpu_power_w=sum(gpu.model.power_w for node in hub.nodes for gpu in node.gpus),
        host_power_w=sum(node.host_power_w for node in hub.nodes),
    )


def _held(workload: Workload, tasks: Sequence[TaskPlacement], nodes: Mapping[str, Node]) -> HeldDevices:
    """Plates of its GPUs, and of each host the share of its GPUs; of its processors where it has no GPU."""
    share, cpus = workload.spec.resources.gpu_milli / 1000, workload.spec.resources.cpus
    gpu_w = host_w = 0.0
    for task in tasks:
        node = nodes[task.node_id]
        gpu_w += len(task.gpu_ids) * share * node.gpu_model.power_w
        of_host = len(task.gpu_ids) * share / len(node.gpus) if task.gpu_ids else cpus / node.cpus
        host_w += min(1.0, of_host) * node.host_power_w
    return HeldDevices(gpu_power_w=gpu_w, host_power_w=host_w)


def _less(whole: HeldDevices, parts: Iterable[HeldDevices]) -> HeldDevices:
    gpu_w, host_w = whole.gpu_power_w, whole.host_power_w
    for part in parts:
        gpu_w, host_w = gpu_w - part.gpu_power_w, host_w - part.host_power_w
    return HeldDevices(gpu_power_w=max(0.0, gpu_w), host_power_w=max(0.0, host_w))


def _allocation(drawn: _Drawn, interval: Interval) -> Allocation:
    work = drawn.work
    return Allocation(
        job=work.job,
        tenant=work.tenant,
        home=work.home,
        submitted_at=work.submitted_at,
        it_kwh=drawn.running_kwh + drawn.holding_kwh,
        holding_it_kwh=drawn.holding_kwh,
        evidence=Evidence.ESTIMATED,
        method=METHOD,
        scheduling_class=work.scheduling_class,
        data_ids=work.data_ids,
        ran_s_before=max(0.0, (interval.start - work.started_at).total_seconds()),
    )

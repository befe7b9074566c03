"""What does the job machine remember of power? The newest plan, who is held back until when, who is asked for whom.

In memory only: what must survive is on the workloads. Every wait ends by two clocks, whichever is first: the time of
day, and the seconds since the machine started. So a clock that is set back cannot make a promise late.
"""

# harch: pure

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from harch.carbon.planning.capacity import CapacityLedger
from harch.carbon.planning.decisions import CarbonDecision
from harch.carbon.planning.dispatch import Budgets
from harch.carbon.planning.outlook import Pool
from harch.wire.carbon import CarbonChoice
from harch.workloads.lifecycle import Workload

PLAN_HOLDS_S = 1800.0  # an older plan is none: work then starts as if nobody planned
FIRST_PLAN_S = 60.0  # how long work with slack waits for the first plan after a start of the hub
OFFER_THERE_S = 5.0  # how long another hub is asked before home is looked at
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class ForecastBasis:
    """On what a hub's hours rest, and how old the oldest of them is."""

    rests_on: str
    at: datetime


class Intent(Struct, frozen=True, array_like=True, gc=False):
    """So much work of one hub is to start at another one then; announced to all, so that they plan around it."""

    hub_id: str
    model: str
    at: datetime
    gpus: float
    hours: float


@dataclass(frozen=True, eq=False)
class HubPlan:
    """A plan with what it needs to be read later. Its first step began at `at`."""

    at: datetime
    book: CapacityLedger
    step_s: float = HOUR_S
    decisions: Mapping[str, CarbonDecision] = field(default_factory=dict)  # by workload
    attempts: Mapping[str, int] = field(default_factory=dict)  # of what ran when the plan was made
    basis: Mapping[str, ForecastBasis] = field(default_factory=dict)  # by hub
    tenant_g_left: Mapping[str, float] = field(default_factory=dict)
    all_g_left: float | None = None
    announced: tuple[Intent, ...] = ()  # what this hub means to start at others
    notes: tuple[str, ...] = ()

    @cached_property
    def pools(self) -> Mapping[tuple[str, str], Pool]:
        return {pool.key: pool for pool in self.book.outlook.pools}

    def moment(self, step: int) -> datetime:
        return self.at + timedelta(seconds=step * self.step_s)


@dataclass(frozen=True, slots=True)
class Route:
    """Hubs that are asked before home, best first."""

    hubs: tuple[str, ...]


@dataclass
class CarbonMemory:
    """Of one job machine."""

    plan: HubPlan | None = None
    routes: dict[str, Route] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    watched: set[str] = field(default_factory=set)  # in the queue, promised to start
    hubs_known: dict[object, frozenset[str]] = field(default_factory=dict)  # where work without data may run, by shape
    reserved: dict[str, float] = field(default_factory=dict)  # grams given out since the plan came, by tenant
    _plan_s: float = -math.inf  # when it came, by the boot clock
    _moved_s: deque[float] = field(default_factory=deque)
    _timers: dict[str, tuple[float, float]] = field(default_factory=dict)  # time of day, boot clock
    _by_time: list[tuple[float, str]] = field(default_factory=list)
    _by_boot: list[tuple[float, str]] = field(default_factory=list)

    # The plan

    def planned(self, plan: HubPlan, boot_s: float) -> None:
        self.plan, self._plan_s, self.reserved, self.hubs_known = plan, boot_s, {}, {}

    def fresh_plan(self, now: datetime, boot_s: float) -> HubPlan | None:
        """None if there is none, or if it is too old by either clock."""
        plan = self.plan
        if plan is None or boot_s - self._plan_s > PLAN_HOLDS_S:
            return None
        return plan if abs((now - plan.at).total_seconds()) <= PLAN_HOLDS_S else None

    # Budgets

    def budgets(self, tenant: str) -> Budgets:
        """What is left now: as the plan counted it, less what was given out since."""
        plan = self.plan
        if plan is None:
            return Budgets()
        left = plan.tenant_g_left.get(tenant)
        return Budgets(
            tenant_g_left={} if left is None else {tenant: left - self.reserved.get(tenant, 0.0)},
            all_g_left=None if plan.all_g_left is None else plan.all_g_left - sum(self.reserved.values()),
        )

    def reserve(self, tenant: str, grams: float) -> None:
        self.reserved[tenant] = self.reserved.get(tenant, 0.0) + grams

    # Who waits

    def keeps_waiting(
        self, workload: Workload, *, home: str, offers_elsewhere: bool, now: datetime, boot_s: float
    ) -> bool:
        """Held back, or other hubs are asked before home is: then it does not join the queue of its home yet."""
        choice = workload.carbon
        if choice is None or workload.borrowed:
            return False
        if choice.held and _until(choice, now) > now:
            self.hold(workload, choice, now=now, boot_s=boot_s)
            return True
        if choice.held:  # its hour came while it was paused, or while the hub was away
            choice = workload.carbon = replace(choice, held=False)
        hubs = cleaner_hubs(choice, home) if offers_elsewhere and not choice.requested_there else ()
        if hubs:
            self.routes[workload.id] = Route(hubs)
            self._set_timer(workload.id, math.inf, boot_s + OFFER_THERE_S)
        elif choice.start_by is not None and not workload.attempt and choice.start_by > now:
            self.watched.add(workload.id)
            self._set_timer(workload.id, choice.start_by.timestamp(), math.inf)
        return bool(hubs)

    def hold(self, workload: Workload, choice: CarbonChoice, *, now: datetime, boot_s: float) -> None:
        """Until its planned start, never beyond its promise. A clock that was set back does not make that longer."""
        self.held.add(workload.id)
        until = _until(choice, now)
        wait_s = min(until - now, until - max(choice.decided_at, workload.created_at)).total_seconds()
        self._set_timer(workload.id, until.timestamp(), boot_s + max(wait_s, 0.0))

    def forget(self, workload_id: str) -> None:
        """It waits no longer, or for something else."""
        self.held.discard(workload_id)
        self.watched.discard(workload_id)
        self.routes.pop(workload_id, None)
        self._timers.pop(workload_id, None)

    def is_due(self, now_s: float, boot_s: float) -> bool:
        by_time, by_boot = self._by_time, self._by_boot
        return bool((by_time and by_time[0][0] <= now_s) or (by_boot and by_boot[0][0] <= boot_s))

    def take_due(self, now_s: float, boot_s: float) -> list[str]:
        """Those whose wait is over, the longest over first; their timers are gone."""
        due: list[tuple[float, str]] = []
        for heap, clock_s, part in ((self._by_time, now_s, 0), (self._by_boot, boot_s, 1)):
            while heap and heap[0][0] <= clock_s:
                at_s, workload_id = heapq.heappop(heap)
                timer = self._timers.get(workload_id)
                if timer is not None and timer[part] == at_s:
                    del self._timers[workload_id]
                    due.append((at_s - clock_s, workload_id))
        return [workload_id for _, workload_id in sorted(due)]

    def _set_timer(self, workload_id: str, time_s: float, boot_s: float) -> None:
        self._timers[workload_id] = (time_s, boot_s)
        if time_s < math.inf:
            heapq.heappush(self._by_time, (time_s, workload_id))
        if boot_s < math.inf:
            heapq.heappush(self._by_boot, (boot_s, workload_id))
        # Beyond this, most of it is about timers that were set anew.
        if len(self._by_boot) + len(self._by_time) > 1000 + 4 * len(self._timers):
            self._by_time = _live(((times[0], key) for key, times in self._timers.items() if times[0] < math.inf))
            self._by_boot = _live((times[1], key) for key, times in self._timers.items() if times[1] < math.inf)

    # Moves

    def may_move(self, boot_s: float, *, moves_per_hour: int) -> bool:
        """Within the limit of an hour."""
        while self._moved_s and self._moved_s[0] <= boot_s - HOUR_S:
            self._moved_s.popleft()
        return len(self._moved_s) < moves_per_hour

    def moved(self, boot_s: float) -> None:
        self._moved_s.append(boot_s)


def _until(choice: CarbonChoice, now: datetime) -> datetime:
    """Its planned start, or the time to join the queue for its promise."""
    return min((at for at in (choice.start_at, choice.release_at) if at is not None), default=now)


def cleaner_hubs(choice: CarbonChoice, home: str) -> tuple[str, ...]:
    """Where it is to be asked for first, best first; empty if home is best."""
    if choice.hub_id in ("", home) or choice.at_once is None:
        return ()
    others = [one.hub_id for one in choice.options if one.cost_g < choice.at_once.cost_g and one.hub_id != home]
    return tuple(dict.fromkeys((choice.hub_id, *others)))


def _live(timers: Iterable[tuple[float, str]]) -> list[tuple[float, str]]:
    heap = list(timers)
    heapq.heapify(heap)
    return heap

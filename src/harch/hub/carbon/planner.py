"""When is a new plan made, and by what? Every few minutes, and when power changes much; in a thread, and it may fail.

The event loop only takes the snapshot. A plan that cannot be made costs a log line; the old one holds for half an
hour, and then work starts as if nobody planned.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

import msgspec

from harch.base.clock import Clock
from harch.carbon.planning.settings import PlanSettings
from harch.fleet.model import Fleet
from harch.hub.carbon.budgets import SharedBudgets, Spent, Used, left, month_of, read_spent, used
from harch.hub.carbon.snapshot import INTENTS_MAX, KnownPower, make_plan, take
from harch.hub.jobs import events as ev
from harch.hub.jobs.carbon_plan import Intent
from harch.hub.jobs.runtime import JobRuntime
from harch.hub.store.database import Database
from harch.hub.views import PeerView

FIRST_S = 0.5
LOOK_S = 10.0
CHANGE_SHARE = 0.2  # of what one more kWh emits, at any hub: then the plan is made anew
LEDGER_LOOK_S = 300.0  # how often the ledger is added up, where there are budgets

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[Intent, ...]).decode


class Planner:
    """One hub's plans. `known` gives what is known of all hubs' power now."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        hub_id: str,
        clock: Clock,
        database: Database,
        jobs: JobRuntime,
        settings: PlanSettings,
        peers: Callable[[], list[PeerView]],
        known: Callable[[], KnownPower],
    ) -> None:
        self._fleet, self._hub_id, self._clock, self._database, self._jobs = fleet, hub_id, clock, database, jobs
        self._settings, self._peers, self._known = settings, peers, known
        self._planned_s: float | None = None
        self._planned_with: dict[str, float] = {}
        self._forecasts: set[str] = set()
        self._spent, self._spent_s, self._month = Spent(), -LEDGER_LOOK_S, ""
        self._used: Used | None = None
        self._shared = SharedBudgets(fleet.name)
        self.published_spent: bytes | None = None  # for the gossip, which asks several times a second
        # Hubs plan at different moments, so that each knows what the others mean to do.
        self._offset_s = zlib.crc32(hub_id.encode()) / 2**32 * settings.planning.every_s / 2
        self.announced: tuple[Intent, ...] = ()
        jobs.plan_by(settings)

    def published(self) -> bytes:
        return _encode(self.announced)

    def publish_spent(self) -> None:
        """What tenants with a budget have used up here, where budgets are shared."""
        if self._used is None or not self._settings.budgets.shared or not self._settings.budgets.tenants:
            return
        since = self._jobs.machine.state.carbon.reserved
        grams = {tenant: g + since.get(tenant, 0.0) for tenant, g in self._used.tenants.items()}
        self.published_spent = self._shared.published(self._month, grams)

    async def run(self, survived: Callable[[str], contextlib.AbstractContextManager[None]]) -> None:
        """Until cancelled. `survived` is the edge that a fault does not cross."""
        await self._clock.sleep(FIRST_S)
        look_s = min(LOOK_S, self._settings.planning.every_s)
        while True:
            with survived("carbon planning"):
                if self.is_due():
                    await self.plan()
            with survived("reporting what tenants spent"):
                self.publish_spent()
            await self._clock.sleep(look_s)

    def is_due(self) -> bool:
        if self._jobs.not_ready:
            return False
        if self._planned_s is None or self._jobs.machine.state.carbon.plan is None:
            return True
        every_s = self._settings.planning.every_s
        return self._clock.monotonic_s() - self._planned_s >= every_s or self._has_changed()

    async def plan(self) -> None:
        now_s = self._clock.monotonic_s()
        self._planned_s = now_s + (self._offset_s if self._planned_s is None else 0.0)
        await self._add_up()
        known, now = self._known(), self._clock.now()
        self._planned_with, self._forecasts = _marginal(known), set(known.forecasts)
        state = self._jobs.machine.state
        snapshot = take(state, self._jobs.context(), self._fleet, self._peers(), known)
        if self._settings.has_budgets:
            own = [one for one in state.registry.workloads.values() if not one.borrowed]
            unfinished = [one for one in own if not one.state.is_final]
            self._used = used(self._settings, self._spent, unfinished)
            tenants, whole = left(self._settings, self._used, self._elsewhere(known, now))
            snapshot = replace(snapshot, tenant_g_left=tenants, all_g_left=whole)
        made = await asyncio.to_thread(make_plan, snapshot)
        if made is None:
            return
        self.announced = made.announced
        await self._jobs.handle(ev.CarbonPlanned(made))
        self._jobs.plan_placement()

    def _elsewhere(self, known: KnownPower, now: datetime) -> Mapping[str, float]:
        if not self._settings.budgets.shared:
            return {}
        self._shared.hear(known.spent)
        return self._shared.elsewhere(month_of(now), self._settings.budgets.tenants)

    async def _add_up(self) -> None:
        """What was spent this month, where anybody has a budget."""
        now = self._clock.now()
        due = self._clock.monotonic_s() - self._spent_s >= LEDGER_LOOK_S or month_of(now) != self._month
        if self._settings.has_budgets and due:
            self._spent = await asyncio.to_thread(read_spent, self._database, self._hub_id, self._settings, now)
            self._spent_s, self._month = self._clock.monotonic_s(), month_of(now)

    def _has_changed(self) -> bool:
        """A hub or its forecast is new, or one more kWh emits much more or less than when the plan was made."""
        known = self._known()
        before, now = self._planned_with, _marginal(known)
        if not now.keys() <= before.keys() or not known.forecasts.keys() <= self._forecasts:
            return True
        return any(
            abs(g - before[hub]) > CHANGE_SHARE * max(before[hub], 1.0) for hub, g in now.items() if hub in before
        )


def received_intents(value: bytes | None) -> tuple[Intent, ...]:
    """None of what cannot be read: another version, or a liar."""
    try:
        return () if value is None else _decode(value)[:INTENTS_MAX]
    except msgspec.DecodeError:
        return ()


def _marginal(known: KnownPower) -> dict[str, float]:
    return {hub: one.marginal_g_per_kwh for hub, one in known.powers.items() if one.marginal_g_per_kwh is not None}

"""What became of the plan? Gathers each step as it comes, and accounts for it beside the rule when it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np

from harch.energy.procurement.execution import carried_out
from harch.energy.procurement.period_balance import PeriodBalance, first_step
from harch.energy.procurement.plan import ProcurementPlan
from harch.energy.procurement.problem import ProcurementProblem
from harch.energy.site import EnergySite
from harch.energy.steps import Array
from harch.hub.energy.outlook import REMEMBER, Account, Gathered, Planned, StepRecord, month_end, step_of


class Follower:
    """One hub's steps, from `past` on. Nothing moves the battery by it: where no meter tells, it is modelled."""

    def __init__(self, site: EnergySite, past: Iterable[StepRecord]) -> None:
        self._site = site
        self._past: deque[StepRecord] = deque(past)
        self._gathered: Gathered | None = None
        self._plan: ProcurementPlan | None = None  # as it stood when the running step began, or first after that
        self._problem: ProcurementProblem | None = None

    @property
    def past(self) -> Sequence[StepRecord]:
        return tuple(self._past)

    def account(self, now: datetime, metered_kwh: float | None) -> Account:
        """The month so far. A new month, or a battery of another size, begins with both alike."""
        last = self._past[-1] if self._past else None
        stored = self._stored_kwh(last, metered_kwh)
        if last is None or month_end(last.at) <= now:
            return Account(
                since=step_of(now, self._site.step_s), standing=PeriodBalance(stored_kwh=stored, rule_stored_kwh=stored)
            )
        most = self._site.battery.energy_kwh if self._site.battery is not None else 0.0
        standing = PeriodBalance(
            stored_kwh=stored,
            rule_stored_kwh=min(last.rule_stored_kwh, most),
            emitted_kg=last.emitted_kg,
            rule_emitted_kg=last.rule_emitted_kg,
        )
        return Account(since=last.since, standing=standing)

    def note(
        self,
        now: datetime,
        *,
        load_kw: float,
        own_kw: float,
        g_per_kwh: float | None,
        per_mwh: float | None,
        stored_kwh: float | None,
        plan: Planned | None,
    ) -> StepRecord | None:
        """One look at what is drawn. Answers the record of the step that is over since the last one, if any is.

        A clock that was set back begins nothing: its looks are left out until time has come forward again.
        """
        start = step_of(now, self._site.step_s)
        gathered, record = self._gathered, None
        if gathered is not None and start < gathered.start:
            return None
        if gathered is not None and start > gathered.start:
            record = self._close(gathered, stored_kwh)
            gathered = None
        if gathered is None:
            gathered = self._gathered = Gathered(start)
            self._plan = None
        gathered.note(load_kw, own_kw, g_per_kwh, per_mwh)
        if self._plan is None and plan is not None and plan.plan.steps.start == start:
            self._plan, self._problem = plan.plan, plan.expected.problem
        return record

    def _close(self, gathered: Gathered, metered_kwh: float | None) -> StepRecord | None:
        """None if no plan was made in that step: nothing was expected of it, and nothing is accounted for."""
        if self._plan is None or self._problem is None or (self._past and self._past[-1].at >= gathered.start):
            return None
        account = self.account(gathered.start, None)
        hour = self._as_it_came(self._problem, gathered, account.standing.stored_kwh)
        done = carried_out(hour, self._plan, stored_after_kwh=metered_kwh if self._site.battery is not None else None)
        standing = account.standing.after(hour, done)
        record = StepRecord(
            at=gathered.start,
            step_s=self._site.step_s,
            load_kwh=float(hour.load_kwh[0]),
            own_kwh=float(hour.own_kwh[0]),
            import_kwh=float(done.import_kwh[0]),
            agreements_kwh=float(sum((values[0] for values in done.ppa_kwh.values()), 0.0)),
            charge_kwh=float(done.charge_kwh[0]),
            discharge_kwh=float(done.discharge_kwh[0]),
            stored_kwh=standing.stored_kwh,
            rule_stored_kwh=standing.rule_stored_kwh,
            grid_g_per_kwh=float(hour.grid_g_per_kwh[0]),
            per_mwh=gathered.per_mwh,
            since=account.since,
            emitted_kg=standing.emitted_kg,
            rule_emitted_kg=standing.rule_emitted_kg,
            planner=str(self._plan.planner),
        )
        self._past.append(record)
        while self._past[0].at < gathered.start - REMEMBER:
            self._past.popleft()
        return record

    def _as_it_came(self, expected: ProcurementProblem, gathered: Gathered, stored_kwh: float) -> ProcurementProblem:
        hour = first_step(expected)
        hours = hour.steps.hours
        g_per_kwh, price = gathered.g_per_kwh, gathered.per_mwh

        def one(value: float) -> Array:
            return np.array([value])

        return replace(
            hour,
            load_kwh=one(gathered.load_kw * hours),
            own_kwh=one(gathered.own_kw * hours),
            grid_g_per_kwh=hour.grid_g_per_kwh if g_per_kwh is None else one(g_per_kwh),
            import_per_mwh=hour.import_per_mwh if price is None else one(price + self._site.tariff.fee_per_mwh),
            stored_kwh=stored_kwh,
        )

    def _stored_kwh(self, last: StepRecord | None, metered_kwh: float | None) -> float:
        battery = self._site.battery
        if battery is None:
            return 0.0
        if metered_kwh is not None:
            return min(max(metered_kwh, 0.0), battery.energy_kwh)
        if last is not None:
            return min(last.stored_kwh, battery.energy_kwh)
        return battery.energy_kwh * self._site.battery_stored_share

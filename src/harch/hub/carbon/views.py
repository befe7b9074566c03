"""What does a hub tell about its power? Figures that name their kind, their source and whether they were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import fsum

from msgspec import Struct

from harch.carbon.ledger.budgets import month_bounds
from harch.carbon.ledger.chain import LedgerRow
from harch.carbon.ledger.report import CarbonReport, GroupBy, as_csv, as_plain, report, totals
from harch.carbon.values import Method
from harch.hub.jobs.carbon_plan import CarbonMemory
from harch.wire.carbon import CarbonPlanView, ForecastHour, HubReport, JobCarbon, Piece, PlannedHub, Used


class PastHour(Struct, frozen=True, kw_only=True):
    """The mean of what was read of the grid in one hour. `estimated`: by the model alone."""

    at: datetime
    g_per_kwh: float
    estimated: bool


# What does the hub's newest plan rest on, and what does it hold back? For operators and for tests. Pure.


def plan_view(
    memory: CarbonMemory, hub_id: str, *, applies_to: str, now: datetime, boot_s: float, tenant: str | None
) -> CarbonPlanView:
    """`tenant` None: the budgets of all."""
    plan = memory.plan
    view = CarbonPlanView(
        hub_id=hub_id,
        applies_to=applies_to,
        step_s=0.0,
        held=len(memory.held),
        requested_elsewhere=len(memory.routes),
    )
    if plan is None:
        return view
    hubs = tuple(
        PlannedHub(
            hub_id=one.hub,
            rests_on=plan.basis[one.hub].rests_on,
            data_at=plan.basis[one.hub].at,
            pue=one.pue,
            transmission_loss=one.transmission_loss,
            grid_g_per_kwh=tuple(round(float(g), 2) for g in one.grid_g_per_kwh),
            spare_kw=tuple(round(float(kw), 2) for kw in one.onsite_kw),
        )
        for one in plan.book.outlook.hubs
        if one.hub in plan.basis
    )
    return CarbonPlanView(
        hub_id=hub_id,
        at=plan.at,
        fresh=memory.fresh_plan(now, boot_s) is not None,
        applies_to=view.applies_to,
        step_s=plan.step_s,
        held=view.held,
        requested_elsewhere=view.requested_elsewhere,
        decisions=len(plan.decisions),
        all_g_left=plan.all_g_left if tenant is None else None,
        tenant_g_left={name: g for name, g in plan.tenant_g_left.items() if tenant in (None, name)},
        hubs=hubs,
        notes=plan.notes,
    )


# Where and when would this work run cleanest? Advice for whoever asks: nothing is placed by it. Pure.


class Action(StrEnum):
    """The words of the public clients."""

    SCHEDULE_NOW = "schedule_now"
    DEFER = "defer"
    REJECT = "reject"
    NO_SUITABLE_HUB = "no_suitable_hub"


class Option(Struct, frozen=True, kw_only=True):
    """A hub that could run it now. `g_per_kwh` is of one more kWh at its meter, estimated."""

    hub_id: str
    name: str
    country: str
    grid_zone: str
    g_per_kwh: float
    pue: float
    gpus_free: int
    renewable_share: float | None = None
    ahead: tuple[ForecastHour, ...] = ()


class Advice(Struct, frozen=True, kw_only=True):
    """`start` None: now. `others` are the remaining hubs, cleanest first."""

    action: Action
    reason: str
    option: Option | None = None
    start: datetime | None = None
    g_per_kwh: float = 0.0
    others: tuple[Option, ...] = ()


def advise(
    options: Sequence[Option], *, g_per_kwh_max: float | None, defer_ok: bool, now: datetime, refused: Action
) -> Advice:
    """The cleanest hub; above the ceiling, the first hour at which a forecast is below it, or a refusal."""
    ranked = sorted(options, key=lambda option: (option.g_per_kwh * option.pue, option.hub_id))
    if not ranked:
        return Advice(action=refused, reason="no hub that answers has the GPUs there")
    best, others = ranked[0], tuple(ranked[1:])
    reason = f"one more kWh at {best.name} emits {best.g_per_kwh:.0f} g (estimated)"
    if g_per_kwh_max is None or best.g_per_kwh <= g_per_kwh_max:
        return Advice(action=Action.SCHEDULE_NOW, reason=reason, option=best, g_per_kwh=best.g_per_kwh, others=others)
    if defer_ok:
        later = [
            (hour.at, hour.g_per_kwh, option.hub_id, option)
            for option in ranked
            for hour in option.ahead
            if hour.at > now and hour.g_per_kwh <= g_per_kwh_max
        ]
        if later:
            at, g_per_kwh, _, option = min(later, key=lambda found: found[:3])
            return Advice(
                action=Action.DEFER,
                reason=f"{reason}; from {at:%Y-%m-%d %H:%M} UTC {option.name} is forecast below {g_per_kwh_max:g}",
                option=option,
                start=at,
                g_per_kwh=g_per_kwh,
                others=tuple(other for other in ranked if other is not option),
            )
    return Advice(
        action=refused,
        reason=f"{reason}, which is above {g_per_kwh_max:g}, and no forecast hour is below",
        g_per_kwh=best.g_per_kwh,
        others=tuple(ranked),
    )


class GreenWindow(Struct, frozen=True, kw_only=True):
    """Hours in a row at or below a threshold."""

    start: datetime
    end: datetime
    g_per_kwh_min: float
    g_per_kwh_mean: float


def green_windows(hours: Sequence[ForecastHour], g_per_kwh_max: float) -> list[GreenWindow]:
    windows: list[GreenWindow] = []
    run: list[ForecastHour] = []
    for hour in [*hours, None]:
        if hour is not None and hour.g_per_kwh <= g_per_kwh_max:
            run.append(hour)
        elif run:
            values = [one.g_per_kwh for one in run]
            windows.append(
                GreenWindow(
                    start=run[0].at,
                    end=run[-1].at + timedelta(hours=1),
                    g_per_kwh_min=min(values),
                    g_per_kwh_mean=sum(values) / len(values),
                )
            )
            run = []
    return windows


# What did a tenant, a job, a dataset or a month cost, and why? Rows of the ledger in, answers for people out.


PIECES_MAX = 48  # intervals that are shown one by one, the newest


class ReportQuery(Struct, frozen=True, kw_only=True):
    """Which rows, and one line for what? `tenant` None: all. `data` is an id."""

    by: GroupBy = GroupBy.TENANT
    tenant: str | None = None
    job: str | None = None
    data: str | None = None
    month: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def span(self) -> tuple[datetime, datetime]:
        """Raises E0201 for what is no month."""
        if self.month is not None:
            return month_bounds(self.month)
        return self.since or datetime(1970, 1, 1, tzinfo=UTC), self.until or datetime(9999, 1, 1, tzinfo=UTC)


def hub_report(rows: Sequence[LedgerRow], query: ReportQuery, *, hub_id: str, at: datetime) -> HubReport:
    made = _of_data(rows, query.data) if query.data is not None else report(rows, query.by)
    open_kwh = fsum(row.charge.supply.kwh for row in rows if not row.seq)
    saved = made.total.saved
    used = Used(
        kwh=made.total.energy.kwh,
        g=made.total.footprint.total(Method.LOCATION).g,
        saved_g=saved.by(Method.LOCATION).g if saved is not None else 0.0,
        estimated_share=1.0 - made.total.measured_share,
        onsite_kwh=made.total.onsite.kwh,
        jobs=len({row.charge.job for row in rows if row.charge.job}),
        jobs_away=len({row.charge.job for row in rows if row.charge.job and row.charge.home != row.charge.hub}),
    )
    return HubReport(hub_id=hub_id, at=at, not_booked_kwh=open_kwh, report=as_plain(made), csv=as_csv(made), used=used)


def job_carbon(rows: Sequence[LedgerRow], job: str, *, hub_id: str, at: datetime) -> JobCarbon:
    return JobCarbon(
        workload_id=job,
        hub_id=hub_id,
        at=at,
        report=as_plain(report(rows, GroupBy.HUB)),
        pieces=tuple(map(_piece, rows[-PIECES_MAX:])),
        pieces_total=len(rows),
    )


def _of_data(rows: Sequence[LedgerRow], data_id: str) -> CarbonReport:
    """The part of one dataset: jobs that read several count in part."""
    readers = [row for row in rows if data_id in row.charge.data_ids]
    made = report(readers, GroupBy.DATASET)
    own = {name: line for name, line in made.lines.items() if name == data_id}
    return replace(made, lines=own, total=own.get(data_id) or totals([]))


def _piece(row: LedgerRow) -> Piece:
    charge = row.charge
    naive = charge.naive_footprint
    return Piece(
        start=charge.interval.start,
        end=charge.interval.end,
        kwh=charge.supply.kwh,
        onsite_kwh=charge.supply.onsite_kwh,
        g=charge.footprint.total(Method.LOCATION).g,
        grid_g_per_kwh=charge.factors.grid.g_per_kwh,
        grid_source=charge.factors.grid.source,
        grid_evidence=str(charge.factors.grid.evidence),
        booked=row.seq > 0,
        naive_g=None if naive is None else naive.total(Method.LOCATION).g,
        naive_home="" if charge.naive is None else charge.naive.home,
        naive_missing=charge.naive_missing,
    )

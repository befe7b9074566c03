"""What did a tenant, a job, a dataset or a month cost, and why? Rows of the ledger in, answers for people out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import fsum

from msgspec import Struct

from harch.carbon.ledger.budgets import month_bounds
from harch.carbon.ledger.chain import LedgerRow
from harch.carbon.ledger.export import as_csv, as_plain
from harch.carbon.ledger.report import CarbonReport, GroupBy, report
from harch.carbon.ledger.totals import totals
from harch.carbon.values import Method
from harch.workloads.carbon import CarbonChoice

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


class Used(Struct, frozen=True, kw_only=True):
    """The sum of a report, by location with own plants. `saved_g` is against the naive choice, where that is known."""

    kwh: float = 0.0
    g: float = 0.0
    saved_g: float = 0.0
    estimated_share: float = 0.0
    onsite_kwh: float = 0.0  # part of `kwh`
    jobs: int = 0
    jobs_away: int = 0  # jobs that another hub owns: they ran here instead of at home


class HubReport(Struct, frozen=True, kw_only=True):
    """One hub's part. `not_booked_kwh` is of the interval that still runs: its figures may yet change."""

    hub_id: str
    at: datetime
    not_booked_kwh: float
    report: dict[str, object]
    csv: str
    used: Used


class Piece(Struct, frozen=True, kw_only=True):
    """One interval of a job. Grams are with own plants, by location."""

    start: datetime
    end: datetime
    kwh: float
    onsite_kwh: float
    g: float
    grid_g_per_kwh: float
    grid_source: str
    grid_evidence: str
    booked: bool
    naive_g: float | None = None
    naive_home: str = ""
    naive_missing: str = ""


class JobCarbon(Struct, frozen=True, kw_only=True):
    """What one job used at one hub, what the naive choice would have cost, and on what the figures rest."""

    workload_id: str
    hub_id: str
    at: datetime
    report: dict[str, object]
    pieces: tuple[Piece, ...] = ()
    pieces_total: int = 0
    choice: CarbonChoice | None = None  # of the hub that owns it: what was decided, and promised
    plan: tuple[str, ...] = ()  # the same in sentences


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

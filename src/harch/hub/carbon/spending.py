"""How much of a month's budget is left? From the ledger, by location with own plants, and from what was promised.

Spent is what the rows of this hub say. Work of this hub that others run is in their ledgers: of it, what was planned
counts. What waits and runs counts with what it is still expected to emit, so that no gram is given out twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from harch.carbon.ledger.budgets import month_bounds
from harch.carbon.ledger.chain import LedgerRow
from harch.carbon.planning.settings import PlanSettings
from harch.carbon.values import Method
from harch.hub.store import ledger_rows
from harch.hub.store.database import Database
from harch.hub.views import WorkloadQuery
from harch.workloads.lifecycle import Workload

PAGE = 500
ELSEWHERE_MAX = 20_000  # workloads of a tenant that are looked through, the newest


@dataclass(slots=True)
class Spent:
    """Grams of one month, up to now."""

    tenants: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    jobs: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    total_g: float = 0.0


def month_of(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m")


def spent_in(rows: Iterable[LedgerRow], own: str) -> Spent:
    """From rows that count. Work of other hubs is on their budgets; power that nobody held is on the hub's."""
    spent = Spent()
    for row in rows:
        charge = row.charge
        if charge.home != own:
            continue
        grams = charge.footprint.total(Method.LOCATION).g
        spent.total_g += grams
        if charge.job:
            spent.tenants[charge.tenant] += grams
            spent.jobs[charge.job] += grams
    return spent


def read_spent(database: Database, own: str, settings: PlanSettings, now: datetime) -> Spent:
    """Slow: call it in a thread."""
    start, end = month_bounds(month_of(now))
    spent = spent_in(ledger_rows.current_rows(database, start, end), own)
    for tenant in settings.budgets.tenants:
        for workload in _newest(database, tenant):
            if workload.created_at < start:
                break
            choice = workload.carbon
            if choice is not None and workload.runner_hub and workload.state.is_final and not workload.guest:
                spent.tenants[tenant] += choice.reserved_g
                spent.total_g += choice.reserved_g
    return spent


@dataclass(frozen=True, slots=True)
class Used:
    """Grams of this month that nobody else can have: what was spent, and what waits and runs is expected to emit."""

    tenants: Mapping[str, float]  # those that have a budget
    total_g: float


def used(settings: PlanSettings, spent: Spent, unfinished: Iterable[Workload]) -> Used:
    due: defaultdict[str, float] = defaultdict(float)
    for workload in unfinished:
        if workload.carbon is not None:
            due[workload.tenant] += max(workload.carbon.reserved_g - spent.jobs.get(workload.id, 0.0), 0.0)
    tenants = {tenant: spent.tenants.get(tenant, 0.0) + due.get(tenant, 0.0) for tenant in settings.budgets.tenants}
    return Used(tenants, spent.total_g + sum(due.values()))


def left(
    settings: PlanSettings, here: Used, elsewhere: Mapping[str, float]
) -> tuple[Mapping[str, float], float | None]:
    """Grams that may still be given out: by tenant with a budget, and of all work of the hub together."""
    tenants = {
        tenant: budget - here.tenants.get(tenant, 0.0) - elsewhere.get(tenant, 0.0)
        for tenant, budget in settings.tenants().items()
    }
    whole = settings.budget_of_all
    return tenants, None if whole is None else whole - here.total_g


def _newest(database: Database, tenant: str) -> Iterable[Workload]:
    for page in range(1, ELSEWHERE_MAX // PAGE + 1):
        found = database.workloads(WorkloadQuery(tenant=tenant, page=page, per_page=PAGE)).items
        yield from found
        if len(found) < PAGE:
            return

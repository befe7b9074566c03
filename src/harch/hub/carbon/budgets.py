"""How much of a tenant's month did other hubs spend? Each tells the others, so that a budget is one over all of them.

It is as exact as hubs hear each other: within minutes, or while they are cut off, two may give out the same rest. Names
do not travel: only who knows a tenant can tell which figure is its own.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from harch.carbon.ledger.budgets import month_bounds
from harch.carbon.ledger.chain import LedgerRow
from harch.carbon.planning.settings import PlanSettings
from harch.carbon.values import Method
from harch.hub.store import ledger_rows
from harch.hub.store.database import Database
from harch.hub.views import WorkloadQuery
from harch.workloads.lifecycle import Workload

TENANTS_PUBLISHED_MAX = 500  # those that spent most; what is published goes to every hub
HIDDEN_BYTES = 12


class SpentEntry(Struct, frozen=True, array_like=True):
    """Grams of this month by hidden name: spent, and set aside for what waits and runs."""

    month: str
    grams: dict[bytes, float]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SpentEntry).decode


def received_spent(value: bytes | None) -> SpentEntry | None:
    """None of what cannot be read: another version, or a liar. Nobody gives grams back to others."""
    try:
        found = None if value is None else _decode(value)
    except msgspec.DecodeError:
        return None
    if found is None or len(found.grams) > TENANTS_PUBLISHED_MAX:
        return None
    return found if all(math.isfinite(grams) and grams >= 0 for grams in found.grams.values()) else None


class SharedBudgets:
    """What other hubs said last. Of a hub that is away, what it had spent by then still counts."""

    def __init__(self, federation: str) -> None:
        self._federation = federation
        self._received: dict[str, SpentEntry] = {}

    def published(self, month: str, used_g: Mapping[str, float]) -> bytes:
        """`used_g`: by tenant with a budget."""
        most = sorted(used_g, key=lambda tenant: (-used_g[tenant], tenant))[:TENANTS_PUBLISHED_MAX]
        return _encode(SpentEntry(month, {self._hidden(tenant): max(used_g[tenant], 0.0) for tenant in most}))

    def hear(self, entry: Mapping[str, SpentEntry]) -> None:
        """By hub; this one is not among them."""
        self._received.update(entry)

    def elsewhere(self, month: str, tenants: Iterable[str]) -> dict[str, float]:
        """Grams that others spent of the same month, by tenant."""
        received = [one.grams for one in self._received.values() if one.month == month]
        hidden = {tenant: self._hidden(tenant) for tenant in tenants}
        return {tenant: sum(one.get(name, 0.0) for one in received) for tenant, name in hidden.items()}

    def _hidden(self, tenant: str) -> bytes:
        name = f"{self._federation}\0{tenant}".encode()
        return hashlib.blake2b(name, digest_size=HIDDEN_BYTES).digest()


# How much of a month's budget is left? From the ledger, by location with own plants, and from what was promised.


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
            if choice is not None and workload.runner_hub and workload.state.is_final and not workload.borrowed:
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

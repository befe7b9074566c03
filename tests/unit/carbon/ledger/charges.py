"""A hub with factors, energy and jobs for the tests of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from harch.carbon.ledger.accounting import Allocation, HomeConditions, HubEnergyUse, account
from harch.carbon.ledger.chain import BookedCharges, LedgerHead, LinkedRow, book
from harch.carbon.ledger.charge import Charge, Factor, Factors, Interval
from harch.carbon.values import Basis, EmissionScope, Evidence, Method
from harch.hub.store import ledger_rows
from harch.hub.store.database import Database

START = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def hour(number: int = 0) -> Interval:
    return Interval(START + number * HOUR, START + (number + 1) * HOUR)


def factor(
    g_per_kwh: float, method: Method, *, scope: EmissionScope = EmissionScope.LIFECYCLE, basis: Basis = Basis.AVERAGE
) -> Factor:
    return Factor(
        g_per_kwh=g_per_kwh,
        basis=basis,
        scope=scope,
        method=method,
        source="maps",
        evidence=Evidence.MEASURED,
        as_of=START,
    )


def factors(
    grid: float = 600,
    *,
    residual: float = 650,
    contract: float = 11,
    onsite: float = 20,
    scope: EmissionScope = EmissionScope.LIFECYCLE,
) -> Factors:
    return Factors(
        grid=factor(grid, Method.LOCATION, scope=scope),
        residual=factor(residual, Method.MARKET, scope=scope),
        contract=factor(contract, Method.MARKET, scope=scope),
        onsite=factor(onsite, Method.ONSITE, scope=scope),
    )


def energy(
    kwh: float = 100,
    *,
    onsite: float = 0,
    made: float | None = None,
    ppa: float = 0,
    pue: float = 1.25,
    loss: float = 0,
) -> HubEnergyUse:
    return HubEnergyUse(
        kwh=kwh,
        onsite_kwh=onsite,
        onsite_available_kwh=onsite if made is None else made,
        ppa_kwh=ppa,
        pue=pue,
        transmission_loss=loss,
        evidence=Evidence.MEASURED,
        method="facility meter",
    )


def job(
    name: str = "train",
    it_kwh: float = 10,
    *,
    tenant: str = "atlas",
    home: str = "dakhla",
    submitted_at: datetime = START,
    ran_s_before: float = 0,
    holding: float = 0,
    data: tuple[str, ...] = (),
    conditions: HomeConditions | None = None,
    evidence: Evidence = Evidence.ESTIMATED,
) -> Allocation:
    return Allocation(
        job=name,
        tenant=tenant,
        home=home,
        submitted_at=submitted_at,
        it_kwh=it_kwh,
        holding_it_kwh=holding,
        evidence=evidence,
        method="modelled GPU power x share",
        scheduling_class="training",
        data_ids=data,
        ran_s_before=ran_s_before,
        home_conditions=conditions,
    )


def charges_of(
    jobs: Sequence[Allocation], *, number: int = 0, hub: str = "dakhla", of: HubEnergyUse | None = None
) -> tuple[Charge, ...]:
    return account(hour(number), hub, of or energy(), jobs, factors())


def booked_hours(hours: int, jobs: Sequence[Allocation] = (job(),)) -> tuple[list[LinkedRow], LedgerHead]:
    """So many hours of a hub, each with the same jobs."""
    rows: list[LinkedRow] = []
    head = LedgerHead()
    for number in range(hours):
        booked: BookedCharges = book(head, charges_of(jobs, number=number), booked_at=hour(number).end)
        rows += booked.rows
        head = booked.head
    return rows, head


def ledger_lines(database: Database) -> list[bytes]:
    """The whole ledger, as an export has it."""
    last = ledger_rows.head(database).seq
    return [line for _, line in ledger_rows.lines(database, after=0, upto=last, limit=last)]

"""A month's budget is counted from the ledger, from what peers ran, and from what is still to be emitted."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from harch.carbon.ledger.chain import LedgerHead, book
from harch.carbon.planning.settings import BudgetsEntry, PlanSettings
from harch.hub.carbon.budgets import left, read_spent, used
from harch.hub.store import ledger_rows, rows
from harch.hub.store.database import Database
from harch.wire.carbon import CarbonChoice
from harch.workloads.lifecycle import State, Workload
from harch.workloads.spec import WorkloadSpec
from unit.carbon.ledger.charges import START, charges_of, hour, job

SETTINGS = PlanSettings(budgets=BudgetsEntry(kg_per_month=1000, tenants={"atlas": 100, "idle": 5}))
G_PER_JOB_HOUR = 10 * 1.25 * 600  # IT energy x PUE x grid


def workload(name: str, state: State, *, reserved_g: float, runner: str = "") -> Workload:
    return Workload(
        id=f"wl_{name}",
        tenant="atlas",
        owner_hub="dakhla",
        spec=WorkloadSpec(name=name),
        created_at=START,
        updated_at=START,
        state=state,
        runner_hub=runner,
        carbon=CarbonChoice(action="start", decided_at=START, hub_id="dakhla", reserved_g=reserved_g),
    )


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """Two hours of a tenant's job, a guest's job beside it, and one that a peer ran to its end."""
    found = Database(tmp_path / "hub.db")
    head = LedgerHead()
    for number in range(2):
        jobs = [job("wl_runs"), job("wl_guest", tenant="atlas", home="dakar")]
        booked = book(head, charges_of(jobs, number=number), booked_at=hour(number).end)
        head = booked.head
        found.write(ledger_rows.save_booked(booked))
    found.write([rows.save_workload(workload("lent", State.COMPLETED, reserved_g=3000, runner="dakar"))])
    return found


def test_spent_is_what_the_ledger_says_and_what_peers_ran_counts_as_planned(database: Database) -> None:
    spent = read_spent(database, "dakhla", SETTINGS, START + timedelta(hours=2))
    assert spent.tenants["atlas"] == pytest.approx(2 * G_PER_JOB_HOUR + 3000)
    assert spent.jobs == {"wl_runs": pytest.approx(2 * G_PER_JOB_HOUR)}
    # Of the hub's 200 kWh, those of the guest are on its own hub's budget.
    assert spent.total_g == pytest.approx((200 - 25) * 600 + 3000)


def test_what_runs_and_waits_is_set_aside_and_counted_once(database: Database) -> None:
    spent = read_spent(database, "dakhla", SETTINGS, START + timedelta(hours=2))
    unfinished = [
        workload("runs", State.RUNNING, reserved_g=20_000),
        workload("waits", State.PENDING, reserved_g=1000),
    ]
    tenants, whole = left(SETTINGS, used(SETTINGS, spent, unfinished), {})
    assert tenants == {"atlas": pytest.approx(100_000 - 3000 - 20_000 - 1000), "idle": 5000}
    assert whole == pytest.approx(1_000_000 - spent.total_g - (20_000 - 2 * G_PER_JOB_HOUR) - 1000)


def test_a_new_month_begins_with_the_whole_budget(database: Database) -> None:
    spent = read_spent(database, "dakhla", SETTINGS, START + timedelta(days=40))
    assert left(SETTINGS, used(SETTINGS, spent, []), {})[0] == {"atlas": 100_000, "idle": 5000}

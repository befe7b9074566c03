"""`harch energy`: what is modelled or on paper is called so, and a budget that cannot be kept is not whispered."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result
from hub_double import HubDouble

Harch = Callable[..., Result]
STEP = {
    "at": "2026-01-01T05:00:00Z",
    "load_kw": 10,
    "own_kw": 4,
    "grid_kw": 8,
    "battery_kw": -2,
    "stored_kwh": 7,
    "per_mwh": 85,
    "g_per_kwh": 630,
}


def plan(**more: Any) -> dict[str, Any]:
    base = {
        "hub_id": "dakhla",
        "made_at": "2026-01-01T05:00:00Z",
        "planner": "optimiser",
        "objective": "profit",
        "contract": "some contract",
        "currency": "USD",
        "steps": [STEP],
        "costs": {"bill": 12.5, "energy": 12.5},
        "carbon": {"emitted_kg": 5.0},
        "rests_on": ["grid now: modelled (estimated)"],
    }
    return base | more


def test_a_plan_shows_its_steps_what_it_costs_and_that_it_is_modelled(hub: HubDouble, harch: Harch) -> None:
    hub.on("GET /energy/plan", plan(modelled=True, notes=["no contract is configured"]))
    done = harch("energy", "plan")
    assert done.exit_code == 0, done.output
    line = next(line for line in done.stdout.splitlines() if line.startswith("Thu 01 Jan 05:00"))
    for words in ("10.0", "8.0", "4.0", "-2.0", "7 kWh", "85.00 USD/MWh", "630"):
        assert words in line
    assert "`some contract` (MODELLED): 12.50 USD" in done.stdout
    assert "no contract is configured" in done.stderr


def test_a_budget_that_cannot_be_kept_is_said(hub: HubDouble, harch: Harch) -> None:
    carbon = {"emitted_kg": 300, "budget_kg": 100, "budget_kept": False, "over_kg": 200}
    hub.on("GET /energy/plan", plan(carbon=carbon))
    assert "the carbon budget CANNOT be met: 200.0 kg above" in harch("energy", "plan").stdout
    hub.on("GET /energy/plan", plan(carbon={"emitted_kg": 90, "budget_kg": 100, "shadow_per_t": 42}))
    assert "shadow price 42 USD" in harch("energy", "plan").stdout


def test_a_plot_is_plain_text_and_says_what_its_marks_mean(hub: HubDouble, harch: Harch) -> None:
    hub.on("GET /energy/plan", plan())
    shown = harch("energy", "plan", "--plot").stdout
    assert "#" * 20 + "*" * 10 in shown
    assert "into the battery: 2.0 kW" in shown
    assert "# grid   = agreements   * own plants   + battery" in shown


def test_prices_say_on_which_price_per_tonne_they_rest(hub: HubDouble, harch: Harch) -> None:
    step = {"at": "2026-01-01T05:00:00Z", "tariff_per_mwh": 85, "carbon_per_mwh": 50.4, "total_per_mwh": 135.4}
    base = {"hub_id": "dakhla", "made_at": "2026-01-01T05:00:00Z", "currency": "USD", "steps": [step]}
    hub.on("GET /energy/prices", base | {"carbon_per_t": 120, "carbon_basis": "shadow price", "shadow_per_t": 120})
    shown = harch("energy", "prices").stdout
    assert "135.40 USD/MWh" in shown
    assert "carbon at 120 USD/t: shadow price" in shown
    assert "shadow price of the carbon budget is 120 USD" in shown


def test_bids_on_paper_are_called_so_and_refused_ones_have_a_reason(hub: HubDouble, harch: Harch) -> None:
    bid = {"id": "bid-1", "delivery": "2026-01-02T05:00:00Z", "kwh": 16.2, "limit_per_mwh": 500, "state": "planned"}
    no = {"bid_id": "bid-2", "rule": "day-size", "detail": "too much", "nearest_fix": "raise it"}
    bids = {"hub_id": "dakhla", "market": "paper", "paper": True, "items": [bid], "refused": [no], "trouble": "slow"}
    hub.on("GET /energy/bids", bids | {"sends_from": "2026-01-01T11:30:00Z"})
    done = harch("energy", "bids")
    assert "not sent: bid-2 (day-size): too much; raise it" in done.stdout
    assert "the market: slow" in done.stdout
    assert "paper trading: no order leaves this machine" in done.stderr
    assert "sent from 2026-01-01 11:30 UTC" in done.stderr
    assert harch("energy", "bids", "-o", "name").stdout == "bid-1\n"
    assert json.loads(harch("energy", "bids", "--json").stdout)["refused"][0]["rule"] == "day-size"


def test_a_contract_with_fixed_prices_says_why_there_are_no_bids(hub: HubDouble, harch: Harch) -> None:
    hub.on("GET /energy/bids", {"hub_id": "dakhla", "why_none": "nothing to bid for"})
    hub.on("GET /energy/book", {"hub_id": "dakhla", "why_none": "nothing to bid for"})
    assert harch("energy", "book").stdout == "dakhla: nothing to bid for\n"
    listed = harch("energy", "bids")
    assert (listed.stdout, listed.stderr) == ("", "dakhla: nothing to bid for\n")


def test_a_book_has_rows_and_sums_by_market(hub: HubDouble, harch: Harch) -> None:
    row = {
        "bid_id": "bid-1",
        "event": "filled",
        "at": "2026-01-01T13:00:00Z",
        "delivery": "2026-01-02T05:00:00Z",
        "kwh": 16.2,
        "per_mwh": 75,
        "amount": 1.215,
        "currency": "EUR",
        "market": "paper",
    }
    total = {"market": "paper", "currency": "EUR", "event": "filled", "kwh": 16.2, "amount": 1.215}
    book = {"hub_id": "dakhla", "paper": True, "rows": [row], "total": 9, "sums": [total]}
    hub.on("GET /energy/book", book)
    done = harch("energy", "book", "--days", "7")
    assert "filled, paper: 16.2 kWh, 1.22 EUR" in done.stdout
    assert "the newest 1 of 9 rows" in done.stderr
    assert json.loads(harch("energy", "book", "--json").stdout)["sums"][0]["market"] == "paper"

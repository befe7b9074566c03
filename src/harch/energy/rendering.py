"""How do plans, prices, bids and books read? Plain values for JSON, lines for people; paper trades are called so."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harch.energy.carbon_price import CarbonPrices
from harch.energy.market.adapter import PAPER
from harch.energy.market.bids import Bid
from harch.energy.market.book import Book, Event
from harch.energy.procurement.plan import ProcurementPlan
from harch.energy.steps import Array
from harch.energy.tariffs.billing import Bill

PAPER_LABEL = "paper trading: no order has left this machine"


def plan_as_plain(plan: ProcurementPlan) -> dict[str, object]:
    costs, carbon = plan.costs, plan.carbon
    return {
        "planner": str(plan.planner),
        "objective": str(plan.objective),
        "currency": plan.currency,
        "start": f"{plan.steps.start:%Y-%m-%dT%H:%MZ}",
        "step_s": plan.steps.step_s,
        "import_kwh": _numbers(plan.import_kwh),
        "ppa_kwh": {name: _numbers(values) for name, values in plan.ppa_kwh.items()},
        "own_used_kwh": _numbers(plan.own_used_kwh),
        "sold_kwh": _numbers(plan.sold_kwh),
        "curtailed_kwh": _numbers(plan.curtailed_kwh),
        "charge_kwh": _numbers(plan.charge_kwh),
        "discharge_kwh": _numbers(plan.discharge_kwh),
        "stored_kwh": _numbers(plan.stored_kwh),
        "flexible_kwh": {name: _numbers(values) for name, values in plan.flexible_kwh.items()},
        "costs": {
            "bill": costs.bill,
            "energy": costs.energy,
            "ppas": costs.ppas,
            "demand": costs.demand,
            "sales": costs.sales,
            "wear": costs.wear,
        },
        "carbon": {
            "emitted_kg": carbon.emitted_kg,
            "budget_kg": carbon.budget_kg,
            "budget_kept": carbon.budget_kept,
            "over_kg": carbon.over_kg,
            "penalty_per_t": carbon.penalty_per_t,
            "shadow_per_t": carbon.shadow_per_t,
        },
        "energy_value_per_mwh": _numbers(plan.energy_value_per_mwh),
        "stored_value_per_mwh": _numbers(plan.stored_value_per_mwh),
        "notes": list(plan.notes),
    }


def plan_lines(plan: ProcurementPlan) -> list[str]:
    """One line per step, then what it costs and emits."""
    lines = [f"{'STEP':<18}{'GRID':>9}{'PPA':>9}{'OWN':>9}{'SOLD':>9}{'BATTERY':>9}{'STORED':>9}   kWh"]
    for index, moment in enumerate(plan.steps.starts()):
        agreed = sum(float(values[index]) for values in plan.ppa_kwh.values())
        battery = float(plan.discharge_kwh[index] - plan.charge_kwh[index])
        figures = (plan.import_kwh[index], agreed, plan.own_used_kwh[index], plan.sold_kwh[index], battery)
        cells = "".join(f"{figure:9.1f}" for figure in (*figures, plan.stored_kwh[index]))
        lines.append(f"{moment:%Y-%m-%dT%H:%MZ} {cells}")
    costs, carbon = plan.costs, plan.carbon
    lines.append(
        f"bill {costs.bill:.2f} {plan.currency} (energy {costs.energy:.2f}, agreements {costs.ppas:.2f}, "
        f"demand {costs.demand:.2f}, sales {costs.sales:.2f}); planned by the {plan.planner} for {plan.objective}"
    )
    lines.append(f"bought energy emits {carbon.emitted_kg:.1f} kg (estimated)" + _budget_words(plan))
    return [*lines, *plan.notes]


def _budget_words(plan: ProcurementPlan) -> str:
    carbon = plan.carbon
    if carbon.budget_kg is None:
        return ""
    if not carbon.budget_kept:
        return f"; the budget of {carbon.budget_kg:.1f} kg CANNOT be kept: {carbon.over_kg:.1f} kg above it"
    price = f"{carbon.shadow_per_t:.0f} {plan.currency}/t"
    return f"; budget {carbon.budget_kg:.1f} kg kept, its last tonne is worth {price}"


def prices_as_plain(prices: CarbonPrices) -> dict[str, object]:
    return {
        "currency": prices.currency,
        "start": f"{prices.steps.start:%Y-%m-%dT%H:%MZ}",
        "step_s": prices.steps.step_s,
        "carbon_price_per_t": prices.per_t,
        "carbon_price_basis": prices.basis,
        "tariff_per_mwh": _numbers(prices.tariff_per_mwh),
        "carbon_per_mwh": _numbers(prices.carbon_per_mwh),
        "total_per_mwh": _numbers(prices.total_per_mwh),
    }


def prices_lines(prices: CarbonPrices) -> list[str]:
    lines = [f"{'STEP':<18}{'TARIFF':>10}{'CARBON':>10}{'TOTAL':>10}   {prices.currency}/MWh"]
    for moment, tariff, carbon in zip(prices.steps.starts(), prices.tariff_per_mwh, prices.carbon_per_mwh, strict=True):
        lines.append(f"{moment:%Y-%m-%dT%H:%MZ} {tariff:10.2f}{carbon:10.2f}{tariff + carbon:10.2f}")
    return [*lines, f"carbon at {prices.per_t:.0f} {prices.currency}/t ({prices.basis})"]


def bids_as_plain(bids: Sequence[Bid], *, market: str) -> list[dict[str, object]]:
    return [
        {
            "id": bid.id,
            "market": market,
            "delivery": f"{bid.delivery:%Y-%m-%dT%H:%MZ}",
            "part": str(bid.part),
            "kwh": bid.kwh,
            "limit_per_mwh": bid.limit_per_mwh,
            "currency": bid.currency,
        }
        for bid in bids
    ]


def bids_lines(bids: Sequence[Bid], *, market: str) -> list[str]:
    lines = [f"{'DELIVERY':<18}{'PART':<10}{'KWH':>10}{'LIMIT/MWH':>12}  MARKET"]
    for bid in bids:
        price = f"{bid.limit_per_mwh:.2f}"
        lines.append(f"{bid.delivery:%Y-%m-%dT%H:%MZ} {bid.part:<10}{bid.kwh:10.1f}{price:>12}  {market}")
    return [*lines, *_paper(market)]


def book_as_plain(book: Book) -> dict[str, object]:
    """Rows, states and sums. Sums are by currency and market, so that paper is never added to real money."""
    sums: dict[tuple[str, str, Event], list[float]] = {}
    for row in book.rows:
        if row.event in (Event.SUBMITTED, Event.FILLED, Event.SETTLED):
            found = sums.setdefault((row.market, row.currency, row.event), [0.0, 0.0])
            found[0] += row.kwh
            found[1] += row.amount
    return {
        "rows": [row.as_plain() for row in book.rows],
        "bids": {bid_id: book.state(bid_id).word for bid_id in book.bid_ids},
        "sums": [
            {"market": market, "currency": currency, "event": str(event), "kwh": kwh, "amount": amount}
            for (market, currency, event), (kwh, amount) in sorted(sums.items())
        ],
    }


def book_lines(book: Book) -> list[str]:
    lines = [f"{'BID':<52}{'STATE':<18}{'SUBMITTED':>10}{'FILLED':>10}   kWh   {'AMOUNT':>10}  MARKET"]
    for bid_id in book.bid_ids:
        state, last = book.state(bid_id), book.history(bid_id)[-1]
        amount = f"{state.filled_amount:.2f} {last.currency}"
        lines.append(
            f"{bid_id:<52}{state.word:<18}{state.submitted_kwh:10.1f}{state.filled_kwh:10.1f}         {amount:>10}"
            f"  {last.market}"
        )
    markets = {row.market for row in book.rows}
    return [*lines, *(line for market in sorted(markets) for line in _paper(market))]


def bill_lines(bill: Bill) -> list[str]:
    lines = [f"{line.what:<40}{line.quantity:12.3f} {line.unit:<4}{line.amount:14.2f}" for line in bill.lines]
    return [*lines, f"{'total':<40}{'':12} {bill.currency:<4}{bill.total:14.2f}"]


def _paper(market: str) -> list[str]:
    return [PAPER_LABEL] if market == PAPER else []


def _numbers(values: Array | None) -> list[float] | None:
    """JSON has no NaN: what is none is an error of the caller, found here before a client meets it."""
    if values is None:
        return None
    found = [round(float(value), 6) for value in values]
    if not all(math.isfinite(value) for value in found):
        raise ValueError("a series to be shown has a value that is no number")
    return found

"""What does a hub tell about its purchases? Plans, bids, book and prices, with what they rest on."""

# harch: pure

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from harch.base.rejection import Rejection
from harch.energy.market.adapter import PAPER
from harch.energy.market.bids import Bid
from harch.energy.market.ledger import BidEvent, BidLedger, Row
from harch.energy.procurement.plan import ProcurementPlan
from harch.energy.site import EnergySite
from harch.hub.energy.outlook import Planned
from harch.wire.energy import (
    BidView,
    BookRow,
    BookSum,
    PlanCarbon,
    PlanCosts,
    PlanStep,
    PlanView,
    PriceStep,
    PricesView,
    RefusedBid,
    StandingView,
)

# How do plans, bids, book and prices look from outside? Values of the energy room as views of the API. Pure.


MODELLED_NOTE = "no contract is configured: modelled prices of no supplier; write energy.toml to plan with yours"
_SUMMED = (BidEvent.SUBMITTED, BidEvent.FILLED, BidEvent.SETTLED)


def plan_view(planned: Planned, site: EnergySite, hub_id: str, solved_ms: float) -> PlanView:
    plan, carbon, standing = planned.plan, planned.plan.carbon, planned.account.standing
    return PlanView(
        hub_id=hub_id,
        made_at=planned.made_at,
        planner=str(plan.planner),
        objective=str(plan.objective),
        contract=site.tariff.name,
        currency=plan.currency,
        modelled=site.modelled,
        step_s=plan.steps.step_s,
        steps=_steps(planned, plan),
        costs=PlanCosts(
            bill=plan.costs.bill,
            energy=plan.costs.energy,
            agreements=plan.costs.ppas,
            demand=plan.costs.demand,
            sales=plan.costs.sales,
            wear=plan.costs.wear,
        ),
        carbon=PlanCarbon(
            emitted_kg=carbon.emitted_kg,
            budget_kg=carbon.budget_kg,
            budget_kept=carbon.budget_kept,
            over_kg=carbon.over_kg,
            shadow_per_t=planned.shadow_per_t,
        ),
        standing=StandingView(
            since=planned.account.since,
            emitted_kg=standing.emitted_kg,
            rule_emitted_kg=standing.rule_emitted_kg,
            stored_kwh=standing.stored_kwh,
            rule_stored_kwh=standing.rule_stored_kwh,
        ),
        solved_ms=round(solved_ms, 1),
        rests_on=planned.rests_on,
        notes=_notes(planned, site),
    )


def prices_view(planned: Planned, site: EnergySite, hub_id: str) -> PricesView:
    prices, grid = planned.prices, planned.expected.problem.grid_g_per_kwh
    rows = zip(prices.steps.starts(), prices.tariff_per_mwh, prices.carbon_per_mwh, grid, strict=True)
    unstated = not prices.per_t and site.carbon_per_t is None
    basis = f"no price per tonne is configured in {prices.currency}" if unstated else prices.basis
    return PricesView(
        hub_id=hub_id,
        made_at=planned.made_at,
        contract=site.tariff.name,
        currency=prices.currency,
        modelled=site.modelled,
        step_s=prices.steps.step_s,
        carbon_per_t=prices.per_t,
        carbon_basis=basis,
        shadow_per_t=planned.shadow_per_t,
        steps=tuple(
            PriceStep(
                at=at,
                tariff_per_mwh=_round(tariff),
                carbon_per_mwh=_round(carbon),
                total_per_mwh=_round(tariff + carbon),
                g_per_kwh=_round(g_per_kwh),
            )
            for at, tariff, carbon, g_per_kwh in rows
        ),
        rests_on=planned.rests_on,
        notes=_notes(planned, site),
    )


def bid_views(planned: Sequence[Bid], book: BidLedger, since: datetime, market: str) -> list[BidView]:
    """Those of the book that are delivered from `since` on, and those that will be sent."""
    views = [_of_book(bid_id, book) for bid_id in book.bid_ids if book.history(bid_id)[0].delivery >= since]
    views += [
        BidView(
            id=bid.id,
            market=market,
            delivery=bid.delivery,
            part=str(bid.part),
            kwh=bid.kwh,
            limit_per_mwh=bid.limit_per_mwh,
            currency=bid.currency,
            state="planned",
        )
        for bid in planned
    ]
    return sorted(views, key=lambda view: (view.delivery, view.part))


def refused_views(refused: Sequence[Rejection]) -> tuple[RefusedBid, ...]:
    return tuple(
        RefusedBid(bid_id=no.subject, rule=no.rule, detail=no.detail, nearest_fix=no.nearest_fix) for no in refused
    )


def book_rows(rows: Sequence[Row]) -> tuple[BookRow, ...]:
    return tuple(
        BookRow(
            bid_id=row.bid_id,
            event=str(row.event),
            at=row.at,
            delivery=row.delivery,
            part=str(row.part),
            kwh=row.kwh,
            per_mwh=row.per_mwh,
            amount=row.amount,
            currency=row.currency,
            market=row.market,
        )
        for row in rows
    )


def book_sums(rows: Sequence[Row]) -> tuple[BookSum, ...]:
    """By market and currency: paper is never added to money, nor dirhams to dollars."""
    sums: dict[tuple[str, str, str], tuple[float, float]] = {}
    for row in rows:
        if row.event in _SUMMED:
            key = (row.market, row.currency, str(row.event))
            kwh, amount = sums.get(key, (0.0, 0.0))
            sums[key] = (kwh + row.kwh, amount + row.amount)
    return tuple(
        BookSum(market=market, currency=currency, event=event, kwh=kwh, amount=amount)
        for (market, currency, event), (kwh, amount) in sorted(sums.items())
    )


def is_paper(rows: Sequence[Row], market: str) -> bool:
    """Whether all of it is: one real row is enough to say no."""
    return {row.market for row in rows} <= {PAPER} if rows else market == PAPER


def _notes(planned: Planned, site: EnergySite) -> tuple[str, ...]:
    return ((MODELLED_NOTE,) if site.modelled else ()) + planned.plan.notes


def _steps(planned: Planned, plan: ProcurementPlan) -> tuple[PlanStep, ...]:
    problem, hours = planned.expected.problem, plan.steps.hours
    agreements = sum(plan.ppa_kwh.values(), 0 * plan.import_kwh)
    flexible = sum(plan.flexible_kwh.values(), 0 * plan.import_kwh)
    return tuple(
        PlanStep(
            at=at,
            load_kw=_round(problem.load_kwh[index] / hours),
            own_kw=_round(problem.own_kwh[index] / hours),
            grid_kw=_round(plan.import_kwh[index] / hours),
            agreements_kw=_round(agreements[index] / hours),
            battery_kw=_round((plan.discharge_kwh[index] - plan.charge_kwh[index]) / hours),
            sold_kw=_round(plan.sold_kwh[index] / hours),
            curtailed_kw=_round(plan.curtailed_kwh[index] / hours),
            flexible_kw=_round(flexible[index] / hours),
            stored_kwh=_round(plan.stored_kwh[index]),
            per_mwh=_round(problem.import_per_mwh[index]),
            g_per_kwh=_round(problem.grid_g_per_kwh[index]),
        )
        for index, at in enumerate(plan.steps.starts())
    )


def _of_book(bid_id: str, book: BidLedger) -> BidView:
    history, state = book.history(bid_id), book.state(bid_id)
    first = book.submission(bid_id) or history[0]
    return BidView(
        id=bid_id,
        market=first.market,
        delivery=first.delivery,
        part=str(first.part),
        kwh=first.kwh,
        limit_per_mwh=first.per_mwh,
        currency=first.currency,
        state=state.word,
        filled_kwh=state.filled_kwh,
        amount=state.filled_amount,
    )


def _round(value: float) -> float:
    return round(float(value), 3)

"""Which plan does the hub follow now? Expectations in; the plan and its prices out, or why there is none.

Runs in a thread and touches nothing: a failure of the optimiser leaves the rule, and a failure of both is a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from harch.base.errors import HarchError
from harch.energy.carbon_price import USD_PER_T, CarbonPrices, predicted_prices
from harch.energy.currencies import ExchangeRates
from harch.energy.procurement.plan import PlanFailure, ProcurementPlan
from harch.energy.procurement.planner import plan_procurement
from harch.energy.procurement.prudence import Planning
from harch.energy.procurement.rule import plan_by_rule
from harch.energy.procurement.standing import Standing, plan_within
from harch.energy.site import EnergySite
from harch.energy.steps import Array
from harch.hub.energy.outlook import Expected, Known, budget_until, expected_problem, month_end, steps_ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where the month stands: what both have emitted since `since`, and what both have stored."""

    since: datetime
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan and everything that is shown with it."""

    made_at: datetime
    expected: Expected
    plan: ProcurementPlan
    prices: CarbonPrices
    account: Account
    rests_on: tuple[str, ...]
    shadow_per_t: float | None


def plan_ahead(
    site: EnergySite,
    known: Known,
    account: Account,
    *,
    import_kw_max: float,
    plants_kwh: dict[str, Array],
    planning: Planning = plan_procurement,
) -> Planned:
    """Raises HarchError: E0340 for a load that nothing can supply, E0242 for figures that no plan can rest on."""
    steps = steps_ahead(site, known.now)
    budget_kg = None
    if site.budget_kg_per_month is not None:
        emitted = account.standing.emitted_kg
        budget_kg = budget_until(steps.end, site.budget_kg_per_month, since=account.since, emitted_kg=emitted)
    expected = expected_problem(
        site,
        known,
        import_kw_max=import_kw_max,
        plants_kwh=plants_kwh,
        stored_kwh=account.standing.stored_kwh,
        budget_kg=budget_kg,
    )
    left = int((month_end(known.now) - steps.start).total_seconds()) // steps.step_s
    plan = _follow(expected, account.standing, left, planning)
    # Without a penalty no optimiser has looked at the budget, and nobody knows what its last tonne is worth.
    shadow = plan.carbon.shadow_per_t if budget_kg is not None and plan.carbon.penalty_per_t else None
    return Planned(
        made_at=known.now,
        expected=expected,
        plan=replace(plan, notes=(*plan.notes, *expected.notes)),
        prices=_prices(site, expected, shadow),
        account=account,
        rests_on=known.rests_on,
        shadow_per_t=shadow,
    )


def _follow(expected: Expected, standing: Standing, steps_left: int, planning: Planning) -> ProcurementPlan:
    problem = expected.problem
    try:
        plan = plan_within(problem, standing, steps_left=steps_left, planning=planning)
    except HarchError:
        raise
    except Exception as error:  # noqa: BLE001 (the solver is native code: whatever it does, the rule serves)
        plan = plan_by_rule(problem, note=f"planned by the rule: the optimiser failed ({type(error).__name__})")
    if isinstance(plan, PlanFailure):
        raise plan.error()
    return plan


def _prices(site: EnergySite, expected: Expected, shadow_per_t: float | None) -> CarbonPrices:
    problem, currency = expected.problem, site.tariff.currency
    stated = site.carbon_per_t if site.carbon_per_t is not None else (USD_PER_T if currency == "USD" else 0.0)
    return predicted_prices(
        problem.steps,
        problem.import_per_mwh,
        problem.grid_g_per_kwh,
        currency=currency,
        usd_per_t=stated,
        shadow_per_t=shadow_per_t,
        rates=ExchangeRates({currency: 1.0}, "the energy file states the price in the contract's currency"),
    )

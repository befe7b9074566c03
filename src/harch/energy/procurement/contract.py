"""What does a contract make of the next hours? A tariff and forecasts as a problem; a plan as its bill."""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from harch.base.errors import HarchError
from harch.carbon.values import Method
from harch.energy.procurement.plan import ProcurementPlan
from harch.energy.procurement.problem import DemandPeaks, PpaOffer, ProcurementProblem
from harch.energy.steps import Array, Steps, series
from harch.energy.tariffs.prices import Bill, PpaDelivery, bill, import_prices, sale_prices
from harch.energy.tariffs.terms import Ppa, Tariff


def problem_under(
    tariff: Tariff,
    steps: Steps,
    *,
    load_kwh: ArrayLike,
    own_kwh: ArrayLike,
    grid_g_per_kwh: ArrayLike,
    import_kw_max: float,
    spot_per_mwh: Array | None = None,
    plants_kwh: Mapping[str, Array] | None = None,
    peaks_before_kw: Mapping[str, float] | None = None,
    method: Method = Method.LOCATION,
) -> ProcurementProblem:
    """Battery, flexible load, budget and objective are added with `dataclasses.replace`.

    By location, energy of an agreement counts as the grid that brings it; by market, as its contract says.
    Raises HarchError E0242 for series with gaps, and for agreements on plants that nobody forecasts.
    """
    grid = series(grid_g_per_kwh, steps, "grid intensity", floor=0)
    demand = None
    if tariff.demand is not None:
        months = steps.months(tariff.local_time)
        demand = DemandPeaks(per_kw=tariff.demand.per_kw_month, months=months, before_kw=dict(peaks_before_kw or {}))
    return ProcurementProblem(
        steps=steps,
        currency=tariff.currency,
        load_kwh=series(load_kwh, steps, "load", floor=0),
        own_kwh=series(own_kwh, steps, "own production", floor=0),
        import_per_mwh=import_prices(tariff, steps, spot_per_mwh=spot_per_mwh),
        grid_g_per_kwh=grid,
        import_kw_max=import_kw_max,
        sale_per_mwh=sale_prices(tariff, steps, spot_per_mwh=spot_per_mwh),
        ppas=tuple(
            PpaOffer(
                name=ppa.name,
                offered_kwh=offered_kwh(ppa, steps, plants_kwh or {}),
                per_mwh=ppa.per_mwh,
                must_take=ppa.must_take,
                g_per_kwh=grid if method is Method.LOCATION else np.full(steps.count, ppa.contract_g_per_kwh),
            )
            for ppa in tariff.ppas
        ),
        demand=demand,
    )


def offered_kwh(ppa: Ppa, steps: Steps, plants_kwh: Mapping[str, Array]) -> Array:
    """What an agreement delivers in each step."""
    if ppa.volume_kw is not None:
        return np.full(steps.count, ppa.volume_kw * steps.hours)
    if ppa.plant not in plants_kwh:
        known = ", ".join(sorted(plants_kwh)) or "none"
        raise HarchError(
            "E0242",
            f"the agreement {ppa.name} is on the plant {ppa.plant}, which has no forecast",
            hint=f"forecast its production (plants with a forecast: {known})",
        )
    return (ppa.share or 0.0) * series(plants_kwh[ppa.plant], steps, f"production of {ppa.plant}", floor=0)


def bill_of_plan(
    tariff: Tariff, problem: ProcurementProblem, plan: ProcurementPlan, *, spot_per_mwh: Array | None = None
) -> Bill:
    """What the contract would charge if everything came as planned: equal to the bill that the plan expects."""
    offers = {offer.name: offer.offered_kwh for offer in problem.ppas}
    return bill(
        tariff,
        plan.steps,
        plan.import_kwh,
        ppas=[PpaDelivery(ppa, offers[ppa.name], plan.ppa_kwh[ppa.name]) for ppa in tariff.ppas],
        sold_kwh=plan.sold_kwh,
        spot_per_mwh=spot_per_mwh,
        peaks_before_kw=problem.demand.before_kw if problem.demand else None,
    )

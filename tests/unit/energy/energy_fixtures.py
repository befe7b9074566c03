"""What do the energy tests share? A start, a problem whose optimum can be worked out by hand, and two tariffs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from harch.energy.procurement.plan import PlanFailure, ProcurementPlan
from harch.energy.procurement.planner import plan_procurement
from harch.energy.procurement.problem import Battery, ProcurementProblem
from harch.energy.steps import Steps
from harch.energy.tariffs.file import parse_tariff
from harch.energy.tariffs.terms import Tariff

START = datetime(2026, 3, 2, 0, tzinfo=UTC)  # a Monday
LOSSLESS = Battery(energy_kwh=10, power_kw=10, charge_efficiency=1, discharge_efficiency=1, wear_per_mwh=0)

TIME_OF_USE = """
name = "medium voltage"
currency = "MAD"
time_zone = "Africa/Casablanca"
fee_per_mwh = 50

[energy]
kind = "time-of-use"

[[energy.seasons]]
name = "winter"
from = "10-01"
to = "03-31"
[[energy.seasons.bands]]
name = "peak"
price_per_mwh = 1400
days = "weekdays"
hours = "17:00-22:00"
[[energy.seasons.bands]]
name = "normal"
price_per_mwh = 1000

[[energy.seasons]]
name = "summer"
from = "04-01"
to = "09-30"
[[energy.seasons.bands]]
name = "peak"
price_per_mwh = 1500
hours = ["18:30-23:00"]
[[energy.seasons.bands]]
name = "night"
price_per_mwh = 700
hours = "23:00-07:00"
[[energy.seasons.bands]]
name = "normal"
price_per_mwh = 1100

[demand_charge]
per_kw_month = 40

[[ppas]]
name = "wind farm"
price_per_mwh = 450
share = 0.25
plant = "akhfenir"
must_take = true
contract_g_per_kwh = 11

[[ppas]]
name = "baseload"
price_per_mwh = 600
volume_kw = 100

[sale]
price_per_mwh = 200
"""

SPOT = """
name = "iberian spot"
currency = "EUR"
time_zone = "Europe/Madrid"
fee_per_mwh = 10

[energy]
kind = "spot"
zone = "ES"
time_zone = "Europe/Madrid"
published_at = "13:00"

[sale]
share_of_spot = 0.9
"""


def time_of_use() -> Tariff:
    return parse_tariff(TIME_OF_USE)


def spot_tariff() -> Tariff:
    return parse_tariff(SPOT)


def hours(count: int, start: datetime = START) -> Steps:
    return Steps(start, 3600, count)


def problem(prices: Sequence[float], **changes: Any) -> ProcurementProblem:
    """A load of 1 kWh per hour, nothing of its own, and an objective that is the bill and nothing else."""
    count = len(prices)
    plain = ProcurementProblem(
        steps=hours(count),
        currency="USD",
        load_kwh=np.ones(count),
        own_kwh=np.zeros(count),
        import_per_mwh=np.array(prices, dtype=float),
        grid_g_per_kwh=np.full(count, 500.0),
        import_kw_max=100.0,
        sale_per_mwh=np.zeros(count),
        terminal_per_mwh=0.0,
        sale_rise_per_mwh_h=0.0,
        fade_per_h=0.0,
    )
    arrays = {
        name: np.array(value, dtype=float) if isinstance(value, list) else value for name, value in changes.items()
    }
    return replace(plain, **arrays)


def planned(asked: ProcurementProblem) -> ProcurementPlan:
    plan = plan_procurement(asked)
    assert not isinstance(plan, PlanFailure), plan
    return plan

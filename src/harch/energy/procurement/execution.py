"""What becomes of a planned step when the hour comes otherwise? The battery does what was planned as far as it can."""

# harch: pure

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harch.energy.procurement.model import first_stored_kwh
from harch.energy.procurement.plan import PlanEmissions, ProcurementPlan, costs_of, emitted_kg
from harch.energy.procurement.problem import Battery, ProcurementProblem
from harch.energy.steps import Array


def carried_out(
    hour: ProcurementProblem, plan: ProcurementPlan, *, stored_after_kwh: float | None = None
) -> ProcurementPlan:
    """The first step of `plan` in one step as it came. With `stored_after_kwh` a meter tells what the battery did."""
    load, own = float(hour.load_kwh[0]), float(hour.own_kwh[0])
    charge = discharge = stored = 0.0
    if hour.battery is not None:
        charge, discharge, stored = _battery(hour, hour.battery, plan, stored_after_kwh)
    rest = max(0.0, load + charge - own - discharge)
    ppas: dict[str, Array] = {}
    for ppa in hour.ppas:
        ppas[ppa.name] = np.array([min(float(ppa.offered_kwh[0]), rest)])
        rest -= float(ppas[ppa.name][0])
    own_used = min(own, load + charge)
    sold = own - own_used if float(hour.sale_per_mwh[0]) > 0 else 0.0
    imported, own_sold = np.array([rest]), np.array([sold])
    return replace(
        plan,
        steps=hour.steps,
        import_kwh=imported,
        ppa_kwh=ppas,
        own_used_kwh=np.array([own_used]),
        own_sold_kwh=own_sold,
        curtailed_kwh=np.array([own - own_used - sold]),
        charge_kwh=np.array([charge]),
        discharge_kwh=np.array([discharge]),
        battery_sold_kwh=np.zeros(1),
        stored_kwh=np.array([stored]),
        flexible_kwh={},
        costs=costs_of(hour, imported, ppas, own_sold, np.array([charge + discharge])),
        carbon=PlanEmissions(emitted_kg(hour, imported, ppas)),
        energy_value_per_mwh=None,
        stored_value_per_mwh=None,
    )


def _battery(
    hour: ProcurementProblem, battery: Battery, plan: ProcurementPlan, stored_after_kwh: float | None
) -> tuple[float, float, float]:
    """Charge, discharge and what is stored then."""
    level = first_stored_kwh(hour, battery)
    if stored_after_kwh is not None:
        stored = min(max(stored_after_kwh, battery.floor_kwh), battery.energy_kwh)
        gain = stored - level
        return max(0.0, gain) / battery.charge_efficiency, max(0.0, -gain) * battery.discharge_efficiency, stored
    most = battery.power_kw * hour.steps.hours
    spare = float(hour.own_kwh[0] - hour.load_kwh[0])
    room = max(battery.energy_kwh - level, 0.0) / battery.charge_efficiency
    left = max(level - battery.floor_kwh, 0.0) * battery.discharge_efficiency
    charge = min(float(plan.charge_kwh[0]), most, room)
    if not battery.from_grid:
        charge = min(charge, max(spare, 0.0))
    # What the load does not need stays in the battery: nobody waits outside to take it.
    discharge = min(float(plan.discharge_kwh[0]), most, left, max(-spare, 0.0))
    return charge, discharge, level + charge * battery.charge_efficiency - discharge / battery.discharge_efficiency

"""What may an operator set about planning? Which work is planned, how often, how many moves, and budgets of grams."""

# harch: pure

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

EVERY_S_MIN, EVERY_S_MAX = 1.0, 3600.0
TENANTS_MAX = 10_000

_Kg = Annotated[float, Meta(ge=0, le=1e12)]


class AppliesTo(StrEnum):
    """Whose start the plan may put off or send elsewhere."""

    REQUESTED = "asked"  # work that says so itself
    ALL = "all"  # all work of the class training that does not opt out; it still waits only for slack that it gives
    NONE = "none"  # nobody's; limits and budgets hold all the same


class PlanningEntry(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The table `[planning]` of the carbon file."""

    applies_to: AppliesTo = AppliesTo.REQUESTED
    every_s: Annotated[float, Meta(ge=EVERY_S_MIN, le=EVERY_S_MAX)] = 300.0
    step_s: Annotated[float, Meta(ge=1, le=3600)] = 3600.0  # the steps of a plan; forecasts change by the hour
    moves_per_hour: Annotated[int, Meta(ge=0, le=1000)] = 4
    move_again_after_s: Annotated[float, Meta(ge=0, le=30 * 86400)] = 7200.0
    g_per_usd: Annotated[float, Meta(ge=0, le=1e9)] = 0.0  # what a dollar of electricity weighs


class BudgetsEntry(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The table `[budgets]`: kilograms per calendar month (UTC), by location with own plants."""

    kg_per_month: _Kg | None = None  # of all work of the hub
    shared: bool = True  # what tenants spent at other hubs that have a budget for them counts too
    tenants: Annotated[dict[str, _Kg], Meta(max_length=TENANTS_MAX)] = {}


@dataclass(frozen=True)
class PlanSettings:
    """Both tables."""

    planning: PlanningEntry = field(default_factory=PlanningEntry)
    budgets: BudgetsEntry = field(default_factory=BudgetsEntry)

    @property
    def has_budgets(self) -> bool:
        return self.budgets.kg_per_month is not None or bool(self.budgets.tenants)

    def budget_of(self, tenant: str) -> float | None:
        """Grams per month; None: unlimited."""
        kg = self.budgets.tenants.get(tenant)
        return None if kg is None else kg * 1000.0

    @property
    def budget_of_all(self) -> float | None:
        kg = self.budgets.kg_per_month
        return None if kg is None else kg * 1000.0

    def limits(self, tenant: str) -> bool:
        return self.budgets.kg_per_month is not None or tenant in self.budgets.tenants

    def tenants(self) -> Mapping[str, float]:
        return {tenant: kg * 1000.0 for tenant, kg in self.budgets.tenants.items()}

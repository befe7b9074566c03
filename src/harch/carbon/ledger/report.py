"""What did a job, a tenant, a dataset, a hub or a month cost? Lines of totals, grouped one way, that add up.

A job that read several datasets is divided among them in equal parts, so that no gram is counted under two names. What
has no dataset, no tenant or no job stands under an empty name: leaving it out would make the lines look like all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from harch.carbon.ledger.chain import LedgerRow
from harch.carbon.ledger.charge import Charge
from harch.carbon.ledger.totals import Portion, Totals, totals_of


class GroupBy(StrEnum):
    """What is a line about?"""

    JOB = "job"
    TENANT = "tenant"
    DATASET = "dataset"
    HUB = "hub"
    MONTH = "month"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorUse:
    """One factor that the figures rest on, and how many kWh were multiplied with it."""

    use: str  # grid, residual, contract, onsite
    source: str
    kind: str
    evidence: str
    note: str
    g_per_kwh_min: float
    g_per_kwh_max: float
    kwh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonReport:
    """Lines that add up to `total`, and what all of it rests on."""

    group_by: GroupBy
    months: tuple[str, ...]
    hubs: tuple[str, ...]
    lines: Mapping[str, Totals]
    total: Totals
    factors: tuple[FactorUse, ...]
    energy_methods: tuple[str, ...]


def report(rows: Iterable[LedgerRow], group_by: GroupBy) -> CarbonReport:
    """From rows that count, of any number of hubs. The lines are in the order of their names."""
    charges = [row.charge for row in rows]
    groups: defaultdict[str, list[Portion]] = defaultdict(list)
    for charge in charges:
        names = _NAMES[group_by](charge)
        for name in names:
            groups[name].append(Portion(charge, 1 / len(names)))
    return CarbonReport(
        group_by=group_by,
        months=tuple(sorted({charge.interval.month for charge in charges})),
        hubs=tuple(sorted({charge.hub for charge in charges})),
        lines=MappingProxyType({name: totals_of(groups[name]) for name in sorted(groups)}),
        total=totals_of([Portion(charge) for charge in charges]),
        factors=_factors(charges),
        energy_methods=tuple(sorted({charge.method.split(";")[0] for charge in charges})),
    )


_NAMES: Mapping[GroupBy, Callable[[Charge], tuple[str, ...]]] = MappingProxyType(
    {
        GroupBy.JOB: lambda charge: (charge.job,),
        GroupBy.TENANT: lambda charge: (charge.tenant,),
        GroupBy.DATASET: lambda charge: tuple(dict.fromkeys(charge.data_ids)) or ("",),
        GroupBy.HUB: lambda charge: (charge.hub,),
        GroupBy.MONTH: lambda charge: (charge.interval.month,),
    }
)


def _factors(charges: Iterable[Charge]) -> tuple[FactorUse, ...]:
    found: dict[tuple[str, str, str, str, str], tuple[float, float, float]] = {}
    for charge in charges:
        used, supply = charge.factors, charge.supply
        for use, factor, kwh in (
            ("grid", used.grid, supply.grid_kwh + supply.ppa_kwh),
            ("residual", used.residual, supply.grid_kwh),
            ("contract", used.contract, supply.ppa_kwh),
            ("onsite", used.onsite, supply.onsite_kwh),
        ):
            if kwh > 0:
                key = (use, factor.source, str(factor.kind), str(factor.evidence), factor.note)
                low, high, sum_kwh = found.get(key, (factor.g_per_kwh, factor.g_per_kwh, 0.0))
                found[key] = (min(low, factor.g_per_kwh), max(high, factor.g_per_kwh), sum_kwh + kwh)
    return tuple(
        FactorUse(
            use=use,
            source=source,
            kind=kind,
            evidence=evidence,
            note=note,
            g_per_kwh_min=low,
            g_per_kwh_max=high,
            kwh=kwh,
        )
        for (use, source, kind, evidence, note), (low, high, kwh) in sorted(found.items())
    )

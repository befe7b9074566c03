"""What did a job, a tenant, a dataset, a hub or a month cost?

Totals by each method side by side, grouped one way, and as CSV and JSON in the words of the GHG Protocol.
"""

# harch: pure

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import fsum
from types import MappingProxyType

from harch.carbon.ledger.chain import LedgerRow
from harch.carbon.ledger.charge import Charge, Footprint, Grams, no_footprint
from harch.carbon.values import Emissions, EmissionScope, Energy, Evidence, KindsMixed, Method

# What do many rows come to? Energy, grams by each method side by side, how much was measured, what was saved.
#
# Only rows that count belong in here (`current`). Rows with lifecycle and with direct factors have no common total:
# adding them raises `KindsMixed`.


@dataclass(frozen=True, slots=True)
class Portion:
    """A row, or a share of it where several parties divide it."""

    charge: Charge
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Against the naive run, for the charges that have one. Positive: less than the naive run; it may be negative."""

    naive: Footprint
    actual: Footprint  # of the same charges
    compared: Energy  # how much of the energy those charges are
    estimated: bool  # some naive run was modelled
    methods: tuple[str, ...]

    def by(self, method: Method) -> Emissions:
        return self.naive.total(method) - self.actual.total(method)

    def share_by(self, method: Method) -> float | None:
        """Of the naive run's emissions; None where that has none."""
        naive = self.naive.total(method)
        return self.by(method).g / naive.g if naive.g > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over rows. `footprint.location` and `.market` answer one question twice: there is no sum of them."""

    rows: int
    energy: Energy
    grid: Energy
    onsite: Energy
    ppa: Energy
    measured: Energy  # of `energy`
    footprint: Footprint
    saved: Saved | None  # None: no row has a naive run

    @property
    def measured_share(self) -> float:
        return self.measured.kwh / self.energy.kwh if self.energy.kwh > 0 else 0.0

    def g_per_kwh(self, method: Method) -> float | None:
        return self.footprint.total(method).g / self.energy.kwh if self.energy.kwh > 0 else None


def totals(rows: Iterable[LedgerRow]) -> Totals:
    return totals_of([Portion(row.charge) for row in rows])


def totals_of(portions: Sequence[Portion]) -> Totals:
    compared = [portion for portion in portions if portion.charge.naive is not None]
    return Totals(
        rows=len(portions),
        energy=_kwh(portions),
        grid=Energy(fsum(one.charge.supply.grid_kwh * one.share for one in portions)),
        onsite=Energy(fsum(one.charge.supply.onsite_kwh * one.share for one in portions)),
        ppa=Energy(fsum(one.charge.supply.ppa_kwh * one.share for one in portions)),
        measured=_kwh([one for one in portions if one.charge.evidence is Evidence.MEASURED]),
        footprint=_footprint(portions, [portion.charge.grams for portion in portions]),
        saved=_saved(compared) if compared else None,
    )


def _saved(portions: Sequence[Portion]) -> Saved:
    naive_runs = [portion.charge.naive for portion in portions if portion.charge.naive is not None]
    return Saved(
        naive=_footprint(portions, [naive.grams for naive in naive_runs]),
        actual=_footprint(portions, [portion.charge.grams for portion in portions]),
        compared=_kwh(portions),
        estimated=any(naive.evidence is Evidence.ESTIMATED for naive in naive_runs),
        methods=tuple(sorted({naive.method for naive in naive_runs})),
    )


def _kwh(portions: Sequence[Portion]) -> Energy:
    return Energy(fsum(portion.charge.supply.kwh * portion.share for portion in portions))


def _footprint(portions: Sequence[Portion], grams: Sequence[Grams]) -> Footprint:
    """The typed sum, made from plain ones: a month has hundreds of thousands of rows."""
    if not portions:
        return no_footprint()
    kinds = portions[0].charge.factors.kinds
    for portion in portions:
        if (other := portion.charge.factors.kinds) != kinds:
            words = "; ".join(sorted({str(kind) for kind in (*kinds, *other)}))
            raise KindsMixed(
                f"rows with factors of different kinds cannot be totalled: {words}",
                hint="report lifecycle and direct emissions separately",
            )
    (grid, residual, _, onsite) = kinds
    shares = [portion.share for portion in portions]
    return Footprint(
        location=Emissions(fsum(one.location * share for one, share in zip(grams, shares, strict=True)), grid),
        market=Emissions(fsum(one.market * share for one, share in zip(grams, shares, strict=True)), residual),
        onsite=Emissions(fsum(one.onsite * share for one, share in zip(grams, shares, strict=True)), onsite),
    )


# What did a job, a tenant, a dataset, a hub or a month cost? Lines of totals, grouped one way, that add up.
#
# A job that read several datasets is divided among them in equal parts, so that no gram is counted under two names.
# What
# has no dataset, no tenant or no job stands under an empty name: leaving it out would make the lines look like all.


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


# How does a report leave the house? As CSV and JSON in the words of the GHG Protocol, each figure with its unit.
#
# Scope 2 is reported twice, by location and by market, as the protocol asks ("dual reporting"), and on-site power
# beside it. No column and no field holds a sum of the two.


G_PER_KG = 1000.0
STANDARD = "GHG Protocol Scope 2 Guidance: dual reporting, location-based and market-based"
LIFECYCLE_NOTE = (
    "Factors are lifecycle factors and losses on the way to the meter are included: the GHG Protocol files the part"
    " that is not burnt at the plant under scope 3, category 3."
)
DIRECT_NOTE = (
    "Factors are direct emissions of the plants; losses on the way to the meter are included, which the GHG Protocol"
    " files under scope 3, category 3."
)
RULES = (
    "location-based and market-based emissions are alternatives and are never added",
    "on-site power counts when used as it is produced; surplus and export earn no credit",
    "savings are relative to the naive run (same job, home hub, immediate start, same renewables), where known",
)

# Column of the CSV, in order. The empty name is what nobody held, or what has no dataset.
COLUMNS = (
    "group_by",
    "name",
    "energy_kwh",
    "grid_kwh",
    "onsite_kwh",
    "ppa_kwh",
    "measured_share",
    "estimated_share",
    "scope2_location_based_kgco2e",
    "scope2_market_based_kgco2e",
    "onsite_kgco2e",
    "location_with_onsite_g_per_kwh",
    "market_with_onsite_g_per_kwh",
    "saved_location_with_onsite_kgco2e",
    "saved_market_with_onsite_kgco2e",
    "saved_compared_kwh",
    "saved_estimated",
    "saved_method",
    "factor_kind",
    "factor_sources",
    "rows",
)


def as_plain(report: CarbonReport) -> dict[str, object]:
    """For JSON."""
    scope = report.total.footprint.location.of.scope
    return {
        "standard": STANDARD,
        "notes": [LIFECYCLE_NOTE if scope is EmissionScope.LIFECYCLE else DIRECT_NOTE, *RULES],
        "units": {"energy": "kWh", "emissions": "kg CO2e", "intensity": "g CO2e/kWh"},
        "group_by": str(report.group_by),
        "months": list(report.months),
        "hubs": list(report.hubs),
        "lines": [{"name": name, **_line(line)} for name, line in report.lines.items()],
        "total": _line(report.total),
        "factors": [asdict(factor) for factor in report.factors],
        "energy_methods": list(report.energy_methods),
    }


def as_json(report: CarbonReport) -> str:
    return json.dumps(as_plain(report), indent=2, ensure_ascii=False) + "\n"


def as_csv(report: CarbonReport) -> str:
    """One line per name and one `total`. Names that a spreadsheet would take for a formula are made plain text."""
    text = _Text()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    shared = {
        "factor_kind": str(report.total.footprint.location.of),
        "factor_sources": "; ".join(dict.fromkeys(factor.source for factor in report.factors)),
    }
    for name, line in report.lines.items():
        writer.writerow({"group_by": str(report.group_by), "name": _harmless(name), **_cells(line), **shared})
    writer.writerow({"group_by": "total", "name": "", **_cells(report.total), **shared})
    return "".join(text.pieces)


class _Text:
    """What the CSV writer writes to: memory, without the module for files."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def write(self, piece: str) -> int:
        self.pieces.append(piece)
        return len(piece)


def _line(totals: Totals) -> dict[str, object]:
    footprint, saved = totals.footprint, totals.saved
    return {
        "rows": totals.rows,
        "energy_kwh": totals.energy.kwh,
        "grid_kwh": totals.grid.kwh,
        "onsite_kwh": totals.onsite.kwh,
        "ppa_kwh": totals.ppa.kwh,
        "measured_share": totals.measured_share,
        "estimated_share": 1.0 - totals.measured_share,
        "scope2_location_based_kgco2e": footprint.location.g / G_PER_KG,
        "scope2_market_based_kgco2e": footprint.market.g / G_PER_KG,
        "onsite_kgco2e": footprint.onsite.g / G_PER_KG,
        "location_with_onsite_g_per_kwh": totals.g_per_kwh(Method.LOCATION),
        "market_with_onsite_g_per_kwh": totals.g_per_kwh(Method.MARKET),
        "kinds": {
            "location": str(footprint.location.of),
            "market": str(footprint.market.of),
            "onsite": str(footprint.onsite.of),
        },
        "saved": None
        if saved is None
        else {
            "location_with_onsite_kgco2e": saved.by(Method.LOCATION).g / G_PER_KG,
            "market_with_onsite_kgco2e": saved.by(Method.MARKET).g / G_PER_KG,
            "location_with_onsite_share": saved.share_by(Method.LOCATION),
            "market_with_onsite_share": saved.share_by(Method.MARKET),
            "naive_location_with_onsite_kgco2e": saved.naive.total(Method.LOCATION).g / G_PER_KG,
            "naive_market_with_onsite_kgco2e": saved.naive.total(Method.MARKET).g / G_PER_KG,
            "compared_kwh": saved.compared.kwh,
            "estimated": saved.estimated,
            "methods": list(saved.methods),
        },
    }


def _cells(totals: Totals) -> Mapping[str, object]:
    """The line without what is nested; empty where there is nothing to compare with."""
    flat = {name: value for name, value in _line(totals).items() if name in COLUMNS}
    saved = totals.saved
    if saved is None:
        return flat
    return {
        **flat,
        "saved_location_with_onsite_kgco2e": saved.by(Method.LOCATION).g / G_PER_KG,
        "saved_market_with_onsite_kgco2e": saved.by(Method.MARKET).g / G_PER_KG,
        "saved_compared_kwh": saved.compared.kwh,
        "saved_estimated": saved.estimated,
        "saved_method": "; ".join(saved.methods),
    }


def _harmless(name: str) -> str:
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name

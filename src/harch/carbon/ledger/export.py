"""How does a report leave the house? As CSV and JSON in the words of the GHG Protocol, each figure with its unit.

Scope 2 is told twice, by location and by market, as the protocol asks ("dual reporting"), and on-site power beside it.
No column and no field holds a sum of the two.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict

from harch.carbon.ledger.report import CarbonReport
from harch.carbon.ledger.totals import Totals
from harch.carbon.values import Method, Scope

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
    "location-based and market-based figures are two answers to one question and are never added",
    "on-site power is what was used when it was made; surplus and export earn no credit",
    "saved is against the naive run (same job, home hub, started at once, same renewables), only where that is known",
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
        "notes": [LIFECYCLE_NOTE if scope is Scope.LIFECYCLE else DIRECT_NOTE, *RULES],
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

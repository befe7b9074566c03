"""What do many rows come to? Energy, grams by each method side by side, how much was measured, what was saved.

Only rows that count belong in here (`current`). Rows with lifecycle and with direct factors have no common total:
adding them raises `KindsMixed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

from harch.carbon.ledger.chain import LedgerRow
from harch.carbon.ledger.charge import Charge, Grams
from harch.carbon.ledger.footprint import Footprint, no_footprint
from harch.carbon.values import Emissions, Energy, Evidence, KindsMixed, Method


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
                f"rows with factors of different kinds have no common total: {words}",
                hint="report lifecycle and direct figures apart",
            )
    (grid, residual, _, onsite) = kinds
    shares = [portion.share for portion in portions]
    return Footprint(
        location=Emissions(fsum(one.location * share for one, share in zip(grams, shares, strict=True)), grid),
        market=Emissions(fsum(one.market * share for one, share in zip(grams, shares, strict=True)), residual),
        onsite=Emissions(fsum(one.onsite * share for one, share in zip(grams, shares, strict=True)), onsite),
    )

"""How much carbon, by which method? Grams by location, by contract and of own plants side by side, never in one sum.

Own plants are counted alike by both methods, so a total is "by location, with own plants" or "by contract, with own
plants". There is no total of all three: it would count the power from the grid twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from harch.carbon.values import Basis, Emissions, IntensityKind, KindsMixed, Method, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Emissions by each method."""

    location: Emissions
    market: Emissions
    onsite: Emissions

    def __post_init__(self) -> None:
        for emissions, method in (
            (self.location, Method.LOCATION),
            (self.market, Method.MARKET),
            (self.onsite, Method.ONSITE),
        ):
            if emissions.of.method is not method:
                raise KindsMixed(f"`{emissions}` was given as emissions by {method}")

    def __add__(self, other: Footprint) -> Footprint:
        return Footprint(
            location=self.location + other.location,
            market=self.market + other.market,
            onsite=self.onsite + other.onsite,
        )

    def __sub__(self, other: Footprint) -> Footprint:
        return Footprint(
            location=self.location - other.location,
            market=self.market - other.market,
            onsite=self.onsite - other.onsite,
        )

    def __mul__(self, share: float) -> Footprint:
        return Footprint(location=self.location * share, market=self.market * share, onsite=self.onsite * share)

    def total(self, method: Method) -> Emissions:
        """By location or by contract, own plants included. What is on-site alone is `onsite`."""
        if method is Method.ONSITE:
            raise KindsMixed("own plants are part of the total by location and of the one by contract, and have none")
        grid = self.location if method is Method.LOCATION else self.market
        return grid.with_number(grid.g + self.onsite.g)


def no_footprint(scope: Scope = Scope.LIFECYCLE, basis: Basis = Basis.AVERAGE) -> Footprint:
    return Footprint(
        location=Emissions(0.0, IntensityKind(basis, scope, Method.LOCATION)),
        market=Emissions(0.0, IntensityKind(Basis.AVERAGE, scope, Method.MARKET)),
        onsite=Emissions(0.0, IntensityKind(Basis.AVERAGE, scope, Method.ONSITE)),
    )

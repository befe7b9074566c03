"""How does a program ask about the power that a hub buys? Operations, and both namespaces of `client.energy`."""

from __future__ import annotations

from dataclasses import dataclass

from harch.sdk.data import AsyncRun, Run
from harch.sdk.energy_types import EnergyBids, EnergyBook, EnergyPlan, EnergyPrices
from harch.sdk.exchange import ApiRequest, Operation, RetryPolicy, decoded, exchange

DAYS = 30


@dataclass(frozen=True, slots=True)
class EnergyOperations:
    """One operation per question; see `exchange` for how they are driven."""

    retry: RetryPolicy

    def plan(self) -> Operation[EnergyPlan]:
        return decoded((yield from exchange(ApiRequest("GET", "/energy/plan"), self.retry)), EnergyPlan)

    def prices(self) -> Operation[EnergyPrices]:
        return decoded((yield from exchange(ApiRequest("GET", "/energy/prices"), self.retry)), EnergyPrices)

    def bids(self) -> Operation[EnergyBids]:
        return decoded((yield from exchange(ApiRequest("GET", "/energy/bids"), self.retry)), EnergyBids)

    def book(self, days: int) -> Operation[EnergyBook]:
        request = ApiRequest("GET", "/energy/book", {"days": str(days)})
        return decoded((yield from exchange(request, self.retry)), EnergyBook)


class Energy:
    """`client.energy`: of the asked hub."""

    def __init__(self, run: Run, ops: EnergyOperations) -> None:
        self._run, self._ops = run, ops

    def plan(self) -> EnergyPlan:
        """Which power the hub buys, stores and sells in the next hours."""
        return self._run(self._ops.plan())

    def prices(self) -> EnergyPrices:
        """What a MWh costs in each step, carbon included."""
        return self._run(self._ops.prices())

    def bids(self) -> EnergyBids:
        """Bids of the last days and of the next market day. Needs the role `operator`."""
        return self._run(self._ops.bids())

    def book(self, *, days: int = DAYS) -> EnergyBook:
        """What became of every bid that was delivered in the last days. Needs the role `operator`."""
        return self._run(self._ops.book(days))


class AsyncEnergy:
    """`client.energy` of the asynchronous client. The methods are those of `Energy`."""

    def __init__(self, run: AsyncRun, ops: EnergyOperations) -> None:
        self._run, self._ops = run, ops

    async def plan(self) -> EnergyPlan:
        return await self._run(self._ops.plan())

    async def prices(self) -> EnergyPrices:
        return await self._run(self._ops.prices())

    async def bids(self) -> EnergyBids:
        return await self._run(self._ops.bids())

    async def book(self, *, days: int = DAYS) -> EnergyBook:
        return await self._run(self._ops.book(days))

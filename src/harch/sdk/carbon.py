"""How does a program ask about power and carbon? Operations, and both namespaces of `client.carbon`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from harch.sdk.carbon_types import CarbonPlanView, GridForecast, HubReport, JobCarbon, PowerList, PowerView
from harch.sdk.data import AsyncRun, Run
from harch.sdk.exchange import ApiRequest, Operation, RetryPolicy, decoded, exchange
from harch.sdk.streams import ChainExport

HOURS_AHEAD_MAX = 96
LEDGER = "/carbon/ledger"


@dataclass(frozen=True, slots=True)
class CarbonOperations:
    """One operation per question; see `exchange` for how they are driven."""

    retry: RetryPolicy

    def now(self) -> Operation[list[PowerView]]:
        return decoded((yield from exchange(ApiRequest("GET", "/carbon/now"), self.retry)), PowerList).items

    def forecast(self, hub: str | None, hours: int) -> Operation[GridForecast]:
        params = {"hours": str(hours)} | ({"hub": hub} if hub is not None else {})
        return decoded((yield from exchange(ApiRequest("GET", "/carbon/forecast", params), self.retry)), GridForecast)

    def plan(self) -> Operation[CarbonPlanView]:
        return decoded((yield from exchange(ApiRequest("GET", "/carbon/plan"), self.retry)), CarbonPlanView)

    def report(self, filters: Mapping[str, str | None]) -> Operation[HubReport]:
        params = {name: value for name, value in filters.items() if value is not None}
        return decoded((yield from exchange(ApiRequest("GET", "/carbon/report", params), self.retry)), HubReport)

    def why(self, ref: str) -> Operation[JobCarbon]:
        path = f"/carbon/why/{quote(ref, safe='')}"
        return decoded((yield from exchange(ApiRequest("GET", path), self.retry)), JobCarbon)


class Carbon:
    """`client.carbon`."""

    def __init__(self, run: Run, stream: Callable[[ChainExport], Iterator[bytes]], ops: CarbonOperations) -> None:
        self._run, self._stream, self._ops = run, stream, ops

    def now(self) -> list[PowerView]:
        """The power of every hub, as the asked one knows it."""
        return self._run(self._ops.now())

    def forecast(self, hub: str | None = None, *, hours: int = HOURS_AHEAD_MAX) -> GridForecast:
        """The grid of a hub, of the asked one if absent, in the hours to come."""
        return self._run(self._ops.forecast(hub, hours))

    def plan(self) -> CarbonPlanView:
        """The asked hub's newest plan of where and when work should run."""
        return self._run(self._ops.plan())

    def report(
        self,
        *,
        by: str = "tenant",
        tenant: str | None = None,
        workload: str | None = None,
        data: str | None = None,
        month: str | None = None,
    ) -> HubReport:
        """What work used at the asked hub; `by` is tenant, job, dataset, hub or month."""
        filters = {"by": by, "tenant": tenant, "workload": workload, "data": data, "month": month}
        return self._run(self._ops.report(filters))

    def why(self, ref: str) -> JobCarbon:
        """On what power a job ran at the asked hub."""
        return self._run(self._ops.why(ref))

    def ledger(self) -> Iterator[bytes]:
        """The whole ledger of the asked hub, piece by piece. To verify it, see `harch carbon verify`."""
        return self._stream(ChainExport(self._ops.retry, LEDGER))


class AsyncCarbon:
    """`client.carbon` of the asynchronous client. The methods are those of `Carbon`."""

    def __init__(
        self, run: AsyncRun, stream: Callable[[ChainExport], AsyncIterator[bytes]], ops: CarbonOperations
    ) -> None:
        self._run, self._stream, self._ops = run, stream, ops

    async def now(self) -> list[PowerView]:
        return await self._run(self._ops.now())

    async def forecast(self, hub: str | None = None, *, hours: int = HOURS_AHEAD_MAX) -> GridForecast:
        return await self._run(self._ops.forecast(hub, hours))

    async def plan(self) -> CarbonPlanView:
        return await self._run(self._ops.plan())

    async def report(
        self,
        *,
        by: str = "tenant",
        tenant: str | None = None,
        workload: str | None = None,
        data: str | None = None,
        month: str | None = None,
    ) -> HubReport:
        filters = {"by": by, "tenant": tenant, "workload": workload, "data": data, "month": month}
        return await self._run(self._ops.report(filters))

    async def why(self, ref: str) -> JobCarbon:
        return await self._run(self._ops.why(ref))

    def ledger(self) -> AsyncIterator[bytes]:
        return self._stream(ChainExport(self._ops.retry, LEDGER))

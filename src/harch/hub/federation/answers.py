"""What does a hub answer to its peers? Which work it owns, what their work has written here, and of its telemetry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from harch.base.errors import HarchError
from harch.hub.federation.messages import (
    LOG_BYTES_MAX,
    ROWS_MAX,
    Answer,
    LogAsked,
    LogTold,
    NotTold,
    PieceAsked,
    Question,
    TelemetryAsked,
    WorkAsked,
    WorkRow,
    WorkTold,
)
from harch.hub.federation.telemetry_desk import TelemetryDesk
from harch.hub.federation.work import row_of
from harch.hub.views import LogPage, WorkloadPage, WorkloadQuery
from harch.workloads.lifecycle import Workload


class ReadLog(Protocol):
    """Reads from this hub's agents."""

    def __call__(
        self, workload: Workload, *, rank: int, attempt: int | None, offset: int, bytes_max: int
    ) -> Awaitable[LogPage]: ...


class AnswerDesk:
    """`list_work` and `find` read what this hub has, `read_log` asks its agents.

    `unheard_s`: how long nothing was heard of work that another hub runs, if that is long.
    """

    def __init__(
        self,
        *,
        hub_id: str,
        list_work: Callable[[WorkloadQuery], Awaitable[WorkloadPage]],
        unheard_s: Callable[[Workload], float | None],
        find: Callable[[str], Awaitable[Workload]],
        read_log: ReadLog,
        telemetry: TelemetryDesk,
    ) -> None:
        self._hub_id, self._unheard_s = hub_id, unheard_s
        self._list_work, self._find, self._read_log, self._telemetry = list_work, find, read_log, telemetry

    async def answer(self, hub_id: str, question: Question) -> Answer:
        """Never raises for what can go wrong: then the error is the answer."""
        try:
            if isinstance(question, WorkAsked):
                return await self._work(question)
            if isinstance(question, TelemetryAsked):
                return await self._telemetry.answer(hub_id, question)
            if isinstance(question, PieceAsked):
                return self._telemetry.piece(hub_id, question)
            return await self._log(hub_id, question)
        except HarchError as error:
            return NotTold(number=question.number, code=error.code, message=error.message, hint=error.hint)

    async def own_work(self, *, tenant: str | None, limit: int, number: int = 0) -> WorkTold:
        """The newest unfinished work that this hub owns."""
        page = await self._list_work(WorkloadQuery(tenant=tenant, active=True, per_page=limit))
        rows = tuple(row_of(workload, unheard_s=self._unheard_s(workload)) for workload in page.items)
        return WorkTold(number=number, rows=rows, total=page.total)

    async def guests(self, *, tenant: str | None, limit: int) -> list[WorkRow]:
        """The newest unfinished work of other hubs that is here."""
        page = await self._list_work(WorkloadQuery(tenant=tenant, active=True, per_page=limit, guests=True))
        return [row_of(workload, runner=self._hub_id) for workload in page.items]

    async def _work(self, question: WorkAsked) -> WorkTold:
        limit = max(1, min(question.limit, ROWS_MAX))
        return await self.own_work(tenant=question.tenant, limit=limit, number=question.number)

    async def _log(self, hub_id: str, question: LogAsked) -> LogTold:
        workload = await self._find(question.workload_id)
        if workload.owner_hub != hub_id or not workload.guest:
            raise HarchError("E0301", f"{question.workload_id} is not work of {hub_id} here", hint="ask its owner")
        page = await self._read_log(
            workload,
            rank=question.rank,
            attempt=question.attempt,
            offset=question.offset,
            bytes_max=max(1, min(question.bytes_max, LOG_BYTES_MAX)),
        )
        return LogTold(number=question.number, offset=page.offset, data=page.data, eof=page.eof)

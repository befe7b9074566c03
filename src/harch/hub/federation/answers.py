"""What does a hub answer to its peers? Which work it owns, what their work has written here, and of its telemetry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from msgspec import Struct

from harch.base.errors import HarchError
from harch.hub.federation.messages import (
    LOG_BYTES_MAX,
    ROWS_MAX,
    Answer,
    ContentRequest,
    CopiesQuestion,
    ErrorReply,
    FilesQuestion,
    LogReply,
    LogRequest,
    PieceRequest,
    Question,
    TelemetryRequest,
    WorkReply,
    WorkRequest,
    WorkRow,
)
from harch.hub.federation.questions import Questions
from harch.hub.federation.telemetry import TelemetryAnswers
from harch.hub.views import LiveStatus, LogPage, PeerReach, PeerView, WorkloadPage, WorkloadQuery
from harch.wire.workloads import SilentHub
from harch.workloads.lifecycle import Workload


class ReadLog(Protocol):
    """Reads from this hub's agents."""

    def __call__(
        self,
        workload: Workload,
        *,
        rank: int,
        attempt: int | None,
        offset: int,
        bytes_max: int,
        since_s: float | None = None,
        preparation: bool = False,
    ) -> Awaitable[LogPage]: ...


class AnswerContent(Protocol):
    """What this hub gives to others of its content. Raises for what it does not give."""

    async def __call__(self, hub_id: str, question: ContentRequest | FilesQuestion | CopiesQuestion) -> Answer: ...


class PeerAnswers:
    """`list_work` and `find` read what this hub has, `read_log` asks its agents."""

    def __init__(
        self,
        *,
        hub_id: str,
        list_work: Callable[[WorkloadQuery], Awaitable[WorkloadPage]],
        live_status: Callable[[Workload], LiveStatus],
        find: Callable[[str], Awaitable[Workload]],
        read_log: ReadLog,
        telemetry: TelemetryAnswers,
        content: AnswerContent,
    ) -> None:
        self._hub_id, self._live_status = hub_id, live_status
        self._list_work, self._find, self._read_log, self._telemetry = list_work, find, read_log, telemetry
        self._content = content

    async def answer(self, hub_id: str, question: Question) -> Answer:
        """Never raises for what can go wrong: then the error is the answer."""
        try:
            if isinstance(question, WorkRequest):
                return await self._work(question)
            if isinstance(question, TelemetryRequest):
                return await self._telemetry.answer(hub_id, question)
            if isinstance(question, PieceRequest):
                return self._telemetry.piece(hub_id, question)
            if isinstance(question, ContentRequest | FilesQuestion | CopiesQuestion):
                return await self._content(hub_id, question)
            return await self._log(hub_id, question)
        except HarchError as error:
            return ErrorReply(number=question.number, code=error.code, message=error.message, hint=error.hint)

    async def own_work(self, *, tenant: str | None, limit: int, number: int = 0) -> WorkReply:
        """The newest unfinished work that this hub owns."""
        page = await self._list_work(WorkloadQuery(tenant=tenant, active=True, per_page=limit))
        rows = tuple(row_of(workload, live=self._live_status(workload)) for workload in page.items)
        return WorkReply(number=number, rows=rows, total=page.total)

    async def borrowed(self, *, tenant: str | None, limit: int) -> list[WorkRow]:
        """The newest unfinished work of other hubs that is here."""
        page = await self._list_work(WorkloadQuery(tenant=tenant, active=True, per_page=limit, borrowed=True))
        return [row_of(workload, runner=self._hub_id) for workload in page.items]

    async def _work(self, question: WorkRequest) -> WorkReply:
        limit = max(1, min(question.limit, ROWS_MAX))
        return await self.own_work(tenant=question.tenant, limit=limit, number=question.number)

    async def _log(self, hub_id: str, question: LogRequest) -> LogReply:
        workload = await self._find(question.workload_id)
        if workload.owner_hub != hub_id or not workload.borrowed:
            raise HarchError("E0301", f"{question.workload_id} is not work of {hub_id} here", hint="query its owner")
        page = await self._read_log(
            workload,
            rank=question.rank,
            attempt=question.attempt,
            offset=question.offset,
            bytes_max=max(1, min(question.bytes_max, LOG_BYTES_MAX)),
            since_s=question.since_s,
            preparation=question.preparation,
        )
        return LogReply(number=question.number, offset=page.offset, data=page.data, eof=page.eof)


# What runs in the whole federation? Every hub tells of the work that it owns; who does not answer is named.


NODES_LISTED_MAX = 8
NOTE_CHARACTERS_MAX = 200
_NO_LIVE_STATUS = LiveStatus()


class FederationWork(Struct, frozen=True, kw_only=True):
    """Newest first. `total` counts all work of the hubs that answered, also what did not fit into `rows`."""

    rows: list[WorkRow]
    total: int
    silent: list[SilentHub]


def row_of(workload: Workload, *, runner: str = "", live: LiveStatus = _NO_LIVE_STATUS) -> WorkRow:
    """As its owner tells it, or the hub that has it for its owner (`runner`)."""
    spec, resources = workload.spec, workload.spec.resources
    placement = workload.runner_placement if workload.runner_hub else workload.placement
    return WorkRow(
        id=workload.id,
        name=spec.name,
        tenant=workload.tenant,
        owner_hub=workload.owner_hub,
        state=workload.state,
        type=spec.type,
        turn_class=spec.turn_class,
        created_at=workload.created_at,
        updated_at=workload.updated_at,
        runner_hub=runner or workload.runner_hub or (workload.owner_hub if placement else ""),
        nodes=tuple(sorted({task.node_id for task in placement}))[:NODES_LISTED_MAX],
        epoch=workload.epoch,
        attempt=workload.attempt,
        tasks=spec.tasks,
        gpus=resources.gpus,
        gpu_fraction=resources.gpu_fraction,
        started_at=workload.started_at,
        stopping=bool(workload.stop_as),
        modelled=spec.modelled_duration_s is not None,
        note=workload.error_message[:NOTE_CHARACTERS_MAX],
        borrowed=bool(runner),
        pending_reason=live.pending_reason,
        unheard_s=live.unheard_s,
    )


async def gather_work(
    own: WorkReply, borrowed: Iterable[WorkRow], peers: Iterable[PeerView], questions: Questions, *, tenant: str | None
) -> FederationWork:
    """Asks every linked hub at once; each has the same two seconds."""
    others = [peer for peer in peers if not peer.own and peer.reach not in (PeerReach.NOT_MEMBER, PeerReach.RETIRED)]
    answers = await asyncio.gather(*(_query(questions, peer, tenant) for peer in others))
    rows, total = list(own.rows), own.total
    silent, answered = [], set[str]()
    for peer, answer in zip(others, answers, strict=True):
        if isinstance(answer, SilentHub):
            silent.append(answer)
        else:
            answered.add(peer.hub_id)
            rows += answer.rows
            total += answer.total
    left = [row for row in borrowed if row.owner_hub not in answered]
    rows, total = rows + left, total + len(left)
    rows.sort(key=lambda row: (row.created_at, row.id), reverse=True)
    return FederationWork(rows=rows, total=total, silent=silent)


async def _query(questions: Questions, peer: PeerView, tenant: str | None) -> WorkReply | SilentHub:
    why = peer.error
    if peer.reachable:
        try:
            reply = await questions.request(
                peer.hub_id, lambda number: WorkRequest(number=number, tenant=tenant), WorkReply
            )
        except HarchError as error:
            why = error.message
        else:
            # A hub speaks for what it owns; and whoever asked for one tenant gets that one, whatever comes.
            rows = tuple(row for row in reply.rows if row.owner_hub == peer.hub_id and tenant in (None, row.tenant))
            return WorkReply(number=reply.number, rows=rows, total=max(reply.total, len(rows)))
    known = peer.summary.workloads if peer.summary is not None else {}
    return SilentHub(hub_id=peer.hub_id, why=why, age_s=peer.age_s, workloads=known)

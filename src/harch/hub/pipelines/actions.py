"""Which actions wait for a person, and which were given up? Asked of the ledgers of pipelines, decided by people."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import TYPE_CHECKING

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.hub.pipelines import drafts
from harch.hub.pipelines.action_audit import Write
from harch.hub.pipelines.dead_lanes import replay_lane
from harch.hub.pipelines.loop import PipelineLoop
from harch.hub.pipelines.pipeline import RunningPipeline
from harch.hub.pipelines.shown import letter_view, waiting_view
from harch.hub.pipelines.values import PipelineRecord
from harch.hub.pipelines.views import ActionList, ReplayView
from harch.pipelines.act import approvals, letters
from harch.pipelines.act.store_nats import NatsLedger
from harch.pipelines.workers.actor import connect_ledger
from harch.sovereignty.audit.entry import Draft

if TYPE_CHECKING:
    from nats.aio.client import Client

SHOWN_MAX = 1000

Find = Callable[[str, str | None], PipelineRecord]


class PipelineActions:
    """Behind the API. A ledger is opened when somebody asks for it, and kept open: it follows what changes."""

    def __init__(self, find: Find, loop: PipelineLoop, *, clock: Clock, write: Write) -> None:
        self._find, self._loop, self._clock, self._write = find, loop, clock, write
        self._open: dict[str, tuple[RunningPipeline, NatsLedger, Client]] = {}
        self._opening = asyncio.Lock()
        loop.on_removed = self._shut

    async def waiting(self, name: str, *, tenant: str | None) -> ActionList:
        """What can still be approved, most urgent first."""
        async with self._ledger(name, tenant) as ledger:
            found = await approvals.waiting(ledger, now=self._clock.now(), limit=SHOWN_MAX)
        return ActionList(items=tuple(waiting_view(one) for one in found), total=len(found))

    async def approve(self, name: str, cmd_id: str, digest: str, *, tenant: str | None, actor: str) -> None:
        """Exactly this command. Raises E0771 to E0773."""
        async with self._ledger(name, tenant) as ledger:
            now = self._clock.now()
            await approvals.approve(ledger, cmd_id, digest, by=actor, now=now, audit_to=self._audit)

    async def reject(self, name: str, cmd_id: str, reason: str, *, tenant: str | None, actor: str) -> None:
        async with self._ledger(name, tenant) as ledger:
            now = self._clock.now()
            await approvals.reject(ledger, cmd_id, by=actor, reason=reason, now=now, audit_to=self._audit)

    async def letters(self, name: str, *, tenant: str | None) -> ActionList:
        async with self._ledger(name, tenant) as ledger:
            found = await letters.letters(ledger, limit=SHOWN_MAX)
        return ActionList(items=tuple(letter_view(one) for one in found), total=len(found))

    async def replay_letter(
        self, name: str, cmd_id: str, *, not_carried_out: bool, tenant: str | None, actor: str
    ) -> None:
        """Raises E0771, E0772, E0774."""
        record = self._find(name, tenant)
        draft = drafts.letter(record, drafts.LETTER_REPLAYED, cmd_id, by=actor, not_carried_out=not_carried_out)
        async with self._ledger(name, tenant) as ledger:
            await letters.replay(ledger, cmd_id, now=self._clock.now(), not_carried_out=not_carried_out)
            await self._audit(draft)

    async def drop_letter(self, name: str, cmd_id: str, *, tenant: str | None, actor: str) -> None:
        record = self._find(name, tenant)
        async with self._ledger(name, tenant) as ledger:
            await letters.drop(ledger, cmd_id, now=self._clock.now())
            await self._audit(drafts.letter(record, drafts.LETTER_DROPPED, cmd_id, by=actor))

    async def replay(
        self, name: str, *, from_seq: int, since: datetime | None, dry_run: bool, tenant: str | None, actor: str
    ) -> ReplayView:
        """Features and outputs of the dead lanes, into the pipeline again."""
        record, pipeline = self._find(name, tenant), self._running(name, tenant)
        engine = self._loop.engine
        lanes = {"features": engine.main, "outputs": pipeline.act_domain}
        counts, last = {}, {}
        for lane, domain in lanes.items():
            if lane == "outputs" and domain == engine.main:
                continue  # one server has one dead lane, of features
            counts[lane], last[lane] = await replay_lane(
                engine.admin(domain), pipeline.names, lane, from_seq=from_seq, since=since, dry_run=dry_run
            )
        if not dry_run:
            await self._audit(drafts.replayed(record, counts, by=actor))
        return ReplayView(pipeline=name, replayed=counts, last_seq=last, dry_run=dry_run)

    async def close(self) -> None:
        for name in list(self._open):
            await self._shut(name)

    def _running(self, name: str, tenant: str | None) -> RunningPipeline:
        self._find(name, tenant)
        pipeline = self._loop.running.get(name)
        if pipeline is None:
            why = self._loop.troubles.get(name, "it is starting")
            raise HarchError("E0751", f"`{name}` does not run: {why}", hint="try again in a moment", retry_after_s=2)
        return pipeline

    @contextlib.asynccontextmanager
    async def _ledger(self, name: str, tenant: str | None) -> AsyncIterator[NatsLedger]:
        """Workers look at once at what changed. Raises E0775."""
        pipeline = self._running(name, tenant)
        act = pipeline.parts.act
        if act is None:
            raise HarchError("E0755", f"`{name}` has no actions", hint="add `act` to its file")
        async with self._opening:
            known = self._open.get(name)
            if known is not None and known[0] is not pipeline:  # removed and made again since
                await self._shut(name)
                known = None
            if known is None:
                client = await connect_ledger(self._loop.engine.controller_access(pipeline.act_domain))
                try:
                    ledger = await NatsLedger.open(
                        client, bucket=pipeline.names.ledger_bucket, retention_s=act.retention_s
                    )
                except BaseException:
                    await client.close()
                    raise
                known = self._open[name] = (pipeline, ledger, client)
        yield known[1]
        pipeline.wake()

    async def _shut(self, name: str) -> None:
        known = self._open.pop(name, None)
        if known is None:
            return
        _, ledger, client = known
        with contextlib.suppress(HarchError):
            await ledger.close()
        await client.close()

    async def _audit(self, draft: Draft) -> None:
        await self._write([], [draft])

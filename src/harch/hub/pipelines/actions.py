"""Which actions wait for a person, and which were given up?

Read from the ledgers of pipelines, decided by people, and sent through the pipeline again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

from harch.base.clock import Clock
from harch.base.errors import HarchError
from harch.hub.pipelines import audit
from harch.hub.pipelines.audit import Write
from harch.hub.pipelines.loop import PipelineLoop
from harch.hub.pipelines.pipeline import RunningPipeline
from harch.hub.pipelines.pipeline_status import letter_view, waiting_view
from harch.hub.pipelines.values import PipelineRecord
from harch.pipelines.act import review
from harch.pipelines.act.store_nats import NatsLedger
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.errors import JetStreamRefused, NatsError, as_harch_error
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin
from harch.pipelines.workers.act_worker import connect_ledger
from harch.pipelines.workers.names import PipelineNames
from harch.sovereignty.audit.chain import Draft
from harch.wire.pipelines import ActionList, ReplayView

REPLAYED_MAX = 10_000
_NO_MESSAGE = 10037


async def replay_lane(
    admin: JetStreamAdmin,
    names: PipelineNames,
    lane: str,
    *,
    from_seq: int,
    since: datetime | None,
    dry_run: bool,
) -> tuple[int, int]:
    """Sends messages of one dead lane again, `features` to THINK or `outputs` to ACT; answers how many, and the last.

    Each is stored in its lane before the dead one is deleted, so that a crash repeats it and loses none: windows and
    commands carry their own keys. Raises E0701."""
    seq, count = max(0, from_seq - 1), 0
    target = names.features if lane == "features" else names.outputs
    try:
        while count < REPLAYED_MAX:
            message = await _next(admin, names, seq + 1)
            if message is None:
                break
            seq = int(message["seq"])
            if since is not None and _time_of(message) < since:
                continue
            if not dry_run:
                partition = str(message["subject"]).rpartition(".")[2]
                payload = base64.b64decode(message.get("data", ""))
                await admin.client.publish_stored(target(partition), payload)
                await admin.call(f"STREAM.MSG.DELETE.{names.dead_stream}", {"seq": seq, "no_erase": True})
            count += 1
    except NatsError as error:
        raise as_harch_error(error, f"replaying {lane}") from error
    return count, seq


async def _next(admin: JetStreamAdmin, names: PipelineNames, seq: int) -> dict[str, Any] | None:
    try:
        found = await admin.call(f"STREAM.MSG.GET.{names.dead_stream}", {"seq": seq, "next_by_subj": names.dead("*")})
    except JetStreamRefused as error:
        if error.code == _NO_MESSAGE:
            return None
        raise
    message = found.get("message")
    if not isinstance(message, dict):
        raise HarchError("E1001", "the engine returned something other than a message")
    return message


def _time_of(message: dict[str, Any]) -> datetime:
    """JetStream writes nanoseconds, which Python does not read."""
    text = str(message["time"]).removesuffix("Z")
    whole, _, part = text.partition(".")
    return datetime.fromisoformat(f"{whole}.{(part or '0')[:6]:0<6}+00:00")


# Which actions wait for a person, and which were given up? Asked of the ledgers of pipelines, decided by people.


LISTED_MAX = 1000

Find = Callable[[str, str | None], PipelineRecord]


class PipelineActions:
    """Behind the API. A ledger is opened when somebody asks for it, and kept open: it follows what changes."""

    def __init__(self, find: Find, loop: PipelineLoop, *, clock: Clock, write: Write) -> None:
        self._find, self._loop, self._clock, self._write = find, loop, clock, write
        self._open: dict[str, tuple[RunningPipeline, NatsLedger, AioClient]] = {}
        self._opening = asyncio.Lock()
        loop.on_removed = self._shut

    async def waiting(self, name: str, *, tenant: str | None) -> ActionList:
        """What can still be approved, most urgent first."""
        async with self._ledger(name, tenant) as ledger:
            found = await review.waiting(ledger, now=self._clock.now(), limit=LISTED_MAX)
        return ActionList(items=tuple(waiting_view(one) for one in found), total=len(found))

    async def approve(self, name: str, cmd_id: str, digest: str, *, tenant: str | None, actor: str) -> None:
        """Exactly this command. Raises E0771 to E0773."""
        async with self._ledger(name, tenant) as ledger:
            now = self._clock.now()
            await review.approve(ledger, cmd_id, digest, by=actor, now=now, audit_to=self._audit)

    async def reject(self, name: str, cmd_id: str, reason: str, *, tenant: str | None, actor: str) -> None:
        async with self._ledger(name, tenant) as ledger:
            now = self._clock.now()
            await review.reject(ledger, cmd_id, by=actor, reason=reason, now=now, audit_to=self._audit)

    async def letters(self, name: str, *, tenant: str | None) -> ActionList:
        async with self._ledger(name, tenant) as ledger:
            found = await review.letters(ledger, limit=LISTED_MAX)
        return ActionList(items=tuple(letter_view(one) for one in found), total=len(found))

    async def replay_letter(
        self, name: str, cmd_id: str, *, not_carried_out: bool, tenant: str | None, actor: str
    ) -> None:
        """Raises E0771, E0772, E0774."""
        record = self._find(name, tenant)
        draft = audit.letter(record, audit.LETTER_REPLAYED, cmd_id, by=actor, not_carried_out=not_carried_out)
        async with self._ledger(name, tenant) as ledger:
            await review.replay(ledger, cmd_id, now=self._clock.now(), not_carried_out=not_carried_out)
            await self._audit(draft)

    async def drop_letter(self, name: str, cmd_id: str, *, tenant: str | None, actor: str) -> None:
        record = self._find(name, tenant)
        async with self._ledger(name, tenant) as ledger:
            await review.drop(ledger, cmd_id, now=self._clock.now())
            await self._audit(audit.letter(record, audit.LETTER_DROPPED, cmd_id, by=actor))

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
            await self._audit(audit.replayed(record, counts, by=actor))
        return ReplayView(pipeline=name, replayed=counts, last_seq=last, dry_run=dry_run)

    async def close(self) -> None:
        for name in list(self._open):
            await self._shut(name)

    def _running(self, name: str, tenant: str | None) -> RunningPipeline:
        self._find(name, tenant)
        pipeline = self._loop.running.get(name)
        if pipeline is None:
            why = self._loop.troubles.get(name, "starting")
            raise HarchError("E0751", f"`{name}` is not running: {why}", hint="try again in a moment", retry_after_s=2)
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

"""How do actions come into the audit chain? From the stream that ACT writes, in order, none twice, none lost."""

from __future__ import annotations

import base64
import binascii
import logging
from asyncio import Future
from collections.abc import Callable

import msgspec

from harch.hub.pipelines import records
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement
from harch.pipelines.client.errors import JetStreamRefused
from harch.pipelines.engine.jetstream_api import JetStreamAdmin
from harch.pipelines.workers.names import PipelineNames
from harch.sovereignty.audit.entry import Draft

ENTRIES_PER_ROUND = 500
_NO_MESSAGE = 10037

log = logging.getLogger("harch.hub")

Write = Callable[[list[Statement], list[Draft]], "Future[None]"]


async def take_entries(admin: JetStreamAdmin, names: PipelineNames, database: Database, write: Write) -> int:
    """What is new goes into the chain, in one transaction with its number; only then does the stream forget it.

    Raises NatsError. Answers how many were taken."""
    last = records.audited(database, names.pipeline)
    drafts: list[Draft] = []
    seq = last
    while len(drafts) < ENTRIES_PER_ROUND:
        try:
            found = await admin.call(
                f"STREAM.MSG.GET.{names.audit_stream}", {"seq": seq + 1, "next_by_subj": names.audit}
            )
        except JetStreamRefused as error:
            if error.code == _NO_MESSAGE:
                break
            raise
        message = found["message"]
        seq = int(message["seq"])
        try:
            drafts.append(msgspec.json.decode(base64.b64decode(message["data"]), type=Draft))
        except (msgspec.MsgspecError, binascii.Error, KeyError):
            log.error("entry %d of %s is no audit entry and was left out", seq, names.audit_stream)
    if seq > last:
        await write([records.save_audited(names.pipeline, seq)], drafts)
        await admin.call(f"STREAM.PURGE.{names.audit_stream}", {"seq": seq + 1})
    return len(drafts)

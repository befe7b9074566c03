"""What of pipelines belongs into the audit chain?

Their life, what passes their borders, and what ACT does: in order, none twice, none lost.
"""

from __future__ import annotations

import base64
import binascii
import logging
from asyncio import Future
from collections.abc import Callable, Mapping

import msgspec

from harch.base.errors import HarchError
from harch.hub.audit.drafts import REASON_LENGTH_MAX, tenant_of
from harch.hub.pipelines import records
from harch.hub.pipelines.planning import PlannedPipeline
from harch.hub.pipelines.values import PipelineRecord
from harch.hub.store.database import Database
from harch.hub.store.rows import Statement
from harch.pipelines.client.errors import JetStreamRefused
from harch.pipelines.engine.borders import BorderLane, LinkPlan
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin
from harch.pipelines.workers.names import PipelineNames
from harch.sovereignty.audit.chain import Detail, Draft

APPLIED = "pipeline.applied"
REFUSED = "pipeline.refused"
SCALED = "pipeline.scaled"
DRAINED = "pipeline.drained"
REMOVED = "pipeline.removed"
HALTED = "pipeline.halted"
RESUMED = "pipeline.resumed"
REPLAYED = "pipeline.replayed"
EVENTS_REPLAYED = "pipeline.events_replayed"
KEY_READ = "pipeline.key_shown"
KEY_RENEWED = "pipeline.key_renewed"
LETTER_REPLAYED = "action.replayed"
LETTER_DROPPED = "action.dropped"

_DESIRED_STATES = {"run": APPLIED, "drain": DRAINED, "remove": REMOVED}


def applied(record: PipelineRecord, planned: PlannedPipeline, result: str, *, country: str, by: str) -> Draft:
    """With the proof: how many edges were proved, and every country that one of them touches."""
    countries = tuple(sorted({code for edge in planned.proof.edges for code in edge.countries} | {country}))
    steps = planned.update.stages if planned.update is not None else ()
    details: dict[str, Detail] = {
        "version": record.version,
        "result": result,
        "edges_proved": len(planned.proof.edges),
        "stages": tuple(f"{one.stage}:{one.step}" for one in steps) or tuple(planned.spec.stages),
    }
    return _of(record, APPLIED, details, by, countries)


def refused(name: str, error: HarchError, *, country: str, tenant: str, by: str) -> Draft:
    return Draft(
        REFUSED,
        name,
        "refused",
        actor=by,
        authority=tenant_of(tenant),
        countries=(country,),
        details={"code": error.code, "reason": error.message[:REASON_LENGTH_MAX]},
    )


def scaled(record: PipelineRecord, *, country: str, by: str) -> Draft:
    fixed = tuple(f"{stage}={count}" for stage, count in sorted(record.fixed.items()))
    return _of(record, SCALED, {"fixed": fixed}, by, (country,))


def wished(record: PipelineRecord, *, country: str, by: str) -> Draft:
    return _of(record, _DESIRED_STATES[record.desired.value], {"version": record.version}, by, (country,))


def halted(record: PipelineRecord, *, country: str, by: str) -> Draft:
    """ACT stops sending, or goes on, from the moment of this entry at the latest."""
    kind = HALTED if record.halted else RESUMED
    return _of(record, kind, {"reason": record.halted[:REASON_LENGTH_MAX]}, by, (country,))


def replayed(record: PipelineRecord, counts: dict[str, int], *, by: str) -> Draft:
    return _of(record, REPLAYED, dict(counts), by, ())


def events_replayed(record: PipelineRecord, file: str, *, again: bool, by: str) -> Draft:
    return _of(record, EVENTS_REPLAYED, {"file": file, "again": again}, by, ())


def source_key(record: PipelineRecord, kind: str, source: str, *, by: str) -> Draft:
    """Who has seen or renewed a key; never the key."""
    return _of(record, kind, {"source": source, "revision": record.key_revisions.get(source, 0)}, by, ())


def letter(record: PipelineRecord, kind: str, cmd_id: str, *, by: str, not_carried_out: bool = False) -> Draft:
    return Draft(
        kind,
        cmd_id,
        "allowed",
        actor=by,
        authority=tenant_of(record.tenant),
        details={"pipeline": record.name, "not_carried_out": not_carried_out},
    )


def _of(record: PipelineRecord, kind: str, details: dict[str, Detail], by: str, countries: tuple[str, ...]) -> Draft:
    authority = tenant_of(record.tenant)
    return Draft(kind, record.name, "done", actor=by, authority=authority, countries=countries, details=details)


# What of a border belongs into the audit chain? What may pass, what did pass, and what was not taken in.


OPENED = "pipeline.border_opened"
EXPORTED = "pipeline.exported"
IMPORTED = "pipeline.imported"
NOT_TAKEN = "pipeline.import_refused"


def opened(plan: LinkPlan) -> list[Draft]:
    """One entry for each export that may pass from now on."""
    return [
        Draft(OPENED, lane.pipeline, "allowed", countries=_countries(lane), details=_details(lane))
        for lane in (*plan.out, *plan.into)
    ]


def passed(lane: BorderLane, counts: Mapping[str, int], hub: str) -> Draft:
    """How many windows and rows passed since the last such entry, and what was kept back."""
    kind = EXPORTED if lane.source == hub else IMPORTED
    named: dict[str, Detail] = {_plain(name): count for name, count in sorted(counts.items())}
    return Draft(kind, lane.pipeline, "done", countries=_countries(lane), details=_details(lane) | named)


def not_taken(record: PipelineRecord, lane: BorderLane, why: str) -> Draft:
    return Draft(
        NOT_TAKEN,
        record.name,
        "refused",
        authority=tenant_of(record.tenant),
        countries=_countries(lane),
        details=_details(lane) | {"reason": why[:REASON_LENGTH_MAX]},
    )


def _countries(lane: BorderLane) -> tuple[str, ...]:
    return (lane.country, lane.target_country)


def _details(lane: BorderLane) -> dict[str, Detail]:
    return {"export": lane.export, "from_hub": lane.source, "to_hub": lane.target}


def _plain(name: str) -> str:
    return name.replace(":", "_")


# How do actions come into the audit chain? From the stream that ACT writes, in order, none twice, none lost.


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
            log.error("entry %d of %s is not an audit entry and was skipped", seq, names.audit_stream)
    if seq > last:
        await write([records.save_audited(names.pipeline, seq)], drafts)
        await admin.call(f"STREAM.PURGE.{names.audit_stream}", {"seq": seq + 1})
    return len(drafts)

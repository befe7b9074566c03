"""What of the life of a pipeline belongs into the audit chain? Applied, refused, scaled, drained, removed, replayed."""

from __future__ import annotations

from harch.base.errors import HarchError
from harch.hub.audit.drafts import REASON_LENGTH_MAX, tenant_of
from harch.hub.pipelines.planning import Planned
from harch.hub.pipelines.values import PipelineRecord
from harch.sovereignty.audit.entry import Detail, Draft

APPLIED = "pipeline.applied"
REFUSED = "pipeline.refused"
SCALED = "pipeline.scaled"
DRAINED = "pipeline.drained"
REMOVED = "pipeline.removed"
REPLAYED = "pipeline.replayed"
EVENTS_REPLAYED = "pipeline.events_replayed"
KEY_SHOWN = "pipeline.key_shown"
KEY_RENEWED = "pipeline.key_renewed"
LETTER_REPLAYED = "action.replayed"
LETTER_DROPPED = "action.dropped"

_WISHES = {"run": APPLIED, "drain": DRAINED, "remove": REMOVED}


def applied(record: PipelineRecord, planned: Planned, result: str, *, country: str, by: str) -> Draft:
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
    return _of(record, _WISHES[record.wish.value], {"version": record.version}, by, (country,))


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

"""What of a border belongs into the audit chain? What may pass, what did pass, and what was not taken in."""

from __future__ import annotations

from collections.abc import Mapping

from harch.hub.audit.drafts import REASON_LENGTH_MAX, tenant_of
from harch.hub.pipelines.values import PipelineRecord
from harch.pipelines.engine.borders import Lane, LinkPlan
from harch.sovereignty.audit.entry import Detail, Draft

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


def passed(lane: Lane, counts: Mapping[str, int], hub: str) -> Draft:
    """How many windows and rows passed since the last such entry, and what was kept back."""
    kind = EXPORTED if lane.source == hub else IMPORTED
    named: dict[str, Detail] = {_plain(name): count for name, count in sorted(counts.items())}
    return Draft(kind, lane.pipeline, "done", countries=_countries(lane), details=_details(lane) | named)


def not_taken(record: PipelineRecord, lane: Lane, why: str) -> Draft:
    return Draft(
        NOT_TAKEN,
        record.name,
        "refused",
        authority=tenant_of(record.tenant),
        countries=_countries(lane),
        details=_details(lane) | {"reason": why[:REASON_LENGTH_MAX]},
    )


def _countries(lane: Lane) -> tuple[str, ...]:
    return (lane.country, lane.target_country)


def _details(lane: Lane) -> dict[str, Detail]:
    return {"export": lane.export, "from_hub": lane.source, "to_hub": lane.target}


def _plain(name: str) -> str:
    return name.replace(":", "_")

"""What does this hub answer to another? Every part is judged by the rules for the country that asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from harch.base.errors import HarchError
from harch.sentinel.federated.disclosure.cross_border_logs import cross_border_logs
from harch.sentinel.federated.disclosure.cross_border_metrics import MetricDisclosure, cross_border_metrics
from harch.sentinel.federated.disclosure.cross_border_spans import cross_border_spans
from harch.sentinel.federated.disclosure.domestic import domestic_logs, domestic_metrics, domestic_spans
from harch.sentinel.federated.disclosure.encode import bytes_of, refused
from harch.sentinel.federated.disclosure.ledger import Memory
from harch.sentinel.federated.disclosure.policy import TelemetryPolicy
from harch.sentinel.federated.messages import (
    ANSWER_BYTES_MAX,
    PARTS_MAX,
    FederatedAnswer,
    LogPart,
    MetricPart,
    Part,
    PartResult,
    Question,
    Requester,
    TracePart,
)
from harch.sentinel.logql.evaluate.engine import LogqlEngine
from harch.sentinel.model.logs import LogReadable
from harch.sentinel.model.selection import Queryable
from harch.sentinel.model.spans import SpanReadable
from harch.sentinel.promql.evaluate.context import QueryOptions
from harch.sentinel.promql.evaluate.engine import QueryEngine

DAY_S = 86_400.0
MS_MAX, NS_MAX = 1 << 53, 1 << 62


@dataclass(frozen=True, slots=True)
class TenantReaders:
    """A tenant's telemetry at this hub; None for what is not kept here."""

    metrics: Queryable | None = None
    logs: LogReadable | None = None
    spans: SpanReadable | None = None


@dataclass(frozen=True, slots=True)
class OwnHub:
    """Who answers, by which rules, remembering what. `readers` opens a tenant's telemetry."""

    hub_id: str
    country: str
    readers: Callable[[str], TenantReaders]
    memory: Memory
    policy: TelemetryPolicy = field(default_factory=TelemetryPolicy)
    engine: QueryEngine = field(default_factory=QueryEngine)
    logql: LogqlEngine = field(default_factory=LogqlEngine)
    turn: Lock = field(default_factory=Lock)  # two answers must not look at the memory at once


def answer(
    question: Question, asker: Requester, hub: OwnHub, *, now_s: float, options: QueryOptions | None = None
) -> FederatedAnswer:
    """The hub's answer, a `PartResult` for every part. What may not be disclosed is refused in it.

    `Memory.take_records` has to be kept on disk before the answer leaves: else a restart forgets what was disclosed.
    """
    with hub.turn:
        hub.memory.forget(now_s=now_s, remembered_s=hub.policy.remembered_days * DAY_S)
    results: list[PartResult] = []
    room = ANSWER_BYTES_MAX * 9 // 10
    for part in question.parts[:PARTS_MAX]:
        one = _disclose_part(part, question.tenant, asker, hub, now_s, options or QueryOptions())
        size = bytes_of(one)
        if size > room:
            detail = f"the response would exceed {ANSWER_BYTES_MAX >> 20} MiB"
            one, size = refused(_subject(part), "size", detail, "aggregate, or reduce the query"), 0
        room -= size
        results.append(one)
    return FederatedAnswer(question_id=question.id, hub_id=hub.hub_id, country=hub.country, results=tuple(results))


def _disclose_part(
    part: Part, tenant: str, asker: Requester, hub: OwnHub, now_s: float, options: QueryOptions
) -> PartResult:
    policy = hub.policy
    is_home = policy.is_home(hub.country, asker.country)
    if not _has_times(part):
        return refused(_subject(part), "time", "invalid times", "use a start before the end, and a step >= 0")
    if not is_home and not asker.country:
        return refused(_subject(part), "country", "the querying hub's country is unknown", "name the hub's country")
    if not is_home and policy.cross_border_tenants is not None and tenant not in policy.cross_border_tenants:
        return refused(
            _subject(part), "tenant", "data of this tenant does not leave the country", "query another tenant"
        )
    try:
        readers = hub.readers(tenant)
    except HarchError as error:
        return refused(_subject(part), error.code, error.message if is_home else "this tenant cannot be queried", "")
    try:
        if is_home:
            return _domestic(part, readers, hub, now_s, options)
        with hub.turn:
            return _across_border(part, tenant, readers, hub, now_s, options)
    except OverflowError:  # offsets and ranges of centuries
        return refused(_subject(part), "time", "times out of 64-bit range", "shorter ranges and offsets")


def _has_times(part: Part) -> bool:
    """Whether the part has a grid at all: it comes from elsewhere."""
    if isinstance(part, MetricPart):
        start, end, step = part.start_ms, part.end_ms, part.step_ms
        return -MS_MAX < start <= end < MS_MAX and 0 <= step < MS_MAX and 0 < part.lookback_ms < MS_MAX
    step_ns = part.step_ns if isinstance(part, LogPart) else 0
    return -NS_MAX < part.start_ns <= part.end_ns < NS_MAX and 0 <= step_ns < NS_MAX


def _domestic(part: Part, readers: TenantReaders, hub: OwnHub, now_s: float, options: QueryOptions) -> PartResult:
    match part:
        case MetricPart() if readers.metrics is not None:
            return domestic_metrics(part, readers.metrics, hub.policy, hub.engine, options)
        case LogPart() if readers.logs is not None:
            return domestic_logs(part, readers.logs, hub.policy, hub.logql, now_s=now_s, options=options)
        case TracePart() if readers.spans is not None:
            return domestic_spans(part, readers.spans)
    return _not_here(part)


def _across_border(
    part: Part, tenant: str, readers: TenantReaders, hub: OwnHub, now_s: float, options: QueryOptions
) -> PartResult:
    policy, memory = hub.policy, hub.memory
    match part:
        case MetricPart() if readers.metrics is not None:
            disclosure = MetricDisclosure(tenant, readers.metrics, policy, memory, hub.engine, options, now_s)
            return cross_border_metrics(part, disclosure)
        case LogPart() if readers.logs is not None:
            return cross_border_logs(part, tenant, readers.logs, policy, memory, now_s=now_s, options=options)
        case TracePart() if readers.spans is not None:
            return cross_border_spans(part, tenant, readers.spans, policy, memory, now_s=now_s)
    return _not_here(part)


def _not_here(part: Part) -> PartResult:
    return refused(_subject(part), "kind", "this kind of telemetry is not stored here", "query another kind")


def _subject(part: Part) -> str:
    return f"{part.kind} {part.query}".strip() if isinstance(part, TracePart) else part.expression

"""What does this hub answer to another? Every part is judged by the rules for the country that asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from harch.base.errors import HarchError
from harch.sentinel.federated.messages import (
    ANSWER_BYTES_MAX,
    PARTS_MAX,
    Answer,
    Asker,
    LogPart,
    MetricPart,
    Part,
    Question,
    Told,
    TracePart,
)
from harch.sentinel.federated.owning.log_lines import logs_at_home
from harch.sentinel.federated.owning.logs_abroad import logs_abroad
from harch.sentinel.federated.owning.memory import Memory
from harch.sentinel.federated.owning.metrics_abroad import MetricDesk, metrics_abroad
from harch.sentinel.federated.owning.policy import TelemetryPolicy
from harch.sentinel.federated.owning.raw_metrics import raw_metrics
from harch.sentinel.federated.owning.spans_abroad import spans_abroad
from harch.sentinel.federated.owning.spans_at_home import spans_at_home
from harch.sentinel.federated.owning.telling import bytes_of, refused
from harch.sentinel.logql.evaluate.engine import LogqlEngine
from harch.sentinel.model.logs import LogReadable
from harch.sentinel.model.selection import Queryable
from harch.sentinel.model.spans import SpanReadable
from harch.sentinel.promql.evaluate.engine import Engine
from harch.sentinel.promql.evaluate.options import QueryOptions

DAY_S = 86_400.0
MS_MAX, NS_MAX = 1 << 53, 1 << 62


@dataclass(frozen=True, slots=True)
class Readers:
    """A tenant's telemetry at this hub; None for what is not kept here."""

    metrics: Queryable | None = None
    logs: LogReadable | None = None
    spans: SpanReadable | None = None


@dataclass(frozen=True, slots=True)
class OwnHub:
    """Who answers, by which rules, remembering what. `readers` opens a tenant's telemetry."""

    hub_id: str
    country: str
    readers: Callable[[str], Readers]
    memory: Memory
    policy: TelemetryPolicy = field(default_factory=TelemetryPolicy)
    engine: Engine = field(default_factory=Engine)
    logql: LogqlEngine = field(default_factory=LogqlEngine)
    turn: Lock = field(default_factory=Lock)  # two answers must not look at the memory at once


def answer(
    question: Question, asker: Asker, hub: OwnHub, *, now_s: float, options: QueryOptions | None = None
) -> Answer:
    """The hub's answer, a `Told` for every part. What may not be told is refused in it; nothing is raised for that.

    `Memory.take_records` has to be kept on disk before the answer leaves: else a restart forgets what was told.
    """
    with hub.turn:
        hub.memory.forget(now_s=now_s, remembered_s=hub.policy.remembered_days * DAY_S)
    told: list[Told] = []
    room = ANSWER_BYTES_MAX * 9 // 10
    for part in question.parts[:PARTS_MAX]:
        one = _told(part, question.tenant, asker, hub, now_s, options or QueryOptions())
        size = bytes_of(one)
        if size > room:
            detail = f"the answer would be larger than {ANSWER_BYTES_MAX >> 20} MiB"
            one, size = refused(_subject(part), "size", detail, "aggregate, or ask for less at once"), 0
        room -= size
        told.append(one)
    return Answer(question_id=question.id, hub_id=hub.hub_id, country=hub.country, told=tuple(told))


def _told(part: Part, tenant: str, asker: Asker, hub: OwnHub, now_s: float, options: QueryOptions) -> Told:
    policy = hub.policy
    is_home = policy.is_home(hub.country, asker.country)
    if not _has_times(part):
        return refused(_subject(part), "time", "no such times", "a start before the end, and a step of 0 or more")
    if not is_home and not asker.country:
        return refused(_subject(part), "country", "it is not known where this is asked", "name the hub's country")
    if not is_home and policy.tenants_abroad is not None and tenant not in policy.tenants_abroad:
        return refused(_subject(part), "tenant", "nothing of this tenant leaves the country", "ask another tenant")
    try:
        readers = hub.readers(tenant)
    except HarchError as error:
        return refused(_subject(part), error.code, error.message if is_home else "this tenant cannot be asked", "")
    try:
        if is_home:
            return _at_home(part, readers, hub, now_s, options)
        with hub.turn:
            return _abroad(part, tenant, readers, hub, now_s, options)
    except OverflowError:  # offsets and ranges of centuries
        return refused(_subject(part), "time", "times beyond what 64 bits hold", "shorter ranges and offsets")


def _has_times(part: Part) -> bool:
    """Whether the part has a grid at all: it comes from elsewhere."""
    if isinstance(part, MetricPart):
        start, end, step = part.start_ms, part.end_ms, part.step_ms
        return -MS_MAX < start <= end < MS_MAX and 0 <= step < MS_MAX and 0 < part.lookback_ms < MS_MAX
    step_ns = part.step_ns if isinstance(part, LogPart) else 0
    return -NS_MAX < part.start_ns <= part.end_ns < NS_MAX and 0 <= step_ns < NS_MAX


def _at_home(part: Part, readers: Readers, hub: OwnHub, now_s: float, options: QueryOptions) -> Told:
    match part:
        case MetricPart() if readers.metrics is not None:
            return raw_metrics(part, readers.metrics, hub.policy, hub.engine, options)
        case LogPart() if readers.logs is not None:
            return logs_at_home(part, readers.logs, hub.policy, hub.logql, now_s=now_s, options=options)
        case TracePart() if readers.spans is not None:
            return spans_at_home(part, readers.spans)
    return _not_here(part)


def _abroad(part: Part, tenant: str, readers: Readers, hub: OwnHub, now_s: float, options: QueryOptions) -> Told:
    policy, memory = hub.policy, hub.memory
    match part:
        case MetricPart() if readers.metrics is not None:
            desk = MetricDesk(tenant, readers.metrics, policy, memory, hub.engine, options, now_s)
            return metrics_abroad(part, desk)
        case LogPart() if readers.logs is not None:
            return logs_abroad(part, tenant, readers.logs, policy, memory, now_s=now_s, options=options)
        case TracePart() if readers.spans is not None:
            return spans_abroad(part, tenant, readers.spans, policy, memory, now_s=now_s)
    return _not_here(part)


def _not_here(part: Part) -> Told:
    return refused(_subject(part), "kind", "no such telemetry is kept here", "ask for another kind")


def _subject(part: Part) -> str:
    return f"{part.kind} {part.query}".strip() if isinstance(part, TracePart) else part.expression

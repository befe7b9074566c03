"""What do spans say to another country? How many there were and how long they took, of groups of many traces.

Spans fall into *cells* of service, name, status and kind, and time into quanta. A cell with fewer than k traces in a
quantum is only disclosed together with a larger one. Durations of groups are sums: their distribution would show single
spans at its ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.sentinel.federated.disclosure.encode import refused
from harch.sentinel.federated.disclosure.ledger import Memory, digest_of
from harch.sentinel.federated.disclosure.policy import TelemetryPolicy
from harch.sentinel.federated.messages import PartResult, TracePart
from harch.sentinel.federated.query.merge import ERRORS_UNKNOWN
from harch.sentinel.model.labels import whole_text_pattern
from harch.sentinel.model.spans import (
    Comparison,
    SpanCondition,
    SpanField,
    SpanGroup,
    SpanQuery,
    SpanReadable,
    SpanStatus,
)
from harch.sentinel.traces.parser import parse_query
from harch.sentinel.traces.search import GROUPABLE, counted_query, fields_of

QUANTA_MAX = 96
CELLS_MAX = 2_000  # over all quanta of a part

Key = tuple[str, ...]  # service, name, status, kind
_SMALL = b"small"
_FIELDS = tuple(field.value for field in GROUPABLE)
_STATUS = GROUPABLE.index(SpanField.STATUS)
_PERMITTED: Mapping[Comparison, Callable[[str, str], bool]] = {
    Comparison.EQUAL: lambda found, wanted: found == wanted,
    Comparison.NOT_EQUAL: lambda found, wanted: found != wanted,
    Comparison.REGEX: lambda found, wanted: whole_text_pattern(wanted).fullmatch(found) is not None,
    Comparison.NOT_REGEX: lambda found, wanted: whole_text_pattern(wanted).fullmatch(found) is None,
}


@dataclass(frozen=True, slots=True)
class _SpanQuery:
    conditions: tuple[SpanCondition, ...]
    by: tuple[SpanField, ...]
    quanta: range

    def chooses(self, key: Key) -> bool:
        return all(
            _PERMITTED[one.comparison](key[GROUPABLE.index(one.field)], str(one.value)) for one in self.conditions
        )

    def group_of(self, key: Key) -> Key:
        return tuple(key[GROUPABLE.index(field)] for field in self.by)


def cross_border_spans(
    part: TracePart, tenant: str, spans: SpanReadable, policy: TelemetryPolicy, memory: Memory, *, now_s: float
) -> PartResult:
    """Groups as JSON in `body`. `errors` is -1 where the number of errors may not be disclosed; buckets are empty."""
    span_query = _parse_query(part, policy, now_s)
    if isinstance(span_query, Rejection):
        return PartResult(refused=span_query)
    quantum_ns = policy.span_quantum_s * 10**9
    cells: dict[int, Sequence[SpanGroup]] = {}
    try:
        for quantum in span_query.quanta:
            query = SpanQuery(quantum * quantum_ns, (quantum + 1) * quantum_ns)
            cells[quantum] = [_with_traces(cell, query, spans, policy) for cell in spans.statistics(query, GROUPABLE)]
            if sum(map(len, cells.values())) > CELLS_MAX:
                return refused(part.query, "size", f"more than {CELLS_MAX} kinds of spans", "use a shorter period")
    except HarchError as error:
        return refused(part.query, error.code, "the query cannot be answered here", "reduce the query")
    return _judged(part, span_query, cells, f"spans/{tenant}/{policy.span_quantum_s}", policy, memory, now_s)


def _parse_query(part: TracePart, policy: TelemetryPolicy, now_s: float) -> _SpanQuery | Rejection:
    if part.kind != "statistics":
        return Rejection(part.query, "spans", "traces do not leave the country", "query statistics by service")
    try:
        counted = counted_query(parse_query(part.query), start_ns=part.start_ns, end_ns=part.end_ns)
        by = fields_of(part.by)
    except HarchError as error:
        return Rejection(part.query, "syntax", error.message, "conditions on service, name, status and kind")
    if any(one.field not in GROUPABLE or one.comparison not in _PERMITTED for one in counted.conditions):
        detail = "conditions on durations and attributes could isolate a span"
        return Rejection(part.query, "filter", detail, "conditions on service, name, status and kind")
    quantum_ns = policy.span_quantum_s * 10**9
    fix = f"start and end in multiples of {policy.span_quantum_s} s, at most {QUANTA_MAX} of them"
    if part.start_ns % quantum_ns or part.end_ns % quantum_ns:
        return Rejection(part.query, "time", "a finer time range could isolate a span", fix)
    quanta = range(part.start_ns // quantum_ns, part.end_ns // quantum_ns)
    if not 0 < len(quanta) <= QUANTA_MAX:
        return Rejection(part.query, "time", f"{len(quanta)} times {policy.span_quantum_s} s", fix)
    if part.end_ns > int(now_s - policy.closing_s) * 10**9:
        detail = "spans still arriving would be disclosed one by one"
        return Rejection(part.query, "time", detail, f"use an end at least {policy.closing_s} s ago")
    return _SpanQuery(counted.conditions, by, quanta)


def _with_traces(cell: SpanGroup, query: SpanQuery, spans: SpanReadable, policy: TelemetryPolicy) -> SpanGroup:
    """The cell with its number of traces; where a store does not count them, up to k are looked for."""
    if cell.traces or cell.count < policy.k:
        return cell
    conditions = tuple(
        SpanCondition(field, Comparison.EQUAL, value) for field, value in zip(GROUPABLE, cell.key, strict=True)
    )
    found = spans.search(SpanQuery(query.start_ns, query.end_ns, conditions, limit=policy.k))
    return replace(cell, traces=len(found))


def _judged(
    part: TracePart,
    span_query: _SpanQuery,
    cells: Mapping[int, Sequence[SpanGroup]],
    ledger: str,
    policy: TelemetryPolicy,
    memory: Memory,
    now_s: float,
) -> PartResult:
    groups: dict[Key, dict[int, list[SpanGroup]]] = {}
    for quantum, found in cells.items():
        for cell in found:
            if span_query.chooses(cell.key):
                groups.setdefault(span_query.group_of(cell.key), {}).setdefault(quantum, []).append(cell)
    disclosed, suppressed = [], 0
    order = sorted(groups.items(), key=lambda one: (-sum(cell.count for q in one[1].values() for cell in q), one[0]))
    for key, by_quantum in order:
        sets = _sets(by_quantum, ledger, policy, memory)
        if sets is None:
            return refused(part.query, "memory", "the disclosure record is full", "try again later")
        if not memory.admit(ledger, sets, least=policy.k, now_s=now_s):
            suppressed += 1
            continue
        members = [cell for found in by_quantum.values() for cell in found]
        errors = _errors(by_quantum, ledger, policy, memory, now_s)
        duration_ns = sum(cell.duration_sum_ns for cell in members)
        disclosed.append(SpanGroup(key, sum(cell.count for cell in members), errors, duration_ns, ()))
    return PartResult(body=msgspec.json.encode(sorted(disclosed, key=lambda group: group.key)), suppressed=suppressed)


def _sets(
    by_quantum: Mapping[int, Sequence[SpanGroup]], ledger: str, policy: TelemetryPolicy, memory: Memory
) -> dict[int, int] | None:
    """The cells of each quantum as bits. A cell of at least k traces is k sources; all small ones are one source.

    What a cell amounts to is a bit of its own: a span that ends hours later changes it, and then it is not disclosed
    again, because the difference would be that span.
    """
    sets: dict[int, int] = {}
    for quantum, found in by_quantum.items():
        names = []
        for cell in found:
            key = tuple(zip(_FIELDS, cell.key, strict=True))
            amount = (("count", str(cell.count)), ("duration", str(cell.duration_sum_ns)))
            names += [(digest_of(key), _SMALL), (digest_of((*key, *amount)), _SMALL)]
            if cell.traces >= policy.k:
                names += [(digest_of((*key, ("number", str(number)))),) * 2 for number in range(policy.k)]
        bits = memory.bits(ledger, names)
        if bits is None:
            return None
        sets[quantum] = sum({1 << bit for bit in bits})
    return sets


def _errors(
    by_quantum: Mapping[int, Sequence[SpanGroup]], ledger: str, policy: TelemetryPolicy, memory: Memory, now_s: float
) -> int:
    """How many spans failed, if that may be disclosed as a group of its own."""
    failed = {
        quantum: [cell for cell in found if cell.key[_STATUS] == SpanStatus.ERROR.value]
        for quantum, found in by_quantum.items()
    }
    failed = {quantum: found for quantum, found in failed.items() if found}
    if not failed:
        return 0
    sets = _sets(failed, ledger, policy, memory)
    if sets is None or not memory.admit(ledger, sets, least=policy.k, now_s=now_s):
        return ERRORS_UNKNOWN
    return sum(cell.count for found in failed.values() for cell in found)

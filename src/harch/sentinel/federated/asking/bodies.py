"""What do all hubs say together where no grid is? Lines by time, traces by their start, groups of spans added up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from harch.base.errors import HarchError
from harch.sentinel.federated.asking.merging import Refused
from harch.sentinel.federated.messages import Answer
from harch.sentinel.logql.evaluate.lines import Entry
from harch.sentinel.model.spans import Span, SpanGroup, TraceSummary
from harch.sentinel.traces.searching import MATCHED_MAX

ERRORS_UNKNOWN = -1  # of a group of spans: how many failed may not be told

Body = TypeVar("Body")

_lines = msgspec.json.Decoder(list[Entry]).decode
_summaries = msgspec.json.Decoder(list[TraceSummary]).decode
_spans = msgspec.json.Decoder(list[Span]).decode
_groups = msgspec.json.Decoder(list[SpanGroup]).decode


@dataclass(frozen=True, slots=True)
class Heard:
    """What came with bodies besides them."""

    refused: tuple[Refused, ...]
    suppressed: int
    warnings: tuple[str, ...]


def heard(answers: Sequence[Answer]) -> Heard:
    """Refusals, suppressed groups and warnings of questions with one part."""
    told = [(answer.hub_id, answer.told[0]) for answer in answers if answer.told]
    return Heard(
        tuple(Refused(hub_id, 0, one.refused) for hub_id, one in told if one.refused is not None),
        sum(one.suppressed for _, one in told),
        tuple(dict.fromkeys(f"{hub_id}: {text}" for hub_id, one in told for text in one.warnings)),
    )


def lines_together(answers: Sequence[Answer], *, limit: int, newest_first: bool = True) -> list[Entry]:
    """The lines of all hubs in order, at most `limit`. Raises E0695."""
    lines = [line for _, lines in _bodies(answers, _lines) for line in lines]
    lines.sort(key=lambda line: line.stream)
    lines.sort(key=lambda line: line.time_ns, reverse=newest_first)
    return lines[:limit]


def traces_together(answers: Sequence[Answer], *, limit: int) -> list[TraceSummary]:
    """Traces of all hubs, the newest first. One that has spans at several hubs is one trace. Raises E0695."""
    found: dict[str, TraceSummary] = {}
    for _, summaries in _bodies(answers, _summaries):
        for one in summaries:
            known = found.get(one.trace_id)
            found[one.trace_id] = one if known is None else _joint(known, one)
    return sorted(found.values(), key=lambda one: (-one.start_ns, one.trace_id))[:limit]


def _joint(left: TraceSummary, right: TraceSummary) -> TraceSummary:
    first = left if left.start_ns <= right.start_ns else right
    end_ns = max(left.start_ns + left.duration_ns, right.start_ns + right.duration_ns)
    return TraceSummary(
        trace_id=left.trace_id,
        root_service=first.root_service,
        root_name=first.root_name,
        start_ns=first.start_ns,
        duration_ns=end_ns - first.start_ns,
        spans=left.spans + right.spans,
        errors=left.errors + right.errors,
        matched=(*left.matched, *right.matched)[:MATCHED_MAX],
    )


def spans_together(answers: Sequence[Answer]) -> list[Span]:
    """The spans of one trace from all hubs, each once. Raises E0695."""
    found = {span.span_id: span for _, spans in _bodies(answers, _spans) for span in reversed(spans)}
    return sorted(found.values(), key=lambda span: (span.start_ns, span.span_id))


def groups_together(answers: Sequence[Answer]) -> list[SpanGroup]:
    """Groups of all hubs, added up. What one hub may not tell is unknown of all: errors, and durations in buckets."""
    found: dict[tuple[str, ...], SpanGroup] = {}
    for _, groups in _bodies(answers, _groups):
        for one in groups:
            known = found.get(one.key)
            found[one.key] = one if known is None else _added(known, one)
    return [found[key] for key in sorted(found)]


def _added(left: SpanGroup, right: SpanGroup) -> SpanGroup:
    unknown = ERRORS_UNKNOWN in (left.errors, right.errors)
    same = len(left.buckets) == len(right.buckets)
    return SpanGroup(
        key=left.key,
        count=left.count + right.count,
        errors=ERRORS_UNKNOWN if unknown else left.errors + right.errors,
        duration_sum_ns=left.duration_sum_ns + right.duration_sum_ns,
        buckets=tuple(one + other for one, other in zip(left.buckets, right.buckets, strict=True)) if same else (),
    )


def _bodies(answers: Sequence[Answer], read: Callable[[bytes], Body]) -> list[tuple[str, Body]]:
    found = []
    for answer in answers:
        for told in answer.told[:1]:
            if told.refused is None and told.body:
                try:
                    found.append((answer.hub_id, read(told.body)))
                except msgspec.DecodeError as problem:
                    raise HarchError("E0695", f"hub {answer.hub_id}: {problem}") from problem
    return found

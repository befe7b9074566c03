"""Which traces are the newest that match?

Conditions over columns of groups of spans, from the newest to the oldest, until no better can come.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harch.base.errors import HarchError
from harch.sentinel.archive.spans.blocks import Coded, SpanBlock, TraceId
from harch.sentinel.archive.spans.conditions import ORDERED, WITHOUT, as_text, holds, is_number
from harch.sentinel.archive.spans.rows import (
    ATTRIBUTE,
    DURATION,
    KIND,
    KINDS,
    MORE,
    NAME,
    RESOURCE,
    SERVICE,
    START,
    STATUS,
    STATUSES,
    unpacked_attributes,
)
from harch.sentinel.archive.string_columns import Mask
from harch.sentinel.model.selection import Codes
from harch.sentinel.model.spans import (
    BUCKET_BOUNDS_NS,
    AttributeValue,
    Comparison,
    SpanCondition,
    SpanField,
    SpanGroup,
    SpanQuery,
    SpanStatus,
    TraceSummary,
)

_ENUMS: dict[SpanField, tuple[str, Sequence[Any]]] = {
    SpanField.STATUS: (STATUS, STATUSES),
    SpanField.KIND: (KIND, KINDS),
}
_STRING_COLUMNS = {SpanField.SERVICE: SERVICE, SpanField.NAME: NAME}


def possible(block: SpanBlock, group: int, conditions: Sequence[SpanCondition], start_ns: int, end_ns: int) -> bool:
    """Whether the group can have spans that are asked for, without reading it."""
    facts = block.groups[group]
    in_time = facts.start_min < end_ns and facts.start_max >= start_ns
    return in_time and all(facts.may_satisfy(one) for one in conditions)


def matching(block: SpanBlock, group: int, conditions: Sequence[SpanCondition], start_ns: int, end_ns: int) -> Mask:
    facts = block.groups[group]
    if facts.start_min >= start_ns and facts.start_max < end_ns:
        mask: Mask = np.ones(facts.rows, np.bool_)
    else:
        starts = block.numbers(group, START)
        mask = (starts >= start_ns) & (starts < end_ns)
    for condition in conditions:
        if not mask.any():
            break
        mask = mask & _satisfying(block, group, condition)
    return mask


def field_values(block: SpanBlock, group: int, field: SpanField) -> tuple[Codes, list[str]]:
    """Service, name, status or kind of each row, as places in a list."""
    if field in _ENUMS:
        column, kinds = _ENUMS[field]
        return block.numbers(group, column).astype(np.int32), [one.value for one in kinds]
    coded = block.coded(group, _STRING_COLUMNS[field])
    if coded is None:
        raise KeyError(field)
    return coded.codes, coded.values


def _satisfying(block: SpanBlock, group: int, condition: SpanCondition) -> Mask:
    if condition.field is SpanField.ATTRIBUTE:
        return _by_attribute(block, group, condition)
    if condition.field is SpanField.DURATION:
        numbers = block.numbers(group, DURATION)
        if is_number(condition.value) and condition.comparison in ORDERED:
            by_number: Mask = ORDERED[condition.comparison](numbers, condition.value)
            return by_number
        values, places = np.unique(numbers, return_inverse=True)
        return _held(places, values.tolist(), condition)
    codes, names = field_values(block, group, condition.field)
    return _held(codes, names, condition)


def _held(codes: Any, values: Sequence[AttributeValue], condition: SpanCondition) -> Mask:
    taken = np.array([holds(value, condition.comparison, condition.value) for value in values], np.bool_)
    found: Mask = taken[codes]
    return found


def _by_attribute(block: SpanBlock, group: int, condition: SpanCondition) -> Mask:
    """The span's own value counts; its resource's only where it has none."""
    count = block.groups[group].rows
    mask = np.full(count, condition.comparison in WITHOUT, np.bool_)
    own = block.coded(group, ATTRIBUTE + condition.attribute)
    if (
        own is not None
        and condition.comparison is Comparison.EQUAL
        and not _is_shared(block, group, condition.attribute)
    ):
        equal = own.equal_to(condition.value)
        places = [place for place, value in equal.items() if holds(value, Comparison.EQUAL, condition.value)]
        chosen = np.zeros(count, np.bool_)
        for place in places:
            chosen |= own.codes == place
        return chosen
    for coded, values in attribute_values(block, group, condition.attribute):
        known = np.array([value is not None for value in values], np.bool_)
        taken = np.array(
            [value is not None and holds(value, condition.comparison, condition.value) for value in values], np.bool_
        )
        if not len(values):
            continue
        has = (coded.codes >= 0) & known[coded.codes]
        mask = np.where(has, taken[coded.codes], mask)
    return mask


def _is_shared(block: SpanBlock, group: int, name: str) -> bool:
    """Whether resources, or the column for rare attributes, have it too."""
    packed = (block.coded(group, column) for column in (RESOURCE, MORE))
    return any(
        name == known for coded in packed if coded for value in coded.values for known, _ in unpacked_attributes(value)
    )


def attribute_values(block: SpanBlock, group: int, name: str) -> list[tuple[Coded, list[AttributeValue | None]]]:
    """Columns that have the attribute, the least important first, with its value for each of their values."""
    found: list[tuple[Coded, list[AttributeValue | None]]] = []
    for column in (RESOURCE, MORE):
        coded = block.coded(group, column)
        if coded is not None:
            found.append((coded, [dict(unpacked_attributes(packed)).get(name) for packed in coded.values]))
    own = block.coded(group, ATTRIBUTE + name)
    if own is not None:
        found.append((own, list(own.values)))
    return found


# Which traces are the newest that match? Groups of spans from the newest to the oldest, until no better can come.


MATCHED_MAX = 100
_BOUNDS = np.array(BUCKET_BOUNDS_NS, np.int64)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_ERROR = STATUSES.index(SpanStatus.ERROR)


@dataclass(slots=True)
class TraceSearch:
    """One query over some blocks. What a group answered is kept as long as the search."""

    blocks: Sequence[SpanBlock]
    query: SpanQuery
    spans_max: int
    looked_at: int = 0
    _masks: dict[tuple[int, int], Mask] = field(default_factory=dict)
    _by_row: dict[int, Any] = field(default_factory=dict)

    def traces(self) -> list[TraceSummary]:
        best: list[tuple[int, TraceId]] = []  # start and id of the best ones so far, resolved
        waiting: list[tuple[int, TraceId]] = []  # a heap of others, by how new they can be at most
        seen: set[TraceId] = set()
        for newest, number, group in self._groups():
            if self._is_settled(best, newest):
                break
            for start, trace in self._matched_traces(number, group):
                if trace not in seen:
                    seen.add(trace)
                    heapq.heappush(waiting, (-start, trace))
            best = self._resolved(best, waiting)
        return [self._summary(trace) for _, trace in best]

    def mask(self, number: int, group: int) -> Mask:
        """Rows of a group that satisfy the query. Raises E0625 beyond the number of spans it may look at."""
        key = (number, group)
        if key not in self._masks:
            block, query = self.blocks[number], self.query
            self.looked_at += block.groups[group].rows
            if self.looked_at > self.spans_max:
                raise HarchError("E0625", f"the query reads more than {self.spans_max} spans")
            self._masks[key] = matching(block, group, query.conditions, query.start_ns, query.end_ns)
        return self._masks[key]

    def _groups(self) -> list[tuple[int, int, int]]:
        """Groups that may have matching spans: time of the newest one, block, group; the newest first."""
        query = self.query
        found = [
            (block.groups[group].start_max, number, group)
            for number, block in enumerate(self.blocks)
            for group in range(len(block.groups))
            if possible(block, group, query.conditions, query.start_ns, query.end_ns)
        ]
        return sorted(found, reverse=True)

    def _is_settled(self, best: Sequence[tuple[int, TraceId]], newest: int) -> bool:
        """A trace starts no later than its spans, so what is left cannot be newer than that."""
        return len(best) >= self.query.limit and (not best or best[-1][0] > newest)

    def _matched_traces(self, number: int, group: int) -> list[tuple[int, TraceId]]:
        """Traces with matching spans in a group, with their start as far as the block knows it; the newest first."""
        block = self.blocks[number]
        rows = np.flatnonzero(self.mask(number, group)) + int(block.bounds[group])
        if not len(rows):
            return []
        entries = np.unique(self._entries_of(number, rows))
        traces = block.traces
        return [
            (int(traces.start[entry]), (int(traces.high[entry]), int(traces.low[entry])))
            for entry in entries[np.argsort(-traces.start[entries], kind="stable")]
        ]

    def trace_keys(self, number: int, rows: Any) -> Any:
        """A number of 64 bits for the trace of each row, to tell traces apart."""
        traces, entries = self.blocks[number].traces, self._entries_of(number, rows)
        return traces.high[entries] * _MIX + traces.low[entries]

    def _entries_of(self, number: int, rows: Any) -> Any:
        """The entry of each row's trace."""
        traces = self.blocks[number].traces
        if number not in self._by_row:
            self._by_row[number] = np.argsort(traces.first)
        by_row = self._by_row[number]
        return by_row[np.searchsorted(traces.first[by_row], rows, side="right") - 1]

    def _resolved(
        self, best: list[tuple[int, TraceId]], waiting: list[tuple[int, TraceId]]
    ) -> list[tuple[int, TraceId]]:
        """Looks up where traces really begin, as long as they can be among the best."""
        limit = self.query.limit
        while waiting and (len(best) < limit or (best and -waiting[0][0] >= best[-1][0])):
            _, trace = heapq.heappop(waiting)
            start = min(int(block.traces.start[entry]) for block, entry in self._found(trace))
            insort(best, (start, trace), key=lambda one: (-one[0], one[1]))
            del best[limit:]
        return best

    def _found(self, trace: TraceId) -> list[tuple[SpanBlock, int]]:
        entries = ((block, block.traces.find(trace)) for block in self.blocks)
        return [(block, entry) for block, entry in entries if entry >= 0]

    def _summary(self, trace: TraceId) -> TraceSummary:
        found = self._found(trace)
        start = min(int(block.traces.start[entry]) for block, entry in found)
        end = max(int(block.traces.end[entry]) for block, entry in found)
        block, entry = min(
            found,
            key=lambda one: (
                not one[0].traces.has_root[one[1]],
                int(one[0].traces.root_start[one[1]]),
                int(one[0].traces.root_span[one[1]]),
            ),
        )
        service, name = block.root(entry)
        return TraceSummary(
            trace_id=f"{trace[0]:016x}{trace[1]:016x}",
            root_service=service,
            root_name=name,
            start_ns=start,
            duration_ns=end - start,
            spans=sum(int(block.traces.count[entry]) for block, entry in found),
            errors=sum(int(block.traces.errors[entry]) for block, entry in found),
            matched=self._matched_ids(trace),
        )

    def _matched_ids(self, trace: TraceId) -> tuple[str, ...]:
        """Spans of the trace that satisfy the query, by start, then id."""
        matched: list[tuple[int, int]] = []
        for number, block in enumerate(self.blocks):
            entry = block.traces.find(trace)
            if entry < 0:
                continue
            first = int(block.traces.first[entry])
            end = first + int(block.traces.count[entry])
            for group in range(len(block.groups)):
                low, high = max(first, int(block.bounds[group])), min(end, int(block.bounds[group + 1]))
                if low >= high:
                    continue
                begin = int(block.bounds[group])
                rows = np.flatnonzero(self.mask(number, group)[low - begin : high - begin]) + low - begin
                if len(rows):
                    starts, ids = block.numbers(group, START)[rows], block.ids(group)[rows]
                    matched += zip(starts.tolist(), ids.tolist(), strict=True)
        return tuple(f"{span:016x}" for _, span in sorted(matched)[:MATCHED_MAX])


def statistics(search: TraceSearch, by: Sequence[SpanField]) -> list[SpanGroup]:
    """Counts of matching spans, by the values of some fields."""
    totals: dict[tuple[str, ...], list[Any]] = {}
    for number, block in enumerate(search.blocks):
        for group in range(len(block.groups)):
            query = search.query
            if not possible(block, group, query.conditions, query.start_ns, query.end_ns):
                continue
            rows = np.flatnonzero(search.mask(number, group))
            if len(rows):
                _count(totals, search, number, group, rows, by)
    return [
        SpanGroup(key, int(count), errors, total, tuple(buckets.tolist()), len(np.unique(np.concatenate(traces))))
        for key, (count, errors, total, buckets, traces) in sorted(totals.items())
    ]


def _count(
    totals: dict[tuple[str, ...], list[Any]],
    search: TraceSearch,
    number: int,
    group: int,
    rows: Any,
    by: Sequence[SpanField],
) -> None:
    block = search.blocks[number]
    traces = search.trace_keys(number, rows + int(block.bounds[group]))
    keys = np.zeros(len(rows), np.int64)
    names: list[tuple[str, ...]] = [()]
    for one in by:
        codes, values = field_values(block, group, one)
        keys, chosen = _combined(keys, codes[rows], len(values))
        names = [(*names[key // len(values)], values[key % len(values)]) for key in chosen]
    durations = block.numbers(group, DURATION)[rows]
    is_error = block.numbers(group, STATUS)[rows] == _ERROR
    width = len(_BOUNDS) + 1
    places = keys * width + np.searchsorted(_BOUNDS, durations, side="left")
    buckets = np.bincount(places, minlength=len(names) * width).reshape(-1, width)
    order = np.lexsort((traces, keys))
    keys, traces = keys[order], traces[order]
    begins = np.searchsorted(keys, np.arange(len(names)))
    sums = np.add.reduceat(durations[order], begins)
    errors = np.add.reduceat(is_error[order].astype(np.int64), begins)
    is_first = np.append(True, (np.diff(traces) != 0) | (np.diff(keys) != 0))
    for place, name in enumerate(names):
        mine = slice(begins[place], begins[place + 1] if place + 1 < len(names) else len(keys))
        held = totals.setdefault(name, [0, 0, 0, np.zeros(width, np.int64), []])
        held[0] += mine.stop - mine.start
        held[1] += int(errors[place])
        held[2] += int(sums[place])
        held[3] += buckets[place]
        held[4].append(traces[mine][is_first[mine]])


def _combined(keys: Any, codes: Any, count: int) -> tuple[Any, list[int]]:
    """Pairs of both as small numbers, and what each stands for."""
    chosen, combined = np.unique(keys * count + codes, return_inverse=True)
    return combined, chosen.tolist()


def tag_names(blocks: Sequence[SpanBlock], start_ns: int, end_ns: int) -> set[str]:
    found: set[str] = set()
    for block in blocks:
        for group, facts in enumerate(block.groups):
            if facts.start_min >= end_ns or facts.start_max < start_ns or found >= set(facts.keys):
                continue
            mask = matching(block, group, (), start_ns, end_ns)
            found |= set(facts.keys) if mask.all() else _names_in(block, group, facts.keys, mask)
    return found


def _names_in(block: SpanBlock, group: int, keys: Sequence[str], mask: Mask) -> set[str]:
    return {name for name in keys if _values_in(block, group, name, mask)}


def _values_in(block: SpanBlock, group: int, name: str, mask: Mask) -> set[str]:
    """Values of an attribute in some rows; a resource's only where the span has none of its own."""
    values: dict[int, Any] = {}
    held = np.full(len(mask), -1, np.int64)
    for coded, known in attribute_values(block, group, name):
        offset = len(values)
        values.update((offset + place, value) for place, value in enumerate(known))
        if not known:
            continue
        has = (coded.codes >= 0) & np.array([value is not None for value in known])[coded.codes]
        held = np.where(has, coded.codes + offset, held)
    return {as_text(values[code]) for code in np.unique(held[mask]).tolist() if code >= 0}


def tag_values(blocks: Sequence[SpanBlock], field: SpanField, attribute: str, start_ns: int, end_ns: int) -> set[str]:
    found: set[str] = set()
    for block in blocks:
        for group, facts in enumerate(block.groups):
            if facts.start_min >= end_ns or facts.start_max < start_ns:
                continue
            if field is SpanField.ATTRIBUTE and attribute not in facts.keys:
                continue
            mask = matching(block, group, (), start_ns, end_ns)
            if field is SpanField.ATTRIBUTE:
                found |= _values_in(block, group, attribute, mask)
            elif field is SpanField.DURATION:
                found.update(str(one) for one in np.unique(block.numbers(group, DURATION)[mask]).tolist())
            else:
                codes, values = field_values(block, group, field)
                found.update(values[code] for code in np.unique(codes[mask]).tolist())
    return found

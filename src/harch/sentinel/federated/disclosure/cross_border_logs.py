"""What do logs say to another country? How many lines large groups of streams wrote, by the level at most.

Time is cut into quanta. In each, the streams that wrote something at a level are a fixed set, and a sum over several
quanta may be disclosed if it may be disclosed for each of them. So whatever is computed from sums of different ranges
speaks of at least k sources in every quantum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.sentinel.federated.disclosure.encode import refused
from harch.sentinel.federated.disclosure.groups import source_of
from harch.sentinel.federated.disclosure.ledger import Memory, digest_of
from harch.sentinel.federated.disclosure.log_shape import CrossBorderLogQuery, parse_cross_border_logs
from harch.sentinel.federated.disclosure.policy import TelemetryPolicy
from harch.sentinel.federated.messages import LogPart, PartResult, SeriesResult
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import LEVEL, LineChunk, LineOrder, LogReadable, LogRequest
from harch.sentinel.promql.evaluate.context import QueryOptions

Ints = npt.NDArray[np.int64]
Element = tuple[Labels, str]  # a stream, and the level of some of its lines

STREAMS_MAX = 50_000
LOOKS_MAX = 200_000  # at pages of the memory, for one part: some seconds of CPU


@dataclass(slots=True)
class _Written:
    """Lines and bytes by (element, quantum)."""

    first: int
    quanta: int
    elements: dict[Element, int] = field(default_factory=dict)
    amounts: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def add(self, chunk: LineChunk, quantum_ns: int) -> None:
        known = {"": 0}
        levels = np.zeros(len(chunk), np.int64)
        if chunk.metadata:
            found = (known.setdefault(dict(each).get(LEVEL, ""), len(known)) for each in chunk.metadata)
            levels = np.fromiter(found, np.int64, len(chunk))
        quanta = -(-chunk.times_ns // quantum_ns) - self.first
        keys = (chunk.stream_at.astype(np.int64) * len(known) + levels) * self.quanta + quanta
        cells, inverse, lines = np.unique(keys, return_inverse=True, return_counts=True)
        sizes = np.zeros(len(cells), np.int64)
        np.add.at(sizes, inverse, chunk.text_bytes)
        names = list(known)
        for cell, count, size in zip(cells.tolist(), lines.tolist(), sizes.tolist(), strict=True):
            both, quantum = divmod(cell, self.quanta)
            stream, level = divmod(both, len(names))
            labels = chunk.streams[stream]
            element = (labels, names[level] or dict(labels).get(LEVEL, ""))
            amount = self.amounts.setdefault((self.elements.setdefault(element, len(self.elements)), quantum), [0, 0])
            amount[0] += count
            amount[1] += size


def cross_border_logs(
    part: LogPart,
    tenant: str,
    logs: LogReadable,
    policy: TelemetryPolicy,
    memory: Memory,
    *,
    now_s: float,
    options: QueryOptions,
) -> PartResult:
    """The part's groups that may be disclosed."""
    query = parse_cross_border_logs(part.expression, policy)
    if isinstance(query, Rejection):
        return PartResult(refused=query)
    quantum_ns = policy.log_quantum_s * 10**9
    problem = _grid_problem(part, query, policy)
    if problem:
        fix = f"start, step, range and offset in multiples of {policy.log_quantum_s} s"
        return refused(part.expression, "time", problem, fix)
    ends = _ends(part, query, now_s, policy)
    if not len(ends):
        return PartResult(warnings=("data this recent is not disclosed yet",))
    first = int(ends[0]) - query.range_ns // quantum_ns + 1
    written = _Written(first, int(ends[-1]) - first + 1)
    request = LogRequest(
        query.matchers,
        (first - 1) * quantum_ns + 1,
        int(ends[-1]) * quantum_ns + 1,
        order=LineOrder.ANY,
        with_bodies=False,
    )
    try:
        for chunk in logs.scan(request, options.is_cancelled or (lambda: False)):
            written.add(chunk, quantum_ns)
            if len(written.elements) > STREAMS_MAX:
                return refused(part.expression, "size", f"more than {STREAMS_MAX} streams", "name a job")
    except HarchError as error:
        return refused(part.expression, error.code, "the query cannot be answered here", "reduce the query")
    return _judged(part, query, written, ends, f"logs/{tenant}/{policy.log_quantum_s}", policy, memory, now_s)


def _grid_problem(part: LogPart, query: CrossBorderLogQuery, policy: TelemetryPolicy) -> str:
    quantum_ns = policy.log_quantum_s * 10**9
    if any(time_ns % quantum_ns for time_ns in (part.start_ns, part.step_ns, query.range_ns, query.offset_ns)):
        return "a finer grid could isolate a line"
    steps = (part.end_ns - part.start_ns) // part.step_ns + 1 if part.step_ns else 1
    return f"{steps} steps" if part.end_ns < part.start_ns or steps > policy.cross_border_steps_max else ""


def _ends(part: LogPart, query: CrossBorderLogQuery, now_s: float, policy: TelemetryPolicy) -> Ints:
    """The last quantum of each step, as far as they are closed."""
    quantum_ns = policy.log_quantum_s * 10**9
    count = (part.end_ns - part.start_ns) // part.step_ns + 1 if part.step_ns else 1
    ends = (part.start_ns + np.arange(count, dtype=np.int64) * part.step_ns - query.offset_ns) // quantum_ns
    closed: Ints = ends[ends <= int(now_s - policy.closing_s) // policy.log_quantum_s]
    return closed


def _judged(
    part: LogPart,
    query: CrossBorderLogQuery,
    written: _Written,
    ends: Ints,
    ledger: str,
    policy: TelemetryPolicy,
    memory: Memory,
    now_s: float,
) -> PartResult:
    elements = list(written.elements)
    names = [(digest_of((*labels, (LEVEL, level))), digest_of(source_of(labels, policy))) for labels, level in elements]
    bits = memory.bits(ledger, names)
    if bits is None:
        return refused(part.expression, "memory", "the disclosure record is full", "try again later")
    groups: dict[Labels, list[int]] = {}
    for number, (labels, level) in enumerate(elements):
        if all(matcher.matches(level) for matcher in query.levels):
            values = {**dict(labels), LEVEL: level}
            key = tuple((name, values[name]) for name in sorted(query.grouping) if values.get(name))
            groups.setdefault(key, []).append(number)
    if len(groups) > policy.cross_border_groups_max:
        detail = f"{len(groups)} groups, {policy.cross_border_groups_max} allowed"
        return refused(part.expression, "size", detail, "group by fewer labels")
    quanta = query.range_ns // (policy.log_quantum_s * 10**9)
    if len(groups) * quanta * len(ends) > LOOKS_MAX:
        detail = f"{len(groups)} groups at {len(ends)} steps over {query.range_ns // 10**9} s each"
        return refused(part.expression, "size", detail, "use fewer groups, a wider step or a shorter range")
    disclosed, suppressed = [], 0
    for key, members in sorted(groups.items(), key=lambda one: (-len(one[1]), one[0])):
        sets, totals = _by_quantum(members, bits, written, 1 if query.counts_bytes else 0)
        at, disclosed_values, hidden = [], [], False
        for step, end in enumerate(ends.tolist()):
            window = [q for q in range(end - quanta + 1 - written.first, end + 1 - written.first) if sets[q]]
            pages = {q + written.first: sets[q] for q in window}
            if not pages:
                continue
            if memory.admit(ledger, pages, least=policy.k, now_s=now_s):
                at.append(step)
                disclosed_values.append(sum(totals[q] for q in window) / query.divisor_s)
            else:
                hidden = True
        suppressed += hidden
        if at:
            disclosed.append(SeriesResult(labels=key, at=tuple(at), values=tuple(map(float, disclosed_values))))
    return PartResult(series=tuple(sorted(disclosed, key=lambda one: one.labels)), suppressed=suppressed)


def _by_quantum(members: list[int], bits: list[int], written: _Written, which: int) -> tuple[list[int], list[int]]:
    """The members that wrote something in each quantum, as bits, and how much all of them wrote."""
    sets, totals = [0] * written.quanta, [0] * written.quanta
    for number in members:
        for quantum in range(written.quanta):
            amount = written.amounts.get((number, quantum))
            if amount is not None:
                sets[quantum] |= 1 << bits[number]
                totals[quantum] += amount[which]
    return sets, totals

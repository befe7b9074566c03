"""What do logs say to another country? How many lines large groups of streams wrote, by the level at most.

Time is cut into quanta. In each, the streams that wrote something at a level are a fixed set, and a sum over several
quanta may be told if it may be told of each of them. So whatever is computed from sums of different ranges speaks of
at least k sources in every quantum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.sentinel.federated.messages import LogPart, SeriesTold, Told
from harch.sentinel.federated.owning.log_shape import LogsAsked, logs_asked_abroad
from harch.sentinel.federated.owning.memory import Memory, digest_of
from harch.sentinel.federated.owning.metric_groups import source_of
from harch.sentinel.federated.owning.policy import TelemetryPolicy
from harch.sentinel.federated.owning.telling import refused
from harch.sentinel.model.labels import Labels
from harch.sentinel.model.logs import LEVEL, LogChunk, LogReadable, LogRequest, Order
from harch.sentinel.promql.evaluate.options import QueryOptions

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

    def add(self, chunk: LogChunk, quantum_ns: int) -> None:
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


def logs_abroad(
    part: LogPart,
    tenant: str,
    logs: LogReadable,
    policy: TelemetryPolicy,
    memory: Memory,
    *,
    now_s: float,
    options: QueryOptions,
) -> Told:
    """The part's groups that may be told."""
    asked = logs_asked_abroad(part.expression, policy)
    if isinstance(asked, Rejection):
        return Told(refused=asked)
    quantum_ns = policy.log_quantum_s * 10**9
    problem = _grid_problem(part, asked, policy)
    if problem:
        fix = f"start, step, range and offset in multiples of {policy.log_quantum_s} s"
        return refused(part.expression, "time", problem, fix)
    ends = _ends(part, asked, now_s, policy)
    if not len(ends):
        return Told(warnings=("nothing is told yet of times this young",))
    first = int(ends[0]) - asked.range_ns // quantum_ns + 1
    written = _Written(first, int(ends[-1]) - first + 1)
    request = LogRequest(
        asked.matchers,
        (first - 1) * quantum_ns + 1,
        int(ends[-1]) * quantum_ns + 1,
        order=Order.ANY,
        with_texts=False,
    )
    try:
        for chunk in logs.scan(request, options.is_cancelled or (lambda: False)):
            written.add(chunk, quantum_ns)
            if len(written.elements) > STREAMS_MAX:
                return refused(part.expression, "size", f"more than {STREAMS_MAX} streams", "name a job")
    except HarchError as error:
        return refused(part.expression, error.code, "the query cannot be answered here", "ask for less")
    return _judged(part, asked, written, ends, f"logs/{tenant}/{policy.log_quantum_s}", policy, memory, now_s)


def _grid_problem(part: LogPart, asked: LogsAsked, policy: TelemetryPolicy) -> str:
    quantum_ns = policy.log_quantum_s * 10**9
    if any(time_ns % quantum_ns for time_ns in (part.start_ns, part.step_ns, asked.range_ns, asked.offset_ns)):
        return "a finer grid could single out a line"
    steps = (part.end_ns - part.start_ns) // part.step_ns + 1 if part.step_ns else 1
    return f"{steps} steps" if part.end_ns < part.start_ns or steps > policy.steps_abroad_max else ""


def _ends(part: LogPart, asked: LogsAsked, now_s: float, policy: TelemetryPolicy) -> Ints:
    """The last quantum of each step, as far as they are closed."""
    quantum_ns = policy.log_quantum_s * 10**9
    count = (part.end_ns - part.start_ns) // part.step_ns + 1 if part.step_ns else 1
    ends = (part.start_ns + np.arange(count, dtype=np.int64) * part.step_ns - asked.offset_ns) // quantum_ns
    closed: Ints = ends[ends <= int(now_s - policy.closing_s) // policy.log_quantum_s]
    return closed


def _judged(
    part: LogPart,
    asked: LogsAsked,
    written: _Written,
    ends: Ints,
    ledger: str,
    policy: TelemetryPolicy,
    memory: Memory,
    now_s: float,
) -> Told:
    elements = list(written.elements)
    names = [(digest_of((*labels, (LEVEL, level))), digest_of(source_of(labels, policy))) for labels, level in elements]
    bits = memory.bits(ledger, names)
    if bits is None:
        return refused(part.expression, "memory", "no more can be remembered of what was told", "ask again later")
    groups: dict[Labels, list[int]] = {}
    for number, (labels, level) in enumerate(elements):
        if all(matcher.matches(level) for matcher in asked.levels):
            values = {**dict(labels), LEVEL: level}
            key = tuple((name, values[name]) for name in sorted(asked.grouping) if values.get(name))
            groups.setdefault(key, []).append(number)
    if len(groups) > policy.groups_abroad_max:
        detail = f"{len(groups)} groups, {policy.groups_abroad_max} allowed"
        return refused(part.expression, "size", detail, "group by fewer labels")
    quanta = asked.range_ns // (policy.log_quantum_s * 10**9)
    if len(groups) * quanta * len(ends) > LOOKS_MAX:
        detail = f"{len(groups)} groups at {len(ends)} steps over {asked.range_ns // 10**9} s each"
        return refused(part.expression, "size", detail, "ask for fewer groups, a wider step or a shorter range")
    told, suppressed = [], 0
    for key, members in sorted(groups.items(), key=lambda one: (-len(one[1]), one[0])):
        sets, totals = _by_quantum(members, bits, written, 1 if asked.counts_bytes else 0)
        at, values_told, hidden = [], [], False
        for step, end in enumerate(ends.tolist()):
            window = [q for q in range(end - quanta + 1 - written.first, end + 1 - written.first) if sets[q]]
            pages = {q + written.first: sets[q] for q in window}
            if not pages:
                continue
            if memory.tell(ledger, pages, least=policy.k, now_s=now_s):
                at.append(step)
                values_told.append(sum(totals[q] for q in window) / asked.divisor_s)
            else:
                hidden = True
        suppressed += hidden
        if at:
            told.append(SeriesTold(labels=key, at=tuple(at), values=tuple(map(float, values_told))))
    return Told(series=tuple(sorted(told, key=lambda one: one.labels)), suppressed=suppressed)


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

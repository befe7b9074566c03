"""Archives for tests: small files, disks that do not wait, and random lines, spans and questions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from harch.sentinel.archive.limits import ArchivePolicy, LogLimits, SpanLimits
from harch.sentinel.archive.logs.store import LogArchive
from harch.sentinel.archive.spans.store import SpanArchive
from harch.sentinel.model.labels import Labels, Matcher, MatchKind, labels
from harch.sentinel.model.logs import FilterKind, LineFilter, LineOrder, LogBatch, LogReadable, LogRequest
from harch.sentinel.model.spans import (
    Attributes,
    AttributeValue,
    Comparison,
    Span,
    SpanCondition,
    SpanEvent,
    SpanField,
    SpanKind,
    SpanLink,
    SpanQuery,
    SpanStatus,
)
from harch.sentinel.store.disk import FileSystem
from harch.sentinel.store.wal.segments import LogDisk
from harch.testing.clock import SimClock
from unit.sentinel_blocks.faulty_disk import QuickDisk
from unit.sentinel_store.stores import TestDisk

HOUR_NS = 3600 * 10**9
KEEPING = ArchivePolicy(keep_ns=None, free_bytes_min=0)
Line = tuple[Labels, int, str, Labels]

_WORDS = ("error", "timeout after", "Größe", "user=jane", "status=500", "connection refused", "", "ok\nline", "日本語")


def log_archive(folder: Path, *, disk: FileSystem | None = None, log_disk: LogDisk | None = None) -> LogArchive:
    return LogArchive(
        folder, LogLimits(), KEEPING, SimClock(), disk=disk or QuickDisk(), log_disk=log_disk or TestDisk()
    )


def span_archive(folder: Path, *, disk: FileSystem | None = None, log_disk: LogDisk | None = None) -> SpanArchive:
    return SpanArchive(
        folder, SpanLimits(), KEEPING, SimClock(), disk=disk or QuickDisk(), log_disk=log_disk or TestDisk()
    )


def lines(store: LogReadable, request: LogRequest) -> list[Line]:
    found: list[Line] = []
    for chunk in store.scan(request, lambda: False):
        metadata = chunk.metadata or [()] * len(chunk)
        bodies = chunk.bodies or [""] * len(chunk)
        assert [len(text.encode()) for text in bodies] == chunk.text_bytes.tolist() or not chunk.bodies
        found += [
            (chunk.streams[code], time, text, more)
            for code, time, text, more in zip(
                chunk.stream_at.tolist(), chunk.times_ns.tolist(), bodies, metadata, strict=True
            )
        ]
    return found


def random_stream(rng: random.Random) -> Labels:
    return labels({"app": rng.choice("abc"), "level": rng.choice(("", "info", "error"))})


def random_text(rng: random.Random) -> str:
    number = rng.randrange(40)
    return " ".join([rng.choice(_WORDS), f"request-{number:06d}-done", rng.choice(_WORDS)])


def random_batches(rng: random.Random) -> list[LogBatch]:
    batches = []
    for _ in range(rng.randint(1, 3)):
        count = rng.randint(0, 6)
        times = [rng.choice((0, 1, 2)) * HOUR_NS + rng.randrange(20) for _ in range(count)]
        metadata: Sequence[Labels] = ()
        if rng.random() < 0.5:
            metadata = [
                labels({"trace_id": f"{rng.randrange(4):032x}" if rng.random() < 0.5 else "", "pod": rng.choice("xyz")})
                if rng.random() < 0.7
                else ()
                for _ in range(count)
            ]
        batches.append(LogBatch(random_stream(rng), times, [random_text(rng) for _ in range(count)], metadata))
    return batches


def random_filters(rng: random.Random) -> tuple[LineFilter, ...]:
    bodies = {
        FilterKind.CONTAINS: (*_WORDS, f"request-{rng.randrange(44):06d}-done", "quest-0000"),
        FilterKind.LACKS: (*_WORDS, f"request-{rng.randrange(40):06d}"),
        FilterKind.MATCHES: (r"request-0000(1|2)\d-done", r"^error.request-00000\d", "(?i)ERROR", r"after.*jane", "ö"),
        FilterKind.MATCHES_NOT: (r"request-00000\d-done", "^$", "error|timeout"),
    }
    kinds = [rng.choice(tuple(FilterKind)) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    return tuple(LineFilter(kind, rng.choice(bodies[kind])) for kind in kinds)


def random_matchers(rng: random.Random) -> tuple[Matcher, ...]:
    found = []
    if rng.random() < 0.5:
        found.append(Matcher(rng.choice(tuple(MatchKind)), "app", rng.choice(("a", "b", "a|c"))))
    if rng.random() < 0.3:
        found.append(Matcher(rng.choice(tuple(MatchKind)), "level", rng.choice(("", "info", "err.*"))))
    return tuple(found)


def random_times(rng: random.Random) -> tuple[int, int]:
    if rng.random() < 0.4:
        return -HOUR_NS, 10 * HOUR_NS
    start = rng.choice((0, 1, 2)) * HOUR_NS + rng.randrange(20)
    return start, start + rng.choice((5, 20, HOUR_NS, 3 * HOUR_NS))


def random_request(rng: random.Random) -> LogRequest:
    metadata: tuple[Matcher, ...] = ()
    if rng.random() < 0.3:
        metadata = (Matcher(rng.choice(tuple(MatchKind)), "trace_id", f"{rng.randrange(5):032x}"),)
    elif rng.random() < 0.2:
        metadata = (Matcher(rng.choice(tuple(MatchKind)), "pod", rng.choice(("x", "y|z", ""))),)
    return LogRequest(
        random_matchers(rng),
        *random_times(rng),
        random_filters(rng),
        metadata,
        rng.choice(tuple(LineOrder)),
        rng.choice((None, None, 1, 3, 10)),
    )


_VALUES: tuple[AttributeValue, ...] = ("GET", "POST", "500", 500, 500.0, 1.5, True, False, "", "jane@example.org", -3)
_NAMES = ("http.method", "http.status", "user", "retry")


def random_attributes(rng: random.Random, names: Sequence[str] = _NAMES) -> Attributes:
    chosen = rng.sample(names, rng.randint(0, len(names)))
    return tuple(sorted((name, rng.choice(_VALUES)) for name in chosen))


def random_span(rng: random.Random, number: int) -> Span:
    trace = rng.randrange(12)
    return Span(
        trace_id=f"{trace * 7919:032x}"[::-1],
        span_id=f"{number + 1:016x}",
        parent_id=rng.choice(("", f"{rng.randrange(1, 50):016x}")),
        service=rng.choice(("hub", "agent")),
        name=rng.choice(("place", "run", "GET /v1")),
        start_ns=rng.choice((0, 1)) * HOUR_NS + rng.randrange(30),
        duration_ns=rng.choice((0, 10, 1500, 10**9)),
        kind=rng.choice(tuple(SpanKind)),
        status=rng.choice(tuple(SpanStatus)),
        status_message=rng.choice(("", "no luck")),
        attributes=random_attributes(rng),
        resource=random_attributes(rng, ("user", "host")),
        scope=rng.choice(("", "harch")),
        events=(SpanEvent(5, "tick", (("n", 1),)),) if rng.random() < 0.3 else (),
        links=(SpanLink("0" * 31 + "1", "0" * 15 + "2"),) if rng.random() < 0.2 else (),
    )


def random_condition(rng: random.Random) -> SpanCondition:
    field = rng.choice(tuple(SpanField))
    comparison = rng.choice(tuple(Comparison))
    pools: dict[SpanField, tuple[AttributeValue, ...]] = {
        SpanField.SERVICE: ("hub", "agent"),
        SpanField.NAME: ("place", "run", "GET /v1"),
        SpanField.STATUS: ("ok", "error", "unset"),
        SpanField.KIND: ("server", "client"),
        SpanField.DURATION: (0, 10, 1000, 10**9, 12.5),
        SpanField.ATTRIBUTE: _VALUES,
    }
    value = rng.choice(pools[field])
    if comparison in (Comparison.REGEX, Comparison.NOT_REGEX):
        value = rng.choice(("hub|agent", ".*5.*", "G.T", "(?i)get", ""))
    return SpanCondition(
        field, comparison, value, rng.choice((*_NAMES, "host", "none")) if field is SpanField.ATTRIBUTE else ""
    )


def random_span_query(rng: random.Random) -> SpanQuery:
    start, end = (-HOUR_NS, 9 * HOUR_NS) if rng.random() < 0.5 else (rng.randrange(30), HOUR_NS + rng.randrange(30))
    conditions = tuple(random_condition(rng) for _ in range(rng.choice((0, 1, 1, 2))))
    return SpanQuery(start, end, conditions, limit=rng.choice((1, 3, 20)))

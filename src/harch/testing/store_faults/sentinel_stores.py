"""What does SENTINEL keep? Series, lines and spans with their logs and files, alerts, and what was disclosed abroad."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from harch.sentinel.alerts.alert import Alert
from harch.sentinel.alerts.shared_state import Match, Silence, encode_record
from harch.sentinel.alerts.store import ALERT, AlertStore
from harch.sentinel.archive.folder import ArchiveFolder
from harch.sentinel.federated.disclosure.ledger_file import MemoryFile
from harch.sentinel.model.labels import Matcher, MatchKind, MetricMetadata, MetricType, labels
from harch.sentinel.model.logs import FilterKind, LineFilter, LogBatch, LogRequest
from harch.sentinel.model.selection import SeriesBatch
from harch.sentinel.model.spans import Span, SpanQuery
from harch.sentinel.store.blocks.planning import BlockPolicy
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.tenants import StoreFolder
from harch.testing.clock import SimClock
from harch.testing.store_faults.faults import FaultyStore, as_killed

NOW_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
NOW_NS = NOW_MS * 1_000_000
HOUR_MS = 3_600_000
ALWAYS = (-(1 << 63), (1 << 63) - 1)
SMALL = TenantLimits(out_of_order_ms=None, samples_in_memory_max=1 << 16, series_max=1 << 10)
TENANT = "default"


def make_series(folder: Path) -> None:
    def fill(live: Path) -> Callable[[], None]:
        stores = StoreFolder(live, SimClock(), SMALL, BlockPolicy())
        rng = random.Random(2)  # noqa: S311 - repeatable content
        store = stores.store(TENANT)
        for step in range(40):
            at = NOW_MS - 8 * HOUR_MS + step * HOUR_MS // 5
            store.append(
                [
                    SeriesBatch(labels({"__name__": f"m{number}", "job": "a"}), [at + number], [rng.random()])
                    for number in range(30)
                ]
            )
            if step == 20:
                store.describe({"m1": MetricMetadata(MetricType.COUNTER, "s", "Help.")})
                store.flush()
                store.delete([_equal("__name__", "m3")], NOW_MS - 8 * HOUR_MS, NOW_MS - 7 * HOUR_MS)
        return stores.close

    as_killed(folder, fill)


def read_series(folder: Path) -> object:
    stores = StoreFolder(folder, SimClock(), SMALL, BlockPolicy())
    try:
        store = stores.store(TENANT)
        found = store.select([], *ALWAYS, limit=1 << 30)
        samples = found.samples
        content = {}
        for place in range(found.series.count):
            first, count = int(samples.first[place]), int(samples.count[place])
            times = samples.timestamps[first : first + count].tolist()
            values = samples.values[first : first + count].view(np.uint64).tolist()
            content[found.series.labels_of(place)] = list(zip(times, values, strict=True))
        return content, dict(store.metadata())
    finally:
        stores.close()


def _equal(name: str, value: str) -> Matcher:
    return Matcher(MatchKind.EQUAL, name, value)


def make_archive(folder: Path) -> None:
    def fill(live: Path) -> Callable[[], None]:
        archive = ArchiveFolder(live, SimClock())
        rng = random.Random(3)  # noqa: S311 - repeatable content
        logs, spans = archive.logs(TENANT), archive.spans(TENANT)
        for step in range(12):
            bodies = [f"request-{step:03d}{number:03d}-done in {rng.random():.6f} s" for number in range(60)]
            times = [NOW_NS - 10**12 + step * 10**9 + number for number in range(60)]
            logs.append([LogBatch(labels({"app": rng.choice("ab")}), times, bodies)])
            spans.append([_span(step * 20 + number, rng) for number in range(20)])
            if step in (3, 7):
                logs.table.flush()
                spans.table.flush()
        return archive.close

    as_killed(folder, fill)


def _span(number: int, rng: random.Random) -> Span:
    return Span(
        f"{number // 4 + 1:032x}",
        f"{number + 1:016x}",
        "",
        rng.choice(("web", "worker")),
        "run",
        NOW_NS - 10**12 + number,
        rng.randrange(10**6),
        attributes=(("user", f"u{number % 5}"),),
    )


def read_archive(folder: Path) -> object:
    archive = ArchiveFolder(folder, SimClock())
    try:
        logs, spans = archive.logs(TENANT), archive.spans(TENANT)
        needle = (LineFilter(FilterKind.CONTAINS, "request-005042-done"),)
        lines = []
        for request in (LogRequest((), 0, NOW_NS, needle), LogRequest((), 0, NOW_NS)):
            for chunk in logs.scan(request, lambda: False):
                codes, times = chunk.stream_at.tolist(), chunk.times_ns.tolist()
                lines += [
                    (chunk.streams[code], at, text)
                    for code, at, text in zip(codes, times, chunk.bodies or [], strict=True)
                ]
        summaries = spans.search(SpanQuery(0, NOW_NS, limit=1000))
        traces = [repr(spans.trace(one.trace_id)) for one in summaries]
        return lines, sorted(map(repr, summaries)), sorted(traces)
    finally:
        archive.close()


def make_alerts(folder: Path) -> None:
    def fill(live: Path) -> Callable[[], None]:
        store = AlertStore(live / "alerts.sqlite")
        for number in range(60):
            silence = Silence(
                id=f"s{number}",
                matches=(Match("job", f"j{number}"),),
                starts_at_ms=NOW_MS,
                ends_at_ms=NOW_MS + HOUR_MS,
                updated_at_ms=NOW_MS,
                created_by="bench",
                comment="x" * 200,
            )
            alert = Alert(
                labels=labels({"alertname": f"a{number}"}),
                starts_at_ms=NOW_MS,
                ends_at_ms=NOW_MS + HOUR_MS,
                updated_at_ms=NOW_MS,
            )
            body = msgspec.json.encode(alert)
            store.write({("silence", silence.id): encode_record(silence), (ALERT, alert.fingerprint): body})
            if number == 30:
                store.close()
                store = AlertStore(live / "alerts.sqlite")
        return store.close

    as_killed(folder, fill)


def read_alerts(folder: Path) -> object:
    store = AlertStore(folder / "alerts.sqlite")
    try:
        kept = store.load()
        return sorted(map(repr, kept.records)), sorted(map(repr, kept.alerts)), kept.unreadable
    finally:
        store.close()


def make_disclosures(folder: Path) -> None:
    def fill(live: Path) -> Callable[[], None]:
        file = MemoryFile(live / "told.log")
        for number in range(40):
            ledger = f"tenant/m{number % 4}"
            series = [(bytes([one, number]) * 8, bytes([one, number]) * 8) for one in range(6)]
            bits = file.memory.bits(ledger, series) or []
            file.memory.admit(ledger, {number: sum(1 << bit for bit in bits)}, least=5, now_s=0.0)
            file.keep()
        return file.close

    as_killed(folder, fill)


def read_disclosures(folder: Path) -> object:
    file = MemoryFile(folder / "told.log")
    try:
        return file.memory.dump()
    finally:
        file.close()


SENTINEL_STORES = (
    FaultyStore("series", make_series, read_series),
    FaultyStore("lines and spans", make_archive, read_archive),
    FaultyStore("alerts", make_alerts, read_alerts),
    FaultyStore("disclosures to other countries", make_disclosures, read_disclosures),
)

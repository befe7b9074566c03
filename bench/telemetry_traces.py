"""How fast are spans written and found? Ingest per core, and searches over 5 million spans.

`make bench-telemetry` or `python bench/telemetry_traces.py --spans 5000000`. Spans come as objects, as after reading
OTLP; every request is synced. Searches are of many kinds with random values, from files; times are CPU time of the
process, which other work on the machine moves little, and times on the clock are printed beside them.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harch.base.clock import SystemClock
from harch.sentinel.archive.limits import ArchivePolicy, SpanLimits
from harch.sentinel.archive.spans.store import SpanArchive
from harch.sentinel.model.spans import AttributeValue, Comparison, Span, SpanCondition, SpanField, SpanQuery
from telemetry_spans import batches
from verdict import Verdict, conditions

FIRST_NS = 1_790_000_000 * 10**9
STEP_NS = 20_000_000  # between traces: 5 million spans are 3.5 hours
KEEPING = ArchivePolicy(keep_ns=None)
SEARCHES = 400
_EQUAL, _ABOVE = Comparison.EQUAL, Comparison.ABOVE


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spans", type=int, default=5_000_000)
    parser.add_argument("--folder", type=Path, default=None, help="where to work")
    options, _ = parser.parse_known_args()
    folder = Path(tempfile.mkdtemp(prefix="harch-bench-traces-", dir=options.folder))
    verdict = Verdict("telemetry_traces")
    print(f"{conditions()}; {options.spans} spans, 8 a trace, 5 attributes and 2 of their resource each")
    try:
        measure(verdict, folder, options.spans)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    verdict.print()


def measure(verdict: Verdict, folder: Path, count: int) -> None:
    archive = SpanArchive(folder, SpanLimits(), KEEPING, SystemClock())
    seen, cpu = _ingest(archive, count)
    facts = archive.facts()
    on_disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"ingest {count / cpu:.0f} spans per core second; {on_disk / count:.1f} bytes a span on disk")
    print(f"       {facts['spans']} spans in {facts['files']} files")
    verdict.goal("ingest", ">= 50000", count / cpu, "spans/s/core")
    verdict.goal("spans kept, over sent", "== 1", int(str(facts["spans"])) / count)
    archive.close()
    archive = SpanArchive(folder, SpanLimits(), KEEPING, SystemClock())
    _searches(verdict, archive, seen)
    archive.close()


def _ingest(archive: SpanArchive, count: int) -> tuple[list[Span], float]:
    """Some of the spans, to search for; and CPU seconds of appends, files and merging together."""
    rng = random.Random(2)
    seen: list[Span] = []
    cpu = 0.0
    for batch in batches(count, FIRST_NS, STEP_NS):
        seen += rng.sample(batch, 2)
        began = time.process_time()
        archive.append(batch)
        if archive.table.memory_bytes() > KEEPING.flush_bytes * 0.9:
            archive.table.flush()
        cpu += time.process_time() - began
    began = time.process_time()
    archive.table.flush()
    archive.maintain()
    return seen, cpu + time.process_time() - began


def _searches(verdict: Verdict, archive: SpanArchive, seen: list[Span]) -> None:
    rng = random.Random(3)
    begin, end = 0, 1 << 62

    def on(field: SpanField, value: AttributeValue, comparison: Comparison = _EQUAL, name: str = "") -> SpanCondition:
        return SpanCondition(field, comparison, value, name)

    def attribute(name: str, value: AttributeValue) -> SpanCondition:
        return on(SpanField.ATTRIBUTE, value, _EQUAL, name)

    kinds: dict[str, Callable[[Span], tuple[SpanCondition, ...]]] = {
        "service and name": lambda span: (on(SpanField.SERVICE, span.service), on(SpanField.NAME, span.name)),
        "errors of a service": lambda span: (on(SpanField.SERVICE, span.service), on(SpanField.STATUS, "error")),
        "slow ones of a service": lambda span: (
            on(SpanField.SERVICE, span.service),
            on(SpanField.DURATION, 400_000_000, _ABOVE),
        ),
        "one workload": lambda span: (attribute("harch.workload.id", dict(span.attributes)["harch.workload.id"]),),
        "failures of a user": lambda span: (
            attribute("user.id", dict(span.attributes)["user.id"]),
            attribute("http.status_code", 500),
        ),
        "a workload that is nowhere": lambda _: (attribute("harch.workload.id", f"w-{rng.getrandbits(40):010x}x"),),
    }
    everything: list[float] = []
    for name, conditions_of in kinds.items():
        took, clock, found = [], [], 0
        for number in range(SEARCHES // len(kinds)):
            span = rng.choice(seen)
            # Half of the searches look back from some moment, as people do who page through results.
            last = end if number % 2 else span.start_ns + 1
            query = SpanQuery(begin, last, conditions_of(span))
            cpu, began = time.process_time(), time.perf_counter()
            found += len(archive.search(query))
            took.append((time.process_time() - cpu) * 1000)
            clock.append((time.perf_counter() - began) * 1000)
        everything += took
        print(f"search {name:<28} {_row(took)} ms CPU; {_row(clock)} on the clock; {found / len(took):.1f} traces")
    took = []
    for _ in range(200):
        span = rng.choice(seen)
        cpu = time.process_time()
        assert any(one.span_id == span.span_id for one in archive.trace(span.trace_id))
        took.append((time.process_time() - cpu) * 1000)
    print(f"trace by id {' ':<23} {_row(took)} ms CPU")
    by = (SpanField.SERVICE, SpanField.NAME)
    cpu = time.process_time()
    groups = archive.statistics(SpanQuery(begin, end), by)
    print(f"statistics of all spans by service and name: {time.process_time() - cpu:.2f} s CPU, {len(groups)} groups")
    verdict.goal("search, p99", "<= 100", _p99(everything), "ms CPU")
    verdict.goal("trace by id, p99", "<= 100", _p99(took), "ms CPU")


def _row(took: list[float]) -> str:
    return f"p50 {statistics.median(took):6.1f}  p99 {_p99(took):7.1f}"


def _p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98]


if __name__ == "__main__":
    main()

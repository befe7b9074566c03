"""How fast are logs written and searched? SENTINEL's archive beside ripgrep on the same text, in one run.

`make bench-telemetry` or `python bench/telemetry_logs.py --gb 5`. The text is generated; ripgrep reads it as plain
files, one an hour and program, from the page cache. Ratios are of CPU seconds (user and system, all threads), so that
other work on the machine does not count; times on the clock are printed beside them. ripgrep comes with Debian's
`ripgrep`.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import numpy as np

from harch.base.clock import SystemClock
from harch.sentinel.archive.limits import ArchivePolicy, LogLimits
from harch.sentinel.archive.logs.store import LogArchive
from harch.sentinel.model.labels import Matcher, MatchKind
from harch.sentinel.model.logs import FilterKind, LineFilter, LineOrder, LogBatch, LogRequest
from telemetry_lines import HOUR_NS, batches
from verdict import Verdict, conditions

HOURS = 5
FIRST_NS = 1_790_000_000 * 10**9 // HOUR_NS * HOUR_NS
KEEPING = ArchivePolicy(keep_ns=None)
NEEDLE = "request_id=5eb1ca7e0ddba11f"
REGEX = r"status=50[03] duration_ms=1[5-9]\d\.\d+ .*user=user-00"
ROUNDS = 3
T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gb", type=float, default=5.0)
    parser.add_argument("--folder", type=Path, default=None, help="where to work; needs one and a half times --gb")
    options, _ = parser.parse_known_args()
    folder = Path(tempfile.mkdtemp(prefix="harch-bench-logs-", dir=options.folder))
    verdict = Verdict("telemetry_logs")
    print(f"{conditions()}; {options.gb:g} GB of log text over {HOURS} hours, 8 programs, 200 streams")
    try:
        measure(verdict, folder, int(options.gb * 1e9))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    verdict.print()


def measure(verdict: Verdict, folder: Path, raw_bytes: int) -> None:
    raw = folder / "raw"
    raw.mkdir()
    archive = LogArchive(folder / "logs", LogLimits(), KEEPING, SystemClock())
    archive.append([LogBatch((("warm", "up"),), [1], ["kernels are compiled before anything is measured"])])
    archive.table.flush()
    size, cpu = _ingest(archive, raw, raw_bytes)
    facts = archive.facts()
    on_disk = sum(path.stat().st_size for path in (folder / "logs").rglob("*") if path.is_file())
    print(f"ingest {size / 1e6 / cpu:.0f} MB per core second; {facts['lines']} lines, {facts['files']} files")
    print(f"disk   {on_disk / size:.3f} bytes a byte of text, index and log included")
    verdict.goal("ingest", ">= 20", size / 1e6 / cpu, "MB/s/core")
    verdict.goal("bytes on disk, over raw", "<= 0.3", on_disk / size)
    archive.close()
    archive = LogArchive(folder / "logs", LogLimits(), KEEPING, SystemClock())
    _queries(verdict, archive, raw)
    _beside_duckdb(verdict, archive)
    archive.close()


def _ingest(archive: LogArchive, raw: Path, raw_bytes: int) -> tuple[int, float]:
    """Writes the text to both; returns its bytes and our CPU seconds, of appends, files and merging together."""
    size, cpu = 0, 0.0
    handles = {}
    needle_at = raw_bytes * 3 // 5
    for batch in batches(raw_bytes, HOURS, FIRST_NS):
        if size < needle_at <= size + 2_000_000:
            batch.texts[500] += f" {NEEDLE}"
            needle_at = -1
        path = raw / f"hour-{batch.hour}-{batch.app}.log"
        if path not in handles:
            handles[path] = path.open("w")
        handles[path].write("\n".join(batch.texts) + "\n")
        size += sum(map(len, batch.texts)) + len(batch.texts)
        began = time.process_time()
        archive.append([LogBatch(batch.stream, batch.times_ns, batch.texts)])
        if archive.table.memory_bytes() > KEEPING.flush_bytes * 0.9:
            archive.maintain()
            archive.table.flush()
        cpu += time.process_time() - began
    for handle in handles.values():
        handle.close()
    began = time.process_time()
    archive.table.flush()
    archive.maintain()
    return size, cpu + time.process_time() - began


def _queries(verdict: Verdict, archive: LogArchive, raw: Path) -> None:
    hour = sorted(raw.glob("hour-2-*.log"))
    everything = sorted(raw.glob("*.log"))
    span = (FIRST_NS, FIRST_NS + HOURS * HOUR_NS)
    third = (FIRST_NS + 2 * HOUR_NS, FIRST_NS + 3 * HOUR_NS)
    contains, matches = FilterKind.CONTAINS, FilterKind.MATCHES

    def lines(start_ns: int, end_ns: int, *filters: LineFilter) -> int:
        request = LogRequest((), start_ns, end_ns, filters, limit=5000)
        return sum(len(chunk) for chunk in archive.scan(request, lambda: False))

    def counted(start_ns: int, end_ns: int, *filters: LineFilter) -> int:
        return sum(_rate_by_app(archive, start_ns, end_ns, filters).values())

    stories: list[tuple[str, str, Callable[[], int], list[str], list[Path]]] = [
        ("needle in all", "<= 0.1", lambda: lines(*span, LineFilter(contains, NEEDLE)), ["-F", NEEDLE], everything),
        ("a text that is nowhere", "<= 0.1", lambda: lines(*span, LineFilter(contains, "w-5eb1ca7e0d")),
         ["-F", "w-5eb1ca7e0d"], everything),
        ("regex over 1 h", "<= 2", lambda: lines(*third, LineFilter(matches, REGEX)), [REGEX], hour),
        ("rate by label over all", "<= 1", lambda: counted(*span), ["-c", ""], everything),
        ("rate by label of errors over 1 h", "<= 2", lambda: counted(*third, LineFilter(contains, "refused: timeout")),
         ["-c", "-F", "refused: timeout"], hour),
    ]  # fmt: skip
    for name, wanted, ask, arguments, files in stories:
        ours, clock, found = _best(ask, _own_cpu)
        theirs, their_clock, expected = _best(lambda a=arguments, f=files: _ripgrep(a, f), _child_cpu)  # type: ignore[misc]
        print(
            f"{name:<34} ours {ours:7.3f} s CPU ({clock:6.3f} on the clock), "
            f"ripgrep {theirs:7.3f} ({their_clock:6.3f}); {found} lines against {expected}"
        )
        verdict.goal(f"{name}, CPU over ripgrep", wanted, ours / max(theirs, 1e-3))
        verdict.goal(
            f"{name}, lines as ripgrep", "== 0", abs(found - expected) if expected <= 5000 or "rate" in name else 0
        )


def _beside_duckdb(verdict: Verdict, archive: LogArchive) -> None:
    """The same questions by DuckDB over the same Parquet files, with one thread."""
    if find_spec("duckdb") is None:
        print("DuckDB is not installed: no comparison with it")
        return
    import duckdb

    engine = duckdb.connect()
    engine.execute("set threads = 1")
    files = f"read_parquet('{archive.table.files.folder}/*.parquet', union_by_name = true)"
    begin = FIRST_NS + 2 * HOUR_NS
    hour = f"time_ns >= {begin} and time_ns < {begin + HOUR_NS}"
    stories: list[tuple[str, str, str, LineFilter, tuple[int, int]]] = [
        ("needle in all", "<= 0.1", f"contains(body, '{NEEDLE}')", LineFilter(FilterKind.CONTAINS, NEEDLE),
         (FIRST_NS, FIRST_NS + HOURS * HOUR_NS)),
        ("regex over 1 h", "<= 1", f"{hour} and regexp_matches(body, '{REGEX}')", LineFilter(FilterKind.MATCHES, REGEX),
         (begin, begin + HOUR_NS)),
    ]  # fmt: skip
    for name, wanted, where, one, span in stories:
        request = LogRequest((), *span, (one,), order=LineOrder.ANY, with_bodies=False, with_metadata=False)
        ours, _, found = _best(lambda r=request: sum(map(len, archive.scan(r, lambda: False))), _own_cpu)  # type: ignore[misc]
        theirs, _, counted = _best(
            lambda w=where: engine.execute(f"select count(*) from {files} where {w}").fetchall()[0][0],  # type: ignore[misc]
            _own_cpu,
        )
        print(f"{name:<34} ours {ours:7.3f} s CPU, DuckDB {theirs:7.3f}; {found} lines against {counted}")
        verdict.goal(f"{name}, CPU over DuckDB", wanted, ours / theirs)


def _rate_by_app(archive: LogArchive, start_ns: int, end_ns: int, filters: tuple[LineFilter, ...]) -> dict[str, int]:
    """Lines of each program in every five minutes: what `sum by (app) (rate(...[5m]))` reads."""
    matchers = (Matcher(MatchKind.NOT_EQUAL, "app", ""),)
    request = LogRequest(
        matchers, start_ns, end_ns, filters, order=LineOrder.ANY, with_bodies=False, with_metadata=False
    )
    totals: dict[str, int] = {}
    for chunk in archive.scan(request, lambda: False):
        steps = ((chunk.times_ns - start_ns) // (300 * 10**9)).astype(np.int64)
        width = int(steps.max()) + 1
        counts = np.bincount(chunk.stream_at * width + steps, minlength=len(chunk.streams) * width)
        for place, stream in enumerate(chunk.streams):
            app = dict(stream)["app"]
            totals[app] = totals.get(app, 0) + int(counts[place * width : (place + 1) * width].sum())
    return totals


def _ripgrep(arguments: list[str], files: list[Path]) -> int:
    """How many lines it finds. One thread a file, as many as there are cores: its own default."""
    ran = subprocess.run(
        ["rg", "--no-config", "--no-filename", "-a", *arguments, "--", *map(str, files)]
        if "-c" in arguments or arguments[0] == "-F"
        else ["rg", "--no-config", "--no-filename", "-a", "-e", *arguments, "--", *map(str, files)],
        capture_output=True,
        check=False,
    )
    if ran.returncode > 1:
        raise SystemExit(ran.stderr.decode())
    return sum(map(int, ran.stdout.split())) if "-c" in arguments else ran.stdout.count(b"\n")


def _own_cpu() -> float:
    return time.process_time()


def _child_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _best(work: Callable[[], T], cpu_s: Callable[[], float]) -> tuple[float, float, T]:
    """CPU and clock seconds of the cheapest of some rounds, after one that nobody counts."""
    found = work()
    best = (1e9, 1e9)
    for _ in range(ROUNDS):
        cpu, clock = cpu_s(), time.perf_counter()
        found = work()
        best = min(best, (cpu_s() - cpu, time.perf_counter() - clock))
    return *best, found


if __name__ == "__main__":
    main()

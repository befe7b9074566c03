"""How small are SENTINEL's blocks, and how fast are they written and read? `make bench-sentinel-blocks`.

The data is generated, in the shapes that monitoring has: histograms with cumulative buckets, counters, gauges of few
decimals, memory in pages, sums of seconds with all their digits. Scrapes come every 15 s with a jitter of milliseconds.
Times are CPU seconds of one thread, so that a busy machine changes them little.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from harch.sentinel.model.histograms import BucketSpan, NativeHistogram
from harch.sentinel.model.labels import Labels, Matcher, MatchKind, labels
from harch.sentinel.model.selection import LabelColumn, Samples, Selection, SeriesTable
from harch.sentinel.store.blocks.block import Block
from harch.sentinel.store.blocks.columns_kernels import decode_value_columns, encode_value_columns
from harch.sentinel.store.blocks.planning import HOUR_MS
from harch.sentinel.store.blocks.tenant import TenantBlocks
from verdict import Verdict, conditions

SERIES, TARGETS, STEP_MS = 10_000, 100, 15_000
START_MS = 1_700_000_000_000 // (24 * HOUR_MS) * 24 * HOUR_MS
BUCKETS = ("0.005", "0.01", "0.05", "0.1", "0.25", "0.5", "1", "5", "10", "+Inf")
HISTOGRAM = "harchos_hub_request_duration_seconds"
RUNS = 5

Column = np.ndarray
Random = np.random.Generator


def gauge_kinds(random: Random, count: int) -> dict[str, Callable[[], Column]]:
    """One column of each kind of series that is not a histogram."""
    return {
        "harchos_hub_requests_total": lambda: np.cumsum(random.poisson(random.exponential(40), count)),
        "node_cpu_seconds_total": lambda: np.round(
            np.cumsum(np.clip(random.normal(random.uniform(0, 15), 0.4, count), 0, 15)) + random.uniform(0, 1e6), 2
        ),
        "harchos_gpu_temperature_celsius": lambda: np.round(60 + np.cumsum(random.normal(0, 0.4, count))),
        "harchos_gpu_utilization_percent": lambda: np.round(np.clip(random.normal(70, 10, count), 0, 100)),
        "node_memory_free_bytes": lambda: (
            4096 * (2e6 + np.cumsum(random.integers(-200, 201, count) * (random.random(count) < 0.5)))
        ),
        "harchos_gpu_power_draw_watts": lambda: np.round(300 + random.normal(0, 20, count), 1),
        "up": lambda: np.ones(count),
        "node_network_receive_bytes_total": lambda: 1e9 + np.cumsum(random.poisson(random.exponential(1e5), count)),
    }


def histogram_columns(random: Random, count: int) -> Iterator[tuple[str, str, Column]]:
    """Suffix, bucket and column of one classic histogram."""
    increments = random.poisson(random.exponential(3), count)
    shares = random.dirichlet(np.ones(len(BUCKETS)))
    by_bucket = np.array([random.multinomial(number, shares) for number in increments]).cumsum(axis=1)
    for place, bucket in enumerate(BUCKETS):
        yield "_bucket", bucket, np.cumsum(by_bucket[:, place])
    yield "_count", "", np.cumsum(increments)
    yield "_sum", "", np.cumsum([random.exponential(0.2, number).sum() for number in increments])


def generated(series: int, count: int, *, seed: int = 1, start_ms: int = START_MS) -> Selection:
    """`series` series of TARGETS targets; all series of one target are scraped at the same moments."""
    random = np.random.default_rng(seed)
    names: list[Labels] = []
    columns: list[Column] = []
    times: list[Column] = []
    for target in range(TARGETS):
        known = {"instance": f"10.0.7.{target}:9100", "job": f"harchos-{target % 4}", "hub": f"hub-{target % 5}"}
        jitter = np.rint(np.abs(random.normal(0, 2, count))).astype(np.int64)
        scrapes = start_ms + target * 137 + np.arange(count) * STEP_MS + jitter
        mine: list[tuple[Labels, Column]] = []
        while len(mine) < 0.45 * series / TARGETS:
            path = f"/v1/resource/{len(mine) // 12}"
            for suffix, bucket, column in histogram_columns(random, count):
                mine.append((labels({**known, "__name__": HISTOGRAM + suffix, "path": path, "le": bucket}), column))
        kinds = gauge_kinds(random, count)
        while len(mine) < series / TARGETS:
            name = list(kinds)[len(mine) % len(kinds)]
            mine.append((labels({**known, "__name__": name, "device": f"gpu-{len(mine) // 8}"}), kinds[name]()))
        names += [label_set for label_set, _ in mine]
        columns += [column for _, column in mine]
        times += [scrapes] * len(mine)
    counts = np.full(len(names), count, np.int64)
    flat = np.concatenate(columns).astype(np.float64)
    return Selection(SeriesTable.of(names), Samples(np.cumsum(counts) - counts, counts, np.concatenate(times), flat))


def cpu_seconds(work: Callable[[], object], runs: int = RUNS) -> float:
    """The least of some runs."""
    best = float("inf")
    for _ in range(runs):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


def columns_by_kind(selection: Selection) -> None:
    """Codec alone, by kind of series, before zstd."""
    samples = selection.samples
    names = selection.series.columns["__name__"]
    print("\n| kind | B/sample before zstd | encode M samples/s | decode M samples/s |\n|---|---|---|---|")
    for code, name in enumerate(names.values):
        mine = np.flatnonzero(names.codes == code)
        if not len(mine):
            continue
        first, count = samples.first[mine], samples.count[mine]
        total = int(count.sum())
        data, places = encode_value_columns(samples.values, first, count)
        encode_s = cpu_seconds(lambda first=first, count=count: encode_value_columns(samples.values, first, count))
        out, nothing = np.empty(total), np.zeros(len(mine), np.int64)
        arguments = (data, places[:-1].copy(), places[1:].copy(), count, nothing, count, np.cumsum(count) - count, out)
        decode_s = cpu_seconds(lambda arguments=arguments: decode_value_columns(*arguments))
        print(f"| {name} | {len(data) / total:.2f} | {total / encode_s / 1e6:.0f} | {total / decode_s / 1e6:.0f} |")


def cold_select(path: Path, matchers: list[Matcher], start: int, end: int) -> tuple[float, Selection]:
    """CPU seconds from closed files to arrays, and what was found."""
    found: list[Selection] = []

    def ask() -> None:
        found[:] = [Block.open(path).select(matchers, start, end, limit=1 << 62)]

    return cpu_seconds(ask), found[0]


def one_block(folder: Path, verdict: Verdict) -> None:
    """What the anchors in the design note were measured with: 10,000 series of 300 samples."""
    selection = generated(SERIES, 300)
    columns_by_kind(selection)
    TenantBlocks.open(folder / "warm").add(generated(100, 2))  # compiles, or loads what was compiled before
    blocks = TenantBlocks.open(folder / "one")
    begin = time.process_time()
    blocks.write(selection, START_MS, START_MS + 2 * HOUR_MS)
    write_s = time.process_time() - begin
    (meta,) = blocks.metas()
    each, index = meta.size_bytes / meta.samples, meta.index_bytes / meta.samples
    print(f"\n{meta.series} series, {meta.samples} samples: {each:.3f} B/sample, of which index {index:.4f}")
    print(f"write with sort, zstd and sync: {meta.samples / write_s / 1e6:.1f} M samples/s of CPU")
    queries = {
        "buckets of one histogram": [Matcher(MatchKind.EQUAL, "__name__", f"{HISTOGRAM}_bucket")],
        "GPU gauges": [Matcher(MatchKind.REGEX, "__name__", "harchos_gpu_.*")],
        "everything": [],
        "nothing": [Matcher(MatchKind.EQUAL, "__name__", "absent")],
    }
    speeds = {}
    for name, matchers in queries.items():
        seconds, found = cold_select(folder / "one" / meta.name, matchers, START_MS, START_MS + 2 * HOUR_MS)
        samples = int(found.samples.count.sum())
        speeds[name] = samples / seconds / 1e6
        print(f"cold {name}: {found.series.count} series, {samples} samples, {1e3 * seconds:.2f} ms of CPU")
    verdict.goal("bytes per sample with index", "<= 1.3", each, "B")
    verdict.goal("cold read, open to arrays", ">= 50", speeds["everything"], "M samples/s per core")


def one_day(folder: Path, verdict: Verdict) -> None:
    """2,000 series of a day, written by two hours and compacted."""
    blocks = TenantBlocks.open(folder / "day")
    last = START_MS + 24 * HOUR_MS
    selection = generated(2_000, 24 * 240 + 1)
    for start in range(START_MS, last + 1, 2 * HOUR_MS):
        blocks.write(selection, start, start + 2 * HOUR_MS)
    before = sum(meta.size_bytes for meta in blocks.metas())
    begin = time.process_time()
    report = blocks.maintain(last)
    seconds = time.process_time() - begin
    (day,) = [meta for meta in blocks.metas() if meta.end_ms <= last]
    print(f"\none day of {day.series} series: {len(report.done)} rewrites, {seconds:.1f} s of CPU")
    print(f"{before / day.samples:.3f} B/sample before, {day.size_bytes / day.samples:.3f} after, with index")
    hour = cold_select(folder / "day" / day.name, [], last - HOUR_MS, last)
    print(f"cold last hour of the day: {1e3 * hour[0]:.1f} ms of CPU, {int(hour[1].samples.count.sum())} samples")
    verdict.goal("bytes per sample of a compacted day", "<= 1.3", day.size_bytes / day.samples, "B")


def random_labels(folder: Path) -> None:
    """The worst that labels do: a random name on every series."""
    selection = generated(SERIES, 300)
    count, random = selection.series.count, np.random.default_rng(3)
    pods = (
        "",
        *(f"web-{first:08x}-{second:08x}" for first, second in random.integers(0, 1 << 32, (count, 2)).tolist()),
    )
    columns = {**selection.series.columns, "pod": LabelColumn(np.arange(1, count + 1, dtype=np.int32), pods)}
    blocks = TenantBlocks.open(folder / "labels")
    blocks.add(Selection(SeriesTable(count, columns), selection.samples))
    (meta,) = blocks.metas()
    each, index = meta.size_bytes / meta.samples, meta.index_bytes / meta.series
    print(f"\nwith a random name on every series: {each:.3f} B/sample, index {index:.1f} B/series")


def native_histograms(folder: Path) -> None:
    """100 series of 480 native histograms with 20 buckets."""
    series, count, random = 100, 480, np.random.default_rng(4)
    spans = (BucketSpan(-5, 10), BucketSpan(2, 10))
    histograms: list[NativeHistogram] = []
    for _ in range(series):
        buckets = np.cumsum(random.poisson(2, (count, 20)), axis=0).astype(np.float64)
        sums = np.cumsum(random.exponential(10, count))
        histograms += [
            NativeHistogram(sum(row), total, 3, 1e-128, 0.0, spans, tuple(row), is_integer=True)
            for row, total in zip(buckets.tolist(), sums.tolist(), strict=True)
        ]
    counts = np.full(series, count, np.int64)
    samples = Samples(
        np.cumsum(counts) - counts,
        counts,
        np.tile(START_MS + np.arange(count) * STEP_MS, series),
        np.array([one.sum for one in histograms]),
        histogram_at=np.arange(len(histograms), dtype=np.int32),
        histograms=histograms,
    )
    names = SeriesTable.of([labels({"__name__": "h", "i": str(place)}) for place in range(series)])
    blocks = TenantBlocks.open(folder / "histograms")
    write_s = cpu_seconds(lambda: blocks.add(Selection(names, samples)), runs=2)
    meta = blocks.metas()[0]
    read_s, _ = cold_select(folder / "histograms" / meta.name, [], START_MS, START_MS + 2 * HOUR_MS)
    speeds = f"write {len(histograms) / write_s / 1e3:.0f}, read {len(histograms) / read_s / 1e3:.0f} thousand/s"
    print(f"native histograms of 20 buckets: {meta.size_bytes / meta.samples:.1f} B each, {speeds}")


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="harch-blocks-"))
    verdict = Verdict("sentinel-blocks")
    try:
        print(f"conditions: {conditions()}")
        one_block(folder, verdict)
        one_day(folder, verdict)
        random_labels(folder)
        native_histograms(folder)
    finally:
        shutil.rmtree(folder)
    verdict.print()
    sys.exit(0 if all(goal["met"] for goal in verdict.goals) else 1)


if __name__ == "__main__":
    main()

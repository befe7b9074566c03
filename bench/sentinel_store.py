"""What does the time-series store cost? Remote-write bodies into one tenant's store, in process, the log synced.

10,000 series, 300 samples each at 15 s, 2,000 samples a request, one thread unless said otherwise. Half of the series
count, half are gauges with two decimals. CPU is that of the writing threads; making the bodies is not counted. No HTTP:
`make bench-sentinel` measures that, beside Prometheus and VictoriaMetrics.
"""

from __future__ import annotations

import argparse
import os
import resource
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cramjam
import numpy as np

from harch.base.clock import SystemClock
from harch.sentinel.model.labels import Matcher, MatchKind, labels
from harch.sentinel.store.blocks.tenant import TenantBlocks
from harch.sentinel.store.database import TenantDatabase
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.warmup import let_compiler_go, warm_up
from verdict import Verdict, conditions

START_MS, STEP_MS = 1_700_000_000_000, 15_000
PER_REQUEST = 2_000
METRICS = 40


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def part(field: int, content: bytes) -> bytes:
    return bytes((field << 3 | 2,)) + varint(len(content)) + content


class Sender:
    """Bodies of one scrape after the other."""

    def __init__(self, series: int, generation: int = 0) -> None:
        rng = np.random.default_rng(42)
        self._counts = np.cumsum(rng.integers(0, 50, (series, 1)), axis=1).astype(np.float64)
        self._rng, self._series = rng, series
        self._labels = [
            b"".join(
                part(1, part(1, name.encode()) + part(2, value.encode()))
                for name, value in labels(
                    {
                        "__name__": f"harchos_bench_{number % METRICS}_total",
                        "deviceIndex": str(number % 8),
                        "generation": str(generation),
                        "instance": f"node-{number % 100}.dakhla:9100",
                        "job": "harchos-gpu",
                        "region_name": "dakhla",
                        "series": str(number),
                    }
                )
            )
            for number in range(series)
        ]

    def scrape(self, step: int) -> list[bytes]:
        half = self._series // 2
        values = np.empty(self._series)
        self._counts += self._rng.integers(0, 50, self._counts.shape)
        values[:half] = self._counts[:half, 0]
        values[half:] = np.round(self._rng.normal(50, 10, self._series - half), 2)
        when = b"\x10" + varint(START_MS + step * STEP_MS)
        samples = (part(2, b"\x09" + struct.pack("<d", value) + when) for value in values.tolist())
        series = [part(1, name + sample) for name, sample in zip(self._labels, samples, strict=True)]
        chunks = (b"".join(series[first : first + PER_REQUEST]) for first in range(0, len(series), PER_REQUEST))
        return [bytes(cramjam.snappy.compress_raw(chunk)) for chunk in chunks]


def rss_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def open_store(folder: Path) -> TenantDatabase:
    limits = TenantLimits(out_of_order_ms=None)
    return TenantDatabase(folder, TenantBlocks.open(folder / "blocks"), SystemClock(), limits=limits)


def timed_write(store: TenantDatabase, body: bytes) -> tuple[float, float]:
    """CPU and wall seconds of one write."""
    cpu, wall = time.thread_time(), time.perf_counter()
    receipt = store.write_v1(body)
    if receipt.refused:
        raise SystemExit(f"refused: {receipt.first_refusal}")
    return time.thread_time() - cpu, time.perf_counter() - wall


def matchers(count: int) -> list[Matcher]:
    """Of `count` of the metrics."""
    names = "|".join(f"harchos_bench_{number}_total" for number in range(count))
    return [Matcher(MatchKind.REGEX, "__name__", names)]


def ingest(store: TenantDatabase, sender: Sender, steps: int, threads: int) -> tuple[float, float]:
    """Writes all scrapes; returns CPU µs a sample of known series, and ms of the 99th percentile of a write."""
    cpu, walls, samples = 0.0, [], 0
    with ThreadPoolExecutor(threads) as pool:
        for step in range(steps):
            bodies = sender.scrape(step)
            results = list(pool.map(lambda body: timed_write(store, body), bodies))
            if step:
                cpu += sum(used for used, _ in results)
                walls += [wall for _, wall in results]
                samples += sender._series
    return cpu / samples * 1e6, float(np.percentile(walls, 99) * 1e3)


def write_latencies(store: TenantDatabase, bodies: Iterator[bytes]) -> np.ndarray:
    return np.array([timed_write(store, body)[1] for body in bodies])


def beside_queries(store: TenantDatabase, sender: Sender, first_step: int, scrapes: int) -> tuple[float, float]:
    """99th percentile of writes in ms: alone, and while another thread reads 1.2 million samples again and again."""
    alone = write_latencies(store, (body for step in range(scrapes) for body in sender.scrape(first_step + step)))
    stopped = threading.Event()

    def ask() -> None:
        while not stopped.is_set():
            store.select(matchers(16), 0, 1 << 60, limit=1 << 40)

    asking = threading.Thread(target=ask)
    asking.start()
    beside = write_latencies(
        store, (body for step in range(scrapes) for body in sender.scrape(first_step + scrapes + step))
    )
    stopped.set()
    asking.join()
    return float(np.percentile(alone, 99) * 1e3), float(np.percentile(beside, 99) * 1e3)


def best_ms(action: object, rounds: int = 7) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()  # type: ignore[operator]
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--series", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    verdict = Verdict("sentinel_store")
    print(f"{conditions()}; load average {os.getloadavg()[0]:.1f}")
    warm_up()
    let_compiler_go()
    base = rss_mb()
    with tempfile.TemporaryDirectory(prefix="harch-bench-") as name:
        folder = Path(name)
        store, sender = open_store(folder), Sender(options.series)
        before = rss_mb()
        cpu, p99 = ingest(store, sender, options.steps, 1)
        count = options.series * options.steps
        log = store.facts()["log_bytes_written"]
        grown = rss_mb() - before
        print(
            f"one thread: {cpu:.3f} µs of CPU a sample, p99 of a request {p99:.1f} ms, log {log / count:.2f} B a sample"
        )
        print(f"RSS {base:.0f} MB with all kernels of the store, {grown:+.0f} MB by {count:,} samples")
        verdict.goal("CPU of ingest without HTTP", "< 0.5", cpu, "µs/sample")
        verdict.goal("log", "<= 8", log / count, "B/sample")
        verdict.goal("RSS of the store alone", "<= 252", base + grown, "MB")
        for metrics in (1, 8, 16, METRICS):
            wanted = matchers(metrics)
            taken = best_ms(lambda wanted=wanted: store.select(wanted, 0, 1 << 60, limit=1 << 40))
            samples = count * metrics // METRICS
            print(f"select of {samples:,} samples: {taken:.2f} ms, {samples / taken / 1e3:.0f} M samples/s")
        nothing = [Matcher(MatchKind.EQUAL, "__name__", "absent")]
        print(f"select of nothing: {best_ms(lambda: store.select(nothing, 0, 1 << 60, limit=1)) * 1e3:.0f} µs")
        alone, beside = beside_queries(store, sender, options.steps, 40)
        print(f"p99 of a request: alone {alone:.1f} ms, beside queries {beside:.1f} ms")
        verdict.goal("p99 of writes beside a heavy query, over alone", "<= 2", beside / alone)
        store.close()
        start = time.perf_counter()
        again = open_store(folder)
        taken_s = time.perf_counter() - start
        print(f"log of {again.head.sample_count:,} samples read again in {taken_s:.2f} s")
        new = Sender(options.series, generation=1)
        bodies = new.scrape(0)
        cpu = sum(timed_write(again, body)[0] for body in bodies)
        print(f"new series: {cpu / options.series * 1e6:.1f} µs of CPU each")
        start = time.perf_counter()
        again.flush()
        print(f"flushed into blocks in {time.perf_counter() - start:.2f} s")
        again.close()
    with tempfile.TemporaryDirectory(prefix="harch-bench-") as name:
        store = open_store(Path(name))
        cpu, p99 = ingest(store, Sender(options.series), options.steps // 3, 5)
        print(f"five threads: {cpu:.3f} µs of CPU a sample, p99 of a request {p99:.1f} ms")
        store.close()
    verdict.print()


if __name__ == "__main__":
    main()

"""How long do PromQL queries take on samples that lie in memory? The evaluator alone: no disk, no HTTP, no JSON.

4,000 series of 300 samples, 15 s apart, read as the store hands them over: shared dictionaries, one flat array. Queries
are those that a fleet's dashboards ask: 60 minutes at steps of 15 s. Wall times are the median and the minimum of many
runs; CPU is that of all threads, because the machine may be busy with other things. Nothing is compared with other
systems here: `bench/sentinel.py` does that over HTTP.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harch.sentinel.model.labels import Matcher
from harch.sentinel.model.selection import (
    LabelColumn,
    Samples,
    Selection,
    SeriesExemplars,
    SeriesTable,
)
from harch.sentinel.promql.evaluate.engine import QueryEngine
from verdict import Verdict, conditions

SERIES = 4_000
SAMPLES = 300
SPACING_MS = 15_000
START_MS = 1_700_000_000_000
STEP_MS = 15_000
STEPS = 241
BOUNDS = ("0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "+Inf")


@dataclass(frozen=True)
class Question:
    name: str
    query: str
    goal_ms: float
    is_instant: bool = False


QUESTIONS = (
    Question("sum by rate", "sum by (job) (rate(requests_total[5m]))", 60),
    Question("sum by gauge", "sum by (job) (temperature_celsius)", 20),
    Question("histogram quantile", "histogram_quantile(0.9, sum by (job, le) (rate(latency_seconds_bucket[5m])))", 60),
    Question("topk rate", "topk(5, rate(requests_total[5m]))", 60),
    Question("rate, 200 series out", 'rate(requests_total{instance=~"i[0-9]{1,2}0"}[5m])', 20),
    Question("absent", "absent(nothing_of_this_name)", 0.3, is_instant=True),
    Question("avg over time", "max by (job) (avg_over_time(temperature_celsius[5m]))", 200),
    Question("ratio", "sum by (job) (rate(requests_total[5m])) / sum by (job) (rate(requests_total[10m]))", 120),
    Question("join", "temperature_celsius * on (instance, job, le) group_left requests_total", 100),
)


class Memory:
    """A Queryable over one table: label columns with dictionaries that all results share."""

    def __init__(self, names: Sequence[str], series: int, samples: int) -> None:
        random = np.random.default_rng(8)
        total = series * len(names)
        self._dictionaries: dict[str, list[str]] = {
            "__name__": ["", *names],
            "job": ["", *(f"job-{number}" for number in range(10))],
            "instance": ["", *(f"i{number}" for number in range(series // 10))],
            "le": ["", *BOUNDS],
        }
        place = np.arange(series)
        bound, job, instance = 1 + place % len(BOUNDS), 1 + place // 10 % 10, 1 + place // 10
        self._codes = {
            "__name__": np.repeat(np.arange(1, len(names) + 1), series).astype(np.int32),
            "job": np.tile(job, len(names)).astype(np.int32),
            "instance": np.tile(instance, len(names)).astype(np.int32),
            "le": np.tile(bound, len(names)).astype(np.int32),
        }
        times = START_MS + np.arange(samples) * SPACING_MS
        self._timestamps = np.tile(times, total).astype(np.int64)
        steps = random.poisson(5.0, (total, samples)).astype(np.float64)
        steps[random.random((total, samples)) < 0.0005] = -1e9  # counters that begin anew
        values = np.cumsum(steps, axis=1)
        values[values < 0] %= 1000.0
        per_bucket = 1 + np.tile(place % len(BOUNDS), len(names))
        self._values = (values * per_bucket[:, np.newaxis]).ravel()
        self._first = (np.arange(total) * samples).astype(np.int64)
        self._count = np.full(total, samples, np.int64)
        self._total = total

    def select(self, matchers: Sequence[Matcher], start: int, end: int, *, limit: int) -> Selection:
        mask = np.ones(self._total, np.bool_)
        for matcher in matchers:
            values = self._dictionaries.get(matcher.name, [""])
            fits = np.fromiter((matcher.matches(value) for value in values), np.bool_, len(values))
            codes = self._codes.get(matcher.name)
            mask &= fits[codes] if codes is not None else fits[0]
            if not mask.any():
                break
        rows = np.flatnonzero(mask)
        columns = {name: LabelColumn(codes[rows], self._dictionaries[name]) for name, codes in self._codes.items()}
        samples = Samples(self._first[rows], self._count[rows], self._timestamps, self._values)
        return Selection(SeriesTable(len(rows), columns), samples)

    def series(self, matchers: Sequence[Matcher], start: int, end: int) -> SeriesTable:
        return self.select(matchers, start, end, limit=1 << 62).series

    def exemplars(self, matchers: Sequence[Matcher], start: int, end: int) -> Sequence[SeriesExemplars]:
        return ()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=25, help="runs of each query (25)")
    options.add_argument("--series", type=int, default=SERIES, help=f"series of each metric ({SERIES})")
    chosen = options.parse_args()
    names = ("requests_total", "temperature_celsius", "latency_seconds_bucket")
    memory = Memory(names, chosen.series, SAMPLES)
    print(f"{conditions()}, load average {os.getloadavg()[0]:.1f}")
    print(f"{chosen.series} series x {SAMPLES} samples, {STEPS} steps of {STEP_MS // 1000} s; {chosen.runs} runs each")
    print(f"{'query':22} {'first':>9} {'median':>9} {'minimum':>9} {'CPU':>9}  (ms)")
    verdict = Verdict("sentinel-promql")
    for question in QUESTIONS:
        first, walls, cpus = measured(question, memory, chosen.runs)
        median, cpu = statistics.median(walls), statistics.median(cpus)
        print(f"{question.name:22} {first:9.2f} {median:9.2f} {min(walls):9.2f} {cpu:9.2f}")
        verdict.goal(f"{question.name}, minimum", f"< {question.goal_ms}", min(walls), "ms")
    verdict.print()


def measured(question: Question, memory: Memory, runs: int) -> tuple[float, list[float], list[float]]:
    """Milliseconds of the first run (which loads or compiles kernels), and wall and CPU of the others."""
    engine = QueryEngine()
    end_ms = START_MS + SAMPLES * SPACING_MS
    walls, cpus = [], []
    for _ in range(runs + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        if question.is_instant:
            engine.instant(question.query, end_ms, memory)
        else:
            engine.range(question.query, end_ms - (STEPS - 1) * STEP_MS, end_ms, STEP_MS, memory)
        walls.append((time.perf_counter() - wall) * 1000)
        cpus.append((time.process_time() - cpu) * 1000)
    return walls[0], walls[1:], cpus[1:]


if __name__ == "__main__":
    main()

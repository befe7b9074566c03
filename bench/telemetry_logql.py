"""What does a line cost a LogQL query? CPU seconds by kind of question, beside plain Python over the same lines.

`python bench/telemetry_logql.py`, a part of `make bench-telemetry`. Lines are JSON with four fields and a trace id as
metadata, in the archive of a temporary folder, half of them in files. The floor is one pass of `json.loads` over the
texts in memory, which reads no archive and counts nothing. Ratios are of CPU seconds in the same run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harch.base.clock import SystemClock, epoch_ms
from harch.sentinel.archive.folder import ArchiveFolder
from harch.sentinel.logql.evaluate.context import LogQueryOptions
from harch.sentinel.logql.evaluate.engine import LogqlEngine
from harch.sentinel.logql.evaluate.lines import LineWindow
from harch.sentinel.logql.syntax.nodes import LogQuery
from harch.sentinel.model.labels import labels
from harch.sentinel.model.logs import LineOrder, LogBatch, LogStore
from harch.sentinel.warmup import warm_all
from verdict import Verdict, conditions

BATCH_LINES = 5_000
STREAMS = 20
SPAN_MS = 3_600_000
ROUNDS = 3
QUESTIONS = {
    "count by a stream's label": 'sum by (app) (count_over_time({job="bench"}[1m]))',
    "rate of lines with a text": 'sum(rate({job="bench"} |= "item/4999" [1m]))',
    "json, by a field": 'sum by (level) (count_over_time({job="bench"} | json [1m]))',
    "pattern, by a capture": 'sum by (l) (count_over_time({job="bench"} | pattern `{"level": "<l>",<_>` [1m]))',
    "regexp, by a capture": 'sum by (l) (count_over_time({job="bench"} | regexp `"level": "(?P<l>\\w+)"` [1m]))',
    "quantile of a field": 'quantile_over_time(0.99, {job="bench"} | json | unwrap ms [5m]) by (level)',
    "newest 100 lines": '{job="bench"}',
    "newest 100 with a text, formatted": '{job="bench"} |= "item/4999" | json | line_format "{{.level}} {{.path}}"',
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=300_000)
    options, _ = parser.parse_known_args()
    folder = Path(tempfile.mkdtemp(prefix="harch-bench-logql-"))
    print(f"{conditions()}; {options.lines:,} lines")
    try:
        measure(folder, options.lines)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(folder: Path, lines: int) -> None:
    verdict, clock = Verdict("telemetry_logql"), SystemClock()
    end_ms = epoch_ms(clock.now())
    archive = ArchiveFolder(folder, clock)
    texts = filled(archive.logs("bench"), lines, end_ms)
    warm_all()
    floor_s = least_cpu_s(lambda: [json.loads(text) for text in texts])
    print(f"{'json.loads alone':36} {1e6 * floor_s / lines:8.2f} us a line")
    ratios: dict[str, float] = {}
    for name, query in QUESTIONS.items():
        cpu_s, read = asked(archive.logs("bench"), query, end_ms)
        ratios[name] = cpu_s / floor_s
        print(f"{name:36} {1e6 * cpu_s / lines:8.2f} us a line stored, {read:9,} lines read, {ratios[name]:6.3f} of it")
    archive.close()
    verdict.goal("counting lines, CPU of json.loads over them", "<= 0.1", ratios["count by a stream's label"])
    verdict.goal("a field of JSON counted, CPU of json.loads", "<= 2", ratios["json, by a field"])
    verdict.goal("newest lines, CPU of json.loads over all", "<= 0.1", ratios["newest 100 lines"])
    verdict.print()


def filled(store: LogStore, lines: int, end_ms: int) -> list[str]:
    """Writes the lines, spread over an hour, and gives their texts."""
    texts: list[str] = []
    start_ns, step_ns = (end_ms - SPAN_MS) * 10**6, SPAN_MS * 10**6 // lines
    for batch in range(0, lines, BATCH_LINES):
        places = range(batch, min(batch + BATCH_LINES, lines))
        told = [
            json.dumps(
                {
                    "level": ("info", "warn", "error")[place % 3],
                    "ms": place % 997,
                    "path": f"/api/v1/item/{place % BATCH_LINES}",
                    "msg": "request served to the customer without trouble",
                }
            )
            for place in places
        ]
        stream = labels({"job": "bench", "app": f"app{batch // BATCH_LINES % STREAMS}"})
        metadata = [labels({"trace_id": f"{place:032x}"}) for place in places]
        store.append([LogBatch(stream, [start_ns + place * step_ns for place in places], told, metadata)])
        texts += told
        if batch <= lines // 2 < batch + BATCH_LINES:
            store.maintain()
    return texts


def asked(store: LogStore, query: str, end_ms: int) -> tuple[float, int]:
    """CPU seconds of a question, and how many lines it read."""
    engine, chosen = LogqlEngine(), LogQueryOptions()
    tree, read = engine.tree(query), [0]

    def ask() -> None:
        if isinstance(tree, LogQuery):
            window = LineWindow((end_ms - SPAN_MS) * 10**6, end_ms * 10**6, LineOrder.NEWEST_FIRST, 100)
            answer = engine.lines(tree, window, store, end_ms * 10**6, chosen)
        else:
            answer = engine.range(tree, end_ms - SPAN_MS, end_ms, 60_000, store, end_ms * 10**6, chosen)
        read[0] = answer.read.lines

    return least_cpu_s(ask), read[0]


def least_cpu_s(work: Callable[[], object]) -> float:
    """The least of some rounds, after one that is not counted."""
    work()
    found = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


if __name__ == "__main__":
    main()

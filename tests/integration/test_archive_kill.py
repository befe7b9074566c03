"""kill -9 at random points of writing: no line and no span that was acknowledged is lost, and none is doubled."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from harch.base.clock import SystemClock
from harch.sentinel.archive.folder import ArchiveFolder
from harch.sentinel.model.logs import LogRequest, Order
from harch.sentinel.model.spans import SpanQuery
from integration.archive_victim import LINES, SETTINGS, SPANS, lines_of, spans_of

ROUNDS = 100 if os.environ.get("HARCH_SOAK") else 2
VICTIM = Path(__file__).with_name("archive_victim.py")
Write = tuple[str, int, int]


def test_no_acknowledged_line_or_span_is_lost_to_kill_9(tmp_path: Path) -> None:
    rng = random.Random(20_261_116)
    acknowledged: set[Write] = set()
    first = 0
    for _ in range(ROUNDS):
        written = _one_life(tmp_path, first, rng.randint(1, 150))
        acknowledged |= written
        first = max((number for _, _, number in acknowledged), default=-1) + 2  # the one under way may be there or not
        _check(tmp_path, acknowledged, written)
    kinds = Counter(kind for kind, _, _ in acknowledged)
    assert min(kinds["lines"], kinds["spans"]) > ROUNDS // 3


def _one_life(folder: Path, first: int, acknowledged_max: int) -> set[Write]:
    """Starts the process, kills it after some acknowledgements, and returns all that it printed."""
    command = [sys.executable, str(VICTIM), str(folder), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        lines = []
        for line in victim.stdout:
            lines.append(line)
            if len(lines) == acknowledged_max:
                victim.kill()  # SIGKILL; what is in the pipe by now was acknowledged too
    assert victim.returncode == -9, victim.returncode
    whole = (line.split() for line in lines if line.endswith("\n"))
    return {(kind, int(writer), int(number)) for kind, writer, number in whole}


def _check(folder: Path, acknowledged: set[Write], written: set[Write]) -> None:
    """All lines and traces that were ever acknowledged are there; of the last life, every field of every span."""
    archive = ArchiveFolder(folder, SystemClock(), SETTINGS)
    try:
        logs, spans = archive.logs("victim"), archive.spans("victim")
        request = LogRequest((), -(1 << 62), 1 << 62, order=Order.ANY, with_metadata=False)
        held: Counter[str] = Counter()
        for chunk in logs.scan(request, lambda: False):
            held.update(chunk.texts)
        assert max(held.values(), default=1) == 1, "a line is there twice"
        assert sum(held.values()) % LINES == 0, "a write is there in part"
        traces = {
            one.trace_id: one.spans
            for one in spans.search(SpanQuery(0, 1 << 62, limit=1 << 30, scanned_spans_max=1 << 40))
        }
        assert set(traces.values()) <= {SPANS}, "a trace is there in part, or has spans twice"
        for kind, writer, number in acknowledged:
            if kind == "lines":
                assert all(text in held for batch in lines_of(writer, number) for text in batch.texts), (writer, number)
            else:
                expected = spans_of(writer, number)
                assert expected[0].trace_id in traces, (writer, number)
                if (kind, writer, number) in written:
                    found = spans.trace(expected[0].trace_id)
                    assert found == sorted(expected, key=lambda span: (span.start_ns, span.span_id)), (writer, number)
    finally:
        archive.close()

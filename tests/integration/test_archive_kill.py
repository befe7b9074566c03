"""kill -9 at random points of writing: no line and no span that was acknowledged is lost, and none is doubled."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from harch.base.clock import SystemClock
from harch.sentinel.archive.folder import ArchiveFolder
from harch.sentinel.model.logs import LineOrder, LogRequest
from harch.sentinel.model.spans import SpanQuery
from integration.archive_victim import LINES, SETTINGS, SPANS, lines_of, spans_of

ROUNDS = 100 if os.environ.get("HARCH_SOAK") else 2
VICTIM = Path(__file__).with_name("archive_victim.py")
Write = tuple[str, int, int]


def test_no_acknowledged_line_or_span_is_lost_to_kill_9(tmp_path: Path) -> None:
    rng = random.Random(20_261_116)
    acknowledged: set[Write] = set()
    first = 0
    command = [sys.executable, str(VICTIM), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as victims:
        for _ in range(ROUNDS):
            written = _one_life(victims, first, rng.randint(30, 300))
            acknowledged |= written
            # The write that was under way may be there or not.
            first = max((number for _, _, number in acknowledged), default=-1) + 2
            _check(tmp_path, acknowledged, written)
        assert victims.stdin is not None
        victims.stdin.close()
    kinds = Counter(kind for kind, _, _ in acknowledged)
    files = [len(list((tmp_path / "tenants" / "victim" / kind / "files").iterdir())) for kind in ("logs", "spans")]
    assert min(files) > 0, "no life was long enough to write a file"
    print(f"{ROUNDS} kills: {kinds['lines'] * LINES} lines and {kinds['spans'] * SPANS} spans were acknowledged")
    assert min(kinds["lines"], kinds["spans"]) > ROUNDS // 3


def _one_life(victims: subprocess.Popen[str], first: int, acknowledged_max: int) -> set[Write]:
    """Starts a process, kills it after some acknowledgements, and returns all that it printed."""
    assert victims.stdin is not None
    assert victims.stdout is not None
    victims.stdin.write(f"{first}\n")
    victims.stdin.flush()
    word, process = victims.stdout.readline().split()
    assert word == "life"
    written: set[Write] = set()
    for line in victims.stdout:
        kind, *numbers = line.split()
        if kind == "end":
            assert numbers == ["-9"]
            return written
        written.add((kind, int(numbers[0]), int(numbers[1])))
        if len(written) == acknowledged_max:
            os.kill(int(process), signal.SIGKILL)  # what is in the pipe by now was acknowledged too
    raise AssertionError("the victims' process ended by itself")


def _check(folder: Path, acknowledged: set[Write], written: set[Write]) -> None:
    """All lines and traces that were ever acknowledged are there; of the last life, every field of every span."""
    archive = ArchiveFolder(folder, SystemClock(), SETTINGS)
    try:
        logs, spans = archive.logs("victim"), archive.spans("victim")
        request = LogRequest((), -(1 << 62), 1 << 62, order=LineOrder.ANY, with_metadata=False)
        held: Counter[str] = Counter()
        for chunk in logs.scan(request, lambda: False):
            held.update(chunk.bodies)
        assert max(held.values(), default=1) == 1, "a line is there twice"
        assert sum(held.values()) % LINES == 0, "a write is there in part"
        traces = {
            one.trace_id: one.spans
            for one in spans.search(SpanQuery(0, 1 << 62, limit=1 << 30, scanned_spans_max=1 << 40))
        }
        assert set(traces.values()) <= {SPANS}, "a trace is there in part, or has spans twice"
        for kind, writer, number in acknowledged:
            if kind == "lines":
                assert all(text in held for batch in lines_of(writer, number) for text in batch.bodies), (
                    writer,
                    number,
                )
            else:
                expected = spans_of(writer, number)
                assert expected[0].trace_id in traces, (writer, number)
                if (kind, writer, number) in written:
                    found = spans.trace(expected[0].trace_id)
                    assert found == sorted(expected, key=lambda span: (span.start_ns, span.span_id)), (writer, number)
    finally:
        archive.close()

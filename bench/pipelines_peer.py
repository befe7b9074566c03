"""What does the same window cost in another engine? Bytewax folds each event by itself; SENSE adds up whole batches.

Both count, sum, least and greatest per device and second of event time. Bytewax gets its events as Python objects in
memory, without any network, in batches of its own. CPU time of one process each, in turns.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

from harch.pipelines.wire.columns import COMPACT
from pipelines_sense import StageRounds, settings_of

EVENTS, DEVICES, ROUNDS = 100_000, 256, 3


def measure() -> None:
    print("\npeer: Bytewax, one window per device and second, folded event by event, in memory")
    stage = StageRounds(settings_of(COMPACT), 10_000)
    peer, ours = [], []
    for _ in range(ROUNDS):
        ran = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=300, check=False)
        if ran.returncode:
            why = (ran.stderr.strip().splitlines() or ["it ended without a word"])[-1]
            print(f"  Bytewax is not beside: {why}")
            return
        peer.append(json.loads(ran.stdout)["per_cpu_s"] / 1e6)
        ours.append(stage.rate())
    bytewax_m, sense_m = statistics.median(peer), statistics.median(ours)
    print(
        f"  M events per CPU second: Bytewax {bytewax_m:.3f}; SENSE {sense_m:.1f}, {sense_m / bytewax_m:.0f} times that"
    )


def bytewax_rate() -> float:
    """Events per CPU second of this process."""
    import bytewax.operators as op
    import bytewax.operators.windowing as win
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    start = datetime(2026, 1, 1, tzinfo=UTC)
    step = timedelta(microseconds=100)
    events = [(f"device-{number % DEVICES}", start + number * step, float(number % 97)) for number in range(EVENTS)]

    def fold(cell: list[float], event: tuple[str, datetime, float]) -> list[float]:
        value = event[2]
        cell[0] += 1
        cell[1] += value
        cell[2] = min(cell[2], value)
        cell[3] = max(cell[3], value)
        return cell

    def join(one: list[float], other: list[float]) -> list[float]:
        return [one[0] + other[0], one[1] + other[1], min(one[2], other[2]), max(one[3], other[3])]

    found: list[tuple[str, tuple[int, list[float]]]] = []
    flow = Dataflow("bench")
    keyed = op.key_on("key", op.input("in", flow, TestingSource(events, batch_size=1000)), lambda event: event[0])
    clock = win.EventClock(lambda event: event[1], wait_for_system_duration=timedelta(minutes=10))
    windower = win.TumblingWindower(length=timedelta(seconds=1), align_to=start)
    empty = [0.0, 0.0, float("inf"), float("-inf")]
    windows = win.fold_window("fold", keyed, clock, windower, lambda: list(empty), fold, join)
    op.output("out", windows.down, TestingSink(found))
    began_s = time.process_time()
    run_main(flow)
    took_s = time.process_time() - began_s
    counted = sum(cell[0] for _, (_, cell) in found)
    if counted != EVENTS:
        raise SystemExit(f"Bytewax counted {counted:g} of {EVENTS} events")
    return EVENTS / took_s


if __name__ == "__main__":
    print(json.dumps({"per_cpu_s": bytewax_rate()}))

"""kill -9 at random points of writing: no sample that was acknowledged is lost, in any of many lives of one store."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np

from harch.base.clock import SystemClock
from harch.sentinel.model.labels import Labels
from harch.sentinel.store.blocks.planning import BlockPolicy
from harch.sentinel.store.limits import TenantLimits
from harch.sentinel.store.tenants import StoreFolder
from integration.store_victim import SAMPLES, WRITERS, batches

ROUNDS = 100 if os.environ.get("HARCH_SOAK") else 3
ALL_TIMES = (int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max))
VICTIM = Path(__file__).with_name("store_victim.py")


def test_no_acknowledged_sample_is_lost_to_kill_9(tmp_path: Path) -> None:
    rng = random.Random(20_261_115)
    acknowledged: set[tuple[int, int]] = set()
    first = 0
    for _ in range(ROUNDS):
        written = _one_life(tmp_path, first, acknowledged_max=rng.randint(1, 120))
        acknowledged |= written
        first = max((number for _, number in acknowledged), default=-1) + 2  # the one under way may be there or not
        _check(tmp_path, acknowledged)
    assert len(acknowledged) > ROUNDS


def _one_life(folder: Path, first: int, acknowledged_max: int) -> set[tuple[int, int]]:
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
    return {(int(writer), int(number)) for writer, number in whole}


def _check(folder: Path, acknowledged: set[tuple[int, int]]) -> None:
    stores = StoreFolder(folder, SystemClock(), TenantLimits(out_of_order_ms=None), BlockPolicy())
    try:
        selection = stores.store("victim").select([], *ALL_TIMES, limit=1 << 40)
    finally:
        stores.close()
    samples = selection.samples
    held: dict[Labels, dict[int, int]] = {}
    for place in range(selection.series.count):
        first, count = int(samples.first[place]), int(samples.count[place])
        words = samples.values[first : first + count].view(np.uint64).tolist()
        held[selection.series.labels_of(place)] = dict(
            zip(samples.timestamps[first : first + count].tolist(), words, strict=True)
        )
    for writer, number in acknowledged:
        for batch in batches(writer, number):
            for time, value in zip(batch.timestamps, batch.values, strict=True):
                assert held[batch.labels][time] == int(np.float64(value).view(np.uint64)), (writer, number, time)
    assert all(0 < len(times) <= 10 * SAMPLES for times in held.values())
    assert {dict(name)["writer"] for name in held} <= {str(writer) for writer in range(WRITERS)}

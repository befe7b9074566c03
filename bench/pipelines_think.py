"""How many inferences does a CPU second give, alone and in batches, and what does a hot swap cost?

`make bench-pipelines-think`. Sizes take turns in short rounds, so that the machine's load meets all alike; the median
round counts. CPU time of the process is the measure, because other programs may run beside.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from harch.pipelines.think.model_loader import OnnxSession
from harch.pipelines.think.rollout import VersionState
from harch.pipelines.think.sessions import Features
from harch.pipelines.think.settings import Device, ModelRole
from harch.pipelines.think.stage import ThinkStage
from pipelines_mlp import SMALL, mlp_onnx, mlp_stage, write_version
from verdict import Verdict, conditions

SIZES = (1, 256, 4096)
ROUNDS = 7
ROUND_CPU_S = 0.4
SWAP_S = 6.0
SWAPS_EVERY_S = 0.3


def per_cpu_second(run: Callable[[], object], rows: int) -> float:
    """Rows per second of this process's CPU time."""
    run()
    done, started = 0, time.process_time()
    while (spent := time.process_time() - started) < ROUND_CPU_S:
        for _ in range(8):
            run()
        done += 8 * rows
    return done / spent


def throughput(verdict: Verdict, stage: ThinkStage) -> None:
    rng = np.random.default_rng(7)
    session = OnnxSession(mlp_onnx(), device=Device.CPU, threads=1)
    runs: dict[tuple[str, int], Callable[[], object]] = {}
    for rows in SIZES:
        matrix = rng.normal(size=(rows, SMALL[0])).astype(np.float32)
        columns = {f"f{index}": matrix[:, index].copy() for index in range(SMALL[0])}
        features = Features(columns=columns, devices=np.arange(rows))
        runs["session", rows] = lambda matrix=matrix: session.run({"x": matrix})
        runs["stage", rows] = lambda features=features: stage.think(features)
    rates: dict[tuple[str, int], list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            rates[name].append(per_cpu_second(run, name[1]))
    middle = {name: float(np.median(found)) for name, found in rates.items()}
    for what, words in (("session", "ONNX Runtime alone"), ("stage", "through ThinkStage.think")):
        readings = " / ".join(f"{middle[what, rows] / 1e6:.3f}" for rows in SIZES)
        print(f"MLP {'-'.join(map(str, SMALL))}, {words}: {readings} M inferences per CPU second at B = 1 / 256 / 4096")
    verdict.goal(
        "MLP inferences per CPU second, B=256 over B=1", ">= 50", middle["session", 256] / middle["session", 1]
    )


def swaps(verdict: Verdict, stage: ThinkStage, folder: Path) -> None:
    """Batches of 256 rows without a pause, while another thread loads and promotes versions."""
    model = stage.models["mlp"]
    rng = np.random.default_rng(8)
    columns = {f"f{index}": rng.normal(size=256) for index in range(SMALL[0])}
    stop, versions, took_ms, scored = threading.Event(), set(), [], 0

    def swap() -> None:
        number = 2
        while not stop.wait(SWAPS_EVERY_S):
            stage.load_version("mlp", write_version(folder, str(number), number, ModelRole.LOADED))
            model.promote(str(number), VersionState.ACTIVE)
            number += 1

    batches, thread = 0, threading.Thread(target=swap)
    quiet_ms = [_timed(stage, columns, number)[0] for number in range(2000)]
    thread.start()
    end = time.monotonic() + SWAP_S
    while time.monotonic() < end:
        one_ms, thought = _timed(stage, columns, batches)
        took_ms.append(one_ms)
        batches += 1
        for part in thought.scored:
            scored += len(part.rows)
            versions.add(part.ref.version)
    stop.set()
    thread.join()
    for words, values in (("before", quiet_ms), ("during", took_ms)):
        middle, high, worst = np.percentile(values, [50, 99, 100])
        print(f"batch of 256 {words} swaps: p50 {middle:.3f} ms, p99 {high:.3f} ms, longest {worst:.1f} ms")
    print(f"{len(versions)} versions answered {batches} batches in {SWAP_S:.0f} s")
    verdict.goal("rows lost during hot swaps", "== 0", batches * 256 - scored)
    verdict.goal("versions swapped in under load", ">= 5", len(versions))


def _timed(stage: ThinkStage, columns: dict[str, np.ndarray], number: int) -> tuple[float, object]:
    started = time.perf_counter()
    thought = stage.think(Features(columns=columns, devices=np.arange(256), source=number))
    return (time.perf_counter() - started) * 1000, thought


def main() -> None:
    verdict = Verdict("pipelines-think")
    print(conditions())
    with tempfile.TemporaryDirectory() as folder:
        stage = mlp_stage(Path(folder))
        throughput(verdict, stage)
        swaps(verdict, stage, Path(folder))
    verdict.print()


if __name__ == "__main__":
    main()

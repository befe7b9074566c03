"""What does a GPU change for THINK? The same models on the CPU and on CUDA, in one run, through the same session.

`PYTHONPATH=src python bench/pipelines_cuda.py` runs from a bare checkout. Needs msgspec, numpy, onnx and, with a GPU,
onnxruntime-gpu. Where there is no GPU it says so and measures nothing.
"""

from __future__ import annotations

import time

import numpy as np

from harch.base.errors import HarchError
from harch.pipelines.think.model_loader import OnnxSession
from harch.pipelines.think.settings import Device
from pipelines_mlp import SMALL, mlp_onnx
from verdict import Verdict, conditions

MODELS = {"small": SMALL, "wide": (256, 2048, 2048, 256, 1)}
SIZES = (1, 256, 4096, 16_384)
ROUNDS = 5
ROUND_S = 0.3


def rows_per_s(session: OnnxSession, matrix: np.ndarray) -> float:
    """By the wall clock, the copies to the GPU and back included: that is what a stage would see."""
    for _ in range(3):
        session.run({"x": matrix})
    rates = []
    for _ in range(ROUNDS):
        runs, started = 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < ROUND_S:
            session.run({"x": matrix})
            runs += 1
        rates.append(runs * len(matrix) / spent)
    return float(np.median(rates))


def main() -> None:
    verdict = Verdict("pipelines-cuda")
    print(conditions())
    try:
        OnnxSession(mlp_onnx(), device=Device.CUDA, threads=1)
    except HarchError as error:
        print(f"no GPU here, nothing was measured: {error.message} ({error.hint})")
        verdict.print()
        return
    for name, sizes in MODELS.items():
        model = mlp_onnx(sizes)
        cpu, cuda = (OnnxSession(model, device=device, threads=1) for device in (Device.CPU, Device.CUDA))
        for rows in SIZES:
            matrix = np.random.default_rng(rows).normal(size=(rows, sizes[0])).astype(np.float32)
            apart = float(np.abs(cpu.run({"x": matrix})["y"] - cuda.run({"x": matrix})["y"]).max())
            on_cpu, on_gpu = rows_per_s(cpu, matrix), rows_per_s(cuda, matrix)
            print(
                f"{name} {'-'.join(map(str, sizes))}, B = {rows}: CPU, one thread {on_cpu / 1e6:.3f}, "
                f"CUDA {on_gpu / 1e6:.3f} M rows/s ({on_gpu / on_cpu:.1f}x); outputs at most {apart:.1e} apart"
            )
            verdict.goal(f"{name}, B={rows}: outputs of CPU and CUDA apart", "<= 0.01", apart)
            if name == "wide" and rows >= 4096:
                verdict.goal(f"{name}, B={rows}: CUDA over one CPU thread", ">= 5", on_gpu / on_cpu)
    verdict.print()


if __name__ == "__main__":
    main()

"""Can a pipeline be changed while it works? A new model, then new SENSE processes, at a million events per second."""

from __future__ import annotations

import asyncio
import os
import time

import numpy as np

from harch.pipelines.workers.config import LeaseSettings
from pipelines_generator import Phase
from pipelines_latency import WINDOW_S, answers, latencies_ms, start_tap
from pipelines_mlp import write_version
from pipelines_world import pipeline
from verdict import Verdict

RATE, BATCH = 1e6, 2_500


async def measure(verdict: Verdict, *, seconds: float) -> None:
    """Three parts of `seconds` each: as usual, with a new model, with new processes."""
    print(
        f"\nupdate under {RATE / 1e6:g} M events/s: a new model, then new SENSE + THINK processes in place of the old"
    )
    change = {"leases": LeaseSettings(poll_s=0.1)}  # how soon a new process sees that the old one has let go
    async with pipeline(window_s=WINDOW_S, skew_s=0.02, workers={"fused": 1, "act": 1}, change=change) as world:
        tap = await start_tap(world)
        table = world.timetable([Phase(3 * seconds + 1, RATE)], BATCH)
        sending = asyncio.create_task(world.generate(table))
        await asyncio.sleep(1 + seconds)
        model_ns, began_s = time.time_ns(), time.monotonic()
        await world.pipeline.serve_models({"mlp": (write_version(world.folder, "2", 2),)})
        await asyncio.sleep(seconds - (time.monotonic() - began_s))
        code_ns = time.time_ns()
        await world.pipeline.renew("fused")
        renewed_ns = time.time_ns()
        got = await sending
        counters = await world.counters("fused")
        rows = await answers(tap)
    latency_ms = latencies_ms(rows, WINDOW_S)
    spans = (
        ("as usual", got.began_ns + round(0.5e9), model_ns),
        ("new model, the second in which it came", model_ns, model_ns + round(1e9)),
        ("new processes, from their start until they had taken over", code_ns, renewed_ns + round(0.5e9)),
        ("afterwards", renewed_ns + round(0.5e9), got.ended_ns),
    )
    for name, first_ns, last_ns in spans:
        some = latency_ms[(rows[:, 0] > first_ns) & (rows[:, 0] <= last_ns)]
        if len(some):
            p50, p99, longest = np.percentile(some, [50, 99, 100])
            print(f"  {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {longest:.1f} ms ({len(some)} windows)")
    windows = (got.ended_ns - got.began_ns) // round(WINDOW_S * 1e9)
    versions = {int(version): int((rows[:, 2] == version).sum()) for version in np.unique(rows[:, 2])}
    print(
        f"  {got.events:,} events sent, {counters['events_in']:,} counted; {len(rows)} of {windows} windows decided, "
        f"by version {versions}; {got.replayed} batches sent again; load average {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    verdict.goal("update under load: events lost", "== 0", abs(got.events - counters["events_in"]))
    verdict.goal("update under load: windows without a decision", "== 0", windows - len(rows))
    verdict.goal("update under load: versions of the model that decided", "== 2", len(versions))

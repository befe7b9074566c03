"""What happens when it gets rough? A burst of five times the load, and a worker killed every two seconds."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np

from harch.pipelines.act.store_nats import NatsLedger
from harch.pipelines.workers.act_worker import connect_ledger
from pipelines_generator import Phase
from pipelines_latency import WINDOW_S, answers, latencies_ms, start_tap
from pipelines_world import pipeline, queue_share
from verdict import Verdict

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "integration"))

from pipeline_world import PipelineWorld, fields

USUAL_PER_S, TIMES = 2e6, 5
BATCH = 10_000
CALM_MS = 12.0
KILL_EVERY_S = 2.0
MOMENTS_PER_POST = 40  # of 12 devices each
SENDERS = 2


async def burst(verdict: Verdict, *, seconds: float) -> None:
    """The usual load, five times as much, the usual load again."""
    print(f"\nburst: {USUAL_PER_S / 1e6:g} M events/s, {TIMES} times that for {seconds:g} s, then as before")
    phases = [Phase(seconds, USUAL_PER_S), Phase(seconds, TIMES * USUAL_PER_S), Phase(2 * seconds, USUAL_PER_S)]
    async with pipeline(window_s=WINDOW_S, skew_s=0.02, workers={"fused": 1, "act": 1}) as world:
        tap, before = await start_tap(world), world.load()
        got = await world.generate(world.timetable(phases, BATCH))
        load = world.load().since(before)
        counted = (await world.counters("fused"))["events_in"]
        rows = await answers(tap)
    starts_ns = got.began_ns + round(seconds * 1e9)
    ends_ns = starts_ns + round(seconds * 1e9)
    latency_ms = latencies_ms(rows, WINDOW_S)
    for name, first_ns, last_ns in (
        ("before", got.began_ns, starts_ns),
        ("burst", starts_ns, ends_ns),
        ("after", ends_ns, got.ended_ns),
    ):
        some = latency_ms[(rows[:, 0] > first_ns) & (rows[:, 0] <= last_ns)]
        p50, p99, longest = np.percentile(some, [50, 99, 100])
        print(f"  {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {longest:.1f} ms")
    slow = rows[(latency_ms > CALM_MS) & (rows[:, 0] > ends_ns), 0]
    # A run of ten windows below the limit is calm; a single hiccup later is not the burst's.
    calm = np.flatnonzero(np.convolve(latency_ms[rows[:, 0] > ends_ns] <= CALM_MS, np.ones(10), "valid") >= 10)
    recovered_s = calm[0] * WINDOW_S if len(calm) else float("inf")
    print(
        f"  below {CALM_MS:g} ms again {recovered_s:.2f} s after the burst ({len(slow)} windows above it since); "
        f"CPU+queue s: {load}; run-queue share {queue_share(load):.0%}; load average {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    verdict.goal("burst of 5 times the load: events lost", "== 0", got.events - counted)


async def kills(verdict: Verdict, *, seconds: float, seed: int = 7) -> None:
    """Senders over HTTP that count what was accepted, a sink that writes down every action, and a killer."""
    print(f"\nkills: one random worker (kill -9) every {KILL_EVERY_S:g} s for {seconds:g} s, exact books")
    chance, killed = random.Random(seed), Counter[str]()
    with TemporaryDirectory(prefix="harch-bench-") as name:
        async with fields(Path(name)) as world:
            stop = asyncio.Event()
            senders = [asyncio.create_task(send(world, stop)) for _ in range(SENDERS)]
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s:
                await asyncio.sleep(KILL_EVERY_S)
                alive = [worker for _, worker in sorted(world.pipeline.workers.items()) if worker.pid is not None]
                if alive:
                    victim = chance.choice(alive)
                    killed[victim.worker] += 1
                    await victim.kill()
            stop.set()
            await asyncio.gather(*senders)
            ended_s = time.monotonic()
            await world.pipeline.ready(timeout_s=120)
            end_ns = await world.settled()
            recovered_s = time.monotonic() - ended_s
            in_ledger = await done_in_ledger(world)
            lost = world.accepted - world.counted(end_ns)
    decided = Counter(f"field-{device}" for window_ns, device in world.rows if window_ns <= end_ns)
    carried_out = Counter(str(body["device"]) for body in world.sink.carried_out.values())
    commands = {str(body["cmd_id"]) for body in world.sink.carried_out.values()}
    twice = (carried_out - decided).total() + carried_out.total() - len(commands)
    asked_again = sum(count - 1 for count in world.sink.keys.values())
    print(
        f"  killed {dict(killed)}; accepted {world.accepted:,} events ({world.refused} posts not accepted), {lost} "
        f"of them not in features; {decided.total():,} decisions, {carried_out.total():,} actions at the sink, "
        f"{asked_again} requests repeated under their key; everything done {recovered_s:.1f} s after the last kill; "
        f"load average {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    count = sum(killed.values())
    verdict.goal(f"{count} kills: acknowledged events lost", "== 0", lost)
    verdict.goal(f"{count} kills: decisions without their action", "== 0", (decided - carried_out).total())
    verdict.goal(f"{count} kills: actions carried out twice", "== 0", twice)
    verdict.goal(
        f"{count} kills: actions of the sink or the ledger that the other lacks", "== 0", len(in_ledger ^ commands)
    )


async def done_in_ledger(world: PipelineWorld) -> set[str]:
    """The commands that the ledger calls done, read as ACT itself reads them."""
    parts, access = world.pipeline.parts, world.pipeline.engine.access("act")[1]
    client = await connect_ledger(access)
    try:
        store = await NatsLedger.open(client, bucket=parts.names.ledger_bucket, retention_s=parts.act.retention_s)
        found = await store.last_done(limit=1_000_000)
        await store.close()
        return {stored.entry.cmd_id for stored in found}
    finally:
        await client.close()


async def send(world: PipelineWorld, stop: asyncio.Event) -> None:
    """Posts; what was not accepted is not sent again, so it may be counted or not, and is not in the books."""
    async with httpx.AsyncClient() as client:
        url = await world.address("web")
        while not stop.is_set():
            rows = [row for _ in range(MOMENTS_PER_POST) for row in world.moment()]
            if not await world.post(client, url, rows):
                world.refused += 1
                url = await world.address("web")
            await asyncio.sleep(0.05)

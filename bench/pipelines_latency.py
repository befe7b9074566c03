"""How long from an event to a decision that cannot be lost? SENSE -> THINK -> ACT, measured from outside.

A window of event time is over when the last batch of it has arrived; its features are scored, and the outputs are
stored for ACT by a message engine that syncs every write. A process of its own listens to the engine of ACT: it sees
the outputs of each window with the address of the answer, and then the engine's answer to that address, at the moment
when the worker sees it too. Latency is from the scheduled time of the window's first event to that answer, so it holds
the length of the window, the wait for the batch to fill, and every delay of the generator.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import uvloop
from msgspec import Struct
from numpy.typing import NDArray

from harch.base.rejection import Rejection
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.options import ClientOptions
from harch.pipelines.client.protocol import Message
from harch.pipelines.engine.layout import inbox_of
from harch.pipelines.think.messages import decode_outputs
from pipelines_generator import Phase
from pipelines_world import BenchPipeline, Load, pipeline, queue_share
from verdict import Verdict

HERE = Path(__file__).parent
WINDOW_S = 0.005
SETTLE_S = 0.5  # at the start of a round: caches, first credit, first windows
GOAL_MS = 12.0


class Rate(Struct, frozen=True):
    name: str
    events_per_s: float
    batch: int


# Two batches per window: larger ones come later, smaller ones cost more.
RATES = (Rate("0.1 M", 1e5, 250), Rate("1 M", 1e6, 2_500), Rate("10 M", 1e7, 25_000))


class TapOrders(Struct, frozen=True):
    """Whom to listen to, and for how long after the last answer."""

    controller: ClientOptions
    worker: ClientOptions
    outputs: str
    inbox: str


class Round(Struct, frozen=True, kw_only=True):
    p50_ms: float
    p99_ms: float
    longest_ms: float
    windows: int
    missing: int  # windows without a stored decision
    offered: int
    counted: int  # events that SENSE accounts for
    late_ms: tuple[float, float, float]  # of the generator's batches: p50, p99, longest
    load: Load


async def measure(verdict: Verdict, *, seconds: float, rounds: int, rates: tuple[Rate, ...] = RATES) -> None:
    print(f"\nSENSE -> THINK -> ACT: windows of {WINDOW_S * 1e3:g} ms, 256 rows x 8 features scored for each, outputs")
    print(
        "  acknowledged on synced JetStream; one fused worker (SENSE + THINK), one ACT worker, generator beside them;"
    )
    print(f"  from the scheduled time of a window's first event; {rounds} rounds of {seconds:g} s per rate, in turns")
    found: dict[str, list[Round]] = {rate.name: [] for rate in rates}
    async with pipeline(window_s=WINDOW_S, skew_s=0.02, workers={"fused": 1, "act": 1}) as world:
        for number in range(rounds):
            for rate in rates:
                one = await one_round(world, rate, seconds)
                found[rate.name].append(one)
                print(
                    f"  round {number + 1}, {rate.name}: {told(one)}; load average {os.getloadavg()[0]:.1f}", flush=True
                )
    for name, some in found.items():
        p50 = statistics.median(one.p50_ms for one in some)
        p99s = sorted(one.p99_ms for one in some)
        p99 = statistics.median(p99s)
        print(f"  {name} events/s: p50 {p50:.1f} ms, p99 {p99:.1f} ms (best round {p99s[0]:.1f}, worst {p99s[-1]:.1f})")
        if name != "0.1 M":
            verdict.goal(f"{name} events/s: SENSE -> THINK -> ACT p99, median of rounds", f"< {GOAL_MS:g}", p99, "ms")
        uncounted = sum(one.offered - one.counted for one in some) + sum(one.missing for one in some)
        verdict.goal(f"{name} events/s: events or windows unaccounted for", "== 0", uncounted)


def told(one: Round) -> str:
    return (
        f"p50 {one.p50_ms:.1f}, p99 {one.p99_ms:.1f}, longest {one.longest_ms:.1f} ms ({one.windows} windows, "
        f"{one.missing} missing); generator late p99 {one.late_ms[1]:.1f} ms; CPU+queue s: {one.load}; "
        f"run-queue share {queue_share(one.load):.0%}"
    )


async def one_round(world: BenchPipeline, rate: Rate, seconds: float) -> Round:
    process = await start_tap(world)
    before, events_before = world.load(), (await world.counters("fused"))["events_in"]
    got = await world.generate(world.timetable([Phase(seconds + SETTLE_S, rate.events_per_s)], rate.batch))
    load = world.load().since(before)
    counted = (await world.counters("fused"))["events_in"] - events_before
    rows = await answers(process)
    window_ns = round(WINDOW_S * 1e9)
    expected = (got.ended_ns - got.began_ns) // window_ns
    used = rows[(rows[:, 0] - window_ns >= got.began_ns + SETTLE_S * 1e9) & (rows[:, 0] <= got.ended_ns)]
    latency_ms = latencies_ms(used, WINDOW_S)
    p50, p99, longest = np.percentile(latency_ms, [50, 99, 100]) if len(latency_ms) else (np.inf, np.inf, np.inf)
    return Round(
        p50_ms=float(p50),
        p99_ms=float(p99),
        longest_ms=float(longest),
        windows=len(used),
        missing=expected - len(rows),
        offered=got.events,
        counted=counted,
        late_ms=got.late_ms,
        load=load,
    )


async def start_tap(world: BenchPipeline) -> asyncio.subprocess.Process:
    engine, names = world.pipeline.engine, world.pipeline.parts.names
    access = engine.access("fused")[1]
    orders = TapOrders(
        controller=world.controller_options("tap"),
        worker=access.options("tap-of-answers"),
        outputs=names.outputs("*"),
        inbox=f"{inbox_of(access.user)}.>",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--tap", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(orders) + b"\n")
    await process.stdout.readline()
    return process


async def answers(process: asyncio.subprocess.Process) -> NDArray[np.int64]:
    """Ends the tap: (end of a window, when the engine had stored its outputs, version) in nanoseconds, by window.

    Of a window that was told twice under the same id, the first answer counts."""
    told, _ = await process.communicate(b"")
    rows = np.array(sorted(json.loads(told)), np.int64).reshape(-1, 3)
    return rows[np.unique(rows[:, 0], return_index=True)[1]]


def latencies_ms(rows: NDArray[np.int64], window_s: float) -> NDArray[np.float64]:
    """From the first moment of each window."""
    return (rows[:, 1] - rows[:, 0]) / 1e6 + window_s * 1e3


async def tap() -> None:
    """Prints [window end, answered at, version of the model] for each answer, when its standard input ends."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=TapOrders)
    wall_ns = time.time_ns() - time.monotonic_ns()
    ends: dict[str, bytes] = {}
    answered: dict[str, int] = {}

    def stored(message: Message) -> None:
        ends[message.reply] = bytes(message.payload)

    def answer(message: Message) -> None:
        answered[message.subject] = wall_ns + time.monotonic_ns()

    async with AioClient(orders.controller) as controller, AioClient(orders.worker) as worker:
        controller.subscribe(orders.outputs, stored)
        worker.subscribe(orders.inbox, answer)
        await asyncio.gather(controller.flush(), worker.flush())
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    rows = []
    for reply, payload in ends.items():
        found = decode_outputs(payload)
        if not isinstance(found, Rejection) and reply in answered:
            rows.append((found[1].origin.window_end_ns, answered[reply], int(found[1].ref.version)))
    print(json.dumps(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tap", action="store_true")
    if parser.parse_args().tap:
        uvloop.run(tap())

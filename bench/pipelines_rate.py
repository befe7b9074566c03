"""How many events per second does SENSE take on this machine? The fused lane through core NATS, every event counted.

Beside it, for comparison: events of 64 bytes, the whole durable pipeline (events spooled by a source, features and
outputs stored), and batches that JetStream itself stores and gives back.
"""

from __future__ import annotations

import asyncio
import os
import time

from harch.base.clock import SystemClock
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin
from harch.pipelines.engine.streams import ConsumerSpec, StreamSpec
from harch.pipelines.sense.inputs.batches import frame, key_frame
from harch.pipelines.sense.settings import TcpSource
from harch.pipelines.wire.columns import SHIPPED
from harch.pipelines.wire.header import BatchHeader, check_payload, pack_batch, unpack_header
from harch.pipelines.workers.pull_consumer import Puller, acknowledge
from pipelines_generator import Phase, payloads
from pipelines_world import KEY, MIB, BenchPipeline, pipeline, queue_share
from verdict import Verdict

GOAL_M = 10.0
OFFERED_PER_S = 12e6  # more than the goal; what credit does not let go is not made
BATCH = {"compact": 10_000, "wide": 2_500}  # 160 kB both
BESIDE_S = 5.0
IN_FLIGHT = 16  # batches that JetStream has not acknowledged yet


async def measure(verdict: Verdict, *, seconds: float) -> None:
    print(f"\nSENSE, fused: generator -> NATS -> SENSE + THINK, windows of 1 s; load average {os.getloadavg()[0]:.1f}")
    rate_m, uncounted = await fused("compact", Phase(seconds, OFFERED_PER_S))
    verdict.goal(f"SENSE, compact events through NATS, sustained {seconds:g} s", f">= {GOAL_M:g}", rate_m, "M events/s")
    verdict.goal("events sent and neither processed nor dropped by a rule", "== 0", uncounted)
    await fused("wide", Phase(min(seconds, BESIDE_S)))
    await durable_pipeline(min(seconds, BESIDE_S))
    for schema in SHIPPED:
        await jetstream(schema, min(seconds, BESIDE_S))


async def fused(schema: str, phase: Phase) -> tuple[float, int]:
    """Millions of events per second, and how many of them nobody accounts for."""
    async with pipeline(window_s=1.0, workers={"fused": 1, "act": 1}, schema=schema) as world:
        before = world.load()
        got = await world.generate(world.timetable([phase], BATCH[schema], patient=True))
        load = world.load().since(before)
        counters = await world.counters("fused")
    rate_m = got.events / got.sent_s / 1e6
    by_rule = counters["events_aside"] + counters["events_dropped"] + counters["events_refused"] + got.shed
    uncounted = abs(got.events - counters["events_accepted"] - by_rule)
    cpu_s = sum(load.cpu_s.values()) + got.cpu_s
    print(
        f"  {schema} ({SHIPPED[schema].event_bytes} B): {rate_m:.2f} M events/s over {got.sent_s:.1f} s; sent "
        f"{got.events:,} = processed {counters['events_accepted']:,} + dropped by rule {by_rule:,}; sent again "
        f"{got.replayed} batches; CPU {cpu_s / got.events * 1e6:.3f} s per M events (sender {got.cpu_s:.2f}, {load}); "
        f"run-queue share {queue_share(load):.0%}",
        flush=True,
    )
    return rate_m, uncounted + (not got.drained)


async def durable_pipeline(seconds: float) -> None:
    """The same events over the TCP source: spooled before SENSE sees them; each stage is a process of its own."""
    change = {"lane": "durable"}
    async with pipeline(
        window_s=1.0,
        workers={"source": 1, "sense": 1, "think": 1, "act": 1},
        sources=(TcpSource(name="fast"),),
        change=change,
    ) as world:
        table = world.timetable([], BATCH["compact"])
        made = payloads(SHIPPED["compact"], table.batch, 1_000, table)
        host, port = (await world.endpoint("source", "fast")).removeprefix("tcp://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(key_frame(KEY))
        began_s, seq = time.monotonic(), 0
        while time.monotonic() - began_s < seconds:
            seq += 1
            writer.write(frame(batch_of("compact", table.batch, seq, made[seq % len(made)])))
            await writer.drain()
        while (await world.counters("sense"))["events_in"] < seq * table.batch:
            await asyncio.sleep(0.05)
        took_s = time.monotonic() - began_s
        writer.close()
    print(
        f"  compact, durable pipeline (spooled, R1 file): {seq * table.batch / took_s / 1e6:.2f} M events/s", flush=True
    )


async def jetstream(schema: str, seconds: float) -> None:
    """Batches stored by JetStream (R1, file) and read back, with and without a sync of every write."""
    async with pipeline(window_s=1.0, workers={}, schema=schema) as world:
        engine = world.pipeline.engine
        for name, admin in (("default sync", engine.admin), ("synced", engine.act_admin)):
            events, took_s = await stored(world, admin, schema, seconds)
            print(f"  {schema}, JetStream R1 file, {name}: {events / took_s / 1e6:.2f} M events/s stored and read back")


async def stored(world: BenchPipeline, admin: JetStreamAdmin, schema: str, seconds: float) -> tuple[int, float]:
    subject, stream = "juris.ma.bench.r1.0", "ma-bench-r1"
    spec = StreamSpec(name=stream, country="MA", subjects=(subject,), max_bytes=2048 * MIB)
    reader = ConsumerSpec(stream=stream, name="reader", filter_subject=subject)
    await admin.call(f"STREAM.CREATE.{stream}", spec.wire())
    await admin.call(
        f"CONSUMER.CREATE.{stream}.reader", {"stream_name": stream, "config": reader.wire(), "action": "create"}
    )
    client, n = admin.client, BATCH[schema]
    made = payloads(SHIPPED[schema], n, 1_000, world.timetable([], n))
    began_s, sent, read = time.monotonic(), 0, 0
    room = asyncio.Semaphore(IN_FLIGHT)

    async def store(seq: int) -> None:
        async with room:
            if time.monotonic() - began_s < seconds:
                nonlocal sent
                await client.publish_stored(subject, batch_of(schema, n, seq, made[seq % len(made)]), timeout_s=30)
                sent += 1

    async def write() -> None:
        async with asyncio.TaskGroup() as group:
            for seq in range(1, 1 << 30):
                if time.monotonic() - began_s >= seconds:
                    break
                while room.locked():
                    await asyncio.sleep(0.0005)
                group.create_task(store(seq))
                await asyncio.sleep(0)

    writing = asyncio.create_task(write())
    puller = Puller(client, stream, "reader", SystemClock(), outstanding_max=64)
    while not writing.done() or read < sent:
        for message in await puller.next(64, 0.2):
            header = unpack_header(message.payload)
            if isinstance(header, BatchHeader) and isinstance(check_payload(header, message.payload), memoryview):
                read += 1
            acknowledge(client, message)
    await writing
    puller.stop()
    return read * n, time.monotonic() - began_s


def batch_of(schema: str, n: int, seq: int, payload: bytes) -> bytes:
    now_ns = time.time_ns()
    header = BatchHeader(
        schema=SHIPPED[schema].id,
        n=n,
        juris_mask=1,
        policy_version=1,
        source=77,
        seq=seq,
        t_first_ns=now_ns,
        watermark_ns=now_ns,
        payload_len=len(payload),
    )
    return pack_batch(header, payload)

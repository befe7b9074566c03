"""How fast is ACT? Commands through the ledger to a sink that does nothing: per second, and from decision to outcome.

`python bench/pipelines_act.py [--commands 5000]` prints both ledgers; the last line is the verdict as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from harch.base.clock import SystemClock
from harch.pipelines.act.decisions import DecisionBatch
from harch.pipelines.act.settings import read_act
from harch.pipelines.act.sinks.base import Effect, PreparedRequest, SendGate, SinkOutcome, SinkRequest
from harch.pipelines.act.stage import ActStage
from harch.pipelines.act.store import LedgerStore
from harch.pipelines.act.store_nats import NatsLedger
from harch.pipelines.act.store_sqlite import SqliteLedger
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.options import ClientOptions
from harch.sovereignty.audit.chain import Draft

BATCH = 50
PACED_PER_S = 200
PACED_BATCHES = 400


class NullSink:
    """Takes everything at once, and notes when."""

    keeps_keys, reads_back, timeout_s = True, False, 5.0

    def __init__(self, clock: SystemClock) -> None:
        self.clock, self.at_s = clock, {}

    async def prepare(self, order: SinkRequest) -> PreparedRequest:
        return PreparedRequest()

    async def execute(self, order: SinkRequest, gate: SendGate) -> SinkOutcome:
        if reason := gate():
            return SinkOutcome(Effect.NO, reason)
        self.at_s[order.device] = self.clock.monotonic_s()
        return SinkOutcome(Effect.YES)

    async def probe(self, order: SinkRequest) -> SinkOutcome:
        return SinkOutcome(Effect.MAYBE)

    async def close(self) -> None: ...


def settings(mode: str) -> object:
    return {
        "sinks": {"valve": {"kind": "http", "url": "http://127.0.0.1:1/x", "honours_key": True}},
        "actions": [
            {"name": mode, "when": "score > 0", "sink": "valve", "args": {"v": "{score}"}, "ttl_s": 600, "mode": mode}
        ],
        "concurrency": 64,
    }


async def nobody(draft: Draft) -> None:
    """The audit chain belongs to the hub and is measured there."""


async def measure(store: LedgerStore, mode: str, commands: int, clock: SystemClock) -> dict[str, float]:
    sink = NullSink(clock)
    stage = ActStage(
        read_act(settings(mode)),
        store=store,
        sinks={"valve": sink},
        clock=clock,
        worker="bench",
        audit=nobody,
        local_bit=1,
    )
    running = asyncio.create_task(stage.run())
    now_ms = round(clock.now().timestamp() * 1000)

    def batch(first: int, count: int, window: int) -> DecisionBatch:
        devices = [f"w{window}-{number}" for number in range(first, first + count)]
        return DecisionBatch(
            pipeline="bench",
            devices=devices,
            columns={"score": np.ones(count)},
            windows=window,
            at_ms=now_ms,
            juris_mask=1,
        )

    start_s = clock.monotonic_s()
    for first in range(0, commands, BATCH):
        await stage.submit(batch(first, BATCH, 1))
    await stage.drain()
    rate = commands / (clock.monotonic_s() - start_s)
    begin_s = clock.monotonic_s()

    async def one(number: int) -> float:
        """From the moment it was due, so that a stage which falls behind does not look fast."""
        due_s = begin_s + number / PACED_PER_S
        await asyncio.sleep(max(0.0, due_s - clock.monotonic_s()))
        await stage.submit(batch(number, 1, 2))
        return 1000 * (clock.monotonic_s() - due_s)

    acks_ms = await asyncio.gather(*(one(number) for number in range(PACED_BATCHES)))
    await stage.drain()
    waits_ms = [
        1000 * (sink.at_s[f"w2-{number}"] - (begin_s + number / PACED_PER_S)) for number in range(PACED_BATCHES)
    ]
    running.cancel()
    await asyncio.wait([running])
    return {
        "per_s": rate,
        "ack_p50_ms": float(np.percentile(acks_ms, 50)),
        "ack_p99_ms": float(np.percentile(acks_ms, 99)),
        "sent_p50_ms": float(np.percentile(waits_ms, 50)),
        "sent_p99_ms": float(np.percentile(waits_ms, 99)),
    }


async def nats_ledger(folder: Path) -> tuple[subprocess.Popen[bytes], NatsLedger]:
    config = folder / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:-1"\nports_file_dir: "{folder}"\n'
        f'jetstream {{ store_dir: "{folder}/store", sync_interval: always }}\n'
    )
    program = Path(sys.prefix) / "bin" / "nats-server"
    process = subprocess.Popen([program, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ports = folder / f"nats-server_{process.pid}.ports"
    for _ in range(500):
        if ports.exists() and ports.stat().st_size:
            break
        await asyncio.sleep(0.02)
    client = AioClient(ClientOptions(servers=(json.loads(ports.read_text())["nats"][0],)))
    await client.connect()
    return process, await NatsLedger.open(client, bucket="bench", retention_s=7 * 86_400.0)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--commands", type=int, default=5000)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be measured")
    options = parser.parse_args()
    clock, results = SystemClock(), {}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; paced at {PACED_PER_S} commands/s")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        process, ledger = await nats_ledger(folder)
        stores: dict[str, LedgerStore] = {"sqlite": SqliteLedger(folder / "act.db"), "nats": ledger}
        try:
            for kind, store in stores.items():
                for mode in ("transactional", "fire-and-forget"):
                    found = await measure(store, mode, options.commands, clock)
                    results[f"{kind} {mode}"] = found
                    print(f"{kind:7}{mode:17}" + "  ".join(f"{key} {value:8.2f}" for key, value in found.items()))
                await store.close()
        finally:
            process.kill()
            process.wait()
    print(json.dumps({"bench": "pipelines_act", "goals": [], "got": results}))


if __name__ == "__main__":
    asyncio.run(main())

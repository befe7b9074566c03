"""What do agents and pipelines keep?

Records of tasks with their output, telemetry that waits; the ledger of actions, what sources accepted, and which
workers should run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from harch.execution.isolation.sandbox import choose
from harch.execution.protocol import TaskEnded, TaskKey
from harch.execution.spool import TaskLogSpool as OutputSpool
from harch.execution.spool import read_spool
from harch.execution.taskdir import LaunchSpec, OutputRecord, TaskDir, read_output_record
from harch.hub.pipelines.supervisor import Orders, WorkerOrder, WorkerSupervisor
from harch.pipelines.act.ledger import CommandState, CommandStep, authorised, make_command, proposed
from harch.pipelines.act.settings import Mode
from harch.pipelines.act.store_sqlite import SqliteLedger
from harch.pipelines.engine.keys import write_state
from harch.pipelines.wire.columns import COMPACT, Columns, encode_columns
from harch.pipelines.wire.header import BatchHeader, pack_batch
from harch.pipelines.workers.source_storage import (
    SourceHistory,
    SourceSpool,
    SpooledBatch,
    complete_from_ms,
    read_history,
)
from harch.sentinel.log_shipper.tail import OutputTail, file_source
from harch.sentinel.model.labels import labels
from harch.sentinel.node.spool import RequestSpool as TelemetrySpool
from harch.testing.store_faults.faults import FaultyStore, as_killed
from harch.workloads.lifecycle import ExitReason

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = TaskKey("wl_1", 1, 0)
SPEC = LaunchSpec(
    argv=("python", "train.py"),
    env={"SEED": "42"},
    cwd="/work",
    sandbox="",
    sandbox_args=[],
    cgroups=[],
    max_duration_s=None,
    stop_grace_s=5.0,
    secrets_dir="",
    log_segment_bytes=2_000,
    log_segments_max=8,
)


def make_task(folder: Path) -> None:
    task = TaskDir(folder)
    task.write_launch_spec(SPEC)
    task.write_output_record(OutputRecord(workload="wl_1", name="train", tenant="t", node="n1"))
    (folder / "started").write_bytes(b"")
    spool = OutputSpool(str(folder / "log"), 2_000, 8)
    for number in range(200):
        spool.write(b"step %d: loss %.4f\n" % (number, 1 / (number + 1)))
    task.write_end(TaskEnded(key=KEY, reason=ExitReason.EXITED, at=NOW, exit_code=3, detail="of its own"))


def read_task(folder: Path) -> object:
    task = TaskDir(folder)
    output, position = b"", 0
    while True:
        begin, data, end = read_spool(str(folder / "log"), position, 700)
        output += b"(gap)" * (begin > position) + data
        position = begin + len(data)
        if position >= end:
            return task.facts(), task.launch_spec(), read_output_record(folder / "log"), output


def make_telemetry(folder: Path) -> None:
    spool = TelemetrySpool(folder / "waiting")
    for number in range(12):
        spool.add(b"body %d " % number * 50)
    (folder.parent / "task.log").write_bytes(b"".join(b"line %d\n" % number for number in range(200)))
    following = _following(folder)
    for sent in following.look():
        following.done(sent)
    following.save()


def _following(folder: Path) -> OutputTail:
    source = file_source(folder.parent / "task.log", "t", labels({"job": "x"}))  # beside: it is not ours to damage
    return OutputTail(folder / "positions.json", lambda: [source])


def read_telemetry(folder: Path) -> object:
    return list(_waiting(folder)), [sent.position for sent in _following(folder).look()]


def _waiting(folder: Path) -> Iterator[bytes]:
    spool = TelemetrySpool(folder / "waiting")
    while (body := spool.oldest()) is not None:
        yield body
        spool.take()


AGENT_STORES = (
    FaultyStore("task of an agent", make_task, read_task),
    FaultyStore("telemetry of an agent", make_telemetry, read_telemetry),
)


# What do pipelines keep? The ledger of actions, what sources accepted, and who should work.


NOW_MS = 1_790_000_000_000


def make_ledger(folder: Path) -> None:
    def fill(live: Path) -> Callable[[], None]:
        async def run() -> SqliteLedger:
            store = SqliteLedger(live / "act.db")
            for number in range(80):
                command = make_command(
                    pipeline="p",
                    device=f"d{number}",
                    action="open",
                    steps=(CommandStep("valve", {"number": number}),),
                    window=number,
                    mode=Mode.TRANSACTIONAL,
                    issued_ms=NOW_MS,
                    ttl_s=60,
                )
                entry = proposed(command, now_ms=NOW_MS + number)
                stored = await store.put(entry, revision=0)
                await store.put(authorised(entry, now_ms=NOW_MS + number), revision=stored.revision)
                if number == 40:
                    await store.close()
                    store = SqliteLedger(live / "act.db")
            await store.set_stop("for the bench")
            return store

        store = loop.run_until_complete(run())
        return lambda: loop.run_until_complete(store.close())

    loop = asyncio.new_event_loop()
    try:
        as_killed(folder, fill)
    finally:
        loop.close()


def read_ledger(folder: Path) -> object:
    async def run() -> object:
        store = SqliteLedger(folder / "act.db")
        try:
            entries = await store.scan(list(CommandState), limit=10_000)
            return [repr(one) for one in entries], store.stopped()
        finally:
            await store.close()

    return asyncio.run(run())


def make_source(folder: Path) -> None:
    def fill(live: Path) -> Callable[[], None]:
        spool = SourceSpool(live / "web.db", synced=True)
        history = SourceHistory(live / "kept", age_s_max=160.0, bytes_max=1 << 30, accepted={}, now_ms=NOW_MS)
        for seq in range(1, 61):
            message = _batch(seq)
            history.append(NOW_MS + 2_000 * seq, [message])
            spool.add([SpooledBatch(7, 0, seq, message)], {7: seq})
        history.close()
        return spool.close

    as_killed(folder, fill)


def _batch(seq: int) -> bytes:
    zeros = np.zeros(4)
    columns = Columns(np.arange(4), np.arange(4), zeros, zeros, np.arange(8, dtype=float).reshape(2, 4) + seq)
    payload = encode_columns(COMPACT, columns)
    header = BatchHeader(
        schema=COMPACT.id,
        n=4,
        juris_mask=1,
        policy_version=1,
        source=7,
        seq=seq,
        t_first_ns=10**18 + seq,
        watermark_ns=10**18 + seq,
        payload_len=len(payload),
    )
    return pack_batch(header, payload)


def read_source(folder: Path) -> object:
    spool = SourceSpool(folder / "web.db", synced=True)
    try:
        now_ms = NOW_MS + 200_000
        senders = spool.senders()
        SourceHistory(folder / "kept", age_s_max=160.0, bytes_max=1 << 30, accepted=senders, now_ms=now_ms).close()
        kept = list(read_history(folder / "kept"))
        return spool.lines(), senders, kept, complete_from_ms(folder / "kept")
    finally:
        spool.close()


def make_orders(folder: Path) -> None:
    orders = tuple(
        WorkerOrder(pipeline="p", worker=f"sense-{number}", stage="sense", config="c.json", log_file="l.log")
        for number in range(8)
    )
    write_state(folder / "orders.json", msgspec.json.encode(Orders(orders)))


def read_orders(folder: Path) -> object:
    return WorkerSupervisor(folder, choose("off", folder))._new_orders()


PIPELINE_STORES = (
    FaultyStore("ledger of actions", make_ledger, read_ledger),
    FaultyStore("source", make_source, read_source),
    FaultyStore("orders to workers", make_orders, read_orders),
)

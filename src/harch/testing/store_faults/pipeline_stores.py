"""What do pipelines keep? The ledger of actions, what sources accepted, and who should work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from harch.execution.sandbox import choose
from harch.hub.pipelines.keeper import Keeper, Orders, WorkerOrder
from harch.pipelines.act.command import Step, make_command
from harch.pipelines.act.ledger import State, authorised, proposed
from harch.pipelines.act.settings import Mode
from harch.pipelines.act.store_sqlite import SqliteLedger
from harch.pipelines.engine.keys import write_state
from harch.pipelines.wire.columns import Columns, encode_columns
from harch.pipelines.wire.header import BatchHeader, pack_batch
from harch.pipelines.wire.schema import COMPACT
from harch.pipelines.workers.history import History, complete_from_ms, read_history
from harch.pipelines.workers.spool import Kept, Spool
from harch.testing.store_faults.faults import Store, as_killed

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
                    steps=(Step("valve", {"number": number}),),
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
            entries = await store.scan(list(State), limit=10_000)
            return [repr(one) for one in entries], store.stopped()
        finally:
            await store.close()

    return asyncio.run(run())


def make_source(folder: Path) -> None:
    def fill(live: Path) -> Callable[[], None]:
        spool = Spool(live / "web.db", synced=True)
        history = History(live / "kept", age_s_max=160.0, bytes_max=1 << 30, accepted={}, now_ms=NOW_MS)
        for seq in range(1, 61):
            message = _batch(seq)
            history.append(NOW_MS + 2_000 * seq, [message])
            spool.add([Kept(7, 0, seq, message)], {7: seq})
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
    spool = Spool(folder / "web.db", synced=True)
    try:
        now_ms = NOW_MS + 200_000
        senders = spool.senders()
        History(folder / "kept", age_s_max=160.0, bytes_max=1 << 30, accepted=senders, now_ms=now_ms).close()
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
    return Keeper(folder, choose("off", folder))._new_orders()


PIPELINE_STORES = (
    Store("ledger of actions", make_ledger, read_ledger),
    Store("source", make_source, read_source),
    Store("orders to workers", make_orders, read_orders),
)

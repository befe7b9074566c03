"""One ACT worker as a process of its own: `act_worker.py LEDGER SETTINGS.json COMMANDS NOW_MS`, killed by its test.

Every start submits the same batch again, as a stream would that was never acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import numpy as np

from harch.base.clock import SystemClock
from harch.pipelines.act.decisions import DecisionBatch
from harch.pipelines.act.settings import read_act
from harch.pipelines.act.sinks.build import build_sinks
from harch.pipelines.act.stage import ActStage
from harch.pipelines.act.store_sqlite import SqliteLedger


async def main(ledger: str, settings_file: str, count: int, at_ms: int) -> None:
    settings = read_act(json.loads(Path(settings_file).read_text()))
    chain = Path(ledger).with_suffix(".audit")

    async def audit(draft: object) -> None:
        with chain.open("a") as file:
            file.write(f"{draft}\n")

    stage = ActStage(
        settings,
        store=SqliteLedger(ledger),
        sinks=build_sinks(settings),
        clock=SystemClock(),
        worker=f"pid-{os.getpid()}",
        audit=audit,
        local_bit=1,
    )
    batch = DecisionBatch(
        pipeline="p",
        devices=[f"d{number}" for number in range(count)],
        columns={"score": np.ones(count)},
        windows=7,
        at_ms=at_ms,
        juris_mask=1,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(stage.run())
        await stage.submit(batch)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))

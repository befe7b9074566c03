"""Does a replay that has told its result stand in the way of the next?"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import msgspec

from harch.hub.pipelines.data import ReplayProcess
from harch.pipelines.workers.config import ReplayResult

LEAVES_WHEN_TOLD = "import sys; sys.stdin.read()"


async def test_a_run_that_told_its_result_is_waited_for_while_its_process_leaves(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", LEAVES_WHEN_TOLD, stdin=PIPE)
    assert process.stdin is not None
    run = ReplayProcess("r1", process, process.pid)
    assert not await run.has_left(tmp_path)  # nothing told yet: it is under way

    (tmp_path / "r1.json").write_bytes(msgspec.json.encode(ReplayResult(state="done")))
    asking = asyncio.create_task(run.has_left(tmp_path))
    await asyncio.sleep(0)
    assert not asking.done()
    process.stdin.close()
    assert await asking

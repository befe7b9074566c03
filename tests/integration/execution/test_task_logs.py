"""A task's output is kept, capped, and found again by offset."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys

import pytest
from execution_fakes import task

from harch.execution.preparation import LOG_SEGMENT_BYTES, LOG_SEGMENTS_MAX
from harch.workloads.lifecycle import ExitReason


async def test_output_and_errors_are_readable_while_it_runs_and_after_it_is_forgotten(hub, agent, state):
    spec = task("sh", "-c", "echo out; echo err >&2; sleep 0.3; echo late")
    await hub.start(spec)
    for _ in range(100):
        chunk = await hub.log(spec.key)
        if b"err" in chunk.data:
            break
        await asyncio.sleep(0.01)
    assert chunk.data == b"out\nerr\n"
    assert not chunk.eof
    await hub.ended(spec.key)
    while (state / "tasks").exists() and list((state / "tasks").iterdir()):
        await asyncio.sleep(0.01)
    chunk = await hub.log(spec.key, offset=8)
    assert (chunk.offset, chunk.data, chunk.eof) == (8, b"late\n", True)
    chunk = await hub.log(spec.key, offset=-3)
    assert (chunk.offset, chunk.data, chunk.eof) == (10, b"te\n", True)


async def test_a_flood_is_capped_and_offsets_count_all_of_it(hub, run_agent, state):
    await run_agent(sandbox="off", stop_tasks_on_exit=False)
    hub.forgets = False
    lines, width = 300_000, 70
    script = f"import sys; sys.stdout.write(''.join('%069d\\n' % i for i in range({lines})))"
    spec = task(sys.executable, "-c", script)
    await hub.run(spec)
    total = lines * width
    kept = sum(file.stat().st_size for file in state.glob("tasks/*/log/*"))
    assert kept <= LOG_SEGMENT_BYTES * LOG_SEGMENTS_MAX < total
    last = await hub.log(spec.key, offset=-width)
    assert (last.offset, int(last.data), last.eof) == (total - width, lines - 1, True)
    first = await hub.log(spec.key, offset=0, bytes_max=width * 2)
    assert first.offset > 0, "what was rotated away is skipped"
    assert not first.eof
    position, read = first.offset, b""
    while True:
        chunk = await hub.log(spec.key, offset=position)
        assert chunk.offset == position
        read += chunk.data
        position += len(chunk.data)
        if chunk.eof:
            break
    assert position == total
    whole = read[-(-first.offset // width) * width - first.offset :].split()
    assert [int(line) for line in whole] == list(range(lines - len(whole), lines))


@pytest.mark.needs("tmpfs")
async def test_a_full_disk_costs_log_bytes_but_neither_the_task_nor_its_end(hub, run_agent, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        running = await run_agent(sandbox="off", state_dir=small / "state", stop_tasks_on_exit=False)
        hub.forgets = False
        spec = task("sh", "-c", "head -c 3000000 /dev/zero; echo more; exit 6")
        end = await hub.run(spec)
        assert (end.reason, end.exit_code) == (ExitReason.EXITED, 6)
        assert "lost to a full disk" in end.detail
        assert json.loads(next(small.glob("state/tasks/*/ended.json")).read_text())["exit_code"] == 6
        with contextlib.suppress(OSError), (small / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        refused = await hub.run(task("true"))
        assert refused.reason is ExitReason.NOT_STARTED
        assert "E1002" in refused.detail
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


async def test_the_log_of_an_unknown_task_is_empty_and_over(hub, run_agent):
    await run_agent(sandbox="off")
    chunk = await hub.log(task().key)
    assert (chunk.data, chunk.eof) == (b"", True)

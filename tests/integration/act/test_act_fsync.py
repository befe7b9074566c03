"""Is the intent on disk before the sink hears of it? Asked of the system calls of a real worker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harch.base.clock import SystemClock
from integration.act.act_servers import RecordingHook, until

WORKER = Path(__file__).with_name("act_worker.py")
CALLS = "trace=fdatasync,fsync,pwrite64,sendto,write"


@pytest.mark.needs("strace")
async def test_the_intent_is_synced_before_the_request_leaves(tmp_path: Path) -> None:
    trace = tmp_path / "calls"
    async with RecordingHook(honours_key=True).serving() as hook:
        settings = {
            "sinks": {"valve": {"kind": "http", "url": f"{hook.url}/act", "honours_key": True, "timeout_s": 30.0}},
            "actions": [{"name": "open", "when": "score > 0", "sink": "valve", "args": {"value": 1}, "ttl_s": 600}],
        }
        file = tmp_path / "act.json"
        file.write_text(json.dumps(settings))
        now_ms = str(round(SystemClock().now().timestamp() * 1000))
        worker = [sys.executable, str(WORKER), str(tmp_path / "act.db"), str(file), "1", now_ms]
        command = ["strace", "-f", "-y", "-s", "4096", "-e", CALLS, "-o", str(trace), *worker]
        process = subprocess.Popen(command, start_new_session=True)
        try:
            await until(lambda: "'state': 'done'" in _read(tmp_path / "act.audit"), "the command is done")
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # strace and the worker
            process.wait(timeout=30)
    lines = trace.read_text(errors="replace").split("\n")
    sent = next(at for at, line in enumerate(lines) if re.search(r"(sendto|write)\(.*[Ii]dempotency-[Kk]ey", line))
    written = max(at for at, line in enumerate(lines[:sent]) if "pwrite64" in line and "act.db-wal" in line)
    intents = [at for at, line in enumerate(lines[:sent]) if "pwrite64" in line and r"\"state\":\"intent\"" in line]
    synced = [
        at
        for at, line in enumerate(lines[:sent])
        if re.search(r"f(data)?sync\(\d+<[^>]*act\.db-wal>\)\s*= 0", line) or re.search(r"f(data)?sync resumed", line)
    ]
    assert intents, "the intent was written before the request left"
    assert max(synced, default=-1) > max(written, *intents), "and it was on disk"


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""

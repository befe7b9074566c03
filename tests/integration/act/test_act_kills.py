"""kill -9 of a worker between INTENT and DONE, with a webhook that dies in mid-answer: nothing happens twice."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harch.base.clock import SystemClock
from harch.pipelines.act.ledger import CommandState, decode_entry
from integration.act.act_servers import RecordingHook, until

WORKER = Path(__file__).with_name("act_worker.py")
COMMANDS, KILLS = 24, 3


def states(ledger: Path) -> dict[str, CommandState]:
    if not ledger.exists():
        return {}
    try:
        with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=20) as reader:
            rows = reader.execute("SELECT body FROM act_ledger").fetchall()
    except sqlite3.OperationalError:
        return {}  # the worker has not made its tables yet
    entries = [decode_entry(body) for (body,) in rows]
    return {entry.cmd_id: entry.state for entry in entries}


@pytest.mark.parametrize(
    "sink",
    [
        pytest.param({"honours_key": True}, id="the-hook-keeps-keys"),
        pytest.param({"honours_key": False, "status": True}, id="the-hook-can-be-asked"),
    ],
)
async def test_a_worker_that_is_killed_again_and_again_does_nothing_twice(sink: dict[str, Any], tmp_path: Path) -> None:
    honours_key = sink["honours_key"]
    async with RecordingHook(honours_key=honours_key, trouble=0.3, seed=11).serving() as hook:
        valve = {"kind": "http", "url": f"{hook.url}/act", "honours_key": honours_key, "timeout_s": 1.0}
        if sink.get("status"):
            valve["status_url"] = f"{hook.url}/status/{{key}}"
        settings = {
            "sinks": {"valve": valve},
            "actions": [
                {"name": "open", "when": "score > 0", "sink": "valve", "args": {"value": 1}, "ttl_s": 600,
                 "retries": {"attempts": 20, "base_s": 0.05, "max_s": 0.2}}
            ],
            "settle_s": 2.0,
        }  # fmt: skip
        file, ledger = tmp_path / "act.json", tmp_path / "act.db"
        file.write_text(json.dumps(settings))
        now_ms = str(round(SystemClock().now().timestamp() * 1000))
        arguments = [sys.executable, str(WORKER), str(ledger), str(file), str(COMMANDS), now_ms]

        for kill in range(KILLS):
            before = hook.held
            hook.hold = True  # the effect is there, the answer is not: INTENT without DONE
            process = subprocess.Popen(arguments)
            try:
                await until(lambda before=before: hook.held > before, f"requests of worker {kill} are under way")
                assert CommandState.INTENT in states(ledger).values()
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait(timeout=20)
            hook.hold = False
        process = subprocess.Popen(arguments)
        try:
            await until(
                lambda: len(states(ledger)) == COMMANDS and set(states(ledger).values()) == {CommandState.DONE},
                f"all {COMMANDS} commands are done",
            )
        finally:
            process.kill()
            process.wait(timeout=20)
        twice = {key: count for key, count in hook.effects.items() if count > 1}
        assert twice == {}
        assert len(hook.effects) == COMMANDS
        assert hook.requests > COMMANDS, "the story was too calm to prove anything"
        if sink.get("status"):
            assert hook.asked > 0
        told = (tmp_path / "act.audit").read_text()
        assert all(f"subject='{cmd_id}'" in told for cmd_id in states(ledger))

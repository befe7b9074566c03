"""How is a message server started? In a session of its own, with a record by which it is found again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from harch.execution.kernel import start_ticks
from harch.execution.process_record import ProcessRecord, RunningProcess, write_record

# The server's live memory is small and what passes through it is large: at Go's default of 100 it collects garbage many
# times a second, which costs a third of its time at full load and makes messages wait. Whoever sets it, decides.
GARBAGE_PERCENT = "400"


def start_process(command: list[str], config_sha256: str, record_path: Path, output: Path) -> RunningProcess:
    """Starts the server in a session of its own, so that a Ctrl-C meant for us does not reach it."""
    with output.open("ab") as sink:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={"GOGC": GARBAGE_PERCENT, **os.environ},
            start_new_session=True,
        )
    record = ProcessRecord(child.pid, start_ticks(child.pid), config_sha256)
    write_record(record_path, record)
    return RunningProcess(record, child)

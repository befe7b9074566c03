"""Is that process ours, and is it still there? A pid alone may be somebody else's by now; with its start it is not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import msgspec
from msgspec import Struct

from harch.base.errors import HarchError
from harch.execution.kernel import kill_process, start_ticks
from harch.pipelines.engine.keys import write_secret

RECORD_BYTES_MAX = 4096
# The server's live memory is small and what passes through it is large: at Go's default of 100 it collects garbage many
# times a second, which costs a third of its time at full load and makes messages wait. Whoever sets it, decides.
GARBAGE_PERCENT = "400"


class ProcessRecord(Struct, frozen=True):
    """Which process runs here: its pid, when it started, and the hash of the configuration that it was given."""

    pid: int
    start_ticks: int
    config_sha256: str

    @property
    def is_alive(self) -> bool:
        return self.start_ticks != 0 and start_ticks(self.pid) == self.start_ticks


class EngineProcess:
    """One running server, started by us or found running after we were killed. Waiting works for both."""

    def __init__(self, record: ProcessRecord, child: subprocess.Popen[bytes] | None) -> None:
        self.record = record
        self._child = child

    @property
    def has_ended(self) -> bool:
        """A child that has ended keeps its pid until it is waited for, so it is asked itself."""
        return self._child.poll() is not None if self._child is not None else not self.record.is_alive

    async def ended(self) -> int | None:
        """Returns when it has ended: its exit status, or None if it was not our child."""
        try:
            handle = os.pidfd_open(self.record.pid)
        except ProcessLookupError:
            return self._status()
        try:
            if self.has_ended:
                return self._status()
            loop = asyncio.get_running_loop()
            over: asyncio.Future[None] = loop.create_future()
            loop.add_reader(handle, _finish, over)
            try:
                await over
            finally:
                loop.remove_reader(handle)
            return self._status()
        finally:
            os.close(handle)

    def _status(self) -> int | None:
        return self._child.wait() if self._child is not None else None

    def reread(self, config_sha256: str, record_path: Path) -> None:
        """Asks it to read its configuration again, and remembers which one that is."""
        self.record = msgspec.structs.replace(self.record, config_sha256=config_sha256)
        write_record(record_path, self.record)
        if not self.has_ended:
            kill_process(self.record.pid, signal.SIGHUP)

    async def stop(self, grace_s: float) -> None:
        """Asks politely, waits, then insists. Only ever this process, by its id and start."""
        waiting = asyncio.ensure_future(self.ended())
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if not self.has_ended:
                kill_process(self.record.pid, signum)
            done, _ = await asyncio.wait((waiting,), timeout=grace_s)
            if done:
                return
        waiting.cancel()
        raise HarchError("E0703", f"process {self.record.pid} does not end", hint="look at it; it may wait for a disk")


def write_record(path: Path, record: ProcessRecord) -> None:
    write_secret(path, msgspec.json.encode(record).decode())


def _finish(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


def start_process(command: list[str], config_sha256: str, record_path: Path, output: Path) -> EngineProcess:
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
    return EngineProcess(record, child)


def found_running(record_path: Path) -> EngineProcess | None:
    """The process of an earlier start, if it still runs. A stale or damaged record is nothing."""
    try:
        record = msgspec.json.decode(record_path.read_bytes()[:RECORD_BYTES_MAX], type=ProcessRecord)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return EngineProcess(record, None) if record.is_alive else None

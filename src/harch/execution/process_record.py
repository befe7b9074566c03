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
from harch.base.seal import LINE
from harch.base.state_files import read_sealed, rewrite
from harch.execution.kernel import has_exited, kill_process, start_ticks


class ProcessRecord(Struct, frozen=True):
    """Which process runs here: its pid, when it started, and the hash of the configuration that it was given."""

    pid: int
    start_ticks: int
    config_sha256: str

    @property
    def is_alive(self) -> bool:
        """One that has ended and that nobody has waited for keeps its pid and start, and is not alive."""
        return self.start_ticks != 0 and start_ticks(self.pid) == self.start_ticks and not has_exited(self.pid)


class RunningProcess:
    """A process that was started by us, or found running after we were killed. Waiting works for both."""

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
        self.send(signal.SIGHUP)

    def send(self, signum: int) -> None:
        if not self.has_ended:
            kill_process(self.record.pid, signum)

    async def stop(self, grace_s: float) -> None:
        """Asks politely, waits, then insists. Only ever this process, by its id and start. Raises E1005."""
        waiting = asyncio.ensure_future(self.ended())
        for signum in (signal.SIGTERM, signal.SIGKILL):
            self.send(signum)
            done, _ = await asyncio.wait((waiting,), timeout=grace_s)
            if done:
                return
        waiting.cancel()
        message = f"process {self.record.pid}, which holds the state folder, does not end"
        raise HarchError("E1005", message, hint="check it; it may be blocked on disk I/O")


def write_record(path: Path, record: ProcessRecord) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    rewrite(path, LINE.seal(msgspec.json.encode(record)))


def found_running(record_path: Path) -> RunningProcess | None:
    """The process of an earlier start, if it still runs. A stale or damaged record is nothing."""
    try:
        record = msgspec.json.decode(read_sealed(record_path), type=ProcessRecord)
    except (FileNotFoundError, msgspec.DecodeError, HarchError):
        return None
    return RunningProcess(record, None) if record.is_alive else None


def _finish(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)

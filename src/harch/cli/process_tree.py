"""What have we started, and does it still run? Processes below this one, wherever they have gone, and recorded ones.

A process that becomes an orphan becomes a child of ours, so nothing that was started here can leave the tree. What an
earlier, killed `harch up` has left behind is not in it; it is found by the records that hubs keep of such processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgspec

from harch.base.clock import Clock
from harch.base.seal import LINE, DamagedContent
from harch.execution.kernel import adopt_orphans, children_of, kill_process, read_text, start_ticks

LOOK_S = 0.05
KILL_S_MAX = 10.0
UNKNOWN_CODE = 255
_RECORDS = ("keeper.pid", "*/keeper.pid", "engine/*/*.pid", "*/engine/*/*.pid", "sentinel/process.json")
_RECORD_BYTES_MAX = 4096


class _Record(msgspec.Struct, frozen=True):
    pid: int
    start_ticks: int


class Descendants:
    """Of this process. From here on orphans come to us."""

    def __init__(self) -> None:
        adopt_orphans()
        self._strange: set[int] = set()

    def reap(self, own: Collection[int]) -> None:
        """Takes leave of adopted children that have ended. `own` are waited for by somebody else.

        Only what was seen before: a child that was started a moment ago is not in `own` yet.
        """
        strange = set(children_of(os.getpid())) - set(own)
        for pid in strange & self._strange:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._strange = strange

    async def end(self, home_folders: Collection[Path], clock: Clock, *, grace_s: float) -> list[int]:
        """Asks all that is left to end, then insists. Answers what cannot be ended. Our own children must be gone."""

        def left() -> set[int]:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            return {*descendants_of(os.getpid()), *(pid for folder in home_folders for pid in recorded(folder))}

        for signum, within_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_S_MAX)):
            if not await _end(left, signum, clock, within_s):
                return []
        return sorted(left())


async def _end(left: Callable[[], set[int]], signum: int, clock: Clock, within_s: float) -> bool:
    """Whether something is left. Those that appear meanwhile are ended as well."""
    signalled: set[int] = set()
    until_s = clock.monotonic_s() + within_s
    while found := left():
        for pid in found - signalled:
            kill_process(pid, signum)
        signalled |= found
        if clock.monotonic_s() > until_s:
            return True
        await clock.sleep(LOOK_S)
    return False


class AdoptedProcess:
    """A process that was started for us by another one, and came to us as an orphan. Used as one of asyncio's is."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    async def wait(self) -> int:
        """Its exit code; minus the number of the signal that has ended it; `UNKNOWN_CODE` if it is gone already."""
        if self.returncode is None:
            try:
                handle = os.pidfd_open(self.pid)
            except ProcessLookupError:
                self.returncode = UNKNOWN_CODE
                return self.returncode
            try:
                await _readable(handle)
            finally:
                os.close(handle)
            if self.returncode is None:  # nobody else has waited meanwhile
                self._reap()
        return UNKNOWN_CODE if self.returncode is None else self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _reap(self) -> None:
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            self.returncode = UNKNOWN_CODE
        else:
            self.returncode = os.waitstatus_to_exitcode(status)

    def _send(self, signum: int) -> None:
        if self.returncode is None:
            kill_process(self.pid, signum)


async def _readable(handle: int) -> None:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.add_reader(handle, _finish, over)
    try:
        await over
    finally:
        loop.remove_reader(handle)


def _finish(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


def descendants_of(pid: int) -> list[int]:
    """All processes below this one that have not ended."""
    below: dict[int, list[int]] = {}
    ended: set[int] = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = read_text(f"/proc/{name}/stat").rpartition(")")[2].split()
            if len(fields) > 1:
                below.setdefault(int(fields[1]), []).append(int(name))
                ended |= {int(name)} if fields[0] in "ZX" else set()
    found, open_ = [], [pid]
    while open_:
        children = below.get(open_.pop(), [])
        found += children
        open_ += children
    return [one for one in found if one not in ended]


def recorded(state_dir: Path) -> Iterator[int]:
    """Processes that a hub with this state folder has written down and that still run: ours, by pid and start."""
    for pattern in _RECORDS:
        for path in state_dir.glob(pattern):
            try:
                record = msgspec.json.decode(LINE.unseal(path.read_bytes()[:_RECORD_BYTES_MAX]), type=_Record)
                is_ours = os.stat(f"/proc/{record.pid}").st_uid == os.geteuid()
            except (OSError, msgspec.MsgspecError, DamagedContent):
                continue
            if (
                is_ours
                and record.start_ticks
                and start_ticks(record.pid) == record.start_ticks
                and not _ended(record.pid)
            ):
                yield record.pid


def cpu_s(pid: int) -> float:
    """What the process has used of a processor; 0 if it is gone."""
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0


def _ended(pid: int) -> bool:
    return read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] in (["Z"], ["X"], [])

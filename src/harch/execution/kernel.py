"""What do we ask of the kernel for a task? Its processes, its cgroups, its end with its parent's.

Standard library only: the supervisor imports this at each task's start. A cgroup is handled by what its folder offers,
so version 1, version 2 and a mixture of both need no switch.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
KILL_ROUNDS_MAX = 100  # a fork bomb in a v1 cgroup is frozen, so that each round meets all of it

BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_libc = ctypes.CDLL(None)


def boot_s() -> float:
    """The clock of leases: the same that `base.clock` reads for the agent, which a supervisor must not import."""
    return time.clock_gettime(BOOT_CLOCK)


def die_with_parent() -> None:
    signal_with_parent(signal.SIGKILL)


def signal_with_parent(signum: int) -> None:
    """Sent to this process when the thread that started it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, int(signum))


def adopt_orphans() -> None:
    """Orphaned descendants of this process become its children instead of init's, so that none escapes it."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_process(pid: int, signum: int) -> None:
    if pid > 1:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def kill_group(pgid: int, signum: int) -> None:
    if pgid > 1:  # 0 and 1 would mean our own group, or everybody
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pgid, signum)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in read_text(f"/proc/{pid}/task/{pid}/children").split()]


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot: with the pid it names a process for good. 0: gone."""
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else 0


def has_exited(pid: int) -> bool:
    """Whether only its entry in the table is left, because its parent has not waited for it."""
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return bool(fields) and fields[0] in {"Z", "X"}


def processes_with_env(marks: Iterable[bytes]) -> list[int]:
    """Processes of ours whose environment has every one of `marks`; the last resort where there is no cgroup."""
    wanted = set(marks)
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as environ:
                if wanted <= set(environ.read().split(b"\0")):
                    found.append(int(name))
    return found


def enter_cgroups(folders: list[str]) -> None:
    for folder in folders:
        with open(f"{folder}/cgroup.procs", "w") as procs:
            procs.write("0")  # the writer itself


def cgroup_members(folders: list[str]) -> set[int]:
    return {int(pid) for folder in folders for pid in read_text(f"{folder}/cgroup.procs").split()}


def freeze_cgroups(folders: list[str], frozen: bool) -> bool:
    """True if some cgroup of these can freeze; otherwise the caller must send signals."""
    done = False
    for folder in folders:
        done |= _write(f"{folder}/freezer.state", "FROZEN" if frozen else "THAWED")
        done |= _write(f"{folder}/cgroup.freeze", "1" if frozen else "0")
    return done


def kill_cgroups(folders: list[str]) -> None:
    """Kills every member and waits until they are gone or, after some rounds, are beyond killing."""
    for _ in range(KILL_ROUNDS_MAX):
        members = cgroup_members(folders)
        if not members:
            return
        killed = [_write(f"{folder}/cgroup.kill", "1") for folder in folders]
        if not any(killed):
            freeze_cgroups(folders, True)  # else a fork bomb outruns us
            for pid in cgroup_members(folders):
                kill_process(pid, signal.SIGKILL)
        freeze_cgroups(folders, False)
        time.sleep(0.001)


def remove_cgroups(folders: list[str]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # still busy or already gone; the next agent start tries again
            os.rmdir(folder)


def oom_kills(folders: list[str]) -> int:
    """How often the kernel killed a member for lack of memory: `oom_kill` has the same name in v1 and v2."""
    count = 0
    for folder in folders:
        for name in ("memory.oom_control", "memory.events"):
            for line in read_text(f"{folder}/{name}").splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    count += int(value)
    return count


def remove_secrets(folder: str) -> None:
    """Removes a flat folder of secret files; nothing may be left of them, so one failure does not stop the others."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                os.unlink(f"{folder}/{name}")
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def read_text(path: str) -> str:
    """The text, or nothing where the file, or its process, is gone."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(fd, text.encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def flush_disk(path: str) -> None:
    """All that was written to the disk which holds this path, so that it survives a power cut."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        _libc.syncfs(fd)
    finally:
        os.close(fd)

"""How does an agent run a program that may take long? In its sandbox, with output kept, and gone when it is called off.

For builds of environments and the like: they belong to one task and run within its limits. Called from a thread, which
must live as long as the program: the program ends with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")
READ_BYTES = 65536
TAIL_BYTES = 8192
TAIL_LINES = 5


@dataclass(frozen=True, slots=True)
class GuardedCommand:
    """`confinement`: program and arguments of the sandbox that it runs in; none: a plain process in `folder`."""

    argv: Sequence[str]
    env: dict[str, str]
    folder: str
    confinement: tuple[str, Sequence[str]] | None = None
    cgroups: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """`tail`: its last lines, which often say why it failed."""

    exit_code: int
    tail: tuple[str, ...]
    timed_out: bool = False


def run_guarded(
    command: GuardedCommand,
    *,
    write: Callable[[bytes], None],
    calling_off: Callable[[Callable[[], None]], AbstractContextManager[None]],
    timeout_s: float,
) -> ProcessResult:
    """`write` gets what it prints. `calling_off` calls what it is given when the work is called off meanwhile.

    Raises OSError, if the program cannot be started at all.
    """
    with contextlib.ExitStack() as opened:
        argv, env = list(command.argv), command.env
        keep: tuple[int, ...] = ()
        if command.confinement is not None:
            program, arguments = command.confinement
            fd = os.memfd_create("sandbox")  # not on its command line, which every user of the machine may read
            opened.callback(os.close, fd)
            with open(fd, "wb", closefd=False) as file:
                file.write(b"".join(os.fsencode(argument) + b"\0" for argument in arguments))
            os.lseek(fd, 0, os.SEEK_SET)
            argv, env, keep = [program, "--args", str(fd), "--", *argv], {}, (fd,)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), *command.cgroups, "--", *argv],
            env=env,
            cwd="/" if command.confinement is not None else command.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=keep,
            start_new_session=True,
        )
        opened.callback(_end, process)
        wake_r, wake_w = os.pipe()
        for fd in (wake_r, wake_w):
            opened.callback(os.close, fd)
        stopped, late = threading.Event(), threading.Event()

        def stop() -> None:
            if process.returncode is None and not stopped.is_set():
                stopped.set()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                os.write(wake_w, b"x")  # what has left the group may hold the pipe open

        def stop_late() -> None:
            late.set()
            stop()

        timer = threading.Timer(timeout_s, stop_late)
        timer.daemon = True
        timer.start()
        opened.callback(timer.join)
        opened.callback(timer.cancel)
        opened.enter_context(calling_off(stop))
        tail = b""
        for data in _output(process, wake_r):
            write(data)
            tail = (tail + data)[-TAIL_BYTES:]
        lines = [line for line in tail.decode(errors="replace").splitlines() if line.strip()]
        return ProcessResult(process.wait(), tuple(lines[-TAIL_LINES:]), late.is_set())


def _output(process: subprocess.Popen[bytes], wake_fd: int) -> Iterator[bytes]:
    """Until it ends, or is woken."""
    poller = select.poll()
    fd = process.stdout.fileno() if process.stdout is not None else wake_fd
    for one in (fd, wake_fd):
        poller.register(one, select.POLLIN)
    while True:
        ready = [one for one, _ in poller.poll()]
        if fd in ready and (data := os.read(fd, READ_BYTES)):
            yield data
        else:
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()

"""How is one task started, watched and ended? The supervisor's loop. Standard library only.

All times are monotonic seconds, except those of the lease and those that are written down for people.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import signal
import time

from harch.base.seal import FIELD
from harch.execution import kernel
from harch.execution.lease_watch import LeaseWatch
from harch.execution.records import DETAIL_CHARS_MAX, Records
from harch.execution.spool import TaskLogSpool

TYPE_CHECKING = False  # spares the import of `typing` at each start
if TYPE_CHECKING:
    from typing import Any

READ_BYTES = 65536
SWEEP_S_MAX = 5.0  # a process in uninterruptible sleep may outlast a KILL; we wait so long for it
EXEC_SEEN_S_MAX = 1.0
CHILD_OOM_SCORE = "500"  # rather the task than the agent or the hub
CANNOT_EXECUTE_EXIT_CODE, NOT_FOUND_EXIT_CODE = 126, 127  # what a shell answers
NOT_PREPARED_EXIT_CODE = 125  # of the process that should have become the command, which is not to blame
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


class TaskWatch:
    """One task: spawn, watch, end."""

    def __init__(self, spec: dict[str, Any], records: Records) -> None:
        self._spec, self._records = spec, records
        self._sandbox: str = spec["sandbox"]  # path of bubblewrap; empty: a plain process
        self._cgroups: list[str] = spec["cgroups"]
        self._lease = LeaseWatch(spec.get("lease_until_s"), spec["stop_grace_s"])
        self._spool = TaskLogSpool("log", spec["log_segment_bytes"], spec["log_segments_max"])
        self._reason = ""  # why we end it; empty while the task decides for itself
        self._kill_at: float | None = None
        self._deadline: float | None = None
        self._paused_at: float | None = None
        self._exec_seen_until = 0.0
        self._main_pid = self._group = 0
        self._main_status: int | None = None
        self._sandbox_says = b""
        self._running = False

    def run(self) -> None:
        """The life of the task, up to the record of its end."""
        wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for signum in SIGNALS:
            signal.signal(signum, lambda *_: None)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        kernel.adopt_orphans()
        if os.path.exists("stop.json"):
            self._finish(self._stop_request()["reason"], detail="stopped before it started")
            return
        if self._lease.stop_falls_due():  # between the agent's look at it and ours
            self._finish("lease_ended", detail="its lease ended before it started")
            return
        log_r, log_w = os.pipe()
        says_r, says_w = os.pipe()
        failure = self._spawn(log_w, says_w)
        os.close(log_w)
        os.close(says_w)
        if failure:
            _, status = os.waitpid(self._main_pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self._finish("not_started", None if code == NOT_PREPARED_EXIT_CODE else code, detail=failure)
            return
        if self._spec["max_duration_s"] is not None:
            self._deadline = time.monotonic() + self._spec["max_duration_s"]
        self._exec_seen_until = time.monotonic() + EXEC_SEEN_S_MAX
        if not self._sandbox:
            self._now_running(self._main_pid)
        poller = select.poll()
        for fd in (log_r, says_r, wake_r):
            poller.register(fd, select.POLLIN)
        while self._main_status is None:
            for fd, _ in poller.poll(self._wait_ms()):
                data = os.read(fd, READ_BYTES)
                if fd == wake_r:
                    for number in data:
                        self._on_signal(number)
                elif not data:
                    poller.unregister(fd)
                elif fd == log_r:
                    self._spool.write(data)
                else:
                    self._sandbox_says += data
            self._reap()
            self._look_into_sandbox()
            self._check_timers()
        self._sweep()
        self._sandbox_says += b"".join(_drain(says_r))
        for data in _drain(log_r):
            self._spool.write(data)
        self._judge()

    def _spawn(self, log_w: int, says_w: int) -> str:
        """Starts the main process; returns what went wrong, if anything."""
        argv, env, cwd = list(self._spec["argv"]), self._spec["env"], self._spec["cwd"]
        keep: list[int] = []
        if self._sandbox:
            args_fd = os.memfd_create("sandbox")
            os.write(args_fd, b"".join(os.fsencode(arg) + b"\0" for arg in self._spec["sandbox_args"]))
            os.lseek(args_fd, 0, os.SEEK_SET)
            keep = [args_fd, says_w]
            argv = [self._sandbox, "--args", str(args_fd), "--json-status-fd", str(says_w), "--", *argv]
            env, cwd = {}, "/"  # the task's own go through the arguments: an LD_PRELOAD must not reach bubblewrap
        error_r, error_w = os.pipe()
        parent = os.getpid()
        self._main_pid = self._group = os.fork()
        if not self._main_pid:
            code = NOT_PREPARED_EXIT_CODE
            try:
                _become(cwd, self._cgroups, log_w, keep, parent)
                code = CANNOT_EXECUTE_EXIT_CODE
                os.execvpe(argv[0], argv, env)  # noqa: S606 - a shell is what we avoid
            except OSError as error:
                about = argv[0]
                if code == NOT_PREPARED_EXIT_CODE:
                    about = error.filename or about
                elif isinstance(error, FileNotFoundError):
                    code = NOT_FOUND_EXIT_CODE
                os.write(error_w, f"{about}: {error.strerror}".encode()[:DETAIL_CHARS_MAX])
            finally:
                os._exit(code)
        os.close(error_w)
        self._lease.guard(self._kill_unended)
        return b"".join(_drain(error_r, wait=True)).decode(errors="replace")

    def _now_running(self, pid: int) -> None:
        self._running = True
        self._records.running(pid, self._group, "bubblewrap" if self._sandbox else "plain")

    def _look_into_sandbox(self) -> None:
        """Bubblewrap comes before the command: it runs once the child of the sandbox's pid 1 is another program."""
        if self._running:
            return
        if self._group == self._main_pid and b"\n" in self._sandbox_says:
            self._group = json.loads(self._sandbox_says.split(b"\n")[0])["child-pid"]
        if self._group == self._main_pid:
            return
        pid = next(iter(kernel.children_of(self._group)), 0)
        executed = pid and kernel.read_text(f"/proc/{pid}/comm").strip() not in ("", "bwrap")
        if executed or time.monotonic() > self._exec_seen_until:
            self._now_running(pid or self._group)

    def _wait_ms(self) -> float | None:
        if not self._running and self._group != self._main_pid:
            return 1  # the command is about to be executed, which nothing tells us
        times = [self._kill_at, self._deadline if self._paused_at is None else None]
        now = time.monotonic()
        waits = [self._lease.wait_s(), *(max(0.0, at - now) for at in times if at is not None)]
        wait_s = min((wait for wait in waits if wait is not None), default=None)
        return None if wait_s is None else wait_s * 1000 + 1

    def _on_signal(self, signum: int) -> None:
        if signum == signal.SIGTERM:
            stop = self._stop_request()
            self._end_it(stop["reason"], stop["grace_s"])
        elif signum == signal.SIGUSR1 and self._paused_at is None and not self._reason:
            self._paused_at = time.monotonic()
            if not kernel.freeze_cgroups(self._cgroups, True):
                kernel.kill_group(self._group, signal.SIGSTOP)
        elif signum == signal.SIGUSR2:
            self._resume()

    def _stop_request(self) -> dict[str, Any]:
        # ValueError: one that is damaged still says that it must stop.
        with contextlib.suppress(OSError, ValueError), open("stop.json", "rb") as file:
            return dict(json.loads(FIELD.unseal(file.read())))
        return {"reason": "stopped", "grace_s": self._spec["stop_grace_s"]}  # a bare SIGTERM, e.g. by an operator

    def _resume(self) -> None:
        if self._paused_at is None:
            return
        if self._deadline is not None:  # max_duration_s counts running time only
            self._deadline += time.monotonic() - self._paused_at
        self._paused_at = None
        if not kernel.freeze_cgroups(self._cgroups, False):
            kernel.kill_group(self._group, signal.SIGCONT)

    def _end_it(self, reason: str, grace_s: float) -> None:
        self._reason = self._reason or reason
        self._deadline = None
        self._resume()  # a frozen task could not react to TERM
        kill_at = time.monotonic() + grace_s
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        # The sandbox's pid 1 has no handler, so TERM to the group passes it by; bubblewrap itself leads another group.
        kernel.kill_group(self._group, signal.SIGTERM)

    def _check_timers(self) -> None:
        now = time.monotonic()
        if self._deadline is not None and self._paused_at is None and now >= self._deadline:
            self._end_it("timeout", self._spec["stop_grace_s"])
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._kill()
        if self._lease.stop_falls_due():
            self._end_it("lease_ended", self._lease.left_s())
        if self._lease.must_die():
            self._kill()

    def _kill(self) -> None:
        kernel.kill_cgroups(self._cgroups)
        kernel.kill_group(self._group, signal.SIGKILL)
        for pid in (self._main_pid, *kernel.children_of(os.getpid())):
            kernel.kill_process(pid, signal.SIGKILL)

    def _kill_unended(self) -> None:
        if self._main_status is None:
            self._kill()

    def _reap(self) -> bool:
        """Collects dead children; true while living ones are left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                if pid == self._main_pid:
                    self._main_status, self._main_pid = status, 0
        except ChildProcessError:
            return False

    def _sweep(self) -> None:
        """The main process is gone: nothing that it left behind may go on."""
        give_up_at = time.monotonic() + SWEEP_S_MAX
        while (self._reap() or kernel.cgroup_members(self._cgroups)) and time.monotonic() < give_up_at:
            self._kill()
            time.sleep(0.001)

    def _judge(self) -> None:
        """From the main process's status to the reason of the end."""
        status = self._main_status or 0
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        out_of_memory = kernel.oom_kills(self._cgroups) > 0
        if self._sandbox and code is not None:
            if b"exit-code" not in self._sandbox_says and not self._reason and not out_of_memory:
                lines = self._spool.tail.decode(errors="replace").strip().splitlines()
                detail = lines[-1] if lines else "the sandbox could not be set up"
                code = _shell_code(detail)
                self._finish("not_started", code, detail=detail if code is None else _of_the_command(detail))
                return
            if 128 < code <= 128 + 64:  # so bubblewrap, as a shell would, tells that its child died of a signal
                signum = code - 128
        if signum is not None:
            code = 128 + signum  # with and without a sandbox the same
        if not self._running:
            self._now_running(self._group)
        if self._reason == "lease_ended":
            grace = f"its grace of {self._spec['stop_grace_s']:g} s"
            killed = signum == signal.SIGKILL
            detail = f"it was killed at the deadline, after {grace}" if killed else f"it stopped within {grace}"
            self._finish(self._reason, code, signum, detail=detail)
        elif self._reason:
            self._finish(self._reason, code, signum)
        elif out_of_memory and code != 0:
            self._finish("out_of_memory", code, signum, detail="killed by the kernel at its memory limit")
        else:
            self._finish("exited" if signum is None else "signalled", code, signum)

    def _finish(self, reason: str, code: int | None = None, signum: int | None = None, *, detail: str = "") -> None:
        if self._spec["secrets_dir"]:
            kernel.remove_secrets(self._spec["secrets_dir"])
        self._records.end(reason, code, signum, detail=detail, log_bytes_dropped=self._spool.dropped_bytes)


def _shell_code(detail: str) -> int | None:
    """What a shell would answer, by the last words of the sandbox: `bwrap: execvp train: No such file or directory`."""
    if "execvp" not in detail:
        return None
    return NOT_FOUND_EXIT_CODE if os.strerror(errno.ENOENT) in detail else CANNOT_EXECUTE_EXIT_CODE


def _of_the_command(detail: str) -> str:
    """The sandbox's words about the command itself, without its own name: `train: No such file or directory`."""
    return detail.partition("execvp ")[2] or detail


def _become(cwd: str, cgroups: list[str], log_w: int, keep: list[int], parent: int) -> None:
    """In the new process: from a copy of the supervisor to what the task's own program may be."""
    os.setsid()
    kernel.die_with_parent()
    if os.getppid() != parent:
        os._exit(127)  # the supervisor died before the kernel knew what that means
    kernel.enter_cgroups(cgroups)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(CHILD_OOM_SCORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold the secrets
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log_w, 1)
    os.dup2(log_w, 2)
    for fd in keep:
        os.set_inheritable(fd, True)
    for signum in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, *SIGNALS):
        signal.signal(signum, signal.SIG_DFL)
    os.umask(0o022)
    os.chdir(cwd)


def _drain(fd: int, *, wait: bool = False) -> list[bytes]:
    """What is in the pipe; with `wait`, all until its other end closes."""
    os.set_blocking(fd, wait)
    pieces = []
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(fd, READ_BYTES):
            pieces.append(piece)
    os.close(fd)
    return pieces

"""Is that worker alive? One process of one worker: started, watched, started again with growing pauses, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

from msgspec import Struct

from harch.base.clock import Clock
from harch.execution.sandbox import Sandbox
from harch.pipelines.workers.config import TOKEN, read_config
from harch.pipelines.workers.confinement import confined, make_ready

BACKOFF_S_FIRST, BACKOFF_S_MAX = 0.2, 10.0
STEADY_S = 20.0  # after so long without an end, the next pause is short again
DRAIN_GRACE_S = 30.0
LOG_BYTES_MAX = 16 << 20


class WorkerEvent(Struct, frozen=True, kw_only=True):
    """What happened to a process: `started`, `ended` (with its exit status), `stopped`."""

    worker: str
    what: str
    detail: str = ""


async def start_plain(
    command: list[str], environment: dict[str, str], sink: IO[bytes], keep: tuple[int, ...] = ()
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sink,
        stderr=sink,
        env=environment,
        pass_fds=keep,
        start_new_session=True,  # a Ctrl-C meant for us is passed on as SIGTERM, once
    )


async def start_confined(
    sandbox: Sandbox, command: list[str], config_file: Path, environment: dict[str, str], sink: IO[bytes]
) -> tuple[asyncio.subprocess.Process, int]:
    """The process, and the worker's pid in it. Arguments go through a file of their own, because they hold secrets, and
    command lines can be read."""
    config = await asyncio.to_thread(read_config, config_file)
    await asyncio.to_thread(make_ready, config)
    arguments = confined(sandbox, config, config_file, environment, os.environ)
    told, says = os.pipe()
    given = os.memfd_create("sandbox")
    try:
        os.write(given, b"".join(os.fsencode(one) + b"\0" for one in arguments))
        os.lseek(given, 0, os.SEEK_SET)
        outer = [sandbox.program, "--args", str(given), "--json-status-fd", str(says), "--", *command]
        process = await start_plain(outer, {}, sink, keep=(given, says))
    finally:
        os.close(given)
        os.close(says)
    try:
        return process, await asyncio.to_thread(_child_pid, told) or process.pid
    finally:
        os.close(told)


def command_of(stage: str, config_file: Path) -> list[str]:
    return [sys.executable, "-m", "harch.pipelines.workers", stage, "--config", str(config_file)]


def _child_pid(told: int) -> int:
    """What bubblewrap says of the process in it; 0 if it ended before."""
    said = b""
    while b"\n" not in said and (piece := os.read(told, 4096)):
        said += piece
    try:
        return int(json.loads(said.splitlines()[0])["child-pid"])
    except (IndexError, KeyError, ValueError):
        return 0


class WorkerProcess:
    """Keeps one worker running until `stop`. Its output goes to one file, which starts anew when it is too large."""

    def __init__(
        self,
        worker: str,
        stage: str,
        config: Path,
        log_file: Path,
        *,
        clock: Clock,
        on_event: Callable[[WorkerEvent], None],
        environment: dict[str, str] | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        """With a `sandbox` that works, `environment` is all that the worker gets beside what is harmless."""
        self.worker = worker
        self.stage = stage
        self.config = config
        self.log_file = log_file
        self.starts = 0
        self._clock = clock
        self._on_event = on_event
        self._environment = environment
        self._sandbox = sandbox if sandbox is not None and sandbox.program else None
        self.token = ""  # of the last start: its status carries it
        self._inner_pid: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the worker itself, also where a sandbox is around it."""
        process = self._process
        if process is None or process.returncode is not None:
            return None
        return process.pid if self._sandbox is None else self._inner_pid

    async def start(self) -> None:
        await self._launch()
        self._keeper = asyncio.create_task(self._keep(), name=f"keep-{self.worker}")

    async def stop(self, *, grace_s: float = DRAIN_GRACE_S) -> bool:
        """Lets it drain (SIGTERM), then insists. True if it ended by itself."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return True
        self._signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await process.wait()
        except TimeoutError:
            self._signal(process, signal.SIGKILL)
            await process.wait()
            self._tell("stopped", "did not drain in time and was killed")
            return False
        self._tell("stopped", f"exit status {process.returncode}")
        return True

    async def kill(self) -> None:
        """Ends it without a word, as a crash would; its keeper starts it again."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)

    async def _launch(self) -> None:
        self.log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self.log_file.exists() and self.log_file.stat().st_size > LOG_BYTES_MAX
        self.token = secrets.token_hex(8)
        environment = {**(os.environ if self._environment is None else self._environment), TOKEN: self.token}
        command = command_of(self.stage, self.config)
        with self.log_file.open("wb" if fresh else "ab") as sink:
            if self._sandbox is None:
                self._process = await start_plain(command, environment, sink)
            else:
                self._process, self._inner_pid = await start_confined(
                    self._sandbox, command, self.config, environment, sink
                )
        self.starts += 1
        self._tell("started", f"pid {self._process.pid}")

    def _signal(self, process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        """To the worker: what is around it would end without letting it drain."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid or process.pid, number)

    async def _keep(self) -> None:
        pause_s = BACKOFF_S_FIRST
        while self._process is not None:
            began_s = self._clock.monotonic_s()
            status = await self._process.wait()
            self._tell("ended", f"exit status {status}")
            if self._clock.monotonic_s() - began_s > STEADY_S:
                pause_s = BACKOFF_S_FIRST
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_S_MAX)
            await self._launch()

    def _tell(self, what: str, detail: str) -> None:
        self._on_event(WorkerEvent(worker=self.worker, what=what, detail=detail))

"""Is that worker alive? One process of one worker: started, watched, started again with growing pauses, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from harch.base.clock import Clock

BACKOFF_S_FIRST, BACKOFF_S_MAX = 0.2, 10.0
STEADY_S = 20.0  # after so long without an end, the next pause is short again
DRAIN_GRACE_S = 30.0
LOG_BYTES_MAX = 16 << 20


class WorkerEvent(Struct, frozen=True, kw_only=True):
    """What happened to a process: `started`, `ended` (with its exit status), `stopped`."""

    worker: str
    what: str
    detail: str = ""


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
    ) -> None:
        self.worker = worker
        self.stage = stage
        self.config = config
        self.log_file = log_file
        self.starts = 0
        self._clock = clock
        self._on_event = on_event
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

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
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await process.wait()
        except TimeoutError:
            process.kill()
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
        with self.log_file.open("wb" if fresh else "ab") as sink:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "harch.pipelines.workers",
                self.stage,
                "--config",
                str(self.config),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=self._environment,
                start_new_session=True,  # a Ctrl-C meant for us is passed on as SIGTERM, once
            )
        self.starts += 1
        self._tell("started", f"pid {self._process.pid}")

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

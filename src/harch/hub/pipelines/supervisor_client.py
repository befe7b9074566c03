"""How does the hub speak to the supervisor of its workers? Finds it or starts it, writes orders, reads its report."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from harch.base.errors import HarchError
from harch.base.state_files import read_sealed
from harch.execution.isolation.sandbox import choose, workers_mode
from harch.execution.kernel import start_ticks
from harch.execution.process_record import ProcessRecord, RunningProcess, found_running, write_record
from harch.hub.pipelines.supervisor import (
    ORDERS,
    REPORT,
    STOP_GRACE_S,
    Orders,
    SupervisorReport,
    WorkerOrder,
    WorkerReport,
)
from harch.pipelines.engine.keys import write_state

RECORD, OUTPUT = "keeper.pid", "keeper.log"
OUTPUT_BYTES_MAX = 16 << 20


class SupervisorClient:
    """One hub's keeper. It outlives a hub that is killed, and is found again by the next one."""

    def __init__(self, folder: Path) -> None:
        """Raises E0201 for a mode of the sandbox that nobody knows."""
        self._folder = folder
        self._mode = workers_mode(os.environ)
        self._is_confined = False
        self._process: RunningProcess | None = None
        self._ordered: Orders | None = None

    @property
    def pid(self) -> int | None:
        return self._process.record.pid if self._process is not None else None

    async def refusal(self) -> HarchError | None:
        """Why no worker may be started: E0312 where it must be confined and cannot be. Asked until it can be."""
        if self._mode == "required" and not self._is_confined:
            try:
                (await asyncio.to_thread(choose, self._mode, self._folder)).check()
            except HarchError as error:
                return error
            self._is_confined = True
        return None

    async def settle(self) -> None:
        """Ends a keeper, and its workers, that an earlier hub started with the sandbox in another mode."""
        if self._is_there() and self._process is not None:
            mode = self._process.record.config_sha256 or "auto"  # earlier releases did not say
            if mode != self._mode:
                await self.stop()

    def order(self, workers: tuple[WorkerOrder, ...]) -> None:
        """These workers and no others. Starts the keeper if it does not run; without workers none is started."""
        orders = Orders(workers)
        if orders != self._ordered:
            write_state(self._folder / ORDERS, msgspec.json.encode(orders))
            self._ordered = orders
        if not self._is_there() and workers:
            self._process = self._launch()

    def report(self) -> dict[str, WorkerReport]:
        """What it saw last, by `pipeline/worker`. A keeper that is gone sees nothing."""
        if not self._is_there():
            return {}
        try:
            return msgspec.json.decode(read_sealed(self._folder / REPORT), type=SupervisorReport).workers
        except (OSError, msgspec.MsgspecError, HarchError):
            return {}

    async def stop(self) -> None:
        """Ends all workers, then the keeper."""
        process, self._process = self._process or found_running(self._folder / RECORD), None
        self._ordered = None
        if process is not None:
            await process.stop(STOP_GRACE_S + 2.0)

    def _is_there(self) -> bool:
        if self._process is None:
            self._process = found_running(self._folder / RECORD)
        if self._process is not None and self._process.has_ended:
            self._process = None
        return self._process is not None

    def _launch(self) -> RunningProcess:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._folder / REPORT).unlink(missing_ok=True)  # of an earlier one, whose workers end with it
        output = self._folder / OUTPUT
        fresh = output.exists() and output.stat().st_size > OUTPUT_BYTES_MAX
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HARCH_")}
        with output.open("wb" if fresh else "ab") as sink:
            child = subprocess.Popen(
                [sys.executable, "-m", "harch.hub.pipelines.supervisor", str(self._folder), self._mode],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environment,
                start_new_session=True,  # a Ctrl-C meant for the hub does not reach it
            )
        record = ProcessRecord(child.pid, start_ticks(child.pid), self._mode)  # all the configuration that it has
        write_record(self._folder / RECORD, record)
        return RunningProcess(record, child)

"""Who runs the workers of this hub while the hub itself is started anew? A small process of its own.

`python -m harch.hub.pipelines.supervisor FOLDER [auto|off|required]`: reads `orders.json` whenever it changes, runs
exactly those workers, starts again what ends, and writes what it sees to `report.json`. It decides nothing. SIGTERM
stops them all. Where workers must be confined and cannot be, it ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec
from msgspec import Struct, field

from harch.base.clock import SystemClock
from harch.base.errors import HarchError
from harch.base.state_files import keep_files_private, read_sealed
from harch.execution.isolation.sandbox import Sandbox, choose, mode_named
from harch.pipelines.engine.keys import write_state
from harch.pipelines.workers.process import WorkerEvent, WorkerProcess

ORDERS, REPORT, LOCK = "orders.json", "report.json", "keeper.lock"
POLL_S = 0.2
STOP_GRACE_S = 5.0  # of all workers when the keeper ends: what they have not finished is replayed

log = logging.getLogger("harch.keeper")


class WorkerOrder(Struct, frozen=True, kw_only=True):
    """One worker that should run. `environment` is added to the keeper's own."""

    pipeline: str
    worker: str
    stage: str
    config: str
    log_file: str
    environment: dict[str, str] = {}

    @property
    def id(self) -> str:
        return f"{self.pipeline}/{self.worker}"


class Orders(Struct, frozen=True):
    workers: tuple[WorkerOrder, ...] = ()


class WorkerReport(Struct, frozen=True, kw_only=True):
    """What the keeper sees of one worker. `stopping`: it was told to drain. `said`: what happened to it last. By its
    `token` the worker's own words are known. `sandbox`: what is around it, and why if nothing is."""

    pid: int | None
    starts: int
    stopping: bool = False
    reported: str = field(default="", name="said")
    token: str = ""
    sandbox: str = ""


class SupervisorReport(Struct, frozen=True):
    workers: dict[str, WorkerReport] = {}


class WorkerSupervisor:
    """`follow` until cancelled; `stop` last."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self._folder = folder
        self._sandbox = sandbox
        self._clock = SystemClock()
        self._running: dict[str, WorkerProcess] = {}
        self._stopping: dict[str, tuple[WorkerProcess, asyncio.Task[bool]]] = {}
        self._last_events: dict[str, str] = {}
        self._seen: tuple[int, int] | None = None
        self._reported: SupervisorReport | None = None

    async def follow(self) -> None:
        while True:
            orders = self._new_orders()
            if orders is not None:
                await self._obey(orders)
            self._tidy()
            self._write_report()
            await self._clock.sleep(POLL_S)

    async def stop(self) -> None:
        for name in list(self._running):
            self._let_go(name, STOP_GRACE_S)
        await asyncio.gather(*(task for _, task in self._stopping.values()), return_exceptions=True)
        self._tidy()
        self._write_report()

    def _new_orders(self) -> Orders | None:
        try:
            stat = (self._folder / ORDERS).stat()
            if (stat.st_ino, stat.st_mtime_ns) == self._seen:
                return None
            orders = msgspec.json.decode(read_sealed(self._folder / ORDERS), type=Orders)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, HarchError) as error:
            log.error("cannot read the orders: %s", type(error).__name__)
            return None
        self._seen = (stat.st_ino, stat.st_mtime_ns)
        return orders

    async def _obey(self, orders: Orders) -> None:
        wanted = {order.id: order for order in orders.workers}
        for name in [name for name in self._running if name not in wanted]:
            self._let_go(name, None)
        for name, order in wanted.items():
            if name not in self._running and name not in self._stopping:
                await self._start(order)

    async def _start(self, order: WorkerOrder) -> None:
        process = WorkerProcess(
            order.worker,
            order.stage,
            Path(order.config),
            Path(order.log_file),
            clock=self._clock,
            on_event=lambda event: self._on_event(order.id, event),
            environment=order.environment if self._sandbox.program else {**os.environ, **order.environment},
            sandbox=self._sandbox,
        )
        self._running[order.id] = process
        try:
            await process.start()
        except OSError as error:
            self._last_events[order.id] = f"not started: {error.strerror}"
            del self._running[order.id]
            self._seen = None  # tried again with the next look

    def _let_go(self, name: str, grace_s: float | None) -> None:
        process = self._running.pop(name)
        stop = process.stop() if grace_s is None else process.stop(grace_s=grace_s)
        self._stopping[name] = (process, asyncio.create_task(stop, name=f"stop-{name}"))

    def _on_event(self, name: str, event: WorkerEvent) -> None:
        self._last_events[name] = f"{event.what}: {event.detail}"
        log.info("%s %s: %s", name, event.what, event.detail)

    def _tidy(self) -> None:
        for name in [name for name, (_, task) in self._stopping.items() if task.done()]:
            del self._stopping[name]
            self._last_events.pop(name, None)

    def _write_report(self) -> None:
        kept = {name: self._kept(name, process) for name, process in self._running.items()}
        for name, (process, _) in self._stopping.items():
            kept[name] = self._kept(name, process, stopping=True)
        report = SupervisorReport(kept)
        if report != self._reported:
            with contextlib.suppress(OSError):  # a full disk; the next change is written again
                write_state(self._folder / REPORT, msgspec.json.encode(report))
                self._reported = report

    def _kept(self, name: str, process: WorkerProcess, *, stopping: bool = False) -> WorkerReport:
        box = "bubblewrap" if self._sandbox.program else f"none: {self._sandbox.detail}"
        return WorkerReport(
            pid=process.pid,
            starts=process.starts,
            stopping=stopping,
            reported=self._last_events.get(name, ""),
            token=process.token,
            sandbox=box,
        )


async def supervise(folder: Path, sandbox: Sandbox) -> None:
    """Until SIGTERM."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, over.set)
    supervisor = WorkerSupervisor(folder, sandbox)
    following = asyncio.create_task(supervisor.follow(), name="follow")
    ended = asyncio.create_task(over.wait(), name="over")
    await asyncio.wait((following, ended), return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    following.cancel()
    results = await asyncio.gather(following, return_exceptions=True)
    await supervisor.stop()
    for result in results:
        if isinstance(result, Exception):
            raise result


def main() -> int:
    keep_files_private()
    folder = Path(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.error("%s is used by another worker supervisor", folder)
        return 1
    try:
        sandbox = choose(mode_named(sys.argv[2] if len(sys.argv) > 2 else "auto"), folder)
        sandbox.check()
    except HarchError as error:
        log.error("%s: %s", error.code, error.message)
        return 1
    log.info(
        "workers running %s", f"in {sandbox.program}" if sandbox.program else f"without a sandbox: {sandbox.detail}"
    )
    asyncio.run(supervise(folder, sandbox))
    return 0


if __name__ == "__main__":
    sys.exit(main())

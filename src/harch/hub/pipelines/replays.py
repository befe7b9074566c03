"""Who runs replays? One process per run, started here; its order and its result are files of the pipeline's folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from harch.base.errors import HarchError
from harch.base.sealed import read_sealed
from harch.execution.sandbox import Sandbox, choose, workers_mode
from harch.hub.pipelines.files import checked_path
from harch.hub.pipelines.logs import LOGS
from harch.hub.pipelines.pipeline import FILES, KEPT, RunningPipeline
from harch.hub.pipelines.replay_wish import ReplayWish
from harch.hub.pipelines.views import ReplayRun
from harch.pipelines.workers.config import write_config
from harch.pipelines.workers.parts import worker_config
from harch.pipelines.workers.process import command_of, start_confined, start_plain
from harch.pipelines.workers.replay_order import ReplayOrder, ReplayResult

RUNS_KEPT = 20
FOLDER = "replays"
STOP_GRACE_S = 10.0


class Replays:
    """Of all pipelines of a hub, one at a time of each. A run ends with the hub, and says so."""

    def __init__(self) -> None:
        self._running: dict[str, ReplayProcess] = {}
        self._starting = asyncio.Lock()
        self._started = 0
        self._sandbox: Sandbox | None = None

    async def start(self, pipeline: RunningPipeline, wish: ReplayWish) -> ReplayRun:
        """Raises E0756 while another run of it is under way, or where nothing is kept; E0312 without its sandbox."""
        async with self._starting:
            return await self._start(pipeline, wish)

    async def _start(self, pipeline: RunningPipeline, wish: ReplayWish) -> ReplayRun:
        name, folder = pipeline.record.name, pipeline.folder
        if (known := self._running.get(name)) is not None and not await known.has_left(folder / FOLDER):
            raise HarchError("E0756", f"run {known.run} of `{name}` is under way", hint="wait for it, or stop it")
        run = f"r{secrets.token_hex(6)}"
        order = self._order(run, pipeline, wish)
        if not wish.file and not any((folder / KEPT).glob("*/*.log")):
            raise HarchError(
                "E0756",
                f"`{name}` has kept no events",
                hint="set `durability.events_kept_s` in its file, or replay a file of rows",
            )
        (folder / FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
        _forget_old(folder / FOLDER)
        worker, config_path = f"replay-{self._next()}", folder / FOLDER / f"{run}.config.json"
        engine, act_engine = pipeline.access("replay")
        state = folder / FOLDER / f"{run}.state"
        config = worker_config(
            pipeline.parts,
            "replay",
            worker,
            engine=engine,
            act_engine=act_engine,
            state_folder=str(state),
            kept_folder=str(folder / KEPT),
        )
        write_config(config_path, structs.replace(config, replay=order))
        sandbox = await asyncio.to_thread(self._chosen, folder)
        with (folder / LOGS / f"{worker}.log").open("wb") as output:
            command, own = command_of("replay", config_path), pipeline.environment_of("replay")
            if sandbox.program:
                process, pid = await start_confined(sandbox, command, config_path, own, output)
            else:
                process = await start_plain(command, {**_environment(), **own}, output)
                pid = process.pid
        self._running[name] = ReplayProcess(run, process, pid)
        return self.look(pipeline, run)

    def look(self, pipeline: RunningPipeline, run: str) -> ReplayRun:
        """How far it is. Raises E0710 for a run that nobody knows."""
        folder, name = pipeline.folder / FOLDER, pipeline.record.name
        order = folder / f"{run}.config.json"
        if not run.isalnum() or not order.is_file():
            raise HarchError("E0710", f"`{name}` has no replay `{run[:32]}`", hint="runs are kept for a while only")
        asked = msgspec.json.decode(read_sealed(order), type=_Asked).replay
        result = _result(folder, run)
        known = self._running.get(name)
        is_alive = known is not None and known.run == run and known.process.returncode is None
        state = result.state if is_alive or result.state != "running" else "failed"
        trouble = result.trouble or ("" if state != "failed" else "its process ended; its log tells why")
        return ReplayRun(
            pipeline=name,
            run=run,
            state=state,
            dry_run=asked.is_dry,
            again=asked.again,
            counts=msgspec.to_builtins(result.counts),
            new=tuple(msgspec.to_builtins(one) for one in result.new),
            trouble=trouble,
        )

    async def stop(self, name: str | None = None) -> None:
        """The run of one pipeline, or all of them."""
        for known in [name] if name is not None else list(self._running):
            if known not in self._running:
                continue
            running = self._running.pop(known)
            if running.process.returncode is not None:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_GRACE_S):
                    await running.process.wait()
            except TimeoutError:
                running.process.kill()
                await running.process.wait()

    def _order(self, run: str, pipeline: RunningPipeline, wish: ReplayWish) -> ReplayOrder:
        file = ""
        if wish.file:
            path = checked_path(pipeline.folder / FILES, wish.file)
            if not path.is_file():
                raise HarchError("E0713", f"{wish.file} is not here", hint="`harch pipeline replay --file` sends it")
            file = str(path)
        return ReplayOrder(
            run=run,
            result_file=str(pipeline.folder / FOLDER / f"{run}.json"),
            since_ns=_ns(wish.since) or 0,
            until_ns=_ns(wish.until),
            file=file,
            source=wish.source,
            is_dry=wish.is_dry,
            again=wish.again,
            events_per_s=wish.events_per_s,
        )

    def _chosen(self, folder: Path) -> Sandbox:
        """Raises E0312 where it must be confined and cannot be."""
        if self._sandbox is None:
            found = choose(workers_mode(os.environ), folder)
            found.check()
            self._sandbox = found
        return self._sandbox

    def _next(self) -> int:
        self._started += 1
        return self._started


@dataclass(frozen=True, slots=True)
class ReplayProcess:
    """`pid` is the worker's own, also inside of a sandbox."""

    run: str
    process: asyncio.subprocess.Process
    pid: int

    async def has_left(self, folder: Path) -> bool:
        """A run that has told its result only has to go: it is waited for, not held against the next."""
        if self.process.returncode is None and _result(folder, self.run).state != "running":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_GRACE_S):
                    await self.process.wait()
        return self.process.returncode is not None


class _Asked(Struct, frozen=True):
    replay: ReplayOrder


def _result(folder: Path, run: str) -> ReplayResult:
    """What the run has told so far."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, HarchError):
        return msgspec.json.decode(read_sealed(folder / f"{run}.json"), type=ReplayResult)
    return ReplayResult()


def _ns(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000) * 1_000_000


def _forget_old(folder: Path) -> None:
    """Runs of long ago, with their state."""
    import shutil

    orders = sorted(folder.glob("*.config.json"), key=lambda path: path.stat().st_mtime)
    for path in orders[: -RUNS_KEPT + 1]:
        run = path.name.partition(".")[0]
        path.unlink(missing_ok=True)
        (folder / f"{run}.json").unlink(missing_ok=True)
        shutil.rmtree(folder / f"{run}.state", ignore_errors=True)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HARCH_")}

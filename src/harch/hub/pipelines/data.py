"""What goes into the pipelines of a hub, and what comes out?

Files of models, events, replays in processes of their own, and rows of results.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, structs

from harch.base.errors import HarchError
from harch.base.rejection import Rejection
from harch.base.state_files import read_sealed
from harch.execution.isolation.sandbox import Sandbox, choose, workers_mode
from harch.hub.pipelines import audit, files, planning
from harch.hub.pipelines.audit import Write
from harch.hub.pipelines.files import LOGS, checked_path, read_page
from harch.hub.pipelines.loop import PipelineLoop
from harch.hub.pipelines.pipeline import FILES, KEPT, RunningPipeline
from harch.hub.pipelines.sources import forward, served_source
from harch.hub.pipelines.values import PipelineRecord
from harch.hub.pipelines.views import FileView, ReplayRequest
from harch.hub.views import LogPage
from harch.pipelines.client.errors import JetStreamRefused, NatsError, as_harch_error
from harch.pipelines.engine.jetstream_admin import JetStreamAdmin
from harch.pipelines.sense.features import feature_schema
from harch.pipelines.sense.settings import NS_PER_S, SenseSettings
from harch.pipelines.think.messages import decode_outputs
from harch.pipelines.wire.columns import decode_columns
from harch.pipelines.wire.header import BatchHeader, check_payload, unpack_header
from harch.pipelines.workers.config import ReplayOrder, ReplayResult, write_config
from harch.pipelines.workers.names import PipelineNames, names_of
from harch.pipelines.workers.parts import worker_config
from harch.pipelines.workers.process import command_of, start_confined, start_plain
from harch.wire.pipelines import PipelineView, ReplayRun, ResultRow, ResultsView

MESSAGES_MAX = 200  # of one page; a message is a window of one partition
ROWS_MAX = 10_000
_NO_MESSAGE = 10037


async def read_results(
    admin: JetStreamAdmin, names: PipelineNames, sense: SenseSettings, *, after: int, thinks: bool
) -> ResultsView:
    """Rows of messages behind number `after`; a negative one means so many messages before the end. Raises E0701."""
    rows: list[ResultRow] = []
    try:
        seq = after if after >= 0 else await _before_end(admin, names, -after)
        for _ in range(MESSAGES_MAX):
            message = await _next(admin, names, seq + 1)
            if message is None or len(rows) >= ROWS_MAX:
                break
            seq = int(message["seq"])
            payload = base64.b64decode(message.get("data", ""))
            rows += _outputs(payload, sense, seq) if thinks else _features(payload, sense, seq)
    except NatsError as error:
        raise as_harch_error(error, "reading results") from error
    return ResultsView(pipeline=names.pipeline, subject=names.results("*"), items=tuple(rows), next_after=seq)


async def _before_end(admin: JetStreamAdmin, names: PipelineNames, count: int) -> int:
    info = await admin.call(f"STREAM.INFO.{names.results_stream}")
    state = info.get("state")
    last = int(state.get("last_seq", 0)) if isinstance(state, dict) else 0
    return max(0, last - min(count, MESSAGES_MAX))


async def _next(admin: JetStreamAdmin, names: PipelineNames, seq: int) -> dict[str, Any] | None:
    try:
        found = await admin.call(
            f"STREAM.MSG.GET.{names.results_stream}", {"seq": seq, "next_by_subj": names.results("*")}
        )
    except JetStreamRefused as error:
        if error.code == _NO_MESSAGE:
            return None
        raise
    message = found.get("message")
    if not isinstance(message, dict):
        raise HarchError("E1001", "the engine returned something other than a message")
    return message


def _features(payload: bytes, sense: SenseSettings, seq: int) -> list[ResultRow]:
    """What cannot be read is of an earlier file, and is passed over."""
    header = unpack_header(payload)
    schema = feature_schema(sense)
    if isinstance(header, Rejection) or header.schema != schema.id:
        return []
    body = check_payload(header, payload)
    columns = body if isinstance(body, Rejection) else decode_columns(schema, header.n, body)
    if isinstance(columns, Rejection):
        return []
    names = [column.name for column in schema.values]
    return _rows(header, sense, seq, columns.device, dict(zip(names, columns.values, strict=True)), columns.metric)


def _outputs(payload: bytes, sense: SenseSettings, seq: int) -> list[ResultRow]:
    found = decode_outputs(payload)
    if isinstance(found, Rejection):
        return []
    header, decided = found
    model = f"{decided.ref.model}@{decided.ref.version}"
    return _rows(header, sense, seq, decided.devices, decided.outputs, model=model)


def _rows(
    header: BatchHeader,
    sense: SenseSettings,
    seq: int,
    devices: np.ndarray,
    columns: dict[str, np.ndarray],
    metrics: np.ndarray | None = None,
    *,
    model: str = "",
) -> list[ResultRow]:
    at = datetime.fromtimestamp(header.t_first_ns / NS_PER_S, UTC)
    by_metric = metrics is not None and sense.rows_per == "metric"
    return [
        ResultRow(
            seq=seq,
            window_end=at,
            device=sense.devices[number] if number < len(sense.devices) else str(number),
            metric=sense.metrics[int(metrics[row])] if by_metric and metrics is not None else "",
            model=model,
            values={name: _number(column[row]) for name, column in columns.items()},
        )
        for row, number in enumerate(devices.tolist())
    ]


def _number(value: float) -> float | None:
    """JSON knows no NaN: a metric of which a device sent nothing is null."""
    return float(value) if np.isfinite(value) else None


# Who runs replays? One process per run, started here; its order and its result are files of the pipeline's folder.


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

    async def start(self, pipeline: RunningPipeline, request: ReplayRequest) -> ReplayRun:
        """Raises E0756 while another run of it is under way, or where nothing is kept; E0312 without its sandbox."""
        async with self._starting:
            return await self._start(pipeline, request)

    async def _start(self, pipeline: RunningPipeline, request: ReplayRequest) -> ReplayRun:
        name, folder = pipeline.record.name, pipeline.folder
        if (known := self._running.get(name)) is not None and not await known.has_left(folder / FOLDER):
            raise HarchError("E0756", f"run {known.run} of `{name}` is in progress", hint="wait for it, or stop it")
        run = f"r{secrets.token_hex(6)}"
        order = self._order(run, pipeline, request)
        if not request.file and not any((folder / KEPT).glob("*/*.log")):
            raise HarchError(
                "E0756",
                f"`{name}` has no stored events",
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
            raise HarchError("E0710", f"`{name}` has no replay `{run[:32]}`", hint="runs are only kept for a while")
        order_read = msgspec.json.decode(read_sealed(order), type=_StoredOrder).replay
        result = _result(folder, run)
        known = self._running.get(name)
        is_alive = known is not None and known.run == run and known.process.returncode is None
        state = result.state if is_alive or result.state != "running" else "failed"
        trouble = result.trouble or ("" if state != "failed" else "its process ended; see its log")
        return ReplayRun(
            pipeline=name,
            run=run,
            state=state,
            dry_run=order_read.is_dry,
            again=order_read.again,
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

    def _order(self, run: str, pipeline: RunningPipeline, request: ReplayRequest) -> ReplayOrder:
        file = ""
        if request.file:
            path = checked_path(pipeline.folder / FILES, request.file)
            if not path.is_file():
                raise HarchError(
                    "E0713", f"{request.file} is missing", hint="upload it with `harch pipeline replay --file`"
                )
            file = str(path)
        return ReplayOrder(
            run=run,
            result_file=str(pipeline.folder / FOLDER / f"{run}.json"),
            since_ns=_ns(request.since) or 0,
            until_ns=_ns(request.until),
            file=file,
            source=request.source,
            is_dry=request.is_dry,
            again=request.again,
            events_per_s=request.events_per_s,
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
        """A run that has reported its result only has to go: it is waited for, not held against the next."""
        if self.process.returncode is None and _result(folder, self.run).state != "running":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_GRACE_S):
                    await self.process.wait()
        return self.process.returncode is not None


class _StoredOrder(Struct, frozen=True):
    replay: ReplayOrder


def _result(folder: Path, run: str) -> ReplayResult:
    """What the run has reported so far."""
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


# What goes into the pipelines of a hub, and what comes out? Files of models, events, replays, results.


Find = Callable[[str, str | None], PipelineRecord]
Mine = Callable[[str, str], PipelineRecord | None]
View = Callable[[PipelineRecord], Awaitable[PipelineView]]


class PipelineData:
    """Behind the API. `find` raises E0710, `mine` E0711 for a name of another tenant."""

    def __init__(self, find: Find, mine: Mine, view: View, loop: PipelineLoop, country: str, write: Write) -> None:
        self._find, self._mine, self._view, self._loop, self._country = find, mine, view, loop, country
        self._write = write
        self._replays = Replays()

    async def put_file(
        self, name: str, path: str, data: bytes, *, offset: int, total: int, sha256: str, tenant: str
    ) -> FileView | None:
        """One piece of a file; answers the file when it is whole."""
        names_of(self._country, name)
        record = self._mine(name, tenant)
        if record is not None:
            files.check_replaced(planning.files_named(planning.spec_of(record)), path, sha256)
        folder = self._loop.pipeline_folder(name) / "files"
        return await asyncio.to_thread(files.take_part, folder, path, data, offset=offset, total=total, sha256=sha256)

    async def take_events(self, name: str, source: str, body: bytes, content_type: str, *, tenant: str | None) -> bytes:
        """Gives a body to an HTTP source of the pipeline and answers what that said."""
        sources = (await self._view(self._find(name, tenant))).sources
        running = self._running(name, tenant)
        found = served_source(sources, source, name)
        return await forward(sources[found], body, content_type, running.source_keys.get(found, ""))

    async def read_log(self, name: str, worker: str, *, tenant: str | None, offset: int, bytes_max: int) -> LogPage:
        """A page of what one worker printed. Raises E0710."""
        self._find(name, tenant)
        return await asyncio.to_thread(read_page, self._loop.pipeline_folder(name), worker, offset, bytes_max)

    async def replay(self, name: str, request: ReplayRequest, *, tenant: str | None, actor: str) -> ReplayRun:
        """Begins a replay of events. What is not a dry run is in the audit chain first. Raises E0756, E0713."""
        record, running = self._find(name, tenant), self._running(name, tenant)
        if not request.is_dry:
            await self._write([], [audit.events_replayed(record, request.file, again=request.again, by=actor)])
        return await self._replays.start(running, request)

    async def look_at_replay(self, name: str, run: str, *, tenant: str | None) -> ReplayRun:
        """Raises E0710 for a run that is not known."""
        return self._replays.look(self._running(name, tenant), run)

    async def stop_replay(self, name: str, run: str, *, tenant: str | None) -> ReplayRun:
        running = self._running(name, tenant)
        self._replays.look(running, run)
        await self._replays.stop(name)
        return self._replays.look(running, run)

    async def close(self) -> None:
        await self._replays.stop()

    def _running(self, name: str, tenant: str | None) -> RunningPipeline:
        self._find(name, tenant)
        running = self._loop.running.get(name)
        if running is None:
            raise HarchError("E0751", f"`{name}` is not running", hint="try again in a moment", retry_after_s=2)
        return running

    async def results(self, name: str, *, after: int, tenant: str | None) -> ResultsView:
        """A page of what its last stage made. Raises E0755 where that is ACT, E0751 while it does not run."""
        running = self._running(name, tenant)
        parts = running.parts
        if parts.act is not None:
            raise HarchError(
                "E0755",
                f"`{name}` ends in actions and keeps no results",
                hint="`harch pipeline top` counts them, the audit chain has each; omit `act` to read results",
            )
        engine = self._loop.engine
        thinks = parts.think is not None
        return await read_results(engine.admin(engine.main), running.names, parts.sense, after=after, thinks=thinks)

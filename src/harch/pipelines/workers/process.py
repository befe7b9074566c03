"""Is that worker alive, and what may it see of the machine?

One process: confined, started, watched, started again with growing pauses, stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from msgspec import Struct

from harch.base.clock import Clock
from harch.execution.isolation.sandbox import Sandbox, SandboxView, is_inside
from harch.pipelines.act.settings import SqlSink
from harch.pipelines.sense.settings import FileSource
from harch.pipelines.think.settings import Device
from harch.pipelines.workers.config import TOKEN, WorkerConfig, read_config

# What may a stage worker see of the machine? Its own files, code that it cannot change, and the network.
#
# The same sandbox as that of tasks, with what a worker needs: its configuration, the folder of its stage to write to,
# files of models to read. So code of users, which THINK executes, finds no keys of other stages, no state of the hub,
# and
# no other pipeline.


_PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "CUDA_VISIBLE_DEVICES")
_KERNELS = Path(__file__).parent.parent / "sense" / "__pycache__"
_SQLITE = "sqlite:///"


def confined(
    sandbox: Sandbox, config: WorkerConfig, config_file: Path, environment: Mapping[str, str], host: Mapping[str, str]
) -> list[str]:
    """Arguments of bubblewrap. `environment` is the worker's own; of the host's only what is harmless is passed on."""
    view = SandboxView(
        work_dir=config.state_folder,
        work_dir_shared=False,
        writable=tuple(_existing(_written(config))),
        readable=tuple(_existing(_read(config, config_file, environment))),
        hidden=(),
        gpu_indexes=tuple(_gpus(config)),
        env={**{name: host[name] for name in _PASSED if name in host}, **environment, "HOME": config.state_folder},
    )
    args = sandbox.arguments(view)
    # Machine code of kernels is kept beside them; each stage has a copy of its own that it may add to.
    own = ["--bind", str(_own_kernels(config)), str(_KERNELS)] if _KERNELS.is_dir() else []
    last = args.index("--remount-ro")
    # As the first process of its own world it is the one that signals reach.
    return ["--as-pid-1", *args[:last], *own, *args[last:]]


def make_ready(config: WorkerConfig) -> None:
    """Folders that are bound must be there."""
    Path(config.state_folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    if config.stage == "source" and config.kept_folder:
        Path(config.kept_folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    own = _own_kernels(config)
    if _KERNELS.is_dir() and not own.exists():
        shutil.copytree(_KERNELS, own)


def _own_kernels(config: WorkerConfig) -> Path:
    return Path(config.state_folder) / "kernels"


def _written(config: WorkerConfig) -> Iterator[str]:
    if config.stage == "source" and config.kept_folder:
        yield config.kept_folder
    if config.replay is not None:
        yield str(Path(config.replay.result_file).parent)
    for sink in config.act.sinks.values() if config.act is not None and config.stage in ("act", "fused") else ():
        if isinstance(sink, SqlSink) and sink.url.startswith(f"{_SQLITE}/"):
            yield str(Path(sink.url.removeprefix(_SQLITE)).parent)


def _read(config: WorkerConfig, config_file: Path, environment: Mapping[str, str]) -> Iterator[str]:
    yield str(config_file)
    yield from (sys.prefix, sys.base_prefix)  # also by the name that they were called by, which may be a link
    yield from (path for path in sys.path if path.endswith("-packages"))  # not the folder that somebody started us in
    yield from environment.get("PYTHONPATH", "").split(os.pathsep)
    if config.think is not None:
        yield os.path.realpath(config.model_folder)
        paths = [version.path for model in config.think.models for version in model.versions]
        yield from (path for path in paths if path is not None and path.startswith("/"))
    if config.replay is not None:
        yield from (config.kept_folder, config.replay.file)
    if config.stage == "source":
        yield from (source.path for source in config.sense.sources if isinstance(source, FileSource))
    if config.act is not None:
        stops = [config.act.stop_file, *(action.interlocks.stop_file for action in config.act.actions)]
        yield from (str(Path(stop).parent) for stop in stops if stop)
    for access in (config.engine, config.act_engine):
        if access.tls is not None:
            yield from (access.tls.ca, access.tls.certificate, access.tls.key)


def _existing(paths: Iterator[str]) -> Iterator[str]:
    """Absolute ones that are there; of the system only what every sandbox shows anyway."""
    for path in dict.fromkeys(paths):
        if path.startswith("/") and os.path.exists(path) and not any(is_inside(path, own) for own in ("/usr", "/etc")):
            yield path


def _gpus(config: WorkerConfig) -> Iterator[int]:
    """All of the machine, if a model may use one."""
    wanted = config.think is not None and any(model.device is not Device.CPU for model in config.think.models)
    for path in sorted(Path("/dev").glob("nvidia[0-9]*")) if wanted else ():
        yield int(path.name.removeprefix("nvidia"))


# Is that worker alive? One process of one worker: started, watched, started again with growing pauses, stopped.


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
    read_end, says = os.pipe()
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
        return process, await asyncio.to_thread(_child_pid, read_end) or process.pid
    finally:
        os.close(read_end)


def command_of(stage: str, config_file: Path) -> list[str]:
    return [sys.executable, "-m", "harch.pipelines.workers", stage, "--config", str(config_file)]


def _child_pid(read_end: int) -> int:
    """What bubblewrap says of the process in it; 0 if it ended before."""
    output = b""
    while b"\n" not in output and (piece := os.read(read_end, 4096)):
        output += piece
    try:
        return int(json.loads(output.splitlines()[0])["child-pid"])
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
        self._watch_task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the worker itself, also where a sandbox is around it."""
        process = self._process
        if process is None or process.returncode is not None:
            return None
        return process.pid if self._sandbox is None else self._inner_pid

    async def start(self) -> None:
        await self._launch()
        self._watch_task = asyncio.create_task(self._keep(), name=f"keep-{self.worker}")

    async def stop(self, *, grace_s: float = DRAIN_GRACE_S) -> bool:
        """Lets it drain (SIGTERM), then insists. True if it ended by itself."""
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.gather(self._watch_task, return_exceptions=True)
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
            self._emit("stopped", "did not drain in time and was killed")
            return False
        self._emit("stopped", f"exit status {process.returncode}")
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
        self._emit("started", f"pid {self._process.pid}")

    def _signal(self, process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        """To the worker: what is around it would end without letting it drain."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid or process.pid, number)

    async def _keep(self) -> None:
        pause_s = BACKOFF_S_FIRST
        while self._process is not None:
            began_s = self._clock.monotonic_s()
            status = await self._process.wait()
            self._emit("ended", f"exit status {status}")
            if self._clock.monotonic_s() - began_s > STEADY_S:
                pause_s = BACKOFF_S_FIRST
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_S_MAX)
            await self._launch()

    def _emit(self, what: str, detail: str) -> None:
        self._on_event(WorkerEvent(worker=self.worker, what=what, detail=detail))

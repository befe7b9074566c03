"""Does the message engine run? One supervised server: started, watched, started again, stopped; its log read aloud."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from harch.base.clock import Clock, SystemClock
from harch.base.errors import HarchError
from harch.execution.process_record import RunningProcess, found_running
from harch.pipelines.engine.keys import write_secret
from harch.pipelines.engine.layout import Layout, Server
from harch.pipelines.engine.log_lines import EngineEvent, Happening, LineCutter, read_line, reread_outcome
from harch.pipelines.engine.process import start_process
from harch.pipelines.engine.tethered import tethered_command

READY_TIMEOUT_S = 30.0
STOP_GRACE_S = 10.0
RELOAD_TIMEOUT_S = 10.0
BACKOFF_S_FIRST, BACKOFF_S_MAX = 0.2, 10.0
STEADY_S = 5.0  # after so long without an end, the next pause is short again
LOG_POLL_S = 0.2
LOG_READ_BYTES_MAX = 1 << 20
POLL_S = 0.05

EventSink = Callable[[EngineEvent], None]


def user_names(layout: Layout) -> dict[str, str]:
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
                raise HarchError("E0703", f"{self.server.name} does not become ready", hint=self._last_words())
            await self._clock.sleep(POLL_S)
        self._tell(Happening.STARTED, f"pid {process.record.pid}")

    async def _supervise(self) -> None:
        """Starts it again whenever it ends, with pauses that grow while it keeps ending soon."""
        pause_s = BACKOFF_S_FIRST
        while self._process is not None:
            began_s = self._clock.monotonic_s()
            status = await self._process.ended()
            self._tell(Happening.ENDED, f"exit status {status}")
            if self._clock.monotonic_s() - began_s > STEADY_S:
                pause_s = BACKOFF_S_FIRST
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, BACKOFF_S_MAX)
            self._process = self._launch()
            try:
                await self._become_ready(self._process)
            except HarchError as error:
                self._tell(Happening.GIVEN_UP, f"{error.message}; next attempt in {pause_s:.1f} s")
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
                return f"it said: {wrong[-1][-300:]}"
        return f"see {self.server.log_file}"

    def _tell(self, what: Happening, detail: str) -> None:
        self._on_event(EngineEvent(server=self.server.name, what=what, detail=detail))

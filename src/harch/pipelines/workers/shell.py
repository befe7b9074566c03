"""What do all workers have in common?

Connections, signals, a status each second, alerts, an HTTP server on loopback for those that listen, and an orderly
end.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from harch.base.clock import Clock, SteadyClock, SystemClock
from harch.base.egress import EgressGuard
from harch.base.errors import HarchError
from harch.base.listen.gate import ConnectionGate
from harch.base.listen.http_server import BACKLOG, http_server
from harch.pipelines.client.aio import AioClient
from harch.pipelines.client.bucket import Conflict, NatsBucket, Unreachable
from harch.pipelines.client.errors import AuthorizationFailed, NatsError, as_harch_error
from harch.pipelines.client.protocol import Message
from harch.pipelines.listener_keys import LOOPBACK, check_headers
from harch.pipelines.workers.config import TOKEN, WorkerConfig
from harch.pipelines.workers.local_engine import connect
from harch.pipelines.workers.telemetry import StatusMeter, WindowSpans, WorkerAlert, WorkerStatus, memory_bytes
from harch.sovereignty.jurisdictions import EgressRule

# What do all workers have in common? Connections, signals, a status each second, alerts, and an orderly end.
#
# SIGTERM means drain: finish what is there, save it, give leases back. A worker whose supervisor is gone drains too, so
# that nothing runs unattended. A second process of the same name is refused by a lock on a file.


CONNECT_TIMEOUT_S = 60.0
DRAIN_S_MAX = 25.0  # below the grace of the supervisor
ORPHAN_POLL_S = 1.0
WANTED_POLL_S = 0.5  # what is wanted is looked at so often, and at once when the control subject says so
REFUSALS_REPORTED_EVERY_S = 10.0

log = logging.getLogger(__name__)


class StageReport(Struct, kw_only=True):
    """What a stage tells about itself for the next status."""

    counters: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    partitions: tuple[int, ...] = ()
    lag: float = 0.0
    done: float = 0.0  # a counter: its growth is the rate
    drained: float = 0.0  # a counter of what `lag` counts
    latency_ms: dict[str, float] = field(default_factory=dict)
    latency_counts: tuple[int, ...] = ()
    endpoints: dict[str, str] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    trouble: str = ""


class StageBody(Protocol):
    """One stage. `run` returns when it has drained after `stop`; what it raises ends the process."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    async def look(self) -> None:
        """Something that is wanted may have changed: assignment, models, policy."""
        ...

    def report(self) -> StageReport: ...


class Shell:
    """One worker process."""

    def __init__(self, config: WorkerConfig, *, clock: Clock | None = None) -> None:
        self.config = config
        self.names = config.names
        self.clock = clock or SteadyClock(SystemClock())
        self.process = os.environ.get(TOKEN) or secrets.token_hex(6)
        self.client = AioClient(config.engine.options(config.worker), clock=self.clock)
        self.act_client = AioClient(config.act_engine.options(config.worker), clock=self.clock)
        self.state = NatsBucket(self.client, self.names.state_bucket)
        self.folder = Path(config.state_folder)
        self.spans = WindowSpans(config, self.clock, self._publish_spans) if config.trace_share else None
        self._statuses = NatsBucket(self.client, self.names.status_bucket)
        self._meter = StatusMeter()
        self._lock: int | None = None
        self._draining = False
        self._refused: dict[str, int] = {}  # connections, by what wanted them
        self._refusals_reported_s: dict[str, float] = {}
        self.is_orphan = False  # all others end now, too: nobody takes what we would still send
        self._control_received = asyncio.Event()

    @property
    def speaks_to_act(self) -> bool:
        """Others have no user at the engine of outputs."""
        return self.config.stage == "act" or (self.config.stage != "source" and self.config.into != "think")

    def claim_name(self) -> None:
        """Raises E0750 while another process of this name lives on this machine. The lock goes with the process."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(self.folder / f"{self.config.worker}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HarchError(
                "E0750", f"a worker `{self.config.worker}` is already running", hint="stop it, or use another name"
            ) from None

    async def run(self, make: Callable[[Shell], StageBody]) -> None:
        """Until SIGTERM and drained. Raises E0701 without an engine, and whatever ends the stage."""
        await connect(self.client, self.clock, CONNECT_TIMEOUT_S)
        if self.speaks_to_act:
            await connect(self.act_client, self.clock, CONNECT_TIMEOUT_S)
        self.client.subscribe(self.names.control, self._on_control)
        try:
            body = make(self)
            helpers = [
                asyncio.create_task(self._publish_status(body), name="status"),
                asyncio.create_task(self._watch_wanted(body), name="wanted"),
            ]
            self._on_signal(body)
            try:
                running = asyncio.create_task(body.run(), name=self.config.stage)
                orphan = asyncio.create_task(self._watch_parent(body), name="parent")
                helpers.append(orphan)
                await asyncio.wait((running, *helpers), return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    raise next(task for task in helpers if task.done()).exception() or HarchError(
                        "E1001", "a task of the worker ended unexpectedly"
                    )
                await running
            finally:
                for task in helpers:
                    task.cancel()
                await asyncio.gather(*helpers, return_exceptions=True)
        finally:
            await self.client.close()
            await self.act_client.close()

    def alert(self, rule: str, detail: str, count: int = 1) -> None:
        """Tells whoever listens; also in the log, since nobody may."""
        log.warning("alert %s: %s (%d)", rule, detail, count)
        alert = WorkerAlert(
            pipeline=self.config.pipeline,
            worker=self.config.worker,
            stage=self.config.stage,
            rule=rule,
            detail=detail[:500],
            count=count,
            at_ms=self.now_ms(),
        )
        with contextlib.suppress(NatsError):  # the log has it
            self.client.publish(self.names.alerts, msgspec.json.encode(alert))

    def guard(self, what: str, rule: EgressRule) -> EgressGuard:
        """Judges every address that this sink or source would connect to. Threads may ask it."""
        loop = asyncio.get_running_loop()

        def refused(detail: str) -> None:
            loop.call_soon_threadsafe(self._connection_refused, what, detail)

        return EgressGuard(rule.refusal, on_refused=refused)

    def _connection_refused(self, what: str, detail: str) -> None:
        """Counted always; reported now and then, because whoever was refused tries again."""
        self._refused[what] = self._refused.get(what, 0) + 1
        now_s = self.clock.monotonic_s()
        if now_s - self._refusals_reported_s.get(what, -REFUSALS_REPORTED_EVERY_S) >= REFUSALS_REPORTED_EVERY_S:
            self._refusals_reported_s[what] = now_s
            self.alert("egress", f"{what} was not connected: {detail}", self._refused[what])

    def _publish_spans(self, message: bytes) -> None:
        with contextlib.suppress(NatsError):  # whoever is cut off has other worries
            self.client.publish(self.names.spans, message)

    def now_ms(self) -> int:
        return round(self.clock.now().timestamp() * 1000)

    def _on_signal(self, body: StageBody) -> None:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._drain, body, f"signal {signum}")

    def _drain(self, body: StageBody, why: str) -> None:
        if not self._draining:
            log.info("draining: %s", why)
            self._draining = True
            body.stop()
            asyncio.get_running_loop().call_later(DRAIN_S_MAX, os._exit, 3)  # what is not saved is replayed

    async def _watch_parent(self, body: StageBody) -> None:
        parent = os.getppid()
        while os.getppid() == parent:
            self._check_keys()
            await self.clock.sleep(ORPHAN_POLL_S)
        self.is_orphan = True
        self._drain(body, "the supervisor is gone")
        await asyncio.get_running_loop().create_future()

    def _check_keys(self) -> None:
        """An engine that knows our key no longer ends us: whoever starts us again has a new one."""
        for client in (self.client, self.act_client):
            for error in client.refusals:
                if isinstance(error, AuthorizationFailed):
                    raise as_harch_error(error, f"connecting again to {client.options.servers[0]}")

    def _on_control(self, message: Message) -> None:
        self._control_received.set()

    async def _watch_wanted(self, body: StageBody) -> None:
        while True:
            try:
                await body.look()
            except (Unreachable, NatsError, msgspec.MsgspecError) as error:
                log.warning("could not read the desired state: %s", error)
            try:
                async with asyncio.timeout(WANTED_POLL_S):
                    await self._control_received.wait()
            except TimeoutError:
                pass
            self._control_received.clear()

    async def _publish_status(self, body: StageBody) -> None:
        while True:
            status = self._status(body.report())
            try:
                await self._statuses.put(self.config.worker, msgspec.json.encode(status))
            except (Unreachable, Conflict) as error:
                log.warning("could not report the status: %s", error)
            if self.spans is not None:
                self.spans.flush()
            await self.clock.sleep(self.config.status_every_s)

    def _status(self, report: StageReport) -> WorkerStatus:
        self._meter.look(self.clock.monotonic_s(), report.done, report.drained)
        health = "draining" if self._draining else "trouble" if report.trouble else "ok"
        config = self.config
        return WorkerStatus(
            worker=config.worker,
            stage=config.stage,
            pipeline=config.pipeline,
            at_ms=self.now_ms(),
            incarnation=self.process,
            pid=os.getpid(),
            health=health,
            trouble=report.trouble,
            partitions=report.partitions,
            counters=report.counters | ({"connections_refused": sum(self._refused.values())} if self._refused else {}),
            gauges=report.gauges,
            lag=report.lag,
            rate=self._meter.rate,
            drain_rate=self._meter.drain_rate,
            busy=self._meter.busy,
            memory_bytes=memory_bytes(),
            latency_ms=report.latency_ms,
            latency_counts=report.latency_counts,
            endpoints=report.endpoints,
            details=report.details,
        )


# How does a worker serve HTTP? One application on loopback, until its caller is done.


_STOP_S = 1.0


@contextlib.asynccontextmanager
async def serve(app: Any, port: int) -> AsyncIterator[str]:
    """Yields the address, with the port that it got, while the application is served. The application asks for a key
    itself, or is `keyed`."""
    listener = socket.create_server((LOOPBACK, port), backlog=BACKLOG, reuse_port=False)
    try:
        gate = ConnectionGate(f"worker on port {port}")
        async with http_server(app, listener, gate, graceful_stop_s=_STOP_S):
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
    finally:
        listener.close()


def keyed(app: Any, key_sha256: str) -> Any:
    """The same application, for those who show the key of this digest; of others nothing is read."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}
        try:
            check_headers(headers, key_sha256)
        except HarchError as error:
            refusal = {"code": error.code, "message": error.message, "hint": error.hint}
            named = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": error.kind.status, "headers": named})
            await send({"type": "http.response.body", "body": msgspec.json.encode(refusal)})
            return
        await app(scope, receive, send)

    return guarded

"""How does an agent process live, and how does it stay in touch with its hub?

From the lock on its state folder to an orderly end; a WebSocket, heartbeats, reconnection.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from harch.base.clock import SteadyClock, SystemClock
from harch.base.errors import HarchError
from harch.base.tracing.tracer import Tracing
from harch.execution.admission import AgentConfig, Premises
from harch.execution.agent import Agent
from harch.execution.content.node import NodeContent
from harch.execution.isolation import cgroups, sandbox
from harch.execution.local_engine import LocalEngine
from harch.execution.modelled_engine import ModelledEngine
from harch.execution.preparation import Preparation, StateFolder
from harch.execution.protocol import (
    FRAME_BYTES_MAX,
    HEARTBEAT_S,
    AgentHello,
    AgentMessage,
    TaskLogChunk,
    decode_hub_frame,
    encode_frame,
)
from harch.execution.task_spans import TaskSpans
from harch.execution.trash import Trash

CONNECT_PATH = "/v1/agents/connect"
CONNECT_TIMEOUT_S = 5.0
PING_S = 5.0  # a hub that has vanished without a word is noticed after two of these
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.05, 1.0
STABLE_S = 5.0  # a connection that lasted less counts as a failure, else a hub that hangs up would be flooded
MESSAGES_PER_FRAME_MAX = 2_000
FRAME_LOG_BYTES_MAX = 2 * 1024 * 1024  # log chunks are large; the other messages are not

log = logging.getLogger(__name__)


class AgentSession:
    """Keeps one connection to the hub, for as long as it runs. `say_hello` is asked anew for each connection."""

    def __init__(self, agent: Agent, *, hub_url: str, api_key: str, say_hello: Callable[[], AgentHello]) -> None:
        self._agent, self._api_key, self._say_hello = agent, api_key, say_hello
        self._url = connect_url(hub_url)
        self._ready = asyncio.Event()
        agent.wake = self._ready.set
        self.is_connected = False

    async def run(self) -> None:
        """Ends only by cancellation, or by an error that trying again cannot mend."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            try:
                async with connect(
                    self._url,
                    additional_headers={"X-API-Key": self._api_key},
                    compression=None,
                    max_size=FRAME_BYTES_MAX,
                    open_timeout=CONNECT_TIMEOUT_S,
                    close_timeout=1,
                    ping_interval=PING_S,
                    ping_timeout=PING_S,
                    proxy=None,
                ) as socket:
                    connected_s = loop.time()
                    await self._converse(socket)
                    if loop.time() - connected_s > STABLE_S:
                        failures = 0
            except InvalidStatus as error:
                if error.response.status_code in (401, 403):
                    raise HarchError(
                        "E0102" if error.response.status_code == 401 else "E0103",
                        f"the hub at {self._url} does not accept this agent's key",
                        hint="make one with role `agent` on that hub and pass it to `harch agent serve`",
                    ) from error
                log.warning("hub %s answers %s", self._url, error.response.status_code)
            except msgspec.DecodeError as error:
                log.error("hub %s sent a message that this agent does not understand: %s", self._url, error)
            except (OSError, WebSocketException, TimeoutError) as error:
                log.info("no connection to hub %s: %s", self._url, error)
            finally:
                self.is_connected = False
            failures += 1
            await asyncio.sleep(backoff_s(failures, random.random()))  # noqa: S311 - jitter, not a secret

    async def _converse(self, socket: ClientConnection) -> None:
        # Inventory and outbox are taken in one step: what happens while the Hello travels goes out after it.
        hello: list[AgentMessage] = [self._say_hello()]
        self._agent.connected()
        await socket.send(encode_frame(hello))
        self.is_connected = True
        log.info("connected to hub %s", self._url)
        sender = asyncio.create_task(self._send_all(socket))
        try:
            async for frame in socket:
                if isinstance(frame, str):
                    raise WebSocketException("the hub sent text; this is not our protocol")
                for message in decode_hub_frame(frame):
                    self._agent.handle(message)
        except asyncio.CancelledError:
            await socket.close(1001, "the agent leaves")
            raise
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    async def _send_all(self, socket: ClientConnection) -> None:
        loop = asyncio.get_running_loop()
        beat_due_s = loop.time() + HEARTBEAT_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(beat_due_s):
                    await self._ready.wait()
            await asyncio.sleep(0)  # let this turn of the loop add what it has
            self._ready.clear()
            while True:
                messages = self._agent.take_outbox(MESSAGES_PER_FRAME_MAX)
                if loop.time() >= beat_due_s:
                    messages.append(self._agent.heartbeat())
                    beat_due_s = loop.time() + HEARTBEAT_S
                if not messages:
                    break
                for batch in split(messages):
                    await socket.send(encode_frame(batch))


def connect_url(hub_url: str) -> str:
    """From the hub's address as people write it (http or ws) to the agents' door."""
    parts = urlsplit(hub_url)
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if parts.scheme not in schemes or not parts.netloc:
        raise HarchError("E0201", f"`{hub_url}` is not the address of a hub", hint="e.g. http://127.0.0.1:7701")
    path = parts.path.rstrip("/")
    return f"{schemes[parts.scheme]}://{parts.netloc}{path.removesuffix(CONNECT_PATH)}{CONNECT_PATH}"


def backoff_s(failures: int, jitter: float) -> float:
    """Doubles up to one second, of which half is random: five agents must not knock at the same moment."""
    ceiling_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * float(1 << min(failures, 10)))
    return ceiling_s * (0.5 + 0.5 * jitter)


def split(messages: list[AgentMessage]) -> list[list[AgentMessage]]:
    """Frames that stay below the limit however long the log chunks are."""
    batches: list[list[AgentMessage]] = [[]]
    log_bytes = 0
    for message in messages:
        size = len(message.data) if isinstance(message, TaskLogChunk) else 0
        if log_bytes + size > FRAME_LOG_BYTES_MAX and batches[-1]:
            batches.append([])
            log_bytes = 0
        batches[-1].append(message)
        log_bytes += size
    return batches


# How does an agent process live? From the lock on its state folder to an orderly end.
#
# By default, tasks outlive the agent and are adopted by the next one. With `stop_tasks_on_exit`, they are stopped
# first.


SHUTDOWN_GRACE_S = 5.0  # between TERM and KILL, when the agent stops its tasks; a task's own grace may be an hour
SHUTDOWN_KILL_S = 3.0
SHUTDOWN_FORGET_S = 3.0
POLL_S = 0.01


async def serve(config: AgentConfig, *, stop: asyncio.Event | None = None, tracing: Tracing | None = None) -> None:
    """Runs an agent until SIGTERM or SIGINT, or until `stop` is set by a caller who handles signals itself.

    Raises E0312 where tasks must be confined and cannot be: a node that starts nothing should not be given work.
    """
    state = StateFolder(Path(_real(config.state_dir)))
    with held(state):
        if stop is None:
            stop = asyncio.Event()
            for signum in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(signum, stop.set)
        await _serve(config, state, stop, TaskSpans(tracing) if tracing is not None else None)


async def _serve(config: AgentConfig, state: StateFolder, stop: asyncio.Event, spans: TaskSpans | None) -> None:
    clock = SteadyClock(SystemClock())
    hidden = tuple(_real(folder) for folder in (state.root, state.secrets, *config.hide))
    shared = tuple(_real(folder) for folder in config.share)
    box = sandbox.choose(config.sandbox, state.trash)
    box.check()
    limits = cgroups.detect(state.tag)
    premises = Premises(config.country, frozenset(config.node_ids), shared, hidden, config.safeguards, box.refusal)
    agent = Agent(premises, clock, spans)
    trash = Trash(state.trash)
    trash.empty()
    content = NodeContent(config, state, premises, box, clock, trash)
    content.open()
    preparation = Preparation(state, box, limits, hidden)
    local = LocalEngine(preparation, content, agent, clock, trash, process_slots=config.process_slots)
    modelled = ModelledEngine(agent, clock)
    agent.use(local, modelled)
    tools = await asyncio.to_thread(content.find_tools)
    features = {**box.features(), **limits.features(), **tools.features()}

    def say_hello() -> AgentHello:
        return agent.hello(
            agent_id=config.agent_id,
            process_slots=config.process_slots,
            address=config.address,
            gang_ports=config.gang_ports,
            features=features,
        )

    local.recover()
    content.tidy()
    if spans is not None:
        for known in local.running():
            launched = state.task(known.key).launch_spec()
            spans.adopted(known, launched.env if launched is not None else {})
    session = AgentSession(agent, hub_url=config.hub_url, api_key=config.api_key, say_hello=say_hello)
    talking = asyncio.create_task(session.run())
    waiting = asyncio.create_task(stop.wait())
    tidying = asyncio.create_task(content.stay_tidy())
    try:
        await asyncio.wait({talking, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if talking.done():
            talking.result()  # raises what ended it
        elif config.stop_tasks_on_exit:
            await _stop_tasks(agent, session)
    finally:
        for task in (talking, waiting, tidying):
            task.cancel()
        await asyncio.gather(talking, waiting, tidying, return_exceptions=True)
        local.close()
        content.close()
        modelled.close()
        limits.close()
        state.close()


async def _stop_tasks(agent: Agent, session: AgentSession) -> None:
    """Stops all tasks, then waits until the hub has their ends; what it could not hear is on disk for the next time."""
    agent.stop_everything(grace_s=SHUTDOWN_GRACE_S)
    await _until(lambda: agent.is_quiet, timeout_s=SHUTDOWN_GRACE_S + SHUTDOWN_KILL_S)
    await _until(lambda: agent.is_idle or not session.is_connected, timeout_s=SHUTDOWN_FORGET_S)


def _real(folder: Path) -> str:
    """Free of links: paths are compared as text from here on."""
    return os.path.realpath(folder)


async def _until(condition: Callable[[], bool], *, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - once in the life of a process, for a few seconds
                await asyncio.sleep(POLL_S)


@contextlib.contextmanager
def held(state: StateFolder) -> Iterator[None]:
    """Makes the state folder and keeps every other agent out of it."""
    fd = -1
    try:
        state.make()
        fd = os.open(state.root / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        hint = "stop that agent, or give this one another state folder"
        raise HarchError("E1005", f"another agent uses {state.root}", hint=hint) from error
    except OSError as error:
        hint = "give the agent a folder that it may write"
        raise HarchError("E1005", f"{error.filename or state.root}: {error.strerror}", hint=hint) from error
    try:
        yield
    finally:
        os.close(fd)

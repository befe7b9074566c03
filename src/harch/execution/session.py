"""How do agent and hub stay in touch? The thin shell around the agent's core: a WebSocket, heartbeats, reconnection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from harch.base.errors import HarchError
from harch.execution.agent import Agent
from harch.execution.protocol import (
    FRAME_BYTES_MAX,
    HEARTBEAT_S,
    AgentMessage,
    Hello,
    LogChunk,
    decode_hub_frame,
    encode_frame,
)

CONNECT_PATH = "/v1/agents/connect"
CONNECT_TIMEOUT_S = 5.0
PING_S = 5.0  # a hub that has vanished without a word is noticed after two of these
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.05, 1.0
STABLE_S = 5.0  # a connection that lasted less counts as a failure, else a hub that hangs up would be flooded
MESSAGES_PER_FRAME_MAX = 2_000
FRAME_LOG_BYTES_MAX = 2 * 1024 * 1024  # log chunks are large; the other messages are not

log = logging.getLogger(__name__)


class Session:
    """Keeps one connection to the hub, for as long as it runs. `say_hello` is asked anew for each connection."""

    def __init__(self, agent: Agent, *, hub_url: str, api_key: str, say_hello: Callable[[], Hello]) -> None:
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
                log.error("hub %s says what this agent does not understand: %s", self._url, error)
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
        size = len(message.data) if isinstance(message, LogChunk) else 0
        if log_bytes + size > FRAME_LOG_BYTES_MAX and batches[-1]:
            batches.append([])
            log_bytes = 0
        batches[-1].append(message)
        log_bytes += size
    return batches

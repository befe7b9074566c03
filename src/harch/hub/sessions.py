"""Which agents are on the line? One session per connection: frames in, batched frames out, log requests matched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from harch.base.errors import HarchError
from harch.execution.protocol import (
    AGENT_LOST_AFTER_S,
    AgentMessage,
    Hello,
    HubMessage,
    LogChunk,
    ReadLog,
    Refused,
    TaskKey,
    decode_agent_frame,
    encode_frame,
)

OUTBOX_MAX = 200_000  # messages; an agent that far behind is cut off and reconciles when it returns
FRAME_MESSAGES_MAX = 500
HELLO_WITHIN_S = 10.0
LOG_WITHIN_S = 10.0


class AgentLink(Protocol):
    """A connection to an agent. `receive` raises `ConnectionError` when it is closed."""

    @property
    def peer(self) -> str: ...

    async def receive(self) -> bytes: ...

    async def send(self, frame: bytes) -> None: ...


class Session:
    """One connection of one agent."""

    def __init__(self, link: AgentLink, number: int, key_id: str) -> None:
        self.link = link
        self.key_id = key_id
        self.number = number
        self.hello: Hello | None = None
        self._outbox: list[HubMessage] = []
        self._something_to_send = asyncio.Event()
        self._logs: dict[int, asyncio.Future[LogChunk]] = {}
        self._requests = 0
        self._closing = ""

    async def run(
        self, joined: Callable[[Session, Hello], None], received: Callable[[Session, list[AgentMessage]], None]
    ) -> str:
        """Until the connection ends; returns why it ended."""
        why = ""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write())
                group.create_task(self._read(joined, received))
        except* ConnectionError as errors:
            why = str(errors.exceptions[0])
        except* TimeoutError:
            why = f"no message for {AGENT_LOST_AFTER_S:g} s"
        except* msgspec.DecodeError as errors:
            why = f"sent what the hub cannot read: {errors.exceptions[0]}"
        finally:
            for future in self._logs.values():
                if not future.done():
                    future.set_exception(_no_log())
        return self._closing or why or "connection closed"

    def send(self, message: HubMessage) -> None:
        if len(self._outbox) >= OUTBOX_MAX:
            self.close("too far behind")
            return
        self._outbox.append(message)
        self._something_to_send.set()

    def close(self, why: str) -> None:
        self._closing = why
        self._outbox.clear()
        self._something_to_send.set()

    async def read_log(self, key: TaskKey, offset: int, bytes_max: int) -> LogChunk:
        self._requests += 1
        request_id = self._requests
        future: asyncio.Future[LogChunk] = asyncio.get_running_loop().create_future()
        self._logs[request_id] = future
        self.send(ReadLog(request_id, key, offset, bytes_max))
        try:
            async with asyncio.timeout(LOG_WITHIN_S):
                return await future
        except TimeoutError as error:
            raise _no_log() from error
        finally:
            del self._logs[request_id]

    async def _write(self) -> None:
        while True:
            await self._something_to_send.wait()
            self._something_to_send.clear()
            while self._outbox:
                batch, self._outbox = self._outbox[:FRAME_MESSAGES_MAX], self._outbox[FRAME_MESSAGES_MAX:]
                await self.link.send(encode_frame(batch))
                if any(isinstance(message, Refused) for message in batch):
                    self._closing = "refused"
            if self._closing:
                raise ConnectionError(self._closing)

    async def _read(
        self, joined: Callable[[Session, Hello], None], received: Callable[[Session, list[AgentMessage]], None]
    ) -> None:
        while True:
            async with asyncio.timeout(AGENT_LOST_AFTER_S if self.hello else HELLO_WITHIN_S):
                frame = await self.link.receive()
            reports: list[AgentMessage] = []
            for message in decode_agent_frame(frame):
                if isinstance(message, LogChunk):
                    future = self._logs.get(message.request_id)
                    if future is not None and not future.done():
                        future.set_result(message)
                elif isinstance(message, Hello):
                    if self.hello is not None:
                        raise ConnectionError("said twice who it is")
                    self.hello = message
                    joined(self, message)
                else:
                    reports.append(message)
            if self.hello is not None and reports:
                received(self, reports)


def _no_log() -> HarchError:
    return HarchError(
        "E0801", "the agent that holds the log does not answer", hint="try again; `harch events` tells about agents"
    )

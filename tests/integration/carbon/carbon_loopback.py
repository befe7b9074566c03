"""A double of a web API behind a real socket on loopback, with the faults that only a wire can have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx

from unit.carbon.signals.carbon_apis import Double

WireFault = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]


async def silence(_writer: asyncio.StreamWriter, _answer: bytes) -> None:
    """Takes the request and never answers; the test's end closes it."""
    await asyncio.Event().wait()


async def drip(writer: asyncio.StreamWriter, answer: bytes) -> None:
    """Begins to answer and never comes to the end: no single read takes long, the whole takes forever."""
    head, _, _ = answer.partition(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def truncation(writer: asyncio.StreamWriter, answer: bytes) -> None:
    """Closes in the middle of the body that it has announced."""
    writer.write(answer[: len(answer) - 40])
    await writer.drain()


async def hang_up(_writer: asyncio.StreamWriter, _answer: bytes) -> None:
    """Closes without a word."""


async def babble(writer: asyncio.StreamWriter, _answer: bytes) -> None:
    """Speaks another protocol."""
    writer.write(b"220 smtp.test ESMTP ready\r\n")
    await writer.drain()


class Loopback:
    """Serves one double. `fault`, if set, takes the place of a proper answer."""

    def __init__(self, double: Double) -> None:
        self.double = double
        self.fault: WireFault | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Loopback]:
        self._open: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            target = head[0].split(" ")[1]
            headers = dict(line.split(": ", 1) for line in head[1:] if line)
            response = self.double.handle(httpx.Request("GET", f"{self.url}{target}", headers=headers))
            answer = _wire(response)
            if self.fault is not None:
                await self.fault(writer, answer)
            else:
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()


def _wire(response: httpx.Response) -> bytes:
    names = {name: value for name, value in response.headers.items() if name != "content-length"}
    lines = [f"{name}: {value}" for name, value in names.items()]
    head = [
        f"HTTP/1.1 {response.status_code} x",
        *lines,
        f"Content-Length: {len(response.content)}",
        "Connection: close",
    ]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + response.content

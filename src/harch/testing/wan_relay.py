"""How does a test outside reach a server inside a namespace? Through a port on its own loopback that leads there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

READ_BYTES_MAX = 1 << 16


class Relay:
    """Carries TCP connections from local ports to servers that only `make_socket` can reach. One thread for all."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wan-relay", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._thread.start()

    def open(self, make_socket: Callable[[], socket.socket], host: str, port: int) -> int:
        """The local port that leads to `host:port`. A connection that fails there is closed here."""

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(OSError):
                inner = make_socket()
                inner.setblocking(False)
                with contextlib.closing(inner):
                    await self._loop.sock_connect(inner, (host, port))
                    inner_reader, inner_writer = await asyncio.open_connection(sock=inner)
                    with contextlib.closing(inner_writer):
                        await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))

        async def listen() -> int:
            server = await asyncio.start_server(carry, "127.0.0.1", 0)
            self._servers.append(server)
            return int(server.sockets[0].getsockname()[1])

        return asyncio.run_coroutine_threadsafe(listen(), self._loop).result()

    def close(self) -> None:
        """Ends every connection."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction; the end of one stream is passed on while the other may still speak."""
    while data := await reader.read(READ_BYTES_MAX):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()

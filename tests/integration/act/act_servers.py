"""Real far sides for ACT: a webhook that writes down what it did and dies in mid-answer, and a NATS server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote

WAIT_S = 60.0


async def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something to become true; generous, because machines may be busy."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"never happened: {what}") from None


class RecordingHook:
    """An HTTP server by hand, so that it can die at any byte.

    `trouble`: the share of requests whose answer is lost, half of them after the effect and half before it.
    """

    def __init__(self, *, honours_key: bool, trouble: float = 0.0, seed: int = 0) -> None:
        self.honours_key, self.trouble = honours_key, trouble
        self.random = random.Random(seed)
        self.effects: Counter[str] = Counter()
        self.bodies: dict[str, dict[str, object]] = {}
        self.heads: list[dict[str, str]] = []
        self.requests = 0
        self.asked = 0
        self.held = 0
        self.hold = False  # effects happen, answers wait until the caller is gone
        self.status = 200
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[RecordingHook]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path, _ = head.split(" ", 2)
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                status = self._status(path) if method == "GET" else await self._act(reader, fields, body)
                if status is None:
                    break
                writer.write(f"HTTP/1.1 {status} -\r\ncontent-length: 0\r\n\r\n".encode())
                await writer.drain()
        writer.close()

    def _status(self, path: str) -> int:
        self.asked += 1
        return 200 if self.effects[unquote(path.rsplit("/", 1)[1])] else 404

    async def _act(self, reader: asyncio.StreamReader, fields: dict[str, str], body: bytes) -> int | None:
        self.requests += 1
        self.heads.append(fields)
        key = fields["idempotency-key"]
        if self.status != 200:
            return self.status
        lost = self.random.random() < self.trouble
        if lost and self.random.random() < 0.5:
            return None
        if not (self.honours_key and self.effects[key]):
            self.effects[key] += 1
            self.bodies[key] = json.loads(body)
        if self.hold:
            self.held += 1
            await reader.read(1)  # until the caller is killed
            return None
        return None if lost else 200


class NatsProcess:
    """A JetStream server that syncs before it acknowledges; `kill` and `start` again keep its port and its disk."""

    def __init__(self, folder: Path, *, more: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.port, self._more = folder, -1, more
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\nports_file_dir: "{self.folder}"\n'
            f'jetstream {{ store_dir: "{self.folder}/store", sync_interval: always }}\n{self._more}\n'
        )
        program = Path(sys.prefix) / "bin" / "nats-server"
        self._process = subprocess.Popen([program, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ports = self.folder / f"nats-server_{self._process.pid}.ports"
        await until(lambda: ports.exists() and ports.stat().st_size > 0, "the NATS server listens")
        self.port = int(json.loads(ports.read_text())["nats"][0].rsplit(":", 1)[1])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=20)


@asynccontextmanager
async def nats_server(folder: Path, *, more: str = "") -> AsyncIterator[NatsProcess]:
    server = NatsProcess(folder, more=more)
    await server.start()
    try:
        yield server
    finally:
        server.kill()
